"""KeepFolder: samples that are written once and never changed, for any number of processes of a machine.

    keep.json   of what source, and in which form
    records     a `RECORD` for each sample: where it lies, how large it is, of which bytes
    data        samples, one behind the other, in the order in which they came
    room        how much of the data is taken, and on which start of which machine that is known; its bytes are locked:
                one by who takes room, others by who makes a sample

Nobody locks to read. A sample is written, then its record, in which a checksum covers all of it: a record that can be
believed names a sample that is whole. Who is killed leaves room that nobody uses, and locks that the kernel frees.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import logging
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb.errors import StoreError, warn
from dalirefurb.image_batch import Images, rounded
from dalirefurb.keep.record import RECORD, Records, believable, samples_of, written
from dalirefurb.store.disk import file_lock
from dalirefurb.store.disk.layout import write_all
from dalirefurb.store.disk.page_cache import is_cached
from dalirefurb.store.spec import differences
from dalirefurb.system.processes import boot_id
from dalirefurb.system.resources import amount

IDENTITY = "keep.json"
_OPENED = ("room", "records", "data")
FILES = ("records", "data", "room", f"{IDENTITY}.new", IDENTITY)
"""All that there is in the folder, in the order in which it is deleted: what says what it is comes last."""

_FORMAT = 1
_TRIES = 10
_PATIENCE_S = 10.0
_ROWS = 1 << 16
_STEP = 1 << 30
"""The data grows by so many bytes, which take room on a disk only once they are written."""

_ROOM, _CLAIMS = 0, 16
"""Bytes of the file `room` that are locked: by who takes room, and from here on a byte for each sample."""

_POPULATE_READ = 22
"""Of `madvise`, from Linux 5.14 on: brings pages into memory; what cannot be read is an error, and not a signal."""

_PAGE = mmap.PAGESIZE
_PROBES = 8
_LOCK = struct.Struct("hhqqi4x")
"""The `struct flock` of Linux: type, whence, start, length, process."""

Stamps = Callable[[NDArray[np.int64]], NDArray[np.uint64]]

_log = logging.getLogger("dalirefurb.keep")


class KeepFolder:
    """One process's opening of a folder. Thread-safe.

    A folder that may be read only is served from, and nothing is added.

    Args:
        path: Path of the folder; it is made if it is not there.
        identity: Source and form of what is kept, as JSON values.
        num_samples: Number of samples of the source.
        most_bytes: Bytes that it may take; beyond them nothing is added.
        most_now: Function that tells how many it may take now, as others take room, too: what has room in `most_bytes`
            alone may be added later. None: no less.
        sampled: Stamps of some samples, the same ones in each opening: where none of them is as it was when the folder
            was made, these are other files. Empty, or 0: they have no stamps, or none is known.

    Attributes:
        full: Whether nothing is added any more.

    Raises:
        StoreError: If it cannot be used, or is for something else.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any],
        num_samples: int,
        most_bytes: int,
        sampled: Sequence[int] = (),
        most_now: Callable[[], int] | None = None,
    ) -> None:
        self._path = path
        self._table_bytes = RECORD.itemsize * num_samples
        self._most_bytes = most_bytes - self._table_bytes
        self._most_now = most_now or (lambda: most_bytes)
        # How many it may take as it was told last, and after how many more it asks again.
        self._told_bytes, self._asks_after = self._most_bytes, 0
        self._told_full = False
        self._lock = threading.Lock()
        self._claimed: set[int] = set()
        # The check of the record that this process has compared with its sample, of each.
        self._known = np.zeros(num_samples, np.uint64)
        # Whether its stamp was another one, or not known: it is asked for again.
        self._doubted = np.zeros(num_samples, np.bool_)
        self.full = False
        self._descriptors: list[int] = []
        weakref.finalize(self, _close, self._descriptors, os.getpid())
        whole = {"format": _FORMAT, "num_samples": num_samples, **identity}
        try:
            self._open(whole, sampled)
            table = mmap.mmap(self._records_file, self._table_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise StoreError(
                f"a keep's folder must be one that can be read, written and locked, but {path} is not "
                f"({getattr(error, 'strerror', error)}): pass a folder on a local disk, or in /dev/shm"
            ) from error
        self._table = np.frombuffer(table, RECORD)
        self._data = np.empty(0, np.uint8)

    def _open(self, identity: Mapping[str, Any], sampled: Sequence[int]) -> None:
        """Open the files, made if need be, and look whether they are what they should be.

        Raises:
            StoreError: If it is for something else.
            OSError: If it cannot be used.
        """
        with suppress(FileExistsError):
            self._path.mkdir(parents=True, exist_ok=True)
        try:
            files = self._opened(os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not (self._path / IDENTITY).exists():
                raise
            self._room, self._records_file, self._data_file = self._opened(os.O_RDONLY)
            self.full = True
            self._take_on(identity, sampled)
            return
        for _ in range(_TRIES):
            self._room, self._records_file, self._data_file = files
            with self._alone():
                # Somebody may have deleted it, or some of it, since it was opened.
                if all(map(_is_at, files, (self._path / name for name in _OPENED))):
                    self._take_on(identity, sampled)
                    if os.fstat(self._records_file).st_blocks * 512 < self._table_bytes:
                        os.posix_fallocate(self._records_file, 0, self._table_bytes)
                    self._settle_room()
                    return
            files = self._opened(os.O_RDWR | os.O_CREAT)
        raise OSError(errno.EBUSY, "it is deleted again and again")

    def _opened(self, flags: int) -> list[int]:
        for name in _OPENED:
            self._descriptors.append(os.open(self._path / name, flags, 0o666))
            file_lock.keep_from_children(self._descriptors[-1])
        return self._descriptors[-len(_OPENED) :]

    @property
    def nbytes(self) -> int:
        """Bytes of the data that are taken."""
        return int.from_bytes(os.pread(self._room, 8, 0), "little")

    def kept(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which of some samples have a record, shape (n,)."""
        return believable(self._table[indices], indices)

    def find(self, indices: NDArray[np.int64], stamps: Stamps) -> tuple[Images, NDArray[np.bool_]]:
        """Look for samples.

        What a process looks at for the first time is compared with its checksum, and with its stamp once that is known.

        Args:
            indices: Indices of the samples, int64 of shape (n,).
            stamps: Function that stamps some samples as they are now, by their indices; 0: it is not known.

        Returns:
            The samples, read-only: images (height, width, 3), or encoded ones (length,); empty where one is not kept.
            And which are kept, bool of shape (n,).
        """
        records = self._table[indices]
        kept = believable(records, indices)
        fresh = kept & (self._known[indices] != records["check"])
        asked = fresh | (kept & self._doubted[indices])
        if asked.any():
            now = stamps(indices[asked])
            same = records["stamp"][asked] == now
            kept[asked] = same | (now == 0)
            self._doubted[indices[asked]] = ~same | (now == 0)
        rows = np.flatnonzero(kept)
        data, lost = self._brought(records[rows], fresh[rows])
        kept[rows[lost]] = False
        new = np.flatnonzero(kept & fresh)
        for row, record in zip(new.tolist(), records[new], strict=True):
            start, end = int(record["start"]), int(record["start"] + record["nbytes"])
            kept[row] = xxh3_64_intdigest(data.data[start:end]) == record["digest"]
        new = new[kept[new]]
        self._known[indices[new]] = records["check"][new]
        records[~kept] = 0
        return samples_of(data, records), kept

    def doubt(self) -> None:
        """Ask for the stamp of each sample once more, when it is next looked for."""
        self._doubted[:] = True

    def put(self, index: int, stamp: int, sample: NDArray[np.uint8], planes: NDArray[np.uint8] | None = None) -> bool:
        """Keep a sample that is claimed; return whether it is: there may be no room for it.

        Where a process to which it is another sample has put that in its place since, that stays.

        Args:
            index: Index of the sample.
            stamp: Stamp of what it was made of.
            sample: Image, uint8 of shape (height, width, 3), or encoded bytes, uint8 of shape (length,).
            planes: What is kept in place of the image, uint8 of shape (nbytes,); None: the image.
        """
        there = self._table[index : index + 1]
        if self._known[index] not in (0, there["check"][0]) and believable(there, np.array([index]))[0]:
            return False
        content = np.ascontiguousarray(sample if planes is None else planes).reshape(-1).data
        height, width = sample.shape[:2] if sample.ndim == 3 else (0, 0)
        try:
            most = self._may_take(content.nbytes)
            if (start := self._take_room(content.nbytes, most)) is None:
                self._say_full(most)
                return False
            write_all(self._data_file, content, start)
            digest = xxh3_64_intdigest(content)
            record = written(index, start, content.nbytes, height, width, stamp, digest)
            write_all(self._records_file, record.view(np.uint8).data, index * RECORD.itemsize)
        except OSError as error:
            self._give_up(error)
            return False
        self._known[index] = record["check"][0]
        return True

    def claim(self, indices: Iterable[int]) -> list[int]:
        """Claim samples that nobody makes now, so that nobody else does; return which of them."""
        claimed: list[int] = []
        try:
            for index in indices:
                with self._lock:
                    if index in self._claimed or not _locked(self._room, _CLAIMS + index):
                        continue
                    self._claimed.add(index)
                claimed.append(index)
        except OSError as error:
            self._give_up(error)
        return claimed

    def makes(self, indices: Iterable[int]) -> bool:
        """Tell whether a thread of this process has claimed one of some samples."""
        with self._lock:
            return not self._claimed.isdisjoint(indices)

    def release(self, indices: Iterable[int]) -> None:
        """Let go of what was claimed."""
        for index in indices:
            with self._lock:
                self._claimed.discard(index)
                with suppress(OSError):
                    _unlock(self._room, _CLAIMS + index)

    def _may_take(self, nbytes: int) -> int:
        """Return how many bytes of data there may be now, asked for anew after a share of what there is room for."""
        with self._lock:
            self._asks_after -= nbytes
            asks = self._asks_after < 0
        if asks:
            told = min(self._most_bytes, self._most_now() - self._table_bytes)
            self._told_bytes, self._asks_after = told, max(told - self.nbytes, self._most_bytes // 8) // 8
        return self._told_bytes

    def _say_full(self, most: int) -> None:
        """Say once that there is no more room; where there never will be, add nothing any more."""
        with self._lock:
            new, self._told_full = not self._told_full, True
            self.full |= most == self._most_bytes
        if new:
            _log.warning(
                "the keep %s is full: it has %s of %s samples in the %s that it may take; the others are read in each "
                "epoch%s",
                self._path,
                f"{int(self.kept(np.arange(len(self._table))).sum()):,}",
                f"{len(self._table):,}",
                amount(max(most, self.nbytes) + self._table_bytes),
                "" if most == self._most_bytes else ", as long as it may take no more",
            )

    def _give_up(self, error: OSError) -> None:
        """Add nothing any more, since a file cannot be written or locked."""
        with self._lock:
            new, self.full = not self.full, True
        if new:
            warn(
                f"the keep {self._path} cannot be written ({error.strerror}): what it holds is served, nothing is "
                f"added to it by this process; make room, or pass a smaller size",
            )

    def _take_on(self, identity: Mapping[str, Any], sampled: Sequence[int]) -> None:
        """Say what is kept here, or look whether it is this.

        Raises:
            StoreError: If it is something else.
        """
        file = self._path / IDENTITY
        try:
            present = json.loads(file.read_text())
            stamps = {*present.pop("stamps")} - {0}
        except FileNotFoundError:
            if any(os.fstat(each).st_size for each in (self._room, self._records_file, self._data_file)):
                raise StoreError(
                    f"a keep's folder must say in {IDENTITY} what it holds, but {self._path} does not, and has files "
                    f"of such names: pass another folder, or delete {', '.join(_OPENED)} there"
                ) from None
            whole = self._path / f"{IDENTITY}.new"
            with whole.open("w") as new:
                new.write(json.dumps({**identity, "stamps": [*sampled]}, indent=1) + "\n")
                new.flush()
                os.fsync(new.fileno())
            whole.replace(file)
            return
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"{file} must say what is kept there, but is damaged: pass another folder, or delete {IDENTITY}, "
                f"{', '.join(_OPENED)} there"
            ) from error
        if found := differences(present, json.loads(json.dumps(identity))):
            raise StoreError(
                f"a keep is of one source and in one form, but {self._path} holds another: {found}: pass another "
                f"folder, or delete it by `dalirefurb cache purge {self._path}`"
            )
        if any(sampled) and stamps and not stamps.intersection(sampled):
            raise StoreError(
                f"a keep is of the files that it was made of, but {self._path} holds those of others that have the "
                f"same names and labels, or all of them were changed: pass another folder, or delete it by `dalirefurb "
                f"cache purge {self._path}`"
            )

    def _settle_room(self) -> None:
        """After a crash of the machine, or in a copy, take as much room as samples have: the file may be behind."""
        status = os.fstat(self._room)
        mark = xxh3_64_intdigest(f"{boot_id()} {status.st_dev} {status.st_ino}".encode())
        if int.from_bytes(os.pread(self._room, 8, 8), "little") == mark:
            return
        end = self.nbytes
        count = self._table_bytes // RECORD.itemsize
        for first in range(0, count, _ROWS):
            raw = os.pread(self._records_file, RECORD.itemsize * min(_ROWS, count - first), RECORD.itemsize * first)
            records = np.frombuffer(raw, RECORD)
            held = records[believable(records, np.arange(first, first + len(records)))]
            end = max(end, int((held["start"] + held["nbytes"]).max(initial=0)))
        os.pwrite(self._room, end.to_bytes(8, "little") + mark.to_bytes(8, "little"), 0)

    def _take_room(self, nbytes: int, most: int) -> int | None:
        """Return where so many bytes may be written, of at most so many; None: there is no room."""
        with self._alone():
            start = rounded(self.nbytes)
            end = start + nbytes
            if end > most:
                return None
            if os.fstat(self._data_file).st_size < end:
                os.ftruncate(self._data_file, rounded(end, _STEP))
            os.pwrite(self._room, end.to_bytes(8, "little"), 0)
        return start

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep everybody else from taking room meanwhile."""
        with self._lock:
            until = time.monotonic() + _PATIENCE_S
            while not _locked(self._room, _ROOM):
                if time.monotonic() > until:
                    raise OSError(errno.ETIMEDOUT, f"another process has had its lock for {_PATIENCE_S:.0f} s")
                time.sleep(0.0005)
            try:
                yield
            finally:
                with suppress(OSError):
                    _unlock(self._room, _ROOM)

    def _brought(self, records: Records, fresh: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Have samples in memory; return the data, where they can be looked at, and which cannot be had, shape (n,).

        Where a few of those that are not fresh tell that all are in memory still, nothing is done about these.
        """
        data, lost = self._data, np.zeros(len(records), np.bool_)
        ends = records["start"] + records["nbytes"]
        if len(records) and int(ends.max()) > len(data):
            with suppress(OSError, ValueError):
                data = np.frombuffer(mmap.mmap(self._data_file, 0, access=mmap.ACCESS_READ), np.uint8)
                self._data = data
        lost |= ends > len(data)
        wanted = ~lost & (fresh if self._in_memory(records["start"][~fresh & ~lost]) else True)
        begin: int = data.__array_interface__["data"][0]
        first, advise = records["start"] // _PAGE * _PAGE, _advise()
        for row in np.flatnonzero(wanted).tolist():
            # An older kernel knows no such advice, and reads when it is looked at.
            failed = advise(begin + int(first[row]), int(ends[row] - first[row]), _POPULATE_READ) != 0
            lost[row] = failed and ctypes.get_errno() != errno.EINVAL
        return data, lost

    def _in_memory(self, starts: NDArray[np.uint64]) -> bool:
        """Tell whether samples that begin here are in memory, by a few of them; where it is not told, they are."""
        probed = starts[:: max(1, len(starts) // _PROBES)].tolist()
        return all(is_cached(self._data_file, place) is not False for place in probed)


@cache
def _advise() -> Any:
    """Return the system's `madvise`, for which Python's lock is let go: a disk may be slow."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise


def _is_at(descriptor: int, path: Path) -> bool:
    """Tell whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _close(descriptors: list[int], owner_pid: int) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            file_lock.close(descriptor, owner_pid)


def _locked(descriptor: int, byte: int) -> bool:
    """Lock a byte of a file for whoever opened it; return whether it is: nobody is waited for."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _unlock(descriptor: int, byte: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))
