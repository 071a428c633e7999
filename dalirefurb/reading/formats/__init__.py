"""Formats of image files: what headers and bodies say."""


class StructureError(ValueError):
    """A file is not built as it must be, so that it can be read in one way only; says what of it."""
