"""RankPlanner: one rank's slice of every batch that a planner plans, as a plan of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.planner import BatchPlan, Indices, Planner


@dataclass(frozen=True)
class RankPlanner(Planner):
    """Plans what rank `rank` of `world_size` serves, evicts and stores of another planner's batches.

    It has the samples, the seed and the number of batches of that planner, and a part of each batch's rows.

    >>> from dalirefurb.planning.refurbish import Standard
    >>> whole = Standard(8, batch_size=4, shards=2)
    >>> parts = [RankPlanner(whole, rank=rank, world_size=2) for rank in range(2)]
    >>> [plan.indices.tolist() for plan in whole.epoch(0)]
    [[7, 3, 0, 1], [6, 2, 5, 4]]
    >>> [[plan.indices.tolist() for plan in part.epoch(0)] for part in parts]
    [[[7, 3], [6, 2]], [[0, 1], [5, 4]]]

    Attributes:
        planner: Plans the batches, with a number of shards that `world_size` divides.
        rank: Which part, from 0.
        world_size: Number of parts.
    """

    num_samples: int = field(init=False, repr=False)
    batch_size: int = field(init=False, repr=False)
    seed: int = field(init=False, repr=False)
    shards: int = field(init=False, repr=False)
    drop_last: bool = field(init=False, repr=False)
    planner: Planner
    rank: int = field(kw_only=True)
    world_size: int = field(kw_only=True)

    def __post_init__(self) -> None:
        self.planner.part_slots(rank=self.rank, world_size=self.world_size)  # Refuses a rank that there is not.
        for inherited in fields(Planner):
            object.__setattr__(self, inherited.name, getattr(self.planner, inherited.name))
        # A part is not parted again.
        object.__setattr__(self, "shards", 1)
        object.__setattr__(self, "batch_size", self.planner.batch_size // self.world_size)

    def __len__(self) -> int:
        """Batches per epoch, the same on every rank."""
        return len(self.planner)

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of the rank's samples that are ever stored at once, at most, shape (1,)."""
        return (self.planner.part_slots(rank=self.rank, world_size=self.world_size),)

    def epoch(self, epoch: int) -> Iterator[BatchPlan]:
        """Plan the rank's part of one epoch; see `Planner.epoch`."""
        plans = self.planner.epoch(epoch)
        return (self.planner.part(plan, rank=self.rank, world_size=self.world_size) for plan in plans)

    def owned(self, shard: int) -> Indices:
        """Return the samples of one of the planner's shards, numbered as there; see `Planner.owned`."""
        return self.planner.owned(shard)

    def owners(self, indices: Indices) -> Indices:
        """Return which of the planner's shards owns each sample; see `Planner.owners`."""
        return self.planner.owners(indices)

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the planner's batches; on every rank the same."""
        return self.planner.fingerprint()


def part_of(planner: Planner, *, rank: int, world_size: int) -> Planner:
    """Return what plans a rank's part; with AutoAssist each rank has an Assistant for the candidates of its own shards.

    Raises:
        ConfigurationError: If `world_size` does not divide the shards, or `rank` is not below it.
    """
    planner.part_slots(rank=rank, world_size=world_size)
    if world_size == 1:
        return planner
    if isinstance(planner, AutoAssist):
        return replace(planner, planner=RankPlanner(planner.planner, rank=rank, world_size=world_size))
    return RankPlanner(planner, rank=rank, world_size=world_size)
