"""Views: several images of each sample in a batch, each with versions of its own, which are born in turn.

A view of a sample is planned as a sample: view v of sample i is number v * num_samples + i. So what is cached, drawn
and computed of views is kept apart by their numbers alone. Versions of view v are born v * reuse_factor // views epochs
after those of the first one, so that views are computed in turn, and go together in ever new pairs:

    reuse factor 2, two views, group 0    epoch 0    1    2    3    4
    view 0                                      V0   .    V2   .    V4     Ve: a miss, version e is born
    view 1                                      V0   V1   .    V3   .      . : a hit, the version to the left is reused
    served together                             0,0  0,1  2,1  2,3  4,3

Which samples a batch serves, and which wait, is what the inner planner says, for all views alike. Nobody waits in three
epochs on end (in two with odd reuse factors alone, at the end of a version of the first view and at the next one's
birth), so whether a view's version is there, and is served again, is known from the two epochs on either side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dalirefurb.checks import require
from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask
from dalirefurb.planning.planner import DerivedPlanner, Reuse
from dalirefurb.planning.refurbish import Refurbish, Standard


@dataclass(frozen=True)
class Views(DerivedPlanner):
    """Serves several views of each sample of another planner's batches, with versions of their own.

    A batch has, shard after shard, the rows of the first view, then those of the second, and so on.

    With reuse factor 2 and two views each sample has a miss and a hit in every epoch but the first, so all batches have
    equally many misses, and no two versions are served together twice. With a larger factor the versions of all views
    are served together until one of them ends, at most ceil(reuse_factor / views) epochs on end; which batches miss how
    often is even for the first view, and up to chance for the others. Samples that waited, by `drop_last` or shards,
    may miss in several views when they are served next. With more views than `reuse_factor` some are born together.

    >>> planner = Views(Refurbish(2, batch_size=2, reuse_factor=2), views=2)
    >>> [sorted(zip(plan.indices.tolist(), plan.version.tolist())) for epoch in (1, 2) for plan in planner.epoch(epoch)]
    [[(0, 0), (1, 1), (2, 1), (3, 0)], [(0, 2), (1, 1), (2, 1), (3, 2)]]

    Attributes:
        planner: Planner of the samples, `Refurbish` or `Standard`.
        views: Images of each sample, 2 to 1,024.
        num_samples: Samples of the inner planner, times `views`.
        batch_size: Rows of a batch: those of the inner planner, times `views`.
    """

    views: int = field(kw_only=True)

    def __post_init__(self) -> None:
        remedy = "pass Refurbish(...) or Standard(...), or views as recipes: views=[recipe.view(2)]"
        wanted = "a Refurbish or Standard where views is a number"
        require(isinstance(self.planner, (Refurbish, Standard)), "planner", wanted, self.planner, remedy)
        super().__post_init__()
        self._integer("views", 2, 1024, "pass 2 for pairs, or leave it out")
        for name in ("num_samples", "batch_size"):
            object.__setattr__(self, name, getattr(self.planner, name) * self.views)

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of each shard's samples that are ever stored at once, at most, shape (shards,).

        A sample has as many before it is served in an epoch, and after it, as its views have epochs left.
        """
        base, uses = self._base, self._base.reuse_factor
        phases = np.arange(uses)
        after = np.zeros(uses, np.int64)
        for shift in self._shifts.reshape(-1):
            after += (phases - shift) % uses < uses - 1
        most = np.sort(np.maximum(after, np.roll(after, 1)))[::-1]
        slots = []
        for shard in range(self.shards):
            whole, rest = divmod(base.likeness(shard)[1], len(most))
            even = base._groups == uses
            slots.append(int(whole * most.sum() + most[:rest].sum() if even else base.likeness(shard)[1] * most[0]))
        return tuple(slots)

    @property
    def reuse(self) -> Reuse:
        """How often versions are used; batches miss equally with reuse factor 2 at most, where nobody waits."""
        uses, served = self._base.reuse_factor, self._base._rows * self.shards
        even = uses == 1 or (uses == 2 and served == self.planner.num_samples)
        reuse = self._base.reuse
        return reuse._replace(even=even and reuse.even)

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        return self.plan_part(epoch, batch, range(self.shards))

    def plan_part(self, epoch: int, batch: int, shards: range) -> BatchPlan:
        samples = self.planner.plan_part(epoch, batch, shards).indices
        epoch, count = int(epoch), self.planner.num_samples
        numbers = samples + count * np.arange(self.views)[:, None]
        version, miss, keep = self._fates(epoch, *self._places(samples))
        # Of each shard all of a view, then all of the next.
        order = np.arange(numbers.size).reshape(self.views, len(shards), -1).swapaxes(0, 1).reshape(-1)
        indices, version = (each.reshape(-1)[order] for each in (numbers, version))
        miss, keep = (each.reshape(-1)[order] for each in (miss, keep))
        evict = indices[~(miss | keep)]
        return BatchPlan(indices, version, np.full(len(indices), epoch), miss, keep, evict=evict).read_only()

    def wanted(self, epoch: int, batch: int, indices: Indices, versions: Indices, shards: range | None = None) -> Mask:
        epoch, batch = int(epoch), int(batch)
        shards = range(self.shards) if shards is None else shards
        views, samples = np.divmod(indices, self.planner.num_samples)
        places, owners = self._places(samples)
        of_view = views, np.arange(len(indices))
        version, _, keep = (each[of_view] for each in self._fates(epoch, places, owners))
        next_one, one_after = (self._fates(later, places, owners)[0][of_view] for later in (epoch + 1, epoch + 2))
        again = (versions == next_one) & (~self._waits(epoch + 1, places, owners) | (versions == one_after))
        here, _, later = self._base.coming(epoch, batch, owners, places, shards)
        mine = (owners >= shards.start) & (owners < shards.stop) & (versions == version)
        wanted: Mask = mine & np.where(here, keep | later, again)
        return wanted

    @cached_property
    def shard_samples(self) -> tuple[int, ...]:
        """Count the views of samples of each shard, shape (shards,)."""
        return tuple(self.views * count for count in self.planner.shard_samples)

    def members(self, shard: int, places: Indices) -> Indices:
        """Return views at n places of a shard's fixed order, view after view; see `Planner.members`."""
        views, places = np.divmod(places, self.planner.shard_samples[shard])
        numbers: Indices = self.planner.members(shard, places) + self.planner.num_samples * views
        return numbers

    def owners(self, indices: Indices) -> Indices:
        return self.planner.owners(indices % self.planner.num_samples)

    @cached_property
    def _base(self) -> Refurbish:
        """Planner whose formulas are those of each view; `Standard` is refurbishing with reuse factor 1."""
        inner = self.planner
        return inner if isinstance(inner, Refurbish) else inner._as(Refurbish, reuse_factor=1)

    @cached_property
    def _shifts(self) -> Indices:
        """Epochs by which versions of each view are born later than those of the first, shape (views, 1)."""
        shifts: Indices = np.arange(self.views)[:, None] * self._base.reuse_factor // self.views
        return shifts

    def _places(self, samples: Indices) -> tuple[Indices, Indices]:
        """Return the place of each of n samples in its shard, and the shard, each of shape (n,)."""
        return np.divmod(self.planner._deal.positions(samples), self.shards)

    def _fates(self, epoch: int, places: Indices, owners: Indices) -> tuple[Indices, Mask, Mask]:
        """Return what happens to all views of samples at n places if an epoch serves them.

        Returns:
            Their versions, whether they miss, and whether these are served again, each of shape (views, n).
        """
        base, uses = self._base, self._base.reuse_factor
        covered, offsets = base._of_shards
        cached = places < covered[owners]
        phase = (epoch - (places + offsets[owners]) % base._groups - self._shifts) % uses
        age, left = np.where(cached, np.minimum(phase, epoch), 0), uses - 1 - phase
        before, earlier, after, later = (self._waits(epoch + step, places, owners) for step in (-1, -2, 1, 2))
        miss = (age == 0) | ((age == 1) & before) | ((age == 2) & before & earlier)
        keep = cached & ((left > 2) | ((left == 2) & ~(after & later)) | ((left == 1) & ~after))
        return epoch - age, miss, keep

    def _waits(self, epoch: int, places: Indices, owners: Indices) -> Mask:
        """Tell which of n samples an epoch does not serve, shape (n,); there is none before the first."""
        return np.zeros(len(places), np.bool_) if epoch < 0 else self._base.waits(epoch, owners, places)
