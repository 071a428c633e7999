"""Refurbish, Standard and Frozen: when a version is drawn, reused and evicted, in closed form.

The technique is that of Revamper (Lee et al., "Refurbish Your Training Data", USENIX ATC 2021). A fixed
permutation gives every sample a position, and the evict shuffler deals positions into `reuse_factor` groups.
Epoch 0 misses everything; epoch e >= 1 misses group e % reuse_factor. So any epoch can be planned alone:

    reuse factor 3    epoch 0    1    2    3    4    5
    group 0                 V0   .    .    V3   .    .         Ve: a miss, version e is born
    group 1                 V0   V1   .    .    V4   .         . : a hit, the version to the left is reused
    group 2                 V0   .    V2   .    .    V5

A slot is given up at the last use of its version, so the cache holds all groups but one.

With `drop_last` or several shards some samples wait for the next epoch. Those with no epoch left wait first, a few of
the group at each of its turns; if they do not suffice, those with 2 left, with 4, and so on:

    epochs left               2    1    0        a version waits with 0, 2, 4, ... epochs left, never with 1, 3, ...:
    served, or waits          S/W  S    S/W      so never in two epochs on end, and whether it was served before, and
                                                 is to be served again, is known from the epochs next to this one
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dalirefurb.checks import require
from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask
from dalirefurb.planning.closed_form import ClosedFormPlanner
from dalirefurb.planning.planner import Planner, Reuse
from dalirefurb.planning.shuffle import BatchOrder, BatchShuffler, Run
from dalirefurb.planning.whole_numbers import Interval, around, pieces

_MOST_USES = 10_000
"""Each group of versions that end together is looked at once an epoch."""

_UNCOVERED = -1
"""Stands for the samples that are not cached, among the first places of groups."""


@dataclass(frozen=True)
class EvictOrder(ABC):
    """Decides which versions end together: group g ends in epochs g, g + reuse_factor, ..."""

    @abstractmethod
    def num_groups(self, reuse_factor: int) -> int:
        """Return how many groups there are: 1 or `reuse_factor`."""


@dataclass(frozen=True)
class EvictShuffler(EvictOrder):
    """Evicts equally many versions each epoch (balanced eviction)."""

    def num_groups(self, reuse_factor: int) -> int:
        return reuse_factor


@dataclass(frozen=True)
class ReferenceCount(EvictOrder):
    """Evicts a version when its uses are counted down; all began together, so misses burst."""

    def num_groups(self, reuse_factor: int) -> int:
        return 1


@dataclass(frozen=True)
class Refurbish(ClosedFormPlanner):
    """Serves each version of a sample in `reuse_factor` epochs, then draws the next.

    Each sample is served once an epoch; with `drop_last` or several shards some wait for the next epoch,
    different ones each time. They are taken from those whose version has no epoch left, which are hits.

    A version ends `reuse_factor` epochs after its birth, also if its sample has waited in some of them, so that
    epochs miss equally. Where an epoch serves M of N samples, all of them covered, a version has `reuse_factor` x
    M / N uses on average, and N / `reuse_factor` of the M rows are misses. Of 50,000 samples in batches of 128
    these are 2.995 uses instead of 3; of 61 in batches of 16 they are 2.36, and 91 of the 142 versions born in
    epochs 1 to 7 have 2.

    Attributes:
        reuse_factor: Uses of a version, at least 1; 2 or 3 is usual. 1 is `Standard`.
        coverage: Share of the samples that is ever cached, above 0 and at most 1. The others always miss.
        evict_shuffler: `EvictShuffler()`, or `ReferenceCount()` to compare with.
        batch_shuffler: `BatchShuffler()`, or `PlainShuffler()` to compare with.
    """

    reuse_factor: int = field(kw_only=True)
    coverage: float = field(default=1.0, kw_only=True)
    evict_shuffler: EvictOrder = field(default=EvictShuffler(), kw_only=True)
    batch_shuffler: BatchOrder = field(default=BatchShuffler(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._integer("reuse_factor", 1, None, "pass 1 to reuse nothing, 2 or 3 to refurbish")
        remedy = "pass Frozen(...), which uses a version for ever"
        require(self.reuse_factor <= _MOST_USES, "reuse_factor", f"at most {_MOST_USES}", self.reuse_factor, remedy)
        remedy = "pass the share of samples to cache, 1.0 for all"
        self._number("coverage", "above 0 and at most 1", lambda share: 0 < share <= 1, remedy)
        remedy = "pass an object of one of its subclasses, or leave it out"
        for name, kind in (("evict_shuffler", EvictOrder), ("batch_shuffler", BatchOrder)):
            given = getattr(self, name)
            require(isinstance(given, kind), name, f"an instance of {kind.__name__}", given, remedy)

    def __len__(self) -> int:
        """Batches per epoch."""
        if self.shards == 1 and not self.drop_last:
            return -(-self.num_samples // self.batch_size)
        return self.num_samples // self.shards // self._width

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of each shard's samples that are ever stored at once, at most, shape (shards,).

        Between epochs all covered samples but one group are stored, at most, and one version of each.
        """
        slots = []
        for shard in range(self.shards):
            covered = self._samples_of(shard, self._covered)
            least = covered // self.reuse_factor if self._groups == self.reuse_factor else 0
            extra = self.batch_shuffler.extra_slots(shards=self.shards, batches=len(self), samples=covered)
            slots.append(min(covered, covered - least + extra))
        return tuple(slots)

    @property
    def reuse(self) -> Reuse:
        """How often versions are used. Batches miss equally if both shufflers see to it."""
        even = isinstance(self.batch_shuffler, BatchShuffler) and self._groups == self.reuse_factor
        return Reuse(self.reuse_factor, round(self.coverage * self.num_samples) / self.num_samples, even)

    @property
    def order(self) -> BatchOrder:
        return self.batch_shuffler

    def runs(self, epoch: int, shard: int) -> list[Run]:
        """Return the places of a shard that an epoch serves: those of each group that nothing parts, and the uncovered.

        No version waits in two epochs on end. So one that has several epochs left is served again, one that has a
        single one left is if it does not wait then, and it misses if it is new, or has waited in its first epoch.
        """
        samples, covered, offset = self.likeness(shard)
        groups = self._groups
        now, before, after = (self._waiting(each, shard) for each in (epoch, epoch - 1, epoch + 1))
        found = []
        for place in range(min(groups, covered)):
            phase = (epoch - offset - place) % self.reuse_factor
            age, left = min(phase, epoch), self.reuse_factor - 1 - phase
            count = len(range(place, covered, groups))
            relevant = (now, before if age == 1 else {}, after if left == 1 else {})
            for start, stop, (waits, waited, will_wait) in pieces(count, [each.get(place, []) for each in relevant]):
                if not waits:
                    miss, keep = age == 0 or waited, left > 1 or (left == 1 and not will_wait)
                    found.append(Run(place + groups * start, groups, stop - start, miss, keep))
        for start, stop, (waits,) in pieces(samples - covered, [now.get(_UNCOVERED, [])]):
            if not waits:
                found.append(Run(covered + start, 1, stop - start, True, False))
        return found

    def likeness(self, shard: int) -> tuple[int, int, int]:
        """Return the samples of a shard, how many of them are cached, and the group of the first one."""
        covered, offsets = self._of_shards
        return self.shard_samples[shard], int(covered[shard]), int(offsets[shard])

    def versions(self, epoch: int, shards: Indices, places: Indices) -> Indices:
        if self._covered == 0:
            return np.full(len(places), epoch)
        covered, offsets = self._of_shards
        born = epoch - np.minimum((epoch - np.arange(self._groups)) % self.reuse_factor, epoch)  # of each group
        turns = places + offsets[shards]
        versions: Indices = born[turns - turns // self._groups * self._groups]
        return versions if self._covered == self.num_samples else np.where(places < covered[shards], versions, epoch)

    def waits(self, epoch: int, shards: Indices, places: Indices) -> Mask:
        """Tell which samples, at n places of shards, an epoch does not serve, shape (n,); see `versions`."""
        waits = np.zeros(len(places), np.bool_)
        for shard in np.unique(shards).tolist():
            mine, (_, covered, _) = shards == shard, self.likeness(shard)
            for first, spans in self._waiting(epoch, shard).items():
                start, step = (covered, 1) if first == _UNCOVERED else (first, self._groups)
                number, rest = np.divmod(places - start, step)
                members = mine & (rest == 0) & ((places >= covered) == (first == _UNCOVERED))
                for begin, end in spans:
                    waits |= members & (begin <= number) & (number < end)
        return waits

    def fingerprint(self) -> dict[str, Any]:
        shufflers = {name: repr(getattr(self, name)) for name in ("evict_shuffler", "batch_shuffler")}
        return {**super().fingerprint(), **shufflers}

    @cached_property
    def _groups(self) -> int:
        """Number of groups of versions that end together."""
        return self.evict_shuffler.num_groups(self.reuse_factor)

    @cached_property
    def _covered(self) -> int:
        """Number of samples that are cached: those at the positions below it."""
        return 0 if self.reuse_factor == 1 else round(self.coverage * self.num_samples)

    def _samples_of(self, shard: int, positions: int) -> int:
        """Count a shard's samples among the first `positions` positions."""
        return len(range(shard, positions, self.shards))

    @cached_property
    def _rows(self) -> int:
        """Samples of a shard that an epoch serves."""
        waits = self.shards > 1 or self.drop_last
        return len(self) * self._width if waits else self.num_samples

    @cached_property
    def _of_shards(self) -> tuple[Indices, Indices]:
        """Samples of each shard that are cached, and the group of its first place, each of shape (shards,).

        Groups take turns, from place to place and from shard to shard.
        """
        covered = np.array([self._samples_of(shard, self._covered) for shard in range(self.shards)])
        return covered, (np.cumsum(covered) - covered) % self._groups

    def _waiting(self, epoch: int, shard: int) -> dict[int, list[Interval]]:
        """Return which samples of a shard an epoch does not serve.

        Those with the fewest uses left wait: hits before misses, and the uncovered before versions that would be born.
        Of the versions with 0, 2, 4, ... epochs left, since who waits with 2 left is to be served with 1. All of some
        groups, and of one as many as it takes: at each turn of the group the next ones in its order.

        Where all versions end together, the next ones of the shard wait.

        Returns:
            Of each group, by its first place, the numbers of its members that wait, as intervals; those of the
            uncovered by `_UNCOVERED`.
        """
        samples, covered, offset = self.likeness(shard)
        wait = samples - self._rows
        if wait == 0:
            return {}
        groups, uses = self._groups, self.reuse_factor
        if groups == 1:
            turn = around(samples, epoch * wait, wait)
            cached = [(start, min(stop, covered)) for start, stop in turn if start < covered]
            others = [(max(start - covered, 0), stop - covered) for start, stop in turn if stop > covered]
            return {0: cached, _UNCOVERED: others}
        found = {}
        next_to_end = epoch + 1 - offset
        kinds: list[int | None] = [*range(0, uses - 1, 2), None]  # epochs left, or that nothing is kept
        for left in [*kinds, uses - 1] if uses % 2 else kinds:
            place = _UNCOVERED if left is None else (next_to_end + left) % groups
            count = samples - covered if left is None else len(range(place, covered, groups))
            some = min(wait, count)
            found[place] = around(count, (epoch if left is None else epoch // uses) * some, some)
            wait -= some
            if wait == 0:
                break
        return found


@dataclass(frozen=True)
class Standard(ClosedFormPlanner):
    """Serves a new version of every sample in every epoch; nothing is cached."""

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._refurbish)

    @property
    def shard_slots(self) -> tuple[int, ...]:
        return self._refurbish.shard_slots

    @property
    def reuse(self) -> Reuse:
        return Reuse()

    def likeness(self, shard: int) -> tuple[int, int, int]:
        """Return the samples of a shard, and that none of them is cached."""
        return self._refurbish.likeness(shard)

    def runs(self, epoch: int, shard: int) -> list[Run]:
        """Return the places of a shard that an epoch serves, of which some wait."""
        return self._refurbish.runs(epoch, shard)

    def versions(self, epoch: int, shards: Indices, places: Indices) -> Indices:
        return np.full(len(places), epoch)

    @cached_property
    def _refurbish(self) -> Refurbish:
        """Refurbishing with reuse factor 1."""
        return self._as(Refurbish, reuse_factor=1)


@dataclass(frozen=True)
class Frozen(Planner):
    """Serves the first version of every sample in every epoch; all are cached, and none is evicted.

    For a deterministic recipe such as `evaluate()` nothing is lost, and nothing is computed twice. Where the partial
    part is random it is the warning example: of all that it could draw, a sample is only ever seen in one way.

    Which samples are served when is as `Standard` has it. With `drop_last` or several shards some wait for the next
    epoch; those that wait in epoch 0 are misses of epoch 1, where none of them waits again.

    >>> planner = Frozen(100, batch_size=30, drop_last=True)
    >>> [sum(int(plan.miss.sum()) for plan in planner.epoch(number)) for number in range(4)]
    [90, 10, 0, 0]
    >>> planner.peak_slots
    100
    """

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._standard)

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Return the samples of each shard, shape (shards,)."""
        return self.shard_samples

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        return self.plan_part(epoch, batch, range(self.shards))

    def plan_part(self, epoch: int, batch: int, shards: range) -> BatchPlan:
        plan = self._standard.plan_part(epoch, batch, shards)
        first = np.zeros(len(plan.indices), np.int64)
        miss = np.full(len(first), epoch == 0)
        if epoch == 1:
            miss = ~self._standard.wanted(0, 0, plan.indices, first, shards)
        return replace(
            plan, version=first, miss=miss, keep=np.ones(len(first), np.bool_), evict=plan.evict[:0]
        ).read_only()

    def wanted(self, epoch: int, batch: int, indices: Indices, versions: Indices, shards: range | None = None) -> Mask:
        """Tell which versions are the first one of some shards' samples; see `Planner.wanted`."""
        owners = self.owners(indices)
        shards = range(self.shards) if shards is None else shards
        wanted: Mask = (versions == 0) & (owners >= shards.start) & (owners < shards.stop)
        return wanted

    @cached_property
    def _standard(self) -> Standard:
        """Serves the same samples in the same batches."""
        return self._as(Standard)
