"""Kinds of image files that DALI decodes exactly as Pillow shows them; Pillow decodes all other files.

    kind                                                      module     proved in
    JPEG of 8 bits, gray or colours, arithmetic ones, too     jpeg       tests/reading/test_proven.py
    PNG: up to 8 bits, of chunks that change no pixel         png
    WebP: one image and nothing else                          webp
    PNM: P6 with 255 levels, of exactly its length            pnm

A file is of such a kind if its header can be read in one way only. Whatever else is in doubt, as an orientation that
two readers see differently, is no matter of DALI's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dalirefurb.reading.formats import jpeg, png, pnm, webp
from dalirefurb.reading.formats.header import Header

__all__ = ["Header", "jpeg", "png", "pnm", "proven", "webp"]

_KINDS = {b"\xff\xd8": jpeg.proven, b"\x89P": png.proven, b"RI": webp.proven, b"P6": pnm.proven}
"""How to read the header of a file, by its first two bytes."""


def proven(encoded: NDArray[np.uint8]) -> Header | None:
    """Read the header of a file, uint8 of shape (length,), of a kind that DALI decodes as Pillow does; else None."""
    content = encoded.data
    read = _KINDS.get(bytes(content[:2]))
    header = None if read is None else read(content)
    return header if header is not None and header.height > 0 and header.width > 0 else None
