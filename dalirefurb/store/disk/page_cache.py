"""The page cache: samples of a file that are in it, served where they lie, and what is read into it ahead.

Through a map, a page that cannot be read is no error but a signal, which ends the process. So nothing is looked at
through one but what is in the page cache already, of a file that is locked, on a machine with room for all of it.

A disk gives a few large pieces much faster than many small ones, and the kernel takes much less time to bring pieces
that follow each other. So where samples are small, and memory has room for all, whole blocks are read, in order:
neighbours come with a sample that are wanted soon. The paper on data refurbishing (USENIX ATC 2021) reads small samples
in batches, too.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Condition, Thread

import numpy as np
from numpy.typing import NDArray

from dalirefurb.store.disk.layout import PAGE

_PROBES = 8
"""Samples of a batch that are looked for: each takes as long as half a dozen steps of Python."""

_MOST_WAITS = 1 / 16
"""How often, for each sample, a look may wait for the disk. More often, and memory has no room for the file at all."""

_DISTRUST_S = 10.0
"""For so long nothing is looked at then: to wait for pages, one by one, costs more than to copy what the disk gives."""


class Mapped:
    """A file in the page cache. What it shows changes with the file, but for what is kept.

    Args:
        fd: The file, open to read.
        nbytes: Bytes of the file that are mapped, from its beginning, which was read just now. The file reaches
            further.

    Attributes:
        pixels: The mapped bytes of the file, shape (nbytes,), to be looked at only: what is written here does not reach
            the file.

    Raises:
        OSError: It cannot be mapped, or its file system does not tell what is in memory.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        # Opened once more: a map has a descriptor of its own, which would keep the file's lock when it is closed, and
        # what the kernel is told about the order of reading concerns one opening.
        self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        weakref.finalize(self, os.close, self._fd)
        if not self.has(0):
            raise OSError(errno.EOPNOTSUPP, "its file system does not tell what is in memory")
        self.pixels = np.frombuffer(mmap.mmap(self._fd, nbytes, access=mmap.ACCESS_COPY), np.uint8)
        self._distrusted_until = 0.0

    def holds(self, starts: NDArray[np.int64]) -> bool:
        """Tell whether samples that begin here are in the page cache, shape (n,), by a few of them."""
        if time.monotonic() < self._distrusted_until:
            return False
        step = max(1, -(-len(starts) // _PROBES))
        return all(self.has(start) for start in starts[::step].tolist())

    def has(self, start: int) -> bool:
        """Tell whether a byte is in the page cache, as far as it is told."""
        return is_cached(self._fd, start) is True

    def bring(self, start: int, buffer: memoryview) -> int:
        """Have a part in the page cache, by reading it into a buffer of that size; return the bytes there were.

        Raises:
            OSError: The device fails.
        """
        return os.preadv(self._fd, (buffer,), start)

    @contextmanager
    def watched(self, count: int) -> Iterator[None]:
        """Look at so many samples meanwhile; if some were not there after all, trust what is found less for a while."""
        before = waits()
        yield
        if waits() - before > _MOST_WAITS * count:
            self._distrusted_until = time.monotonic() + _DISTRUST_S

    def keep(self, start: int, nbytes: int) -> None:
        """Show a part as it is now for good: its pages become this process's own, at the same address."""
        touched = self.pixels[start // PAGE * PAGE : start + nbytes : PAGE]
        touched[:] = touched.copy()


def is_cached(fd: int, place: int) -> bool | None:
    """Tell whether the page cache holds a byte of an open file; None: neither its file system nor Python can tell."""
    try:
        return os.preadv(fd, (bytearray(1),), place, os.RWF_NOWAIT) == 1
    except BlockingIOError:  # It would have to wait for the disk.
        return False
    except (OSError, AttributeError, NotImplementedError):
        return None


def waits() -> int:
    """Count how often this thread has waited for the disk to bring a page."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


_BLOCK = 1 << 18
_GAP = 4
"""Blocks that nobody asked for are read, too, if they are fewer than this between two others."""

SMALL = 1 << 14
"""Bytes below which a sample is small."""

_LONG = 8
"""So many blocks at once keep a disk busy; shorter spans are announced to the kernel, which reads some together."""

_PIECE = 4 * _BLOCK

Span = tuple[int, int]
"""The first block, and the one after the last."""


class SampleReadAhead:
    """Has the kernel read samples, which begin at a byte of a file, into the page cache; who needs one waits for it."""

    def __init__(self, fd: int, start: int) -> None:
        self._fd = fd
        self._start = start

    def ask(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Begin to read n samples, some time, by their first bytes among all and their sizes, (n,); nothing waits."""
        _announce(self._fd, zip((self._start + starts).tolist(), sizes.tolist(), strict=True))

    def wait(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Wait for what was asked for of n samples, as far as waiting for it is worth while."""

    def close(self) -> None:
        """Read no more. Nobody may be waiting."""


class BlockReadAhead(SampleReadAhead):
    """Reads blocks of a file of small samples, in order, on a thread that ends with its work. Thread-safe."""

    def __init__(self, fd: int, mapped: Mapped, start: int) -> None:
        super().__init__(fd, start)
        self._mapped = mapped
        self._changed = Condition()
        self._asked: list[Span] = []
        self._coming: set[int] = set()
        self._thread: Thread | None = None
        self._closed = False

    def ask(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        blocks = _blocks(starts, sizes)
        with self._changed:
            new = [block for block in blocks if block not in self._coming]
            if not new:
                return
            if self._thread is None:
                thread = Thread(target=self._work, name="dalirefurb-read-ahead", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # The system has no thread left: whoever needs a sample reads it.
                    return
                self._thread = thread
            self._coming.update(new)
            self._asked += spans(new)

    def wait(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        if self._coming:
            blocks = _blocks(starts, sizes)
            with self._changed:
                self._changed.wait_for(lambda: self._coming.isdisjoint(blocks))

    def close(self) -> None:
        """Read no more, and wait until the thread has ended."""
        with self._changed:
            self._closed = True
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        try:
            self._read_all()
        except BaseException:
            with self._changed:  # Nobody waits for what will not come.
                self._coming.clear()
                self._asked.clear()
                self._thread = None
                self._changed.notify_all()
            raise

    def _read_all(self) -> None:
        """Read what is asked for, until nothing is."""
        buffer = memoryview(bytearray(_PIECE))
        while asked := self._take():
            # Whoever needs what cannot be read finds out, and says so.
            with suppress(OSError):
                _announce(self._fd, (self._part(span) for span in asked if span[1] - span[0] < _LONG))
            for span in asked:
                with suppress(OSError):
                    self._read(span, buffer)
                with self._changed:
                    self._coming.difference_update(range(*span))
                    self._changed.notify_all()

    def _take(self) -> list[Span]:
        with self._changed:
            asked, self._asked = self._asked, []
            if not asked:
                self._thread = None
            return asked

    def _read(self, span: Span, buffer: memoryview) -> None:
        """Read blocks one after the other, but for the first ones that are in memory."""
        place, nbytes = self._part(span)
        end = place + nbytes
        while place < end and self._mapped.has(place):
            place += _BLOCK
        while place < end and not self._closed:
            count = self._mapped.bring(place, buffer[: end - place])
            if not count:
                return
            place += count

    def _part(self, span: Span) -> tuple[int, int]:
        """Return where a span begins in the file, and its bytes."""
        return self._start + span[0] * _BLOCK, (span[1] - span[0]) * _BLOCK


def spans(blocks: Sequence[int]) -> list[Span]:
    """Join blocks, in ascending order, that are near to each other."""
    found: list[Span] = []
    for block in blocks:
        if found and block - found[-1][1] < _GAP:
            found[-1] = found[-1][0], block + 1
        else:
            found.append((block, block + 1))
    return found


def _blocks(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[int]:
    """Find the blocks of n samples, which are in two at most, in ascending order."""
    blocks: list[int] = np.unique(np.concatenate([starts, starts + np.maximum(sizes, 1) - 1]) // _BLOCK).tolist()
    return blocks


def _announce(fd: int, parts: Iterable[tuple[int, int]]) -> None:
    """Have the kernel begin to read parts of a file: where each begins, and its bytes."""
    for start, size in parts:
        os.posix_fadvise(fd, start, size, os.POSIX_FADV_WILLNEED)
