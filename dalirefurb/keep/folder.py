"""KeepFolder: samples that are written once and never changed, for any number of processes of a machine.

    keep.json   of what source, and in which form
    records     a `RECORD` for each sample: where it lies, how large it is, of which bytes
    data        samples, one behind the other, in the order in which they came
    room        how much of the data is taken; its bytes are locked: one by who takes room, others by who makes a sample

Nobody locks to read. A sample is written, then its record, in which a checksum covers all of it: a record that can be
believed names a sample that is whole. Who is killed leaves room that nobody uses, and locks that the kernel frees.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import struct
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb.errors import StoreError
from dalirefurb.image_batch import Images, Places
from dalirefurb.store.spec import differences

RECORD = np.dtype(
    [
        ("start", "<u8"),
        ("nbytes", "<u8"),
        ("height", "<u4"),
        ("width", "<u4"),
        ("stamp", "<u8"),
        ("digest", "<u8"),
        ("check", "<u8"),
    ]
)
"""Where a sample lies in the data, its bytes, and its size in pixels, 0 of one that is encoded; what it was made of,
see `Source.stamps`; a checksum of its bytes, and one of all that. Of a sample that is not kept there are zeros."""

IDENTITY = "keep.json"
FILES = (IDENTITY, f"{IDENTITY}.new", "records", "data", "room")
"""All that there is in the folder."""

_FORMAT = 1
_STEP = 1 << 30
"""The data grows by so many bytes, which take room on a disk only once they are written."""

_ALIGNMENT = 64
_ROOM, _CLAIMS = 0, 16
"""Bytes of the file `room` that are locked: by who takes room, and from here on a byte for each sample."""

_POPULATE_READ = 22
"""Of `madvise`, from Linux 5.14 on: brings pages into memory; what cannot be read is an error, and not a signal."""

_PAGE = mmap.PAGESIZE
_PROBES = 8
_LOCK = struct.Struct("hhqqi4x")
"""The `struct flock` of Linux: type, whence, start, length, process."""

_MIXER = np.uint64(0x9E3779B97F4A7C15)
_FIELDS = RECORD.itemsize // 8

Records = NDArray[np.void]


class KeepFolder:
    """One process's opening of a folder. Thread-safe.

    Args:
        path: Path of the folder; it is made if it is not there.
        identity: Source and form of what is kept, as JSON values.
        num_samples: Number of samples of the source.
        most_bytes: Bytes of samples beyond which nothing is added.

    Raises:
        StoreError: If it cannot be used, or is for something else.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], num_samples: int, most_bytes: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._claimed: set[int] = set()
        self._checked = np.zeros(num_samples, np.bool_)
        self._full = False
        descriptors: list[int] = []
        weakref.finalize(self, _close, descriptors)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._room, self._records_file, self._data_file = (
                _opened(path / name, descriptors) for name in ("room", "records", "data")
            )
            with self._alone():
                self._take_on({"format": _FORMAT, "num_samples": num_samples, **identity})
                _lengthen(self._records_file, RECORD.itemsize * num_samples)
            table = mmap.mmap(self._records_file, RECORD.itemsize * num_samples, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StoreError(
                f"a keep's folder must be one that can be read, written and locked, but {path} is not "
                f"({error.strerror}): pass a folder on a local disk, or in /dev/shm"
            ) from error
        self._table = np.frombuffer(table, RECORD)
        self._data = np.empty(0, np.uint8)

    @property
    def full(self) -> bool:
        """Whether there was no room for a sample."""
        return self._full

    @property
    def nbytes(self) -> int:
        """Bytes of the data that are taken."""
        return int.from_bytes(os.pread(self._room, 8, 0), "little")

    def kept(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which of some samples have a record, shape (n,)."""
        return believable(self._table[indices], indices)

    def fresh(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which of some samples this process has not looked at yet, shape (n,)."""
        return ~self._checked[indices]

    def find(self, indices: NDArray[np.int64], stamps: NDArray[np.uint64]) -> tuple[Images, NDArray[np.bool_]]:
        """Look for samples.

        What a process looks at for the first time is compared with its checksum.

        Args:
            indices: Indices of the samples, int64 of shape (n,).
            stamps: Stamps of those that are fresh, uint64 of shape (n,).

        Returns:
            The samples, read-only: images (height, width, 3), or encoded ones (length,); empty where one is not kept.
            And which are kept, bool of shape (n,).
        """
        records = self._table[indices]
        kept = believable(records, indices)
        fresh = ~self._checked[indices]
        kept &= ~fresh | (records["stamp"] == stamps)
        rows = np.flatnonzero(kept)
        data = self._brought(records[rows], fresh[rows]) if len(rows) else self._data
        if data is None:
            kept[:], data = False, self._data
        new = np.flatnonzero(kept & fresh)
        for row, record in zip(new.tolist(), records[new], strict=True):
            start, end = int(record["start"]), int(record["start"] + record["nbytes"])
            kept[row] = xxh3_64_intdigest(data.data[start:end]) == record["digest"]
        self._checked[indices[new]] = kept[new]
        records[~kept] = 0
        return _samples(data, records), kept

    def put(self, index: int, stamp: int, sample: NDArray[np.uint8]) -> bool:
        """Keep a sample that is claimed; return whether there is room for it.

        Args:
            index: Index of the sample.
            stamp: Stamp of what it was made of.
            sample: Image, uint8 of shape (height, width, 3), or encoded bytes, uint8 of shape (length,).
        """
        content = np.ascontiguousarray(sample).reshape(-1).data
        height, width = sample.shape[:2] if sample.ndim == 3 else (0, 0)
        try:
            if (start := self._take_room(content.nbytes)) is None:
                self._full = True
                return False
            _write(self._data_file, content, start)
            digest = xxh3_64_intdigest(content)
            record = np.array([(start, content.nbytes, height, width, stamp, digest, 0)], RECORD)
            record["check"] = _checks(record, np.array([index]))
            _write(self._records_file, record.view(np.uint8).data, index * RECORD.itemsize)
        except OSError as error:
            if not self._full:
                warnings.warn(
                    f"the keep {self._path} cannot be written ({error.strerror}): what it holds is served, nothing is "
                    f"added to it by this process; make room, or pass a smaller size",
                    stacklevel=2,
                )
            self._full = True
            return False
        self._checked[index] = True
        return True

    def claim(self, indices: Iterable[int]) -> list[int]:
        """Claim samples that nobody makes now, so that nobody else does; return which of them."""
        claimed: list[int] = []
        for index in indices:
            with self._lock:
                if index in self._claimed or not _locked(self._room, _CLAIMS + index):
                    continue
                self._claimed.add(index)
            claimed.append(index)
        return claimed

    def release(self, indices: Iterable[int]) -> None:
        """Let go of what was claimed."""
        for index in indices:
            with self._lock:
                self._claimed.discard(index)
                _unlock(self._room, _CLAIMS + index)

    def _take_on(self, identity: Mapping[str, Any]) -> None:
        """Say what is kept here, or look whether it is this.

        Raises:
            StoreError: If it is something else.
        """
        file = self._path / IDENTITY
        try:
            present = json.loads(file.read_text())
        except FileNotFoundError:
            whole = self._path / f"{IDENTITY}.new"
            whole.write_text(json.dumps(identity, indent=1) + "\n")
            whole.replace(file)
            return
        except ValueError as error:
            raise StoreError(f"{file} must say what is kept there, but is damaged: delete the folder") from error
        if found := differences(present, json.loads(json.dumps(identity))):
            raise StoreError(
                f"a keep is of one source and in one form, but {self._path} holds another: {found}: pass another "
                f"folder, or delete it by `dalirefurb cache purge {self._path}`"
            )

    def _take_room(self, nbytes: int) -> int | None:
        """Return where so many bytes may be written; None: there is no room."""
        with self._alone():
            start = -(-self.nbytes // _ALIGNMENT) * _ALIGNMENT
            end = start + nbytes
            if end > self._most_bytes:
                return None
            _lengthen(self._data_file, -(-end // _STEP) * _STEP)
            os.pwrite(self._room, end.to_bytes(8, "little"), 0)
        return start

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep everybody else from taking room meanwhile."""
        with self._lock:
            _locked(self._room, _ROOM, wait=True)
            try:
                yield
            finally:
                _unlock(self._room, _ROOM)

    def _brought(self, records: Records, fresh: NDArray[np.bool_]) -> NDArray[np.uint8] | None:
        """Have samples in memory, and return the data, where they can be looked at now; None if they cannot be had.

        Where a few of those that are not fresh tell that all are in memory still, nothing is done about these.
        """
        ends, data = records["start"] + records["nbytes"], self._data
        if int(ends.max()) > len(data):
            try:
                data = np.frombuffer(mmap.mmap(self._data_file, 0, access=mmap.ACCESS_READ), np.uint8)
            except (OSError, ValueError):
                return None
            self._data = data
        if int(ends.max()) > len(data):
            return None
        if self._in_memory(records["start"][~fresh]):
            records, ends = records[fresh], ends[fresh]
        first, advise = records["start"] // _PAGE * _PAGE, _advise()
        begin: int = data.__array_interface__["data"][0]
        for start, length in zip(first.tolist(), (ends - first).tolist(), strict=True):
            # An older kernel knows no such advice, and reads when it is looked at.
            if advise(begin + start, length, _POPULATE_READ) != 0 and ctypes.get_errno() != errno.EINVAL:
                return None
        return data

    def _in_memory(self, starts: NDArray[np.uint64]) -> bool:
        """Tell whether samples that begin here are in memory, by a few of them; where it is not told, they are."""
        return all(map(self._is_at_hand, starts[:: max(1, len(starts) // _PROBES)].tolist()))

    def _is_at_hand(self, place: int) -> bool:
        try:
            return os.preadv(self._data_file, (bytearray(1),), place, os.RWF_NOWAIT) == 1
        except BlockingIOError:
            return False
        except (OSError, AttributeError, NotImplementedError):
            return True


@cache
def _advise() -> Any:
    """Return the system's `madvise`, for which Python's lock is let go: a disk may be slow."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise


def _samples(data: NDArray[np.uint8], records: Records) -> Images:
    """View samples where they lie."""

    def look() -> list[NDArray[np.uint8]]:
        return [_sample(data, *place) for place in records[["start", "nbytes", "height", "width"]].tolist()]

    def locate() -> Places:
        start: int = data.__array_interface__["data"][0]
        sizes = np.stack((records["height"], records["width"]), axis=1)
        return Places(start + records["start"].astype(np.int64), sizes.astype(np.int64))

    return Images.on_demand(len(records), look, locate)


def _sample(data: NDArray[np.uint8], start: int, nbytes: int, height: int, width: int) -> NDArray[np.uint8]:
    content = data[start : start + nbytes]
    return content if nbytes and not height else content.reshape(height, width, 3)


def believable(records: Records, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which of n records were written whole for these samples, shape (n,)."""
    believed: NDArray[np.bool_] = records["check"] == _checks(records, indices)
    return believed


def _checks(records: Records, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the checksum that each of n records of these samples has, never 0."""
    words = np.ascontiguousarray(records).view("<u8").reshape(len(records), _FIELDS)
    mixed = indices.astype(np.uint64) + np.uint64(1)
    for field in range(_FIELDS - 1):
        mixed = (mixed ^ words[:, field]) * _MIXER
        mixed ^= mixed >> np.uint64(29)
    return mixed | np.uint64(1)


def _opened(path: Path, descriptors: list[int]) -> int:
    """Open a file to read and write, made if need be, and remember to close it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    descriptors.append(descriptor)
    return descriptor


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _lengthen(descriptor: int, nbytes: int) -> None:
    if os.fstat(descriptor).st_size < nbytes:
        os.ftruncate(descriptor, nbytes)


def _write(descriptor: int, content: memoryview, start: int) -> None:
    """Write all of it.

    Raises:
        OSError: If there is no room on the disk, or it fails.
    """
    while content:
        written = os.pwrite(descriptor, content, start)
        content, start = content[written:], start + written


def _locked(descriptor: int, byte: int, *, wait: bool = False) -> bool:
    """Lock a byte of a file for whoever opened it; return whether it is, which without waiting it need not be."""
    try:
        fcntl.fcntl(
            descriptor,
            fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK,
            _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0),
        )
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _unlock(descriptor: int, byte: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))
