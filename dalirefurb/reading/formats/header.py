"""Header: what is said of an image before its pixels; and how EXIF data say that it is turned."""

from __future__ import annotations

import struct
from typing import NamedTuple

STATED = b"tiff:Orientation"
"""What XMP says an orientation with."""

_ORIENTATION, _SHORT = 274, 3
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
"""Bytes of a value, by its type."""

_WITHIN = 4
"""Bytes of values that are in their entry; others are at a place that it names."""


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


def orientation(data: bytes) -> int | None:
    """Return what EXIF data say of the orientation: 1 to 8; 0: nothing; None: readers may differ about it.

    They do where an entry before it is broken, after which some read on, and some do not.
    """
    order = _ORDERS.get(data[:4])
    if order is None or len(data) < 8:
        return None
    (start,) = struct.unpack_from(order + "I", data, 4)
    if not 8 <= start <= len(data) - 2:
        return None
    (count,) = struct.unpack_from(order + "H", data, start)
    entries = data[start + 2 : start + 2 + 12 * count]
    if len(entries) != 12 * count:
        return None
    told = []
    for tag, kind, number, place in struct.iter_unpack(order + "HHII", entries):
        size = number * _SIZES.get(kind, len(data))
        if size > _WITHIN and place + size > len(data):
            return None
        if tag == _ORIENTATION:
            told.append((kind, number, place >> 16 if order == ">" else place & 0xFFFF))
    if not told:
        return 0
    kind, number, value = told[0]
    return value if len(told) == 1 and (kind, number) == (_SHORT, 1) and 1 <= value <= 8 else None
