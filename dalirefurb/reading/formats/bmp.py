"""BMP: where the pixels begin, if there is nothing to doubt about them."""

from __future__ import annotations

import struct

MAGIC = b"BM"
"""What files begin with."""

_OLD_HEADER = 12
"""Bytes of the oldest header, with sides of 16 bits; newer ones say more."""

_NOT_COMPRESSED = (0, 3)
"""As they are, or with masks that say which bits are of which colour."""


def pixels(content: memoryview) -> int:
    """Return where the pixels of a BMP begin, if they are not compressed and all are there; else 0."""
    try:
        start, header = struct.unpack_from("<II", content, 10)
        if header == _OLD_HEADER:
            width, height, _, bits = struct.unpack_from("<HHHH", content, 18)
            compression = 0
        else:
            width, height, _, bits, compression = struct.unpack_from("<iiHHI", content, 18)
    except struct.error:
        return 0
    row = -(-abs(width) * bits // 32) * 4
    whole = compression in _NOT_COMPRESSED and 14 + header <= start and start + row * abs(height) <= len(content)
    return int(start) if whole else 0
