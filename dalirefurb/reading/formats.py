"""Formats: kinds of image files that DALI decodes exactly as Pillow shows them; Pillow decodes all other files.

    JPEG of 8 bits, gray or colours, arithmetic ones, too
    PNG: up to 8 bits, of chunks that change no pixel
    WebP: one image and nothing else
    PNM: P6 with 255 levels, of exactly its length

`tests/reading/test_proven.py` proves each. A file is of such a kind if its header can be read in one way only. Whatever
else is in doubt, as an orientation that two readers see differently, is no matter of DALI's.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Header(NamedTuple):
    """What a header says.

    Attributes:
        height: Height in pixels, upright.
        width: Width in pixels, upright.
        head: Number of bytes that decide, together with the last ones, what is said here; 0: all do.
    """

    height: int
    width: int
    head: int = 0


def proven(encoded: NDArray[np.uint8]) -> Header | None:
    """Read the header of a file, uint8 of shape (length,), of a kind that DALI decodes as Pillow does; else None."""
    content = encoded.data
    read = _KINDS.get(bytes(content[:2]))
    header = None if read is None else read(content)
    return header if header is not None and header.height > 0 and header.width > 0 else None


JPEG_NEAR = 1024
"""Bytes at the end of a JPEG among which the end marker is looked for first; some files have others behind it."""

_JPEG_END = b"\xff\xd9"
"""The marker with which an image ends; entropy-coded data cannot contain it."""

_JPEG_FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
"""Markers of a baseline, an extended and a progressive image; and of an extended and a progressive arithmetic one."""

_JPEG_SCAN, _JPEG_EXIF_OR_XMP = 0xDA, 0xE1
_JPEG_OTHERS = frozenset((0xC4, 0xCC, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))
"""Markers of tables, restarts, comments, and what applications add."""

_JPEG_BITS = 8
_JPEG_COMPONENTS = (1, 3)
_EXIF, _XMP, _XMP_ORIENTATION = b"Exif\0\0", b"http://ns.adobe.com/x", b"tiff:Orientation"


def _jpeg(content: memoryview) -> Header | None:
    """Read the header of a JPEG of 8 bits, gray or of three colours, which has its end, and EXIF data once at most.

    Segments, each of a marker, a length, and as many bytes, go up to the first scan; then come entropy-coded data.
    """
    start, frame, turned, xmp = 2, b"", None, False
    while start + 4 <= len(content) and content[start] == 0xFF:
        marker = content[start + 1]
        stop = start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")
        if not start + 4 <= stop <= len(content):
            return None
        if marker == _JPEG_SCAN:
            turned = turned or (None if xmp else 1)
            if _JPEG_END in content[max(stop, len(content) - JPEG_NEAR) :].tobytes():
                return _jpeg_header(frame, turned, stop)
            return _jpeg_header(frame, turned, 0) if _JPEG_END in content[stop:].tobytes() else None
        if marker in _JPEG_FRAMES:
            if frame:
                return None
            frame = bytes(content[start + 4 : stop])
        elif marker not in _JPEG_OTHERS:
            return None
        elif marker == _JPEG_EXIF_OR_XMP:
            segment = bytes(content[start + 4 : stop])
            if segment[:4].lower() == b"exif":
                if not segment.startswith(_EXIF):
                    return None
                told = _orientation(segment[len(_EXIF) :])
                if told is None or turned is not None or frame:
                    return None
                turned = told
            xmp |= segment.startswith(_XMP) and _XMP_ORIENTATION in segment
        start = stop
    return None


def _jpeg_header(frame: bytes, turned: int | None, head: int) -> Header | None:
    if (
        turned is None
        or len(frame) < 6
        or frame[0] != _JPEG_BITS
        or frame[5] not in _JPEG_COMPONENTS
        or len(frame) != 6 + 3 * frame[5]
    ):
        return None
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    sides = (width, height) if turned > 4 else (height, width)
    return Header(*sides, head)


_ORIENTATION, _SHORT = 274, 3
_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8}
"""Bytes of a value, by its type."""

_WITHIN = 4
"""Bytes of values that are in their entry; others are at a place that it names."""


def _orientation(data: bytes) -> int | None:
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


PNG_DEPTH = 24
"""Place of the bits of a number in a PNG."""

_PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"
"""The signature, and the first chunk's length and name."""

_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bits of a number that there are, by the kind of colours."""

_PNG_PLAIN = frozenset(
    b"PLTE IDAT IEND tRNS gAMA cHRM sRGB iCCP cICP pHYs sBIT bKGD hIST sPLT tIME tEXt zTXt iTXt".split()
)
"""Chunks that neither animate nor turn an image; of texts some do."""

_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_PNG_TURNING = (b"XML:com.adobe.xmp\0", b"Raw profile type ")
"""What texts begin with that may say how the image is turned."""


def _png(content: memoryview) -> Header | None:
    """Read the header of a PNG of 8 bits or less, whole, with plain chunks only."""
    header = whole_png(content)
    return header if header is not None and content[PNG_DEPTH] <= 8 else None


def whole_png(content: memoryview) -> Header | None:
    """Read the header of a PNG of any depth, if its chunks are plain and go to its end; else None.

    A chunk has a length, a name, as many bytes, and a check sum.
    """
    if len(content) < 33 or bytes(content[:16]) != _PNG_START:
        return None
    depth, colours, packed, filtered, interlaced = content[PNG_DEPTH : PNG_DEPTH + 5]
    if depth not in _PNG_DEPTHS.get(colours, ()) or packed or filtered or interlaced > 1:
        return None
    start, names = 33, [b""]
    while names[-1] != b"IEND":
        name = bytes(content[start + 4 : start + 8])
        text = bytes(content[start + 8 : start + 26]) if name in _PNG_TEXTS else b""
        stop = start + 12 + int.from_bytes(content[start : start + 4], "big")
        if name not in _PNG_PLAIN or stop > len(content) or text.startswith(_PNG_TURNING):
            return None
        names.append(name)
        start = stop
    if names.count(b"PLTE") > 1 or names.count(b"tRNS") > 1 or (colours == 3 and b"PLTE" not in names):
        return None
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    return Header(height, width) if max(width, height) < 2**31 else None


def _webp(content: memoryview) -> Header | None:
    """Read the header of a WebP that is nothing but one image: a RIFF file with one chunk.

    Files of several chunks tell size and alpha more than once, and readers do not all believe the same one.
    """
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


_PNM = re.compile(rb"P6\s([1-9]\d{0,6})\s([1-9]\d{0,6})\s255\s")


def pnm_header(content: memoryview) -> Header | None:
    """Read the header of a P6 with 255 levels and without comments, of exactly as many bytes as it needs."""
    found = _PNM.match(bytes(content[:64]))
    if found is None:
        return None
    width, height = map(int, found.groups())
    return Header(height, width) if len(content) == found.end() + 3 * height * width else None


def as_pnm(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Write an image, (height, width, 3), as such a file, shape (length,): what Pillow decodes is given to DALI so."""
    height, width, _ = image.shape
    return np.frombuffer(b"P6\n%d %d\n255\n" % (width, height) + image.tobytes(), np.uint8)


_KINDS = {b"\xff\xd8": _jpeg, b"\x89P": _png, b"RI": _webp, b"P6": pnm_header}
"""How to read the header of a file, by its first two bytes."""
