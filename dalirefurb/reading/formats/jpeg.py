"""JPEG: segments up to the first scan, each of a marker, a length, and as many bytes; then entropy-coded data."""

from __future__ import annotations

from dalirefurb.reading.formats.header import STATED, Header, orientation

END = b"\xff\xd9"
"""The marker with which an image ends; entropy-coded data cannot contain it."""

NEAR = 1024
"""Bytes at the end among which the end marker is looked for first; some files have others behind it."""

_FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
"""Markers of a baseline, an extended and a progressive image; and of an extended and a progressive arithmetic one."""

_SCAN, _EXIF_OR_XMP = 0xDA, 0xE1
_OTHERS = frozenset((0xC4, 0xCC, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))
"""Markers of tables, restarts, comments, and what applications add."""

_EXIF, _XMP = b"Exif\0\0", b"http://ns.adobe.com/x"
_BITS = 8
_COMPONENTS = (1, 3)


def proven(content: memoryview) -> Header | None:
    """Read the header of a JPEG of 8 bits, gray or of three colours, which has its end, and EXIF data once at most."""
    start, frame, turned, xmp = 2, b"", None, False
    while start + 4 <= len(content) and content[start] == 0xFF:
        marker = content[start + 1]
        stop = start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")
        if not start + 4 <= stop <= len(content):
            return None
        if marker == _SCAN:
            turned = turned or (None if xmp else 1)
            if END in content[max(stop, len(content) - NEAR) :].tobytes():
                return _header(frame, turned, stop)
            return _header(frame, turned, 0) if END in content[stop:].tobytes() else None
        if marker in _FRAMES:
            if frame:
                return None
            frame = bytes(content[start + 4 : stop])
        elif marker not in _OTHERS:
            return None
        elif marker == _EXIF_OR_XMP:
            segment = bytes(content[start + 4 : stop])
            if segment[:4].lower() == b"exif":
                if not segment.startswith(_EXIF):
                    return None
                told = orientation(segment[len(_EXIF) :])
                if told is None or turned is not None or frame:
                    return None
                turned = told
            xmp |= segment.startswith(_XMP) and STATED in segment
        start = stop
    return None


def _header(frame: bytes, turned: int | None, head: int) -> Header | None:
    if (
        turned is None
        or len(frame) < 6
        or frame[0] != _BITS
        or frame[5] not in _COMPONENTS
        or len(frame) != 6 + 3 * frame[5]
    ):
        return None
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    sides = (width, height) if turned > 4 else (height, width)
    return Header(*sides, turned, head)
