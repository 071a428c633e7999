"""RowQueue: rows by number, from the greatest down; most are overtaken by events before it is their turn.

So nothing is ever looked for and removed: an entry that is not true any more is passed over when its turn comes, or
when such entries are too many. And nothing is sorted before somebody asks for the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from dalirefurb.store.key_index import Numbers, distinct

_STALE = 64
"""Stale entries that are not worth tidying up."""

_AT_LEAST = 256
"""Entries that are looked at together, since most of the time that takes does not depend on how many they are."""

_NONE = np.empty(0, np.int64)


class RowQueue:
    """Rows under numbers; of equal numbers the last to come is the first to go.

    Args:
        is_true: Function that tells which of rows, shape (n,), are still under numbers, shape (n,).

    Example:
        >>> queue = RowQueue(lambda rows, numbers: rows != 8)
        >>> queue.add(np.array([7, 8, 9]), np.array([5, 5, 4]))
        >>> queue.last, queue.pop(2).tolist()
        (5, [7, 9])
    """

    def __init__(self, is_true: Callable[[Numbers, Numbers], NDArray[np.bool_]]) -> None:
        self._is_true = is_true
        self._unsorted: list[tuple[Numbers, Numbers]] = []
        self._sorted: dict[int, list[Numbers]] = {}
        # Those that have sorted rows, negated.
        self._numbers: list[int] = []
        self._size = 0

    @property
    def last(self) -> float:
        """The greatest number, stale entries included; -inf where there is none."""
        self._sort()
        return -self._numbers[0] if self._numbers else -math.inf

    def add(self, rows: Numbers, numbers: Numbers) -> None:
        """Take note of different rows, shape (n,), and their numbers, shape (n,)."""
        if len(rows):
            self._unsorted.append((rows, numbers))
            self._size += len(rows)

    def pop(self, count: int) -> Numbers:
        """Remove rows of the greatest numbers, which are to be made untrue before the next call.

        Returns:
            At most `count` different ones, fewer only if so many entries are stale; the last one first.
        """
        self._sort()
        chunks, numbers, missing = [], [], max(count, _AT_LEAST)
        while missing > 0 and self._numbers:
            number = -self._numbers[0]
            chunk = self._sorted[number].pop()
            if len(chunk) > missing:
                self._sorted[number].append(chunk[:-missing])
                chunk = chunk[-missing:]
            if not self._sorted[number]:
                del self._sorted[number]
                heappop(self._numbers)
            chunks.append(chunk[::-1])
            numbers.append(number)
            missing -= len(chunk)
        self._size -= sum(map(len, chunks))
        rows, under = self._true(chunks, numbers)
        self.add(rows[count:][::-1], under[count:][::-1])
        return rows[:count]

    def tidy(self, most: int) -> None:
        """Forget stale entries, if there are more than `most` and a few, in all."""
        if self._size <= most + _STALE:
            return
        self._sort()
        chunks = [chunk[::-1] for chunks in self._sorted.values() for chunk in reversed(chunks)]
        rows, under = self._true(chunks, [number for number, chunks in self._sorted.items() for _ in chunks])
        self._unsorted, self._sorted, self._numbers, self._size = [], {}, [], 0
        self.add(rows[::-1], under[::-1])

    def _sort(self) -> None:
        """Sort what was not yet."""
        if not self._unsorted:
            return
        rows, numbers = (np.concatenate(arrays) for arrays in zip(*self._unsorted, strict=True))
        self._unsorted = []
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows[order], numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1)).tolist()
        for start, stop, number in zip(starts, [*starts[1:], len(rows)], numbers[starts].tolist(), strict=True):
            if number not in self._sorted:
                self._sorted[number] = []
                heappush(self._numbers, -number)
            self._sorted[number].append(rows[start:stop])

    def _true(self, chunks: list[Numbers], numbers: list[int]) -> tuple[Numbers, Numbers]:
        """Return the rows of chunks that are under the chunks' numbers, each once, where it comes first, and these."""
        rows = np.concatenate([_NONE, *chunks])
        under = np.repeat(np.array(numbers, np.int64), [len(chunk) for chunk in chunks])
        is_true = self._is_true(rows, under)
        rows, under = rows[is_true], under[is_true]
        if len(distinct(rows)) < len(rows):
            first = np.sort(np.unique(rows, return_index=True)[1])
            rows, under = rows[first], under[first]
        return rows, under
