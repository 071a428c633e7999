"""Files that DALI decodes otherwise than Pillow, written anew so that DALI, too, shows the image that is meant.

    an animated PNG                    its animation is left out; DALI would show a frame of it, not its image
    a CMYK JPEG without Adobe's mark   the mark is put in; without it DALI takes ink for light
    an orientation in XMP alone        it is put where DALI looks for it, too: EXIF, or a tag of a TIFF
    EXIF data in a text of a PNG       likewise: older programs put them there
    a WebP with EXIF data behind a     they are put first; nvImageCodec loses its way after an odd length
    chunk of odd length

What encodes the pixels stays as it is. A file that is broken is left alone: whoever decodes it says so.
"""

from __future__ import annotations

import re
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from dalirefurb.reading.formats import jpeg, tiff
from dalirefurb.reading.formats.png import ANIMATION, SIGNATURE, chunks

_XMP_OF_JPEG = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_OF_PNG = b"XML:com.adobe.xmp"
_EXIF_OF_PNG = b"Raw profile type exif"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_MOST_TEXT = 1 << 20
"""Bytes that are unpacked of a text in a PNG, at most."""

_EXIF_OF_JPEG = b"Exif\0\0"
_ADOBE = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0"
"""The segment with which Adobe marks CMYK, not transformed."""

_ORIENTATION, _XMP = 274, 700
"""Tags of TIFF and EXIF."""

_HAS_EXIF = 0x08
"""A flag of WebP."""

_STATED = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def rewritten(encoded: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Return an encoded image as DALI shows what is meant, shape (length,); None where that is how it is."""
    head = encoded[:12].tobytes()
    content: bytes | None = None
    try:
        if head.startswith(jpeg.MAGIC):
            content = _jpeg(encoded.data)
        elif head.startswith(SIGNATURE):
            content = _png(encoded.tobytes())
        elif head.startswith(b"RIFF") and head.endswith(b"WEBP"):
            content = _webp(encoded.tobytes())
        elif head[:4] in tiff.MAGIC:
            content = _tiff(encoded.tobytes())
    except (struct.error, IndexError, ValueError, zlib.error):
        return None
    return None if content is None else np.frombuffer(content, np.uint8)


# JPEG


def _jpeg(content: memoryview) -> bytes | None:
    frame, adobe, xmp, exif = 0, False, b"", []
    components = 0
    for marker, start, stop in jpeg.segments(content):
        if marker == 0xE1:
            segment = bytes(content[start + 4 : stop])
            if segment.startswith(_EXIF_OF_JPEG):
                exif.append((start, stop))
            elif segment.startswith(_XMP_OF_JPEG):
                xmp = segment
        elif marker == 0xEE:
            adobe |= stop - start >= 16 and bytes(content[start + 4 : start + 9]) == b"Adobe"
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            frame, components = start, content[start + 9]
    orientation = _stated(xmp)
    if orientation and any(_oriented(bytes(content[first + 10 : last])) for first, last in exif):
        orientation = 0
    if not orientation and (components != 4 or adobe):
        return None
    parts = [bytes(content[:2])]
    if orientation:
        segment = _EXIF_OF_JPEG + _exif(orientation)
        parts.append(struct.pack(">HH", 0xFFE1, len(segment) + 2) + segment)
    place = 2
    removed = exif if orientation else []
    for first, last in (*(each for each in removed if each[0] < frame), (frame, frame)):
        parts.append(bytes(content[place:first]))
        place = last
    if components == 4 and not adobe:
        parts.append(_ADOBE)
    return b"".join(parts) + bytes(content[place:])


# PNG


def _png(content: bytes) -> bytes | None:
    places = list(chunks(content))
    animated = any(name in ANIMATION for name, _, _ in places)
    exif, texts = b"", {}
    for name, start, stop in places:
        if name == b"eXIf":
            exif = content[start + 8 : stop - 4]
        elif name in _TEXTS:
            keyword, text = _text(name, content[start + 8 : stop - 4])
            texts[keyword] = text
    added = b""
    if not exif and (profile := texts.get(_EXIF_OF_PNG)):
        # Three lines say what it is; then it is written in hexadecimal digits.
        added = bytes.fromhex(b"".join(profile.split(b"\n")[3:]).decode()).removeprefix(_EXIF_OF_JPEG)
    if not _oriented(exif or added):
        orientation = _stated(texts.get(_XMP_OF_PNG, b""))
        added = _exif(orientation) if orientation else b""
    if not (animated or added):
        return None
    left_out = ANIMATION | ({b"eXIf"} if added else set())
    parts = [SIGNATURE]
    for name, start, stop in places:
        if name not in left_out:
            parts.append(content[start:stop])
        if name == b"IHDR" and added:
            chunk = b"eXIf" + added
            parts.append(struct.pack(">I", len(added)) + chunk + struct.pack(">I", zlib.crc32(chunk)))
    return b"".join(parts)


def _text(name: bytes, chunk: bytes) -> tuple[bytes, bytes]:
    """Return a keyword and its text; none of keywords that do not matter here."""
    keyword, _, rest = chunk.partition(b"\0")
    if keyword not in (_XMP_OF_PNG, _EXIF_OF_PNG):
        return keyword, b""
    packed = name == b"zTXt"
    if name == b"iTXt":  # Whether it is packed, and how; a language, a translated keyword, the text.
        packed, rest = rest[0] != 0, rest[2:].split(b"\0", 2)[-1]
    elif packed:
        rest = rest[1:]
    return keyword, zlib.decompressobj().decompress(rest, _MOST_TEXT) if packed else rest


# WebP: chunks of a name, a length, and as many bytes, filled up to an even number


def _webp(content: bytes) -> bytes | None:
    if content[12:16] != b"VP8X":
        return None
    parts: list[tuple[bytes, bytes]] = []
    start = 12
    while start + 8 <= len(content):
        name, length = struct.unpack_from("<4sI", content, start)
        stop = start + 8 + length
        parts.append((name, content[start:stop]))
        start = stop + length % 2
    named = dict(parts)
    exif = named.get(b"EXIF", b"")[8:]
    if not _oriented(exif.removeprefix(_EXIF_OF_JPEG)):
        orientation = _stated(named.get(b"XMP ", b""))
        exif = _exif(orientation) if orientation else b""
    elif not any(len(chunk) % 2 for name, chunk in parts if name != b"EXIF"):
        return None
    if not exif:
        return None
    flags = parts[0][1][:8] + bytes([content[20] | _HAS_EXIF]) + parts[0][1][9:]
    others = b"".join(chunk + b"\0" * (len(chunk) % 2) for name, chunk in parts[1:] if name != b"EXIF")
    body = b"WEBP" + flags + struct.pack("<4sI", b"EXIF", len(exif)) + exif + b"\0" * (len(exif) % 2) + others
    return b"RIFF" + struct.pack("<I", len(body)) + body


# TIFF


def _tiff(content: bytes) -> bytes | None:
    directory = tiff.Directory(content)
    tags = {entry[0]: entry for entry in directory.entries}
    if _ORIENTATION in tags or _XMP not in tags:
        return None
    _, _, count, place = tags[_XMP]
    orientation = _stated(content[place : place + count])
    return directory.with_number(_ORIENTATION, orientation) if orientation else None


# Orientation


def _stated(xmp: bytes) -> int:
    """Return the orientation that XMP states, if it changes anything; else 0."""
    found = _STATED.search(xmp)
    orientation = int(found[1]) if found else 0
    return orientation if 2 <= orientation <= 8 else 0


def _oriented(exif: bytes) -> bool:
    """Whether EXIF data say anything about orientation."""
    try:
        return any(entry[0] == _ORIENTATION for entry in tiff.Directory(exif).entries)
    except (struct.error, ValueError):
        return False


def _exif(orientation: int) -> bytes:
    """Return EXIF data that say how an image is oriented, and nothing else."""
    return struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, _ORIENTATION, tiff.SHORT, 1, orientation, 0, 0)
