"""The records of a file's slots, each with a checksum of its own.

A record is written after its sample and cleared before its slot is used again, so a process that dies leaves none
that lies; what the disk itself loses or turns, checksums find.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

RECORD = np.dtype(
    [
        ("index", "<i8"),
        ("version", "<i8"),
        ("start", "<i8"),
        ("pixels", "<u8"),
        ("shape", "<i4", (3,)),
        ("unused", "<u4", (3,)),
        ("check", "<u8"),
    ]
)
"""Which version a slot holds, the first byte of its block, a checksum of its pixels, (H, W, C), and a checksum of all
that. A slot that holds nothing has zeros."""

RECORD_BYTES = RECORD.itemsize
_NEAR = 64
"""Slots this near to each other are written at once, with those between them."""

_FIELDS = struct.Struct("<qqqQ3i12x")

Records = NDArray[np.void]


def believable(records: Records, seed: int) -> NDArray[np.bool_]:
    """Tell which of n records were written whole and belong to a store of this identity, shape (n,)."""
    believed: NDArray[np.bool_] = records["check"] != 0
    raw = records.tobytes()
    for row in np.flatnonzero(believed).tolist():
        fields = raw[row * RECORD_BYTES : row * RECORD_BYTES + _FIELDS.size]
        believed[row] = xxh3_64_intdigest(fields, seed) == records["check"][row]
    return believed


def torn(records: Records, seed: int) -> NDArray[np.bool_]:
    """Tell which of n records hold something that cannot be believed, shape (n,)."""
    written = records.view(np.uint8).reshape(len(records), RECORD_BYTES).any(axis=1)
    return written & ~believable(records, seed)


def sizes(records: Records) -> NDArray[np.int64]:
    """Return the pixels' bytes of n records, shape (n,)."""
    nbytes: NDArray[np.int64] = records["shape"].prod(axis=1, dtype=np.int64)
    return nbytes


def read_table(fd: int, start: int, slots: int) -> Records:
    """Read the records of a file, shape (slots,); what it does not reach to is zeros."""
    table = np.zeros(slots, RECORD)
    room = table.view(np.uint8).data
    # Linux moves 2 GiB at a time, at most.
    while count := os.preadv(fd, [room], start):
        room, start = room[count:], start + count
    return table


class Table:
    """The records of an open file, in memory as on the disk. Not thread-safe.

    Args:
        fd: The file.
        start: Byte of the file at which the table begins.
        seed: The store's identity.
        records: The records that the table holds, shape (slots,).
    """

    def __init__(self, fd: int, start: int, seed: int, records: Records) -> None:
        self.records = records
        self._fd = fd
        self._start = start
        self._seed = seed
        self._bytes = records.view(np.uint8)

    def set(self, slot: int, key: tuple[int, int], start: int, pixels: int, shape: Sequence[int]) -> None:
        """Write that a slot holds a version."""
        fields = _FIELDS.pack(*key, start, pixels, *shape)
        record = fields + xxh3_64_intdigest(fields, self._seed).to_bytes(8, "little")
        self._bytes[slot * RECORD_BYTES : (slot + 1) * RECORD_BYTES] = np.frombuffer(record, np.uint8)
        self._write(slot, slot + 1)

    def clear(self, slots: NDArray[np.int64]) -> None:
        """Write that slots hold nothing, shape (n,)."""
        ordered = np.sort(slots)
        self.records[ordered] = 0
        for run in np.split(ordered, np.flatnonzero(np.diff(ordered) > _NEAR) + 1):
            if len(run):
                self._write(int(run[0]), int(run[-1]) + 1)

    def write(self) -> None:
        """Write the whole table."""
        self._write(0, len(self.records))

    def _write(self, first: int, end: int) -> None:
        rest, place = self._bytes[first * RECORD_BYTES : end * RECORD_BYTES].data, self._start + first * RECORD_BYTES
        while rest:
            count = os.pwrite(self._fd, rest, place)
            rest, place = rest[count:], place + count
