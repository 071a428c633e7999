"""Samples of a file that are in memory anyway: pages of the kernel's cache, served where they lie.

Through a map, a page that cannot be read is no error but a signal, which ends the process. So nothing is looked at
through one but what is in the page cache already, of a file that is locked, on a machine with room for all of it.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from dalirefurb.store.disk.file_header import PAGE

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
        """Tell whether a byte is in the page cache."""
        try:
            return os.preadv(self._fd, (bytearray(1),), start, os.RWF_NOWAIT) == 1
        except (OSError, AttributeError, NotImplementedError):
            # It would have to wait for the disk, or neither the file system tells nor a Python built long ago can ask.
            return False

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


def waits() -> int:
    """Count how often this thread has waited for the disk to bring a page."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
