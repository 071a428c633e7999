"""Strata: the rows of an epoch by what happens to them, as formulas that need no array of all samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dalirefurb.planning.batch_plan import Indices, Mask
from dalirefurb.rng import Bijections


class Run(NamedTuple):
    """Places of one shard that an epoch treats alike: `first`, `first + step`, ..., `size` of them.

    Attributes:
        first: The lowest place, from 0.
        step: Distance of neighbours, at least 1.
        size: Number of places, at least 1.
        miss: Whether they miss.
        keep: Whether their versions are served again in a later epoch.
    """

    first: int
    step: int
    size: int
    miss: bool
    keep: bool


Stratum = Sequence[Run]
"""Runs that share no place, whose rows are dealt to batches together; numbered run after run."""


def rows_of(stratum: Stratum) -> int:
    """Count the rows of a stratum."""
    return sum(run.size for run in stratum)


class Strata:
    """Strata of some shards, each in a random order of its own.

    >>> strata = Strata([[Run(0, 3, 2, True, True), Run(7, 1, 2, False, True)]], [np.uint64(0)])
    >>> places, miss, keep = strata.rows(np.zeros(4, int), np.arange(4))
    >>> places.tolist(), miss.tolist()
    ([0, 8, 7, 3], [True, False, False, True])
    >>> strata.find(0, np.array([8, 6]))[0].tolist()
    [1, -1]

    Args:
        strata: Strata, none of them empty.
        keys: Key of the random order of each.
    """

    def __init__(self, strata: Sequence[Stratum], keys: Sequence[np.uint64]) -> None:
        self._orders = Bijections([rows_of(stratum) for stratum in strata], keys)
        runs = [(number, *run) for number, stratum in enumerate(strata) for run in stratum]
        self._stratum, self._first, self._step, self._size = np.array([run[:4] for run in runs], np.int64).T
        self._miss, self._keep = (np.array([run[place] for run in runs], np.bool_) for place in (4, 5))
        self._alone = len(runs) == len(strata)  # each run is a stratum
        # Rows of all strata are numbered on end.
        self._before = np.cumsum(self._size) - self._size
        self._starts = self._before[np.searchsorted(self._stratum, np.arange(len(strata)))]

    def rows(self, which: Indices, positions: Indices) -> tuple[Indices, Mask, Mask]:
        """Return the rows at n positions of the random orders of strata.

        Args:
            which: Numbers of the strata, shape (n,).
            positions: Positions in the orders, shape (n,).

        Returns:
            Their places, whether they miss, and whether they are kept, each of shape (n,).
        """
        runs, numbers = which, self._orders.values(positions, which)  # in the stratum, and then in the run
        if not self._alone:
            numbers = self._starts[which] + numbers
            runs = np.searchsorted(self._before, numbers, side="right") - 1
            numbers -= self._before[runs]
        places: Indices = self._first[runs] + self._step[runs] * numbers
        return places, self._miss[runs], self._keep[runs]

    def find(self, stratum: int, places: Indices) -> tuple[Indices, Mask]:
        """Return where the random order of a stratum has n places, -1 where it has not, and which rows are kept."""
        found, keep = np.full(len(places), -1), np.zeros(len(places), np.bool_)
        for run in np.flatnonzero(self._stratum == stratum).tolist():
            number, rest = np.divmod(places - self._first[run], self._step[run])
            here = (rest == 0) & (number >= 0) & (number < self._size[run])
            found[here] = self._before[run] - self._starts[stratum] + number[here]
            keep[here] = self._keep[run]
        there = np.flatnonzero(found >= 0)
        found[there] = self._orders.positions(found[there], np.full(len(there), stratum))
        return found, keep
