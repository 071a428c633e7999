"""TIFF, and EXIF data, which are built alike: the first directory, and another one in its place."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from dalirefurb.reading.formats import StructureError

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""What files begin with: in either order of bytes, of 32 bits and of 64."""

SHORT = 3
"""The type of a number of 16 bits."""

_NUMBERS = (SHORT, 4, 16)
"""Types of entries that are numbers without sign, of 16, 32 and 64 bits."""

_SIZES = {256: "width", 257: "height"}
"""Tags of the size of an image."""


class Directory:
    """What is in it.

    Args:
        content: Bytes of the file, or of the EXIF data.

    Attributes:
        entries: Entries of the directory, each a tuple of tag, type, count, and the value or where the value is.

    Raises:
        ValueError: If it is nothing of this kind, or something in it lies beyond its end.
        struct.error: If it ends early.
    """

    def __init__(self, content: bytes | memoryview) -> None:
        magic = bytes(content[:4])
        if magic not in MAGIC:
            raise ValueError(magic)
        self._content = content
        self._order = "<" if magic[:2] == b"II" else ">"
        big = 43 in magic
        self._place, self._counter = (8, "Q") if big else (4, "H")
        self._address = "Q" if big else "I"
        self._entry = "HH" + 2 * self._address
        (start,) = self._read(self._address, self._place)
        (count,) = self._read(self._counter, start)
        self._first, self._step = start + self._size(self._counter), self._size(self._entry)
        self.entries = [self._read(self._entry, self._first + self._step * number) for number in range(count)]

    def with_number(self, tag: int, number: int) -> bytes:
        """Return the file with one more entry, a `SHORT`, in a directory of its own at the end."""
        content, width = bytes(self._content), self._size(self._address)
        value = number.to_bytes(2, "little" if self._order == "<" else "big").ljust(width, b"\0")
        added = struct.pack(f"{self._order}HH{self._address}", tag, SHORT, 1) + value
        split = self._first + self._step * sum(entry[0] < tag for entry in self.entries)
        end = self._first + self._step * len(self.entries) + width
        aligned = content + b"\0" * (len(content) % 2)
        where = struct.pack(self._order + self._address, len(aligned))
        counter = struct.pack(self._order + self._counter, len(self.entries) + 1)
        start = aligned[: self._place] + where + aligned[self._place + width :]
        return start + counter + content[self._first : split] + added + content[split:end]

    def _size(self, kind: str) -> int:
        return struct.calcsize(self._order + kind)

    def _read(self, kind: str, start: int) -> tuple[int, ...]:
        if start > len(self._content):  # It may be more than an index can be.
            raise ValueError(start)
        return struct.unpack_from(self._order + kind, self._content, start)


def check(encoded: NDArray[np.uint8]) -> None:
    """Do nothing if a file is no TIFF, or one that tells its size once.

    Of a size that is told twice nvImageCodec takes one and libtiff the other, and writes pixels beyond the image.

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
