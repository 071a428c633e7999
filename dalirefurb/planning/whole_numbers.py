"""Whole numbers: intervals of them, as (start, stop) with the end excluded, and products of more than 64 bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from dalirefurb.planning.batch_plan import Indices

Interval = tuple[int, int]


def around(size: int, start: int, count: int) -> list[Interval]:
    """Return `count` numbers from `start` on, modulo `size`, as intervals, ends excluded.

    >>> around(10, 28, 4)
    [(0, 2), (8, 10)]
    """
    if count == 0:
        return []
    start %= size
    over = max(0, start + count - size)
    return [(0, over), (start, size)] if over else [(start, start + count)]


def pieces(size: int, sets: Sequence[Sequence[Interval]]) -> Iterator[tuple[int, int, list[bool]]]:
    """Cut 0 .. size-1 where one of some sets of intervals begins or ends; of each piece, tell which sets it lies in.

    >>> list(pieces(10, [[(0, 2), (8, 10)], [(1, 3)]]))
    [(0, 1, [True, False]), (1, 2, [True, True]), (2, 3, [False, True]), (3, 8, [False, False]), (8, 10, [True, False])]
    """
    cuts = sorted({0, size, *(end for intervals in sets for interval in intervals for end in interval)})
    for start, stop in pairwise(cuts):
        yield start, stop, [any(first <= start < last for first, last in intervals) for intervals in sets]


def scaled(numbers: Indices, factor: int, offset: int, divisor: int) -> Indices:
    """Return (numbers * factor + offset) // divisor, shape (n,), also where the product does not fit into 64 bits.

    >>> scaled(np.array([0, 10**12]), 3 * 10**12, 5, 10**12).tolist()
    [0, 3000000000000]
    """
    if not len(numbers):
        return numbers
    least = int(numbers.min())
    whole, rest = divmod(least * factor + offset, divisor)
    distance = numbers - least
    if rest + int(distance.max()) * factor < 1 << 62:
        return whole + (rest + distance * factor) // divisor
    return np.array([(number * factor + offset) // divisor for number in numbers.tolist()], np.int64)
