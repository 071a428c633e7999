"""JPEG 2000: the codestream of a file, if DALI may see any of it.

A file is a codestream, or a container of boxes with one in it. nvImageCodec's parser divides by what headers say. Where
a container's codestream has a main header that OpenJPEG refuses, OpenJPEG up to 2.5.3 writes through a pointer that
OpenCV left uninitialised; a codestream alone is refused without harm. So containers are walked strictly, and their
codestreams are tried alone before DALI decodes them, unless the main header is one to which nobody can object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dalirefurb.reading.formats import StructureError

_CODESTREAM = b"\xff\x4f"
_CONTAINER = b"\0\0\0\x0cjP  \r\n\x87\n"
_IMAGE_HEADER = 14
"""Bytes in which a container tells the size of its image."""

_SIZE = struct.Struct(">HHHHIIIIIIIIHBBB")
"""Start of codestream, marker of the size segment, its length and capabilities; width, height, and their offsets; of
tiles likewise; components; of the first one: bits, columns and rows of the image for each of its own."""


def codestream(encoded: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Return the codestream of a JPEG 2000 file, shape (length,), as a view; None of any other file.

    Raises:
        StructureError: If nvImageCodec's parser or OpenJPEG might fail on it with more than an error.
    """
    head = encoded[: len(_CONTAINER)].tobytes()
    if head.startswith(_CODESTREAM):
        start = 0
    elif head == _CONTAINER:
        start = _start(encoded.data)
    else:
        return None
    _check_size(encoded[start : start + _SIZE.size].tobytes())
    return encoded[start:]


def _start(content: memoryview) -> int:
    """Find where the codestream begins in a container, of which all readers read the same size."""
    sizes = 0
    for number, (kind, start, stop) in enumerate(_boxes(content, 0, len(content))):
        if number == 1 and kind != b"ftyp":
            raise StructureError("its second box must be its type")
        if kind == b"jp2h":
            for inner, first, last in _boxes(content, start, stop):
                if inner == b"colr" and (last - first < 3 or (content[first] == 1 and last - first < 7)):
                    raise StructureError("its colour space ends early")
                if inner == b"ihdr":
                    sizes += 1
                    if last - first != _IMAGE_HEADER:
                        raise StructureError(f"its size must be told in {_IMAGE_HEADER} bytes, not {last - first}")
        if kind == b"jp2c":
            if sizes != 1:
                raise StructureError(f"its size must be told once before its codestream, but is {sizes} times")
            return start
    raise StructureError("it has no codestream")


def _boxes(content: memoryview, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the boxes of a container, or of a box: kind, and where its content starts and stops; a codestream last."""
    while start < stop:
        if start + 8 > stop:
            raise StructureError("a box ends early")
        length, kind = int.from_bytes(content[start : start + 4], "big"), bytes(content[start + 4 : start + 8])
        end = start + length if length else stop
        if 0 < length < 8 or (end > stop and kind != b"jp2c"):
            raise StructureError(f"a box of {length} bytes cannot be at byte {start:,} of {len(content):,}")
        yield kind, start + 8, min(end, stop)
        if kind == b"jp2c":
            return
        start = end


def _check_size(head: bytes) -> None:
    if len(head) < _SIZE.size:
        raise StructureError("its codestream ends early")
    start, marker, _, _, _, _, _, _, tile_width, tile_height, _, _, components, _, columns, rows = _SIZE.unpack(head)
    if (start, marker) != (0xFF4F, 0xFF51):
        raise StructureError("its codestream must begin with its size")
    if not (components and columns and rows):
        raise StructureError(f"{components} components, each of {columns} x {rows} pixels, make no image")
    # The parser rounds up what it divides, in 32 bits.
    if not all((side + step - 1) % 2**32 // step for side, step in ((tile_width, columns), (tile_height, rows))):
        raise StructureError(f"tiles of {tile_height} x {tile_width} pixels make no image")


_SIZE_MARKER, _STYLE, _QUANTISATION, _COMMENT, _TILE = 0xFF51, 0xFF52, 0xFF5C, 0xFF64, 0xFF90
"""Markers of segments of a main header, and what follows it."""

_MOST_COMPONENTS, _MOST_BITS, _MOST_SAMPLING, _MOST_TILES, _MOST_LEVELS = 4, 16, 4, 1_024, 32
"""What a plain header has, at most; OpenJPEG takes that and more."""


def is_plain(stream: NDArray[np.uint8]) -> bool:
    """Tell whether a codestream's main header is of the plainest kind: size, style, quantisation, and comments."""
    content, start = stream.data, 2
    segments: dict[int, bytes] = {}
    try:
        while (marker := int.from_bytes(content[start : start + 2], "big")) != _TILE:
            stop = start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")
            if stop < start + 4 or stop > len(content) or marker in segments:
                return False
            if marker != _COMMENT:
                segments[marker] = bytes(content[start + 4 : stop])
            start = stop
        if set(segments) != {_SIZE_MARKER, _STYLE, _QUANTISATION}:
            return False
        levels = _levels(segments[_STYLE])
        return (
            levels is not None
            and _is_plain_size(segments[_SIZE_MARKER])
            and _is_plain_quantisation(segments[_QUANTISATION], bands=3 * levels + 1)
        )
    except (struct.error, IndexError):
        return False


def _is_plain_size(segment: bytes) -> bool:
    _, x1, y1, x0, y0, width, height, left, top, components = struct.unpack_from(">HIIIIIIIIH", segment)
    if len(segment) != 36 + 3 * components or not 0 < components <= _MOST_COMPONENTS:
        return False
    told = [segment[36 + 3 * number :][:3] for number in range(components)]
    if any((bits & 0x7F) >= _MOST_BITS or not {dx, dy} <= set(range(1, _MOST_SAMPLING + 1)) for bits, dx, dy in told):
        return False
    if max(x1, y1, width, height) >= 2**31 or not (left <= x0 < x1 and top <= y0 < y1):
        return False
    if not (left + width > x0 and top + height > y0):
        return False
    tiles: int = -(-(x1 - left) // width) * -(-(y1 - top) // height)
    return tiles <= _MOST_TILES


def _levels(segment: bytes) -> int | None:
    """Return how often images are halved, if that and all else that a style says is plain."""
    style, order, layers, mixed, levels, width, height, coding, transform = struct.unpack_from(">BBHBBBBBB", segment)
    precincts = segment[10:]
    plain = style <= 7 and order <= 4 and layers > 0 and mixed <= 1 and levels <= _MOST_LEVELS
    plain = plain and width <= 8 and height <= 8 and width + height <= 8 and coding < 0x40 and transform <= 1
    plain = plain and len(precincts) == (levels + 1 if style & 1 else 0)
    return levels if plain and all(each & 0x0F and each >> 4 for each in precincts) else None


def _is_plain_quantisation(segment: bytes, *, bands: int) -> bool:
    return len(segment) - 1 == {0: bands, 1: 2, 2: 2 * bands}.get(segment[0] & 0x1F)
