"""Data echoing: each sample is served several times before the next one is read.

The technique is that of Choi et al. ("Faster Neural Network Training with Data Echoing", 2019): a stage of the input
pipeline repeats what enters it, so that what comes before runs once per sample and what comes after once per repeat.

    another planner's rows      a   b   c   d               echo          echoing factor 1.5, 6 rows of 4
    echo                        a   b b   c   d d           batch echo    whole batches: [a b] [c d] [c d]
    shuffle buffer of 2         b   a   c   b   d   d       batches are cut from this; of 2 batches: [c d] [a b] [c d]

What lies before the stage is the recipe's partial part: the split says where the stage is. Repeats of a row have one
version and servings of their own, so the first one served computes the partial part and the others expect to hit;
those that follow at once, in the same batch even, take what was computed for the first.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from dalirefurb.checks import require
from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask, joined, planned_together
from dalirefurb.planning.echo_stream import EchoStream, InnerRows, RowBuffer
from dalirefurb.planning.fresh import Fresh
from dalirefurb.planning.planner import DerivedPlanner
from dalirefurb.rng import key


@dataclass(frozen=True)
class Echoing(DerivedPlanner):
    """What both kinds of echoing have in common."""

    echoing_factor: float = field(kw_only=True)

    serves_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_padding()
        wanted, remedy = (
            "one that may reuse versions, as repeats do",
            "pass Fresh(Echo(planner, ...)), or its inner planner",
        )
        require(not isinstance(self.planner, Fresh), "planner", wanted, self.planner, remedy)
        wanted = "one that serves no sample twice in an epoch"
        remedy = "pass its inner planner, and the product of both echoing factors"
        require(self.planner.serves_once, "planner", wanted, self.planner, remedy)
        wanted = "one that knows its batches before an epoch begins, not by losses that come meanwhile"
        remedy = "pass AutoAssist(Echo(planner, ...), lag=...), which chooses among repeats"
        require(not isinstance(self.planner, DerivedPlanner), "planner", wanted, self.planner, remedy)
        remedy = "pass the mean number of times that a sample is served, 1 to repeat nothing"
        self._number("echoing_factor", "of at least 1", lambda factor: 1 <= factor < math.inf, remedy)

    @property
    def fresh_samples(self) -> int:
        """Rows per epoch that the inner planner serves; the others are repeats."""
        return self.planner.rows_per_epoch

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        return self.plan_part(epoch, batch, range(self.shards))

    def wanted(self, epoch: int, batch: int, indices: Indices, versions: Indices, shards: range | None = None) -> Mask:
        """Tell which versions are in the buffer, or wanted by the inner planner where it was read to."""
        epoch, batch = int(epoch), int(batch)
        shards = range(self.shards) if shards is None else shards
        read, parts = self._buffered(epoch, batch, shards)
        wanted = self.planner.wanted(epoch, min(read, len(self.planner) - 1), indices, versions, shards)
        held = joined(parts)
        order = np.argsort(held.indices)  # an epoch serves a sample in one version
        places = order[np.minimum(np.searchsorted(held.indices, indices, sorter=order), len(order) - 1)]
        wanted |= (held.indices[places] == indices) & (held.version[places] == versions)
        return wanted

    @abstractmethod
    def _buffered(self, epoch: int, batch: int, shards: range) -> tuple[int, Sequence[BatchPlan]]:
        """Return the first inner batch that was not read whole before a batch, and what is buffered of the others."""

    @property
    def _most(self) -> int:
        """How often anything is repeated, at most."""
        return math.ceil(self.echoing_factor)

    def _echoed(self, units: int) -> int:
        """Count what becomes of `units` things: the echoing factor times as many, rounded down.

        The factor is read as the decimals it is written in, so that 1.1 x 10 is 11.
        """
        return math.floor(Fraction(str(self.echoing_factor)) * units)


@dataclass(frozen=True)
class Echo(Echoing):
    """Serves every row of another planner `echoing_factor` times, and shuffles the repeats (example echoing).

    With `recipe.at(1)` only decoding is partial, and this is *echoing before augmentation*. With
    `recipe.at(len(recipe.stages))` everything is partial, and it is *echoing after augmentation*: repeats are alike.
    With `recipe.at(0)` nothing but reading is, so that repeats are decoded each time: for sources slower than that.

    An epoch has the rows of the inner planner's times the echoing factor, rounded down; with its `drop_last`, or with
    several shards, down to whole batches, by repeating fewer rows: none is dropped. So every epoch has the same length,
    and every row of the inner planner is served floor or ceil of the echoing factor times. The shuffle buffer is
    drained at its end. Each shard echoes and shuffles its own rows.

    The inner planner serves a sample at most once an epoch and evicts a sample with its row, as `Standard`,
    `Refurbish` and `SmartCache` do. A slot that it frees is given up after the last repeat.

    >>> from dalirefurb.planning.refurbish import Standard
    >>> planner = Echo(Standard(100, batch_size=10), echoing_factor=2.5, buffer_size=20)
    >>> planner.fresh_samples, len(planner), planner.peak_slots
    (100, 25, 20)

    Attributes:
        planner: Planner that decides what is echoed.
        echoing_factor: Mean number of times that a row is served, at least 1.
        buffer_size: Rows of the shuffle buffer after the echo, of which each shard has an equal part, rounded down; 0
            or 1 for none. In a small buffer repeats meet in one batch, which learns less from them: several times
            `batch_size` is sensible.
    """

    buffer_size: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._integer("buffer_size", 0, None, "pass the rows to shuffle among, 0 for none")

    def __len__(self) -> int:
        """Batches per epoch."""
        return -(-self._rows // self._width)

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Versions of each shard's samples that are ever stored at once, at most, shape (shards,).

        A row that the inner planner has given, and that is to be served again, has a repeat in the shuffle buffer or
        belongs to the batch that the inner planner gave last. What is stored beyond what the inner planner stores
        after that batch are such rows; where it stores nothing, only rows that were served before: in the buffer.
        """
        echoed = self._buffer if self._most > 1 else 0
        slots = [inner + self._buffer + self._width - 1 if inner else echoed for inner in self.planner.shard_slots]
        return tuple(map(min, slots, self.shard_samples))

    def plan_part(self, epoch: int, batch: int, shards: range) -> BatchPlan:
        epoch, batch = self._check(epoch, batch)
        batches = planned_together(batch, len(self), self._width)
        plans = [
            self._latest(f"planned {shard}", (epoch, batches), partial(self._shard_plans, epoch, batches, shard))
            for shard in shards
        ]
        return joined([each[batch - batches.start] for each in plans]).read_only()

    def _shard_plans(self, epoch: int, batches: range, shard: int) -> list[BatchPlan]:
        """Plan a shard's rows of consecutive batches."""
        buffer = self._latest(f"buffer {shard}", epoch, lambda: RowBuffer(self._stream(epoch, shard)))
        width = self._width
        start, stop = batches.start * width, min(batches.stop * width, self._rows)
        rows, left = buffer.leaving(start, stop, partial(self._inner_rows, epoch, shard))
        places = np.arange(start, stop)
        batch, last_batch = places // width, left.last // width
        stored = left.first // width < last_batch
        indices, miss, keep = (rows[name] for name in ("indices", "miss", "keep"))
        gone = (rows["evicted"] | (miss & ~keep & stored)) & (places == left.last)
        whole = BatchPlan(
            indices=indices,
            version=rows["version"],
            serving=rows["serving"] * self._most + left.repeats,
            miss=miss & (places == left.first),
            keep=keep | (batch < last_batch),
            evict=indices[:0],
        )
        cuts = [slice(first, first + width) for first in range(0, len(places), width)]
        return [whole.part(cut, evict=indices[cut][gone[cut]]) for cut in cuts]

    def _buffered(self, epoch: int, batch: int, shards: range) -> tuple[int, Sequence[BatchPlan]]:
        """Return where the inner planner was read to, and the rows in the buffers of some shards."""
        read, parts = len(self.planner), []
        for shard in shards:
            stream = self._stream(epoch, shard)
            count, units = stream.entered(batch * self._width)
            read = min(read, int(self._batches_of(np.array([count]))[0][0]))
            rows = self._inner_rows(epoch, shard, units)
            rows["evict"] = rows["indices"][rows.pop("evicted")]
            parts.append(BatchPlan(**rows))
        return read, parts

    def _inner_rows(self, epoch: int, shard: int, units: Indices) -> InnerRows:
        """Return some of the inner planner's rows of a shard, by number."""
        batches, rows = self._batches_of(units)
        numbers, batch_of = np.unique(batches, return_inverse=True)
        shards = range(shard, shard + 1)
        plans = [self.planner.plan_part(epoch, number, shards) for number in numbers.tolist()]
        sizes = np.array([len(plan.indices) for plan in plans])
        chosen = (np.cumsum(sizes) - sizes)[batch_of] + rows
        whole = joined(plans)
        evicted = np.concatenate([np.isin(plan.indices, plan.evict) for plan in plans])
        names = ("indices", "version", "serving", "miss", "keep")
        return {**{name: getattr(whole, name)[chosen] for name in names}, "evicted": evicted[chosen]}

    def _batches_of(self, units: Indices) -> tuple[Indices, Indices]:
        """Return the inner batch of each of n of a shard's inner rows, and its number among the shard's rows of it."""
        return self.planner.batches_of(units) if self.shards == 1 else np.divmod(units, self._width)

    def _stream(self, epoch: int, shard: int) -> EchoStream:
        """Return what leaves the buffer of a shard in an epoch."""
        seed = self.seed if shard == 0 else int(key(self.seed, "shard", shard))  # the first as if alone
        return EchoStream(self._fresh, self._rows, self._buffer, seed=seed, epoch=epoch)

    @property
    def _fresh(self) -> int:
        """Rows of a shard that the inner planner serves in an epoch."""
        return self.fresh_samples // self.shards

    @cached_property
    def _rows(self) -> int:
        """Rows of a shard per epoch."""
        rows = self._echoed(self._fresh)
        return rows - rows % self._width if self.drop_last or self.shards > 1 else rows

    @property
    def _buffer(self) -> int:
        """Rows of a shard's shuffle buffer."""
        return max(1, self.buffer_size // self.shards)


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

    @cached_property
    def rows_per_epoch(self) -> int:
        """Rows of the first epoch's batches; another one may repeat a smaller batch once more, or once less."""
        inner = self.planner
        last = np.arange(max(0, len(self) - self._most), len(self))
        times = int((self._stream(0).unit_of(last) == len(inner) - 1).sum())
        return len(self) * self.batch_size - times * (len(inner) * self.batch_size - inner.rows_per_epoch)

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
