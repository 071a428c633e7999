"""Is a file built so that nobody reads it in two ways, or comes to harm? Looked at before DALI sees any of it.

JPEG 2000: nvImageCodec's parser divides by what headers say. A file is a codestream, or a container of boxes with one
in it. Where a container's codestream has a main header that OpenJPEG refuses, OpenJPEG up to 2.5.3 writes through a
pointer that OpenCV left uninitialised; a codestream alone is refused without harm. So containers are walked strictly,
and their codestreams are tried alone before DALI decodes them.

PNG: OpenCV comes to harm where chunks of an animation are broken. Animations are left out, see `rewriting`, so that
only those matter that cannot be.

TIFF: of a size that is told twice nvImageCodec takes one and libtiff the other, and writes pixels beyond the image.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dalirefurb.png import ANIMATION, SIGNATURE, chunks
from dalirefurb.tiff import MAGIC, Directory

_CODESTREAM = b"\xff\x4f"
_CONTAINER = b"\0\0\0\x0cjP  \r\n\x87\n"
_SIZE = struct.Struct(">HHHHIIIIIIIIHBBB")
"""Start of codestream, marker of the size segment, its length and capabilities; width, height, and their offsets; of
tiles likewise; components; of the first one: bits, columns and rows of the image for each of its own."""


class StructureError(ValueError):
    """A file is not built as it must be; says what of it."""


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
    """Find where the codestream begins in a container."""
    described = False
    for number, (kind, start, stop) in enumerate(_boxes(content, 0, len(content))):
        if number == 1 and kind != b"ftyp":
            raise StructureError("its second box must be its type")
        if kind == b"jp2h":
            described = True
            for inner, first, last in _boxes(content, start, stop):
                if inner == b"colr" and (last - first < 3 or (content[first] == 1 and last - first < 7)):
                    raise StructureError("its colour space ends early")
        if kind == b"jp2c":
            if not described:
                raise StructureError("its header must come before its codestream")
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


_SIZES = {256: "width", 257: "height"}
"""Tags of TIFF."""

_NUMBERS = (3, 4, 16)
"""Types of entries that are numbers without sign, of 16, 32 and 64 bits."""


def check_png(encoded: NDArray[np.uint8]) -> None:
    """Do nothing if a file is no PNG, or one of which every chunk can be left out.

    Raises:
        StructureError: If it is another PNG.
    """
    if encoded[: len(SIGNATURE)].tobytes() != SIGNATURE:
        return
    content = encoded.tobytes()
    *places, (_, start, _) = chunks(content)
    ended = bool(places) and places[-1][0] == b"IEND"
    if not ended and any(name in content[start:] for name in ANIMATION):
        raise StructureError(f"its chunks end early, at byte {start:,} of {len(content):,}, before its animation does")


def check_tiff(encoded: NDArray[np.uint8]) -> None:
    """Do nothing if a file is no TIFF, or one that tells its size once.

    Raises:
        StructureError: If it is another TIFF.
    """
    if encoded[:4].tobytes() not in MAGIC:
        return
    try:
        entries = Directory(encoded.data).entries
    except (struct.error, ValueError):
        raise StructureError("its first directory ends early") from None
    for tag, name in _SIZES.items():
        told = [entry[1:3] for entry in entries if entry[0] == tag]
        if len(told) != 1 or told[0][0] not in _NUMBERS or told[0][1] != 1:
            raise StructureError(f"its {name} must be told once, as one number, but is {len(told)} times: {told}")
