"""EXIF data, and where else files say how their image is turned."""

from __future__ import annotations

import struct

STATED = b"tiff:Orientation"
"""What XMP says an orientation with."""

_ORIENTATION, _SHORT = 274, 3
_ENTRY = {b"II*\0": "<HHIHH", b"MM\0*": ">HHIHH"}
"""Tag, type, count, and the first two bytes of a value that is not elsewhere, then two more."""


def orientation(data: bytes) -> int | None:
    """Return what EXIF data say of the orientation: 1 to 8; 0: nothing; None: readers may differ about it."""
    entry = _ENTRY.get(data[:4])
    if entry is None or len(data) < 8:
        return None
    (start,) = struct.unpack_from(entry[0] + "I", data, 4)
    if not 8 <= start <= len(data) - 2:
        return None
    (count,) = struct.unpack_from(entry[0] + "H", data, start)
    entries = data[start + 2 : start + 2 + 12 * count]
    if len(entries) != 12 * count:
        return None
    told = [rest for tag, *rest in struct.iter_unpack(entry, entries) if tag == _ORIENTATION]
    if not told:
        return 0
    kind, number, value, _ = told[0]
    return value if len(told) == 1 and (kind, number) == (_SHORT, 1) and 1 <= value <= 8 else None
