"""Frozen: every sample is computed once and served from the cache for ever.

    epoch          0    1    2    3
    any sample     V0   .    .    .         V0: a miss, version 0 is born;  . : a hit

For a deterministic recipe such as `evaluate()` nothing is lost, and nothing is computed twice. Where the partial part
is random it is the warning example: of all that it could draw, a sample is only ever seen in one way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Standard


@dataclass(frozen=True)
class Frozen(Planner):
    """Serves the first version of every sample in every epoch; all are cached, and none is evicted.

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
        """Plan one batch; see `Planner.plan`."""
        return self.plan_part(epoch, batch, range(self.shards))

    def plan_part(self, epoch: int, batch: int, shards: range) -> BatchPlan:
        """Plan some shards' rows of one batch; see `Planner.plan_part`."""
        plan = self._standard.plan_part(epoch, batch, shards)
        first = np.zeros(len(plan.indices), np.int64)
        miss = np.full(len(first), epoch == 0)
        if epoch == 1:
            miss = ~self._epoch_0.wanted(0, 0, plan.indices, first, shards)
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

    @cached_property
    def _epoch_0(self) -> Standard:
        """The same once more, which is asked about epoch 0 alone, and so has it at hand."""
        return self._as(Standard)
