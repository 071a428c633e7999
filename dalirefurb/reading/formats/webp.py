"""WebP: a RIFF file of chunks, each of a name, a length, and as many bytes, filled up to an even number."""

from __future__ import annotations

from dalirefurb.reading.formats.header import Header

_PLAIN = frozenset((b"VP8X", b"ICCP", b"ALPH", b"VP8 ", b"VP8L"))
"""Chunks that neither animate nor turn an image."""

_ICC_AND_ALPHA = 0x30
"""Flags of what changes neither place nor colour of a pixel here."""


def proven(content: memoryview) -> Header | None:
    """Read the header of a WebP with one image, of which neither EXIF data nor XMP say how it is turned."""
    if len(content) < 30 or bytes(content[8:12]) != b"WEBP":
        return None
    if int.from_bytes(content[4:8], "little") + 8 != len(content):
        return None
    start = 12
    while start < len(content):
        if bytes(content[start : start + 4]) not in _PLAIN:
            return None
        length = int.from_bytes(content[start + 4 : start + 8], "little")
        start += 8 + length + length % 2
    return _header(bytes(content[12:16]), bytes(content[20:30])) if start == len(content) else None


def _header(name: bytes, payload: bytes) -> Header | None:
    """Read the size from the first chunk."""
    if name == b"VP8X":
        width, height = (1 + int.from_bytes(payload[place : place + 3], "little") for place in (4, 7))
        return None if payload[0] & ~_ICC_AND_ALPHA else Header(height, width)
    if name == b"VP8 " and payload[3:6] == b"\x9d\x01\x2a":
        width, height = (int.from_bytes(payload[place : place + 2], "little") & 0x3FFF for place in (6, 8))
        return Header(height, width)
    if name == b"VP8L" and payload[0] == 0x2F:
        sides = int.from_bytes(payload[1:5], "little")
        return Header(1 + (sides >> 14 & 0x3FFF), 1 + (sides & 0x3FFF))
    return None
