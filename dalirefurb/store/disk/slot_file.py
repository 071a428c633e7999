"""A file of slots: set aside at once, locked, and written by offset, so that samples are whole or absent.

They are read where they lie if they are in memory anyway, else copied into a buffer. A failing device, or a file cut
short, is an error of a copy; through a map it would be a signal, see `page_cache`.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb.errors import StoreError, warn
from dalirefurb.image_batch import Image, Images, images_at, rounded
from dalirefurb.store.disk import file_lock
from dalirefurb.store.disk.layout import (
    PAGE,
    RECORD,
    SAMPLES_START,
    Layout,
    Records,
    Table,
    believable,
    identity,
    read_header,
    read_table,
    sizes,
    write_header,
)
from dalirefurb.store.disk.page_cache import SMALL, BlockReadAhead, Mapped, SampleReadAhead
from dalirefurb.store.spec import StoreSpec, differences
from dalirefurb.system.resources import amount, available_bytes

_NO_BYTES = np.empty(0, np.uint8)

_LEAST_ROOM = 2
"""The memory at hand is as many times the samples' bytes, at least, if they are to stay in it."""


class CopyBuffers:
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


class SlotReader:
    """Reads samples of an open file, as long as its layout says, and sees whether they are as they were written."""

    def __init__(self, fd: int, layout: Layout) -> None:
        nbytes, room = layout.samples_bytes, available_bytes()
        fits = room is None or nbytes * _LEAST_ROOM <= room
        self.buffers = CopyBuffers()
        self._fd = fd
        self._read_ahead = SampleReadAhead(fd, SAMPLES_START)
        self._mapped: Mapped | None = None
        if fits:
            with suppress(OSError):  # Some file systems map nothing, or do not tell what is in memory.
                self._mapped = Mapped(fd, SAMPLES_START + nbytes)
                if nbytes < SMALL * layout.spec.slots:
                    self._read_ahead = BlockReadAhead(fd, self._mapped, SAMPLES_START)
        # A sample is asked for whole, and its neighbour is none that comes next, unless `BlockReadAhead` says so.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, records: Records) -> tuple[NDArray[np.bool_], Images, NDArray[np.uint8]]:
        """Read n samples.

        Returns:
            Whether the pixels of each are those that were written, shape (n,); what was read, read-only; and the
            buffer where it lies, to be given back, which is empty if it lies in the file.

        Raises:
            OSError: The device fails, or the file ends early.
        """
        nbytes, starts = sizes(records), records["start"] + SAMPLES_START
        self._read_ahead.wait(records["start"], nbytes)
        here = self._in_memory(starts)
        if here is None:
            steps = rounded(nbytes)
            offsets = np.cumsum(steps) - steps
            pixels = buffer = self.buffers.take(int(steps.sum()))
            checksums = map(xxh3_64_intdigest, self._filled(_parts(pixels, offsets, nbytes), starts))
            whole = _equal(checksums, records)
        else:
            pixels, offsets, buffer = here.pixels, starts, _NO_BYTES
            with here.watched(len(records)):
                whole = _equal(map(xxh3_64_intdigest, _parts(pixels, offsets, nbytes)), records)
        return whole, images_at(pixels, offsets, records["shape"]), buffer

    def prefetch(self, records: Records) -> None:
        """Have the kernel begin to read n samples, unless it has."""
        if self._in_memory(records["start"] + SAMPLES_START) is None:
            self._read_ahead.ask(records["start"], sizes(records))

    def close(self) -> None:
        """Read nothing more ahead. Nobody may be reading."""
        self._read_ahead.close()

    def keep(self, start: int, nbytes: int) -> None:
        """Let a block stay as it is for those who look at it, whatever is written into the file from now on."""
        if self._mapped is not None:
            self._mapped.keep(SAMPLES_START + start, nbytes)

    def _in_memory(self, starts: NDArray[np.int64]) -> Mapped | None:
        """Return where n samples are in memory, as far as a few of them tell."""
        return self._mapped if self._mapped is not None and self._mapped.holds(starts) else None

    def _filled(self, parts: Iterable[memoryview], starts: NDArray[np.int64]) -> Iterator[memoryview]:
        """Copy what begins in n places of the file, each into its part."""
        for part, start in zip(parts, starts.tolist(), strict=True):
            if os.preadv(self._fd, (part,), start) != len(part):
                raise OSError(errno.EIO, "it ends early")
            yield part


def _parts(pixels: NDArray[np.uint8], offsets: NDArray[np.int64], nbytes: NDArray[np.int64]) -> Iterator[memoryview]:
    """Cut out n samples."""
    return map(pixels.data.__getitem__, map(slice, offsets.tolist(), (offsets + nbytes).tolist()))


def _equal(checksums: Iterable[int], records: Records) -> NDArray[np.bool_]:
    """Tell which of n samples have the checksum that was written down."""
    found: NDArray[np.bool_] = np.fromiter(checksums, np.uint64, len(records)) == records["pixels"]
    return found


_ZEROS = bytes(PAGE)
_MEBIBYTE = bytes(1 << 20)


class SlotFile:
    """A locked file of samples and the table of their records, made if need be in a folder that exists.

    The caller sees to it that no block is used twice.

    Raises:
        StoreError: It cannot be used, is in use, is for something else, or does not fit on its disk.
        ConfigurationError: The fingerprint is too long.
    """

    def __init__(self, path: Path, spec: StoreSpec) -> None:
        self.layout = Layout(spec)
        self._path = path
        self._fd, is_new = file_lock.open_locked(path)
        self._end = weakref.finalize(self, file_lock.close, self._fd, os.getpid())
        try:
            self.table = self._prepare(spec)
            self.reader = SlotReader(self._fd, self.layout)
        except BaseException as error:
            if is_new:
                path.unlink(missing_ok=True)
            self._end()
            if isinstance(error, OSError):
                raise StoreError(
                    f"a store's file must be readable and writable, but {path} is not ({error.strerror}): "
                    "repair it, or use another path"
                ) from error
            raise

    def _prepare(self, spec: StoreSpec) -> Table:
        """Bring the file into shape and return what it holds: what it held, as far as there is still room for it."""
        fd = self._fd
        if os.fstat(fd).st_size == 0:
            write_header(fd, spec)
            os.fsync(fd)
        before = read_header(fd, self._path)
        if before is None:
            warn(
                f"the header of the store {self._path} was damaged and is written anew: what it held may be lost",
            )
            write_header(fd, spec)
            before = spec
        self._check_same(before, spec)
        file_lock.sign(fd)
        old, new, seed = Layout(before), self.layout, identity(spec)
        _set_aside(fd, new.nbytes, self._path)
        records = read_table(fd, old.table_start, before.slots)
        kept = _usable(records, seed, new)
        if old == new and kept.sum() == np.count_nonzero(records["check"]):
            return Table(fd, new.table_start, seed, records)
        # Before the table is written there may be anything in its place, and nothing there will be believed.
        write_header(fd, spec)
        fresh = np.zeros(spec.slots, RECORD)
        held = records[kept][: spec.slots]
        fresh[: len(held)] = held
        table = Table(fd, new.table_start, seed, fresh)
        table.write()
        os.ftruncate(fd, new.nbytes)
        return table

    def _check_same(self, present: StoreSpec, asked: StoreSpec) -> None:
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

    def write(self, start: int, sample: Image) -> int:
        """Write a sample's pixels into the block at `start`, and return their checksum.

        Raises:
            OSError: There is no room on the disk after all, or the device fails.
        """
        pixels = np.ascontiguousarray(sample).data
        parts: list[memoryview | bytes] = [pixels, _ZEROS[: -pixels.nbytes % self.layout.alignment]]
        if os.pwritev(self._fd, parts, SAMPLES_START + start) < pixels.nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return int(xxh3_64_intdigest(pixels))

    def loss(self) -> str | None:
        """Say what somebody has done to the file that makes it useless."""
        state = os.fstat(self._fd)
        if state.st_nlink == 0:
            return "was removed"
        return "was cut short" if state.st_size < self.layout.nbytes else None

    @property
    def is_short(self) -> bool:
        """Whether somebody has cut it short."""
        return os.fstat(self._fd).st_size < self.layout.nbytes

    def give_up(self) -> None:
        """Give back the room of a file that was removed. Nobody may be looking at it."""
        if os.fstat(self._fd).st_nlink == 0:
            os.ftruncate(self._fd, 0)

    def close(self, pinned: Iterable[tuple[int, int]] = ()) -> None:
        """Unlock and close it; twice is as once. Nobody may be reading or writing.

        Whoever looks at pinned blocks, given by starts and bytes, goes on seeing them as they are.
        """
        for start, nbytes in pinned:
            self.reader.keep(start, nbytes)
        self.reader.close()
        self._end()


def _usable(records: Records, seed: int, layout: Layout) -> NDArray[np.bool_]:
    """Tell which of n records are to be kept, shape (n,): believable, within the samples, apart, and of one version."""
    rows = np.flatnonzero(believable(records, seed))
    starts = records["start"][rows]
    ends = starts + rounded(sizes(records)[rows], layout.alignment)
    order = np.argsort(starts, kind="stable")
    before = np.maximum.accumulate(np.concatenate([[0], ends[order][:-1]])) if len(rows) else ends
    apart = np.zeros(len(rows), np.bool_)
    apart[order] = starts[order] >= before
    rows = rows[apart & (ends <= layout.samples_bytes)]
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
        f"a store must fit on its disk, but {path} needs {amount(nbytes - present)} more and "
        f"{amount(free)} are free{reason}: use a smaller reuse factor, a coverage below 1, a smaller image, "
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
