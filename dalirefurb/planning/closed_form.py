"""Closed form: planners of which any batch is planned alone, at the cost of its rows.

A planner says of each shard which runs of places an epoch treats alike (`shuffle.Run`), and which version a place has.
What follows is the same for all of them, and none of it grows with the number of samples:

    batch ─▶ rows of each stratum before it and up to it ─▶ their places in the shard ─▶ samples
             by a count (`shuffle`)                         by the stratum's own         by the fixed
                                                            random order                 random order

Both random orders are bijections that need no table (`rng.Bijection`), so "which sample is served here" is a formula,
and "where is this sample served" is its inverse.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask, planned_together
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.shuffle import BatchOrder, BatchShuffler, Run, Strata, rows_of
from dalirefurb.rng import key, numbered_keys


class _Dealt(NamedTuple):
    """How the rows of some shards in an epoch are dealt.

    Attributes:
        sizes: Rows of each stratum of each shard, of all shards, shape (shards, strata).
        strata: Those strata of some of the shards that are not empty.
        shards: Shard of each of them, shape (n,).
        kinds: Number of each of them in its shard, shape (n,).
    """

    sizes: list[list[int]]
    strata: Strata
    shards: Indices
    kinds: Indices


class ClosedFormPlanner(Planner):
    """Plans each batch by formulas over places; a planner of this kind says what they are."""

    @abstractmethod
    def runs(self, epoch: int, shard: int) -> Sequence[Run]:
        """Return the places of a shard that an epoch serves, each in one run."""

    def likeness(self, shard: int) -> Hashable:
        """Return what decides the runs of a shard: shards of which it is the same have the same runs."""
        return shard

    @abstractmethod
    def versions(self, epoch: int, shards: Indices, places: Indices) -> Indices:
        """Return which version an epoch serves at n places, or would if it served them, shape (n,).

        Args:
            epoch: Number of the epoch.
            shards: Shards of the places, shape (n,), or (1,) for all of them.
            places: Places in the shards, shape (n,).
        """

    @property
    def order(self) -> BatchOrder:
        """What puts the rows of an epoch in order."""
        return BatchShuffler()

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        return self.plan_part(epoch, batch, range(self.shards))

    def plan_part(self, epoch: int, batch: int, shards: range) -> BatchPlan:
        epoch, batch = self._check(epoch, batch)
        batches = planned_together(batch, len(self), self._width * len(shards))
        plans = self._latest("planned", (epoch, batches, shards), lambda: self._plans(epoch, batches, shards))
        return plans[batch - batches.start]

    def wanted(self, epoch: int, batch: int, indices: Indices, versions: Indices, shards: range | None = None) -> Mask:
        """Tell which versions are served from a batch on, or in an epoch to come; see `Planner.wanted`."""
        epoch, batch = int(epoch), int(batch)
        shards = range(self.shards) if shards is None else shards
        places, owners = np.divmod(self._deal.positions(indices), self.shards)
        mine = (owners >= shards.start) & (owners < shards.stop)
        # A version is the epoch of its birth: what is not born yet would take the slots of what is.
        mine &= (versions == self.versions(epoch, owners, places)) & (versions <= epoch)
        # What waits is wanted if the next epoch serves it in this version.
        wanted: Mask = mine & (versions == self.versions(epoch + 1, owners, places))
        here, keep, later = self.coming(epoch, batch, owners, places, shards)
        wanted[here] = (mine & (keep | later))[here]
        return wanted

    def coming(
        self, epoch: int, batch: int, owners: Indices, places: Indices, shards: range
    ) -> tuple[Mask, Mask, Mask]:
        """Tell which of n places an epoch serves, which of these it keeps, and which from a batch on, each (n,).

        Of places whose owners are not among some neighbouring shards nothing is told.
        """
        here, keep, later = np.zeros((3, len(places)), np.bool_)
        dealt = self._dealt(epoch, shards)
        before = self.order.before(dealt.sizes, batch, batch_size=self.batch_size, shards=shards)
        for number, (shard, kind) in enumerate(zip(dealt.shards.tolist(), dealt.kinds.tolist(), strict=True)):
            rows = np.flatnonzero(owners == shard)
            found, kept = dealt.strata.find(number, places[rows])
            here[rows] |= found >= 0
            keep[rows] |= kept
            later[rows] |= found >= before[shard - shards.start][kind]
        return here, keep, later

    def _plans(self, epoch: int, batches: range, shards: range) -> list[BatchPlan]:
        """Plan some shards' rows of consecutive batches."""
        dealt, width = self._dealt(epoch, shards), self._width
        # Rows of each stratum before each batch and after the last one.
        before = np.array(
            [
                self.order.before(dealt.sizes, batch, batch_size=self.batch_size, shards=shards)
                for batch in range(batches.start, batches.stop + 1)
            ]
        )[:, dealt.shards - shards.start, dealt.kinds]
        # Cell after cell, stratum after stratum: so many rows, from there on in its random order.
        shares = before[1:] - before[:-1]  # (batches, strata)
        sizes = shares.reshape(-1)
        rows = np.repeat(np.arange(len(sizes)), sizes)
        skipped = before[:-1].reshape(-1) - np.cumsum(sizes) + sizes
        firsts = np.arange(batches.start, batches.stop)[:, None] * self.batch_size + width * np.array(shards)
        shuffled = _shuffled_cells(firsts.reshape(-1), width, len(rows), key(self.seed, "cell shuffle", epoch))
        rows = rows[shuffled]
        strata = rows if len(batches) == 1 else rows % len(dealt.kinds)
        places, miss, keep = dealt.strata.rows(strata, shuffled + skipped[rows])
        owners = dealt.shards[strata] if self.shards > 1 else np.zeros(1, np.int64)
        version, evict = self.versions(epoch, owners, places), ~(miss | keep)
        indices = self._deal.values(places if self.shards == 1 else self.shards * places + owners)
        plan = BatchPlan(indices, version, np.full(len(indices), epoch), miss, keep, evict=indices[evict])
        if len(batches) == 1:
            return [plan.read_only()]
        ends = np.cumsum(shares.sum(axis=1)).tolist()
        cuts = [slice(start, end) for start, end in pairwise([0, *ends])]
        return [plan.part(cut, evict=indices[cut][evict[cut]]).read_only() for cut in cuts]

    def _dealt(self, epoch: int, shards: range) -> _Dealt:
        """Return how some shards' rows of an epoch are dealt, made once while the epoch is planned."""
        return self._latest("dealing", (epoch, shards), lambda: self._deal_out(epoch, shards))

    def _deal_out(self, epoch: int, shards: range) -> _Dealt:
        one_of = {self.likeness(shard): shard for shard in range(self.shards)}
        parted = {alike: self.order.strata(self.runs(epoch, shard)) for alike, shard in one_of.items()}
        counted = {alike: [rows_of(stratum) for stratum in strata] for alike, strata in parted.items()}
        sizes = [counted[self.likeness(shard)] for shard in range(self.shards)]
        there = [(shard, kind) for shard in shards for kind, size in enumerate(sizes[shard]) if size]
        keys = [key(self.seed, "batch shuffle", epoch, shard, kind) for shard, kind in there]
        owners, kinds = np.array(there).T
        strata = [parted[self.likeness(shard)][kind] for shard, kind in there]
        return _Dealt(sizes, Strata(strata, keys), owners, kinds)


def _shuffled_cells(firsts: Indices, width: int, rows: int, of: np.uint64) -> Indices:
    """Return the slots of some cells in random order, cell after cell, shape (rows,).

    Args:
        firsts: Number of the first row of each cell, in the epoch, shape (cells,).
        width: Slots of a cell.
        rows: Rows in all: those that the last cell may lack come last.
        of: Key of the orders.
    """
    keys = numbered_keys((firsts[:, None] + np.arange(width)).astype(np.uint64), of)
    keys.reshape(-1)[rows:] = np.iinfo(np.uint64).max
    shuffled: Indices = np.argsort(keys, axis=1)
    shuffled += np.arange(0, keys.size, width)[:, None]
    return shuffled.reshape(-1)[:rows]
