"""WebP: a RIFF file with one chunk, of a name, a length, and as many bytes, filled up to an even number.

Files of several chunks tell size and alpha more than once, and readers do not all believe the same one.
"""

from __future__ import annotations

from dalirefurb.reading.formats.header import Header


def proven(content: memoryview) -> Header | None:
    """Read the header of a WebP that is nothing but one image."""
    if len(content) < 30 or (bytes(content[:4]), bytes(content[8:12])) != (b"RIFF", b"WEBP"):
        return None
    name, length = bytes(content[12:16]), int.from_bytes(content[16:20], "little")
    if not int.from_bytes(content[4:8], "little") + 8 == len(content) == 20 + length + length % 2:
        return None
    payload = bytes(content[20:30])
    if name == b"VP8 " and not payload[0] & 1 and payload[3:6] == b"\x9d\x01\x2a":
        width, height = (int.from_bytes(payload[place : place + 2], "little") & 0x3FFF for place in (6, 8))
        return Header(height, width)
    if name == b"VP8L" and payload[0] == 0x2F:
        sides = int.from_bytes(payload[1:5], "little")
        return Header(1 + (sides >> 14 & 0x3FFF), 1 + (sides & 0x3FFF)) if not sides >> 29 else None
    return None
