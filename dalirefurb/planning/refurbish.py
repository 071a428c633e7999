"""Refurbish and Standard: when a version is drawn, reused and evicted, in closed form.

The technique is that of Revamper (Lee et al., "Refurbish Your Training Data", USENIX ATC 2021). A fixed
permutation gives every sample a position, and the evict shuffler deals positions into `reuse_factor` groups.
Epoch 0 misses everything; epoch e >= 1 misses group e % reuse_factor. So any epoch can be planned alone:

    reuse factor 3    epoch 0    1    2    3    4    5
    group 0                 V0   .    .    V3   .    .         Ve: a miss, version e is born
    group 1                 V0   V1   .    .    V4   .         . : a hit, the version to the left is reused
    group 2                 V0   .    V2   .    .    V5

A slot is given up at the last use of its version, so the cache holds all groups but one.

With `drop_last` or several shards some samples wait for the next epoch. Who waits in any epoch is known too:
a sample misses if its version has been served in no epoch since its birth, and keeps its slot if an epoch to
come serves it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import integer, require
from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask, batch_plans
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.shuffle import BatchOrder, BatchShuffler
from dalirefurb.rng import permutation

_MOST_USES = 10_000
"""As many epochs to come may have to be planned, where samples wait, to tell whether a version is served again."""


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
        """Return `reuse_factor`."""
        return reuse_factor


@dataclass(frozen=True)
class ReferenceCount(EvictOrder):
    """Evicts a version when its uses are counted down; all began together, so misses burst."""

    def num_groups(self, reuse_factor: int) -> int:
        """Return 1."""
        return 1


def deal_groups(positions: Indices, *, groups: int, shards: int) -> Indices:
    """Return the group of each position, shape (n,), values in 0..groups-1.

    Positions are dealt in turn, and the turn shifts after every common multiple of shards and groups. So
    groups are equal within one over the first n positions and over the first n of any shard. Each further
    `groups` samples of a shard, counted from its first, are one of each group.

    >>> deal_groups(np.arange(8), groups=2, shards=2).tolist()
    [0, 1, 1, 0, 0, 1, 1, 0]
    """
    return (positions + positions // math.lcm(shards, groups)) % groups


@dataclass(frozen=True)
class Refurbish(Planner):
    """Serves each version of a sample in `reuse_factor` epochs, then draws the next.

    Each sample is served once an epoch; with `drop_last` or several shards some wait for the next epoch,
    different ones each time. They are taken from those whose version has the fewest uses left, the hits.

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

    def epoch(self, epoch: int) -> Iterator[BatchPlan]:
        """Plan one epoch; see `Planner.epoch`."""
        epoch = integer("epoch", epoch, 0, None, "epochs count from 0")
        age, left = self._ages(np.arange(self.num_samples), epoch)
        miss = ~self._served_nearby(age, epoch, direction=-1)
        keep = self._served_nearby(left, epoch, direction=1)
        del left  # N numbers less while rows are ordered, which takes the most memory
        order = self.batch_shuffler.order(
            self._served(epoch), miss, keep, batch_size=self.batch_size, seed=self.seed, epoch=epoch
        )
        miss, keep = miss[order], keep[order]
        return batch_plans(
            indices=self._deal[order],
            version=np.subtract(epoch, age[order], dtype=np.int64),
            serving=np.broadcast_to(np.int64(epoch), len(order)),
            miss=miss,
            keep=keep,
            evict=~(miss | keep),
            batch_size=self.batch_size,
        )

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the plans, as JSON values."""
        shufflers = {name: repr(getattr(self, name)) for name in ("evict_shuffler", "batch_shuffler")}
        return {**super().fingerprint(), **shufflers}

    @property
    def _groups(self) -> int:
        """Number of groups of versions that end together."""
        return self.evict_shuffler.num_groups(self.reuse_factor)

    @property
    def _covered(self) -> int:
        """Number of samples that are cached: those at the positions below it."""
        return 0 if self.reuse_factor == 1 else round(self.coverage * self.num_samples)

    def _samples_of(self, shard: int, positions: int) -> int:
        """Count a shard's samples among the first `positions` positions."""
        return len(range(shard, positions, self.shards))

    def _ages(self, positions: Indices, epoch: int) -> tuple[Indices, Indices]:
        """Return epochs since each position's version was born and epochs left to it, each of shape (n,)."""
        group = deal_groups(positions, groups=self._groups, shards=self.shards)
        phase = ((epoch - group) % self.reuse_factor).astype(np.int32)
        covered = positions < self._covered
        left = np.where(covered, self.reuse_factor - 1 - phase, 0)
        return np.where(covered, np.minimum(phase, epoch), 0), left

    def _served_nearby(self, reach: Indices, epoch: int, *, direction: int) -> Mask:
        """Return whether a position is served within `reach` epochs before (-1) or after (1), shape (n,)."""
        served = reach > 0
        distance, unserved = 1, self._waiting(epoch + direction)
        unserved = unserved[served[unserved]]
        while len(unserved):  # those that wait in all epochs up to this distance
            distance += 1
            ended = reach[unserved] < distance
            served[unserved[ended]] = False
            unserved = unserved[~ended]
            unserved = unserved[np.isin(unserved, self._waiting(epoch + direction * distance))]
        return served

    def _served(self, epoch: int) -> list[Indices]:
        """Return the positions that each shard serves, in random order."""
        waits = np.zeros(self.num_samples, np.bool_)
        waits[self._waiting(epoch)] = True
        served = []
        for shard, samples in enumerate(self.shard_samples):
            rows = shard + self.shards * permutation(samples, self.seed, "batch shuffle", epoch, shard)
            served.append(rows[~waits[rows]])
        return served

    def _waiting(self, epoch: int) -> Indices:
        """Return the positions that are not served in an epoch, shape (n,).

        Those with the fewest uses left wait: hits before misses, and the uncovered before versions that would
        be born. Each shard's fixed order is walked from where the last turn of the same group ended.
        """
        waiting = [np.zeros(0, np.int64)]
        for shard, samples in enumerate(self.shard_samples):
            covered = self._samples_of(shard, self._covered)
            surplus = samples - len(self) * self._width
            if surplus <= 0:
                continue
            always_miss = covered + _walk(samples - covered, epoch * surplus, surplus)
            # The group whose versions end next waits first. It has one sample in `groups` neighbours.
            groups = self._groups
            remainder = shard + self.shards * np.arange(covered - covered % groups, covered)
            ends_next = deal_groups(remainder, groups=groups, shards=self.shards) == (epoch + 1) % groups
            members = max(1, covered // groups + int(ends_next.sum()))
            start = groups * (epoch // groups * surplus % members)
            # A walk this long meets `surplus` samples of every group, or the whole shard.
            cached = _walk(covered, start, groups * (surplus + 2))
            positions = shard + self.shards * np.concatenate([always_miss, cached])
            _, left = self._ages(positions, epoch)
            left[: len(always_miss)] = self.reuse_factor - 1
            waiting.append(positions[np.argsort(left, kind="stable")[:surplus]])
        return np.concatenate(waiting)


@dataclass(frozen=True)
class Standard(Planner):
    """Serves a new version of every sample in every epoch; nothing is cached."""

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self._refurbish)

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Return 0 for each shard, shape (shards,)."""
        return self._refurbish.shard_slots

    def epoch(self, epoch: int) -> Iterator[BatchPlan]:
        """Plan one epoch; see `Planner.epoch`."""
        return self._refurbish.epoch(epoch)

    @cached_property
    def _refurbish(self) -> Refurbish:
        """Refurbishing with reuse factor 1."""
        return self._as(Refurbish, reuse_factor=1)


def _walk(size: int, start: int, length: int) -> NDArray[np.int64]:
    """Count up from `start` modulo `size`, each number at most once, shape (min(size, length),)."""
    return (start + np.arange(min(size, length))) % max(size, 1)
