"""Frozen: every sample is computed once and served from the cache for ever.

    epoch          0    1    2    3
    any sample     V0   .    .    .         V0: a miss, version 0 is born;  . : a hit

For a deterministic recipe such as `evaluate()` nothing is lost, and nothing is computed twice. Where the partial part
is random it is the warning example: of all that it could draw, a sample is only ever seen in one way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dalirefurb.checks import integer
from dalirefurb.planning.batch_plan import BatchPlan, read_only
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

    def epoch(self, epoch: int) -> Iterator[BatchPlan]:
        """Plan one epoch; see `Planner.epoch`."""
        epoch = integer("epoch", epoch, 0, None, "epochs count from 0")
        born = np.full(self.num_samples, epoch < 2)
        if epoch == 1:
            for plan in self._standard.epoch(0):
                born[plan.indices] = False
        version, keep = read_only(np.zeros(self.batch_size, np.int64)), read_only(np.ones(self.batch_size, np.bool_))
        return (
            replace(
                plan,
                version=version[: len(plan.indices)],
                miss=read_only(born[plan.indices]),
                keep=keep[: len(plan.indices)],
            )
            for plan in self._standard.epoch(epoch)
        )

    @cached_property
    def _standard(self) -> Standard:
        """Serves the same samples in the same batches."""
        return self._as(Standard)
