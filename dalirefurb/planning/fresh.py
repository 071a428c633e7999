"""Fresh: another planner's rows in the same order, with nothing reused, as a control in experiments.

What reuse does to accuracy is told by pairs of trainings that differ in it alone. `Standard` is no such partner of
`Refurbish`, whose order is its own. `Fresh(planner)` is:

    Refurbish, reuse factor 3    epoch 0    1    2    3    4
    sample at one place                V0   V0   .    V3   .       Ve: a version, .: the one to the left once more
    Fresh of it                        V0   V1   V2   V3   V4

Samples, batches, order and final augmentation are those of the other planner, in every row. A row's version has the
number of its serving, which no other row of its sample has; where a version of `Refurbish` is born, both are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dalirefurb.checks import require
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.planner import DerivedPlanner, Reuse


@dataclass(frozen=True)
class Fresh(DerivedPlanner):
    """Serves another planner's rows in the same order, each in a version of its own: nothing is cached.

    >>> from dalirefurb.planning.refurbish import Refurbish
    >>> planner = Refurbish(4, batch_size=2, reuse_factor=2)
    >>> [(plan.indices.tolist(), plan.version.tolist()) for plan in planner.epoch(1)]
    [([1, 0], [1, 0]), ([2, 3], [1, 0])]
    >>> [(plan.indices.tolist(), plan.version.tolist()) for plan in Fresh(planner).epoch(1)]
    [([1, 0], [1, 1]), ([2, 3], [1, 1])]
    >>> planner.peak_slots, Fresh(planner).peak_slots
    (2, 0)

    Attributes:
        planner: Planner whose rows are served: `Refurbish`, an `Echo` or another.

    Raises:
        ConfigurationError: If the planner is `AutoAssist`, whose order depends on what the model learns from it, or
            `Evaluate`, in which nothing is drawn.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = "one that knows its batches before an epoch begins, not by losses that come meanwhile"
        remedy = "pass AutoAssist(Standard(...), lag=...) alone, which reuses nothing"
        require(self.planner.feedback_lag is None, "planner", wanted, self.planner, remedy)
        wanted = "one to train with, since in evaluation nothing is drawn that could be fresh"
        remedy = "pass Evaluate(..., coverage=0) alone, which computes every image anew"
        require(not self.planner.any_world_size, "planner", wanted, self.planner, remedy)

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        return self.plan_part(epoch, batch, range(self.shards))

    def plan_part(self, epoch: int, batch: int, shards: range) -> BatchPlan:
        rows = self.planner.plan_part(epoch, batch, shards)
        count = len(rows.indices)
        return BatchPlan(
            rows.indices,
            version=rows.serving,
            serving=rows.serving,
            miss=np.ones(count, np.bool_),
            keep=np.zeros(count, np.bool_),
            evict=rows.indices[:0],
        ).read_only()

    @property
    def rows_per_epoch(self) -> int:
        return self.planner.rows_per_epoch

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Return 0 for each shard, shape (shards,)."""
        return (0,) * self.shards

    @property
    def reuse(self) -> Reuse:
        return Reuse()
