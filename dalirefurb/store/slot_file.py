"""How do samples get into a file and out of it whole? Set aside at once, read and written by offset, never mapped.

A full disk, a file cut short and a failing device are errors here; through a memory map they would be signals, which
end the process. The price is a copy into a buffer.
"""

from __future__ import annotations

import errno
import math
import os
import warnings
import weakref
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb.errors import StoreError
from dalirefurb.images import Image, Images, Places
from dalirefurb.store import file_lock
from dalirefurb.store.file_header import PAGE, SAMPLES_START, Layout, identity, read_header, write_header
from dalirefurb.store.opening import Opening, differences
from dalirefurb.store.read_ahead import ReadAhead
from dalirefurb.store.records import RECORD, Records, Table, believable, read_table, sizes

_CACHE_LINE = 64
_NO_BYTES = np.empty(0, np.uint8)
_ZEROS = bytes(PAGE)
_MEBIBYTE = bytes(1 << 20)


class Buffers:
    """Memory to read into, used again and again: fresh memory costs more than what is read into it. Thread-safe."""

    def __init__(self) -> None:
        self._free: list[NDArray[np.uint8]] = []
        self._lock = Lock()

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return at least `nbytes`; if the largest at hand is too small, it makes way for a larger one."""
        with self._lock:
            self._free.sort(key=len)
            buffer = self._free.pop() if nbytes and self._free else _NO_BYTES
        return buffer if len(buffer) >= nbytes else np.empty(1 << (nbytes - 1).bit_length(), np.uint8)

    def give(self, buffer: NDArray[np.uint8]) -> None:
        """Give a buffer back."""
        with self._lock:
            if len(buffer):
                self._free.append(buffer)


class SlotFile:
    """A locked file of samples and the table of their records. The caller sees to it that no block is used twice.

    Args:
        path: Where it is, or will be. Its folder exists.
        opening: What it is for.

    Attributes:
        layout: Where its parts are.
        table: The records of its slots.
        buffers: What samples are read into.
        close: Unlock and close it; twice is as once. Nobody may be reading or writing.

    Raises:
        StoreError: It cannot be used, is in use, is for something else, or does not fit on its disk.
        ConfigurationError: The fingerprint is too long.
    """

    def __init__(self, path: Path, opening: Opening) -> None:
        self.layout = Layout(opening)
        self.buffers = Buffers()
        self._path = path
        self._fd, is_new = file_lock.open_locked(path)
        self.close = weakref.finalize(self, os.close, self._fd)
        # A sample is asked for whole, and its neighbour is none that comes next, unless `ReadAhead` says so.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._read_ahead = ReadAhead(self._fd, SAMPLES_START, self.layout.samples_bytes, opening.slots)
        try:
            self.table = self._prepare(opening)
        except BaseException as error:
            if is_new:
                path.unlink(missing_ok=True)
            self.close()
            if isinstance(error, OSError):
                raise StoreError(
                    f"a store's file must be readable and writable, but {path} is not ({error.strerror}): "
                    "repair it, or use another path"
                ) from error
            raise

    def _prepare(self, opening: Opening) -> Table:
        """Bring the file into shape and return what it holds: what it held, as far as there is still room for it."""
        fd = self._fd
        if os.fstat(fd).st_size == 0:
            write_header(fd, opening)
            os.fsync(fd)
        before = read_header(fd, self._path)
        if before is None:
            warnings.warn(
                f"the header of the store {self._path} was damaged and is written anew: what it held may be lost",
                stacklevel=5,
            )
            write_header(fd, opening)
            before = opening
        self._check_same(before, opening)
        file_lock.sign(fd)
        old, new, seed = Layout(before), self.layout, identity(opening)
        _set_aside(fd, new.nbytes, self._path)
        records = read_table(fd, old.table_start, before.slots)
        kept = _usable(records, seed, new.samples_bytes)
        if old == new and kept.sum() == np.count_nonzero(records["check"]):
            return Table(fd, new.table_start, seed, records)
        # Before the table is written there may be anything in its place, and nothing there will be believed.
        write_header(fd, opening)
        fresh = np.zeros(opening.slots, RECORD)
        held = records[kept][: opening.slots]
        fresh[: len(held)] = held
        table = Table(fd, new.table_start, seed, fresh)
        table.write()
        os.ftruncate(fd, new.nbytes)
        return table

    def _check_same(self, present: Opening, asked: Opening) -> None:
        """Refuse a file that holds samples of something else; another number of slots is no reason."""
        found = differences(
            {"slot_shape": present.slot_shape, **present.fingerprint},
            {"slot_shape": asked.slot_shape, **asked.fingerprint},
        )
        if found:
            raise StoreError(
                f"a store's file serves one configuration, but {self._path} holds samples of another: {found}: "
                f"use another path, or delete it by `dalirefurb cache purge {self._path}`"
            )

    def read(self, records: Records) -> tuple[NDArray[np.bool_], Images, NDArray[np.uint8]]:
        """Read n samples.

        Returns:
            Whether the pixels of each are those that were written, shape (n,); what was read, read-only; and the
            buffer where it lies, to be given back.

        Raises:
            OSError: The device fails, or the file ends early.
        """
        nbytes = sizes(records)
        steps = -(-nbytes // _CACHE_LINE) * _CACHE_LINE
        buffer = self.buffers.take(int(steps.sum()))
        target = buffer.data
        whole = np.ones(len(records), np.bool_)
        starts, checksums = (records["start"] + SAMPLES_START).tolist(), records["pixels"].tolist()
        place = 0
        for row, (step, size) in enumerate(zip(steps.tolist(), nbytes.tolist(), strict=True)):
            pixels = target[place : place + size]
            if os.preadv(self._fd, (pixels,), starts[row]) != size:
                raise OSError(errno.EIO, "it ends early")
            if xxh3_64_intdigest(pixels) != checksums[row]:
                whole[row] = False
            place += step
        return whole, _images(buffer, steps, records["shape"]), buffer

    def write(self, start: int, sample: Image) -> int:
        """Write a sample's pixels into the block at `start`, and return their checksum.

        Raises:
            OSError: There is no room on the disk after all, or the device fails.
        """
        pixels = np.ascontiguousarray(sample).data
        # Whole pages: the rest of one would have to be read first.
        parts: list[memoryview | bytes] = [pixels, _ZEROS[: -pixels.nbytes % PAGE]]
        if os.pwritev(self._fd, parts, SAMPLES_START + start) < pixels.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(xxh3_64_intdigest(pixels))

    def prefetch(self, records: Records) -> None:
        """Have the kernel begin to read n samples."""
        self._read_ahead.ask(records["start"], sizes(records))

    def loss(self) -> str | None:
        """Say what somebody has done to the file that makes it useless; a removed one gives up its room."""
        state = os.fstat(self._fd)
        if state.st_nlink == 0:
            os.ftruncate(self._fd, 0)
            return "was removed"
        return "was cut short" if state.st_size < self.layout.nbytes else None


def _images(buffer: NDArray[np.uint8], steps: NDArray[np.int64], shapes: NDArray[np.int32]) -> Images:
    """View n images in a buffer, read-only, each so many bytes behind the one before."""
    offsets = np.cumsum(steps) - steps

    def look() -> list[Image]:
        shown = buffer.view()
        shown.flags.writeable = False
        return [
            shown[offset : offset + math.prod(shape)].reshape(shape)
            for offset, shape in zip(offsets.tolist(), shapes.tolist(), strict=True)
        ]

    return Images.on_demand(
        len(shapes), look, lambda: Places(buffer.ctypes.data + offsets, shapes[:, :2].astype(np.int64))
    )


def _usable(records: Records, seed: int, samples_bytes: int) -> NDArray[np.bool_]:
    """Tell which of n records are to be kept, shape (n,): believable, within the samples, apart, and of one version."""
    rows = np.flatnonzero(believable(records, seed))
    starts = records["start"][rows]
    ends = starts + -(-sizes(records)[rows] // PAGE) * PAGE
    order = np.argsort(starts, kind="stable")
    before = np.maximum.accumulate(np.concatenate([[0], ends[order][:-1]])) if len(rows) else ends
    apart = np.zeros(len(rows), np.bool_)
    apart[order] = starts[order] >= before
    rows = rows[apart & (ends <= samples_bytes)]
    _, first = np.unique(records[["index", "version"]][rows], return_index=True)
    usable = np.zeros(len(records), np.bool_)
    usable[rows[first]] = True
    return usable


def _set_aside(fd: int, nbytes: int, path: Path) -> None:
    """Let a file have `nbytes`, whatever else the disk is asked for later.

    Raises:
        StoreError: They do not fit; the file is as it was.
    """
    present = os.fstat(fd).st_size
    if nbytes <= present:
        return
    disk = os.fstatvfs(fd)
    free = disk.f_bavail * disk.f_frsize
    reason = ""
    if nbytes - present <= free:
        try:
            _allocate(fd, present, nbytes - present)
            return
        except OSError as error:
            os.ftruncate(fd, present)
            reason = f" ({error.strerror})"
    raise StoreError(
        f"a store must fit on its disk, but {path} needs {(nbytes - present) / 1e9:.2f} GB more and "
        f"{free / 1e9:.2f} GB are free{reason}: use a smaller reuse factor, a coverage below 1, a smaller image, "
        "or a path on another disk"
    )


def _allocate(fd: int, start: int, nbytes: int) -> None:
    try:
        os.posix_fallocate(fd, start, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        for place in range(start, start + nbytes, len(_MEBIBYTE)):
            rest = start + nbytes - place
            if os.pwrite(fd, _MEBIBYTE[:rest], place) < min(rest, len(_MEBIBYTE)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
