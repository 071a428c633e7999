"""Reading ahead from a file: the samples that are needed next, or all around them where they are small.

A disk gives a few large pieces much faster than many small ones, and the kernel takes much less time to bring pieces
that follow each other. So where samples are small, and memory has room for all, whole blocks are read, in order:
neighbours come with a sample that are wanted soon. The paper on data refurbishing (USENIX ATC 2021) reads small samples
in batches, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Condition, Thread

import numpy as np
from numpy.typing import NDArray

from dalirefurb.store.disk.mapped import Mapped

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
    """Has the kernel read samples into the page cache; whoever needs one waits for that one.

    Args:
        fd: The file.
        start: Byte of the file at which samples begin.
    """

    def __init__(self, fd: int, start: int) -> None:
        self._fd = fd
        self._start = start

    def ask(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Begin to read n samples, some time; nothing waits.

        Args:
            starts: First byte of each sample among the samples, shape (n,).
            sizes: Bytes of each sample, shape (n,).
        """
        _announce(self._fd, zip((self._start + starts).tolist(), sizes.tolist(), strict=True))

    def wait(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Wait for what was asked for of n samples, as far as waiting for it is worth while."""

    def close(self) -> None:
        """Read no more. Nobody may be waiting."""


class BlockReadAhead(SampleReadAhead):
    """Reads blocks of a file, in order, on a thread that ends when there is nothing to do. Thread-safe.

    Args:
        fd: The file, in which samples are small.
        mapped: The same file, mapped.
        start: Byte of the file at which samples begin.
    """

    def __init__(self, fd: int, mapped: Mapped, start: int) -> None:
        super().__init__(fd, start)
        self._mapped = mapped
        self._changed = Condition()
        self._asked: list[Span] = []
        self._coming: set[int] = set()
        self._thread: Thread | None = None
        self._closed = False

    def ask(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Have the blocks of n samples read."""
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
        """Wait for the blocks of n samples."""
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
