"""Cache-aware shuffle: every batch misses equally, and is random otherwise.

The batch shuffler is the cache-aware shuffle of Revamper (Lee et al., USENIX ATC 2021): every batch has the
same ratio of misses to hits, drawn at random within each class, so that no batch waits longer than another.
The plain shuffler ignores the cache; it is there to be compared with.

A cell is the slice of one batch that one shard fills. Shard s fills the s-th of `shards` equal slices. Rows are put in
strata by what happens to them, and how many rows of each stratum come before a batch is a formula: so a cell is known
without those before it. Of a stratum, a random order of its own; in a cell, a random order again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
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


@dataclass(frozen=True)
class BatchOrder(ABC):
    """Puts the rows that an epoch serves in order."""

    @abstractmethod
    def strata(self, runs: Sequence[Run]) -> list[Stratum]:
        """Part the rows of a shard, always into as many strata."""

    @abstractmethod
    def before(
        self, sizes: Sequence[Sequence[int]], batch: int, *, batch_size: int, shards: range
    ) -> list[Sequence[int]]:
        """Count the rows of each stratum of some shards that are served before a batch.

        Args:
            sizes: Rows of each stratum of each shard, shape (shards, strata). Several shards fill whole batches: they
                have as many rows each, a multiple of batch_size // shards. One shard may leave a short batch.
            batch: Number of the batch, in 0..batches.
            batch_size: Rows of a batch, a multiple of the number of shards.
            shards: Numbers of the shards to count for.

        Returns:
            The counts, shape (len(shards), strata).
        """

    @abstractmethod
    def extra_slots(self, *, shards: int, batches: int, samples: int) -> int:
        """Bound how far a shard's stored versions rise, inside an epoch, above their number at its ends.

        Args:
            shards: Number of shards.
            batches: Batches per epoch.
            samples: Samples of the shard.
        """


@dataclass(frozen=True)
class BatchShuffler(BatchOrder):
    """Gives each batch an equal share of the misses, at random places.

    Versions that are stored and versions that are served for the last time are spread evenly over the epoch
    too, so that evictions balance insertions.
    """

    def strata(self, runs: Sequence[Run]) -> list[Stratum]:
        """Part rows into kept and other misses, and into hits served for the last time and other hits."""
        kinds = ((True, True), (True, False), (False, False), (False, True))
        return [[run for run in runs if (run.miss, run.keep) == kind] for kind in kinds]

    def before(
        self, sizes: Sequence[Sequence[int]], batch: int, *, batch_size: int, shards: range
    ) -> list[Sequence[int]]:
        """Count misses as `misses_before` does, and in proportion those of them that are kept; see `BatchOrder`."""
        rows = sum(sizes[0])
        served = min(batch * batch_size // len(sizes), rows)
        misses = [kept + given_up for kept, given_up, *_ in sizes]
        missed = misses_before(misses, batch, num_rows=len(sizes) * rows, batch_size=batch_size, shards=shards)
        counts: list[Sequence[int]] = []
        for shard, miss in zip(shards, missed, strict=True):
            kept, _, ending, _ = sizes[shard]
            hit = served - miss
            keep = miss * kept // max(misses[shard], 1)
            end = hit * ending // max(rows - misses[shard], 1)
            counts.append((keep, miss - keep, end, hit - end))
        return counts

    def extra_slots(self, *, shards: int, batches: int, samples: int) -> int:
        """Return 0 for one shard; for several, what the rounding of `misses_before` costs.

        Let a shard have M misses of which K are stored, and H hits of which L are evicted. When it has served
        x M + d misses after the share x of an epoch, it has stored less than 1 + d (K / M + L / H) versions
        more than a straight line between the epoch's ends. With one shard d is at most 0. With several it is
        at most twice the discrepancy of van der Corput's sequence, log2(n) / 3 + 1 (Béjian and Faure, 1977).
        """
        return 0 if shards == 1 else math.ceil(4 * (math.log2(batches) / 3 + 1))


@dataclass(frozen=True)
class PlainShuffler(BatchOrder):
    """Ignores the cache: misses fall where they fall."""

    def strata(self, runs: Sequence[Run]) -> list[Stratum]:
        return [runs]

    def before(
        self, sizes: Sequence[Sequence[int]], batch: int, *, batch_size: int, shards: range
    ) -> list[Sequence[int]]:
        return [(min(batch * batch_size // len(sizes), sizes[shard][0]),) for shard in shards]

    def extra_slots(self, *, shards: int, batches: int, samples: int) -> int:
        """Return the samples of the shard: every version may be stored before the first is evicted."""
        return samples


def misses_before(
    misses: Sequence[int], batch: int, *, num_rows: int, batch_size: int, shards: range | None = None
) -> list[int]:
    """Count some shards' misses before a batch, where those of all shards are apportioned to n batches.

    With one shard the misses of the batches up to t are the share of the rows up to t, rounded down. With
    several, batch t of n has (k_t + misses of shards up to s) // n misses in the shards up to s. Because k_t
    takes each value of 0..n-1 once, every column sums to its shard's misses (Hermite's identity). The order
    of k_t is that of van der Corput, so that each shard keeps close to its share throughout the epoch. In every batch
    every contiguous run of shards is less than one miss away from its share, and so is the batch.

    >>> [misses_before([3], batch, num_rows=10, batch_size=4) for batch in range(4)]
    [[0], [1], [2], [3]]
    >>> [misses_before([3, 3], batch, num_rows=16, batch_size=4) for batch in range(5)]
    [[0, 0], [0, 1], [1, 2], [2, 2], [3, 3]]

    Args:
        misses: Misses of each shard.
        batch: Number of the batch, in 0..n.
        num_rows: Rows that the epoch serves; with several shards a multiple of batch_size.
        batch_size: Rows of a batch.
        shards: Numbers of the shards to count for, by default all.

    Returns:
        Counts, one for each of `shards`.
    """
    if len(misses) == 1:
        return [min(batch * batch_size, num_rows) * misses[0] // num_rows]
    shards = range(len(misses)) if shards is None else shards
    batches = num_rows // batch_size
    up_to = list(accumulate((misses[shard] for shard in shards), initial=sum(misses[: shards.start])))
    # The sum over t of (k_t + c) // n is t times c // n, and one more for each k_t that is at least n - c % n.
    below = _bit_reversed_below([batches - count % batches for count in up_to], batch, batches)
    sums = [batch * (count // batches) + batch - fewer for count, fewer in zip(up_to, below, strict=True)]
    return [after - before for before, after in pairwise(sums)]


def _bit_reversed_below(limits: Sequence[int], count: int, size: int) -> list[int]:
    """Count, among the first `count` of the numbers 0..size-1 in the order of their reversed bits, those below limits.

    The numbers in this order are the leaves, from the left, of a tree in which the k-th branching decides bit k, the
    lowest being bit 0: those of a subtree leave the same remainder. So the path to leaf `count` passes what is before.
    """
    if count == size:
        return list(limits)
    found = [0] * len(limits)
    bits = (size - 1).bit_length()
    remainder, modulus = 0, 1
    for bit in range(bits):
        modulus *= 2
        most = 1 << (bits - bit - 1)
        inside = _members(size, remainder, modulus, most)
        if count < inside:
            continue
        count -= inside
        for place, limit in enumerate(limits):
            found[place] += _members(limit, remainder, modulus, most)
        remainder += modulus // 2
    return found


def _members(limit: int, remainder: int, modulus: int, most: int) -> int:
    """Count the numbers below `limit` that leave `remainder`, of the first `most` that do."""
    return max(0, min(most, (limit - remainder + modulus - 1) // modulus))
