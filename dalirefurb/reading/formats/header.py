"""Header: what is said of an image before its pixels."""

from __future__ import annotations

from typing import NamedTuple


class Header(NamedTuple):
    """What a header says.

    Attributes:
        height: Height in pixels, upright.
        width: Width in pixels, upright.
        orientation: Number of EXIF that says how the image is turned, 1 to 8; 1: not at all.
        head: Number of bytes that decide, together with the last ones, what is said here; 0: all do.
    """

    height: int
    width: int
    orientation: int = 1
    head: int = 0
