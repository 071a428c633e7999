"""BatchEcho: whole batches of another planner are served several times, in a row or shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.echo import Echoing
from dalirefurb.planning.echo_stream import EchoStream


@dataclass(frozen=True)
class BatchEcho(Echoing):
    """Serves every batch of another planner `echoing_factor` times (batch echoing), in a row or shuffled.

    An epoch has the batches of the inner planner's times the echoing factor, rounded down: every epoch has the same
    length, and every batch is served floor or ceil of the echoing factor times. What a repeat shares with the first
    is the recipe's partial part; with `recipe.at(len(recipe.stages))` repeats are alike. The shuffle buffer holds
    whole batches, each with the rows it has, and is drained at the end of an epoch.

    The inner planner serves a sample at most once an epoch and evicts a sample with its row, as that of an `Echo`.

    >>> from dalirefurb.planning.refurbish import Standard
    >>> planner = BatchEcho(Standard(100, batch_size=10), echoing_factor=2.5)
    >>> planner.fresh_samples, len(planner), planner.peak_slots
    (100, 25, 10)
    >>> BatchEcho(Standard(100, batch_size=10), echoing_factor=2.5, buffer_size=4).peak_slots
    40

    Attributes:
        planner: Planner that decides what is echoed.
        echoing_factor: Mean number of times that a batch is served, at least 1.
        buffer_size: Batches, not rows, of the shuffle buffer after the echo; 0 or 1 for none: repeats follow each
            other.
    """

    buffer_size: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._integer("buffer_size", 0, None, "pass the batches to shuffle among, 1 for none")

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._echoed(len(self.planner))

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of each shard's samples that are ever stored at once, at most, shape (shards,).

        They are what the inner planner stores after one of its batches, and the other rows of batches that have come
        into the buffer until then and have not left it for the last time. If none is repeated, the latest batch in the
        buffer is as if it had not come.
        """
        echoes = self._most > 1
        rows = (self._buffer if echoes else self._buffer - 1) * self._width
        slots = (inner + rows if inner or echoes else 0 for inner in self.planner.shard_slots)
        return tuple(map(min, slots, self.shard_samples))

    def plan_part(self, epoch: int, batch: int, shards: range) -> BatchPlan:
        """Plan some shards' rows of one batch; see `Planner.plan_part`."""
        epoch, batch = self._check(epoch, batch)
        stream = self._stream(epoch)
        left = stream.leaving(batch, batch + 1)
        _, (unit,), (repeat,), (first,), (last,) = (each.tolist() for each in left)
        later = batch < last
        buffered: dict[int, BatchPlan] = self._latest("buffered_plans", (epoch, shards), dict)
        plan = buffered.pop(unit, None) or self.planner.plan_part(epoch, unit, shards)
        if later:
            buffered[unit] = plan
        transient = plan.indices[plan.miss & ~plan.keep & (first < last)]
        return replace(
            plan,
            serving=plan.serving * self._most + repeat,
            miss=plan.miss & (batch == first),
            keep=plan.keep | later,
            evict=plan.evict[:0] if later else np.concatenate([plan.evict, transient]),
        ).read_only()

    def _buffered(self, epoch: int, batch: int, shards: range) -> tuple[int, Sequence[BatchPlan]]:
        """Return the first batch that is not in the buffer yet, and the batches in it."""
        read, units = self._stream(epoch).entered(batch)
        return read, [self.planner.plan_part(epoch, unit, shards) for unit in units.tolist()]

    def _stream(self, epoch: int) -> EchoStream:
        """Return what leaves the buffer in an epoch, made once while the epoch is planned."""
        return self._latest(
            "streams",
            epoch,
            lambda: EchoStream(len(self.planner), len(self), self._buffer, seed=self.seed, epoch=epoch),
        )

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the plans, as JSON values; of a buffer that shuffles nothing, nothing."""
        values = super().fingerprint()
        if self._buffer == 1:
            del values["buffer_size"]
        return values

    @property
    def _buffer(self) -> int:
        """Batches of the shuffle buffer."""
        return max(1, self.buffer_size)
