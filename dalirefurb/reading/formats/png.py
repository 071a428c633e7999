"""PNG: chunks, each of a length, a name, as many bytes, and a check sum."""

from __future__ import annotations

from dalirefurb.reading.formats.header import Header

_START = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"
"""The signature, and the first chunk's length and name."""

_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bits of a number that there are, by the kind of colours."""

_PLAIN = frozenset(b"PLTE IDAT IEND tRNS gAMA cHRM sRGB iCCP cICP pHYs sBIT bKGD hIST sPLT tIME tEXt zTXt iTXt".split())
"""Chunks that neither animate nor turn an image; of texts some do."""

_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_TURNING = (b"XML:com.adobe.xmp\0", b"Raw profile type ")
"""What texts begin with that may say how the image is turned."""

DEPTH = 24
"""Place of the bits of a number."""


def proven(content: memoryview) -> Header | None:
    """Read the header of a PNG of 8 bits or less, whole, with plain chunks only."""
    header = whole(content)
    return header if header is not None and content[DEPTH] <= 8 else None


def whole(content: memoryview) -> Header | None:
    """Read the header of a PNG of any depth, if its chunks are plain and go to its end; else None."""
    if len(content) < 33 or bytes(content[:16]) != _START:
        return None
    depth, colours, packed, filtered, interlaced = content[DEPTH : DEPTH + 5]
    if depth not in _DEPTHS.get(colours, ()) or packed or filtered or interlaced > 1:
        return None
    start, names = 33, [b""]
    while names[-1] != b"IEND":
        name = bytes(content[start + 4 : start + 8])
        text = bytes(content[start + 8 : start + 26]) if name in _TEXTS else b""
        stop = start + 12 + int.from_bytes(content[start : start + 4], "big")
        if name not in _PLAIN or stop > len(content) or text.startswith(_TURNING):
            return None
        names.append(name)
        start = stop
    if names.count(b"PLTE") > 1 or names.count(b"tRNS") > 1 or (colours == 3 and b"PLTE" not in names):
        return None
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    return Header(height, width) if max(width, height) < 2**31 else None
