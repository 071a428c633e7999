"""The layout of a store's file: a header that says what it was opened for, samples, and records of its slots.

    header    magic, format, checksum, and the spec as JSON; in its last page, who uses the file
    samples   blocks of whole pages, or of cache lines where a sample is less than a page
    table     a record for each slot

A file that does not begin with the magic is somebody else's and is never written to.

A record is written after its sample and cleared before its slot is used again, so a process that dies leaves none
that lies; what the disk itself loses or turns, checksums find.
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.image_batch import ALIGNMENT, rounded
from dalirefurb.store.base import Keys
from dalirefurb.store.slot_table import Numbers
from dalirefurb.store.spec import StoreSpec

PAGE = 4096

HOLDER_BYTES = PAGE
SAMPLES_START = 64 * 1024
HOLDER_START = SAMPLES_START - HOLDER_BYTES

_FORMAT = 2
_MAGIC = b"dalirefurb store"
# Magic, format, and length and checksum of the JSON that follows.
_PREFIX = struct.Struct("<16sIIQ")


@dataclass(frozen=True)
class Layout:
    """Where a file's parts are, in bytes."""

    spec: StoreSpec

    @cached_property
    def alignment(self) -> int:
        """Bytes that blocks begin at, and are written in, multiples of.

        Whole pages are written without being read first. But of samples that are less than a page several are in one,
        so that less is read.
        """
        shape = self.spec.slot_shape
        return ALIGNMENT if shape is not None and math.prod(shape) < PAGE else PAGE

    @property
    def samples_bytes(self) -> int:
        """Size of all blocks. In an arena each sample may need up to a page more than its pixels."""
        spec = self.spec
        if spec.slot_shape is None:
            return rounded(spec.arena_bytes, PAGE) + spec.slots * PAGE
        return spec.slots * rounded(math.prod(spec.slot_shape), self.alignment)

    @property
    def table_start(self) -> int:
        """Where the table begins."""
        return SAMPLES_START + self.samples_bytes

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self.table_start + self.spec.slots * RECORD_BYTES


def identity(spec: StoreSpec) -> int:
    """Return a number that ties records to what their samples come from, whatever the number of slots."""
    return int(xxh3_64_intdigest(json.dumps([spec.slot_shape, spec.fingerprint], sort_keys=True).encode()))


def write_header(fd: int, spec: StoreSpec) -> None:
    """Write what a file is opened for.

    Raises:
        ConfigurationError: It is too long.
    """
    text = json.dumps(asdict(spec)).encode()
    limit = HOLDER_START - _PREFIX.size
    if len(text) > limit:
        raise ConfigurationError(
            f"a store's fingerprint must be at most {limit} bytes of JSON, but the header has {len(text)}: "
            "put digests in place of long tables"
        )
    os.pwrite(fd, _PREFIX.pack(_MAGIC, _FORMAT, len(text), xxh3_64_intdigest(text)) + text, 0)


def read_header(fd: int, path: Path) -> StoreSpec | None:
    """Read what a file was opened for; None if it is damaged.

    Raises:
        StoreError: The file is no store, or one of another format.
    """
    prefix = os.pread(fd, _PREFIX.size, 0)
    if not prefix.startswith(_MAGIC):
        raise StoreError(f"a store's file must be made by a store, but {path} was not: use another path")
    if len(prefix) < _PREFIX.size:
        return None
    _, version, length, checksum = _PREFIX.unpack(prefix)
    if version != _FORMAT:
        raise StoreError(
            f"a store's file must have format {_FORMAT}, but {path} has {version}: "
            "use another path, or delete the file and fill it anew"
        )
    text = os.pread(fd, min(length, SAMPLES_START), _PREFIX.size)
    if xxh3_64_intdigest(text) != checksum:
        return None
    fields = json.loads(text)
    shape = fields.pop("slot_shape")
    return StoreSpec(slot_shape=None if shape is None else tuple(shape), **fields)


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
_NEAR = 256
"""Slots this near to each other are written at once, with those between them: 16 KiB are copied as fast as a call
returns."""

_CHECKED_BYTES = RECORD_BYTES - RECORD["check"].itemsize

Records = NDArray[np.void]


def believable(records: Records, seed: int) -> NDArray[np.bool_]:
    """Tell which of n records were written whole and belong to a store of this identity, shape (n,)."""
    believed: NDArray[np.bool_] = records["check"] != 0
    written = records[believed]
    believed[believed] = _checks(written, seed) == written["check"]
    return believed


def torn(records: Records, seed: int) -> NDArray[np.bool_]:
    """Tell which of n records hold something that cannot be believed, shape (n,)."""
    written = records.view(np.uint8).reshape(len(records), RECORD_BYTES).any(axis=1)
    return written & ~believable(records, seed)


def _checks(records: Records, seed: int) -> NDArray[np.uint64]:
    """Return the checksum that each of n records of a store of this identity has, shape (n,)."""
    raw = memoryview(records.tobytes())
    fields = (raw[start : start + _CHECKED_BYTES] for start in range(0, len(raw), RECORD_BYTES))
    return np.fromiter((xxh3_64_intdigest(each, seed) for each in fields), np.uint64, len(records))


def sizes(records: Records) -> Numbers:
    """Return the pixels' bytes of n records, shape (n,)."""
    nbytes: Numbers = records["shape"].prod(axis=1, dtype=np.int64)
    return nbytes


def read_table(fd: int, start: int, slots: int) -> Records:
    """Read the records of a file, shape (slots,); what it does not reach to is zeros."""
    table = np.zeros(slots, RECORD)
    room = table.view(np.uint8).data
    # Linux moves 2 GiB at a time, at most.
    while count := os.preadv(fd, [room], start):
        room, start = room[count:], start + count
    return table


def write_all(fd: int, content: memoryview, start: int) -> None:
    """Write all of it into a file.

    Raises:
        OSError: There is no room on the disk, or it fails.
    """
    while content:  # Linux moves 2 GiB at a time, at most.
        count = os.pwrite(fd, content, start)
        content, start = content[count:], start + count


def is_whole(fd: int, start: int, nbytes: int, checksum: int) -> bool:
    """Tell whether a sample can be read, and has the checksum that was written down."""
    try:
        return bool(xxh3_64_intdigest(os.pread(fd, nbytes, start)) == checksum)
    except OSError:
        return False


class Table:
    """The records of an open file, shape (slots,), in memory as on the disk, from a byte on. Not thread-safe."""

    def __init__(self, fd: int, start: int, seed: int, records: Records) -> None:
        self.records = records
        self._fd = fd
        self._start = start
        self._seed = seed
        self._bytes = records.view(np.uint8)

    def set(self, slots: Numbers, keys: Keys, starts: Numbers, pixels: NDArray[np.uint64], shapes: Numbers) -> None:
        """Write that n slots hold versions: starts of blocks, checksums of pixels, and shapes, (n, 3).

        Raises:
            OSError: The file has some of it at most; `records` has all.
        """
        new = np.zeros(len(slots), RECORD)
        new["index"], new["version"] = keys
        new["start"] = starts
        new["pixels"] = pixels
        new["shape"] = shapes
        new["check"] = _checks(new, self._seed)
        self.records[slots] = new
        self._write_near(slots)

    def clear(self, slots: Numbers) -> None:
        """Write that slots hold nothing, shape (n,)."""
        self.records[slots] = 0
        self._write_near(slots)

    def write(self) -> None:
        """Write the whole table."""
        self._write(0, len(self.records))

    def _write_near(self, slots: Numbers) -> None:
        """Write the records of slots, shape (n,), in few calls."""
        ordered = np.sort(slots)
        ends = np.flatnonzero(np.diff(ordered, append=np.iinfo(np.int64).max) > _NEAR)
        first = 0
        for last in ends.tolist():
            self._write(int(ordered[first]), int(ordered[last]) + 1)
            first = last + 1

    def _write(self, first: int, end: int) -> None:
        records = self._bytes[first * RECORD_BYTES : end * RECORD_BYTES].data
        write_all(self._fd, records, self._start + first * RECORD_BYTES)
