"""Places for samples of varying size in one buffer: best fit, with freed neighbours joined."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from dalirefurb.image_batch import ALIGNMENT, rounded


class Allocator:
    """Hands out blocks of a buffer it never sees. Not thread-safe.

    Free blocks are binned by size, so a search takes time in the number of different sizes, not of blocks.

    Args:
        nbytes: Size of the buffer in bytes.
        alignment: Blocks begin at, and are rounded up to, multiples of this many bytes.
        used: Starts and sizes of blocks in use, ascending and apart.

    Example:
        >>> allocator = Allocator(256)
        >>> allocator.allocate(100), allocator.allocate(64), allocator.allocate(100)
        (0, 128, None)
        >>> allocator.free(0); allocator.free(128); allocator.allocate(256)
        0
    """

    def __init__(self, nbytes: int, *, alignment: int = ALIGNMENT, used: Iterable[tuple[int, int]] = ()) -> None:
        self._alignment = alignment
        # Block starts to sizes, for blocks in use and for free ones.
        self._used: dict[int, int] = {}
        self._free: dict[int, int] = {}
        # Ends of free blocks to their starts: the left neighbour of a block ends where it begins.
        self._start_of_end: dict[int, int] = {}
        # Sizes of free blocks to their starts, and those sizes in order.
        self._bins: dict[int, set[int]] = {}
        self._sizes: list[int] = []
        end = 0
        for start, size in used:
            self._used[start] = rounded(size, self._alignment)
            if start > end:
                self._add(end, start - end)
            end = start + self._used[start]
        rest = (nbytes - end) // alignment * alignment
        if rest > 0:
            self._add(end, rest)

    def allocate(self, nbytes: int) -> int | None:
        """Reserve `nbytes` (at least 1) in the smallest free block that fits.

        Returns:
            The block's first byte, or None when nothing fits.
        """
        size = rounded(nbytes, self._alignment)
        rank = bisect_left(self._sizes, size)
        if rank == len(self._sizes):
            return None
        start = next(iter(self._bins[self._sizes[rank]]))
        rest = self._remove(start) - size
        if rest:
            self._add(start + size, rest)
        self._used[start] = size
        return start

    def size(self, start: int) -> int:
        """Return the bytes of the block that begins at `start`."""
        return self._used[start]

    def free(self, start: int) -> None:
        """Give back the block that begins at `start`."""
        size = self._used.pop(start)
        end = start + size
        if end in self._free:
            size += self._remove(end)
        if start in self._start_of_end:
            start = self._start_of_end[start]
            size += self._remove(start)
        self._add(start, size)

    def _add(self, start: int, size: int) -> None:
        """List a free block."""
        self._free[start] = size
        self._start_of_end[start + size] = start
        if size not in self._bins:
            self._bins[size] = set()
            insort(self._sizes, size)
        self._bins[size].add(start)

    def _remove(self, start: int) -> int:
        """Unlist the free block at `start` and return its size."""
        size = self._free.pop(start)
        del self._start_of_end[start + size]
        self._bins[size].remove(start)
        if not self._bins[size]:
            del self._bins[size]
            del self._sizes[bisect_left(self._sizes, size)]
        return size
