"""A store in a file, used by one process at a time."""
