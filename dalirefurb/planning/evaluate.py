"""Evaluate: every sample once, in the source's order, over any number of processes.

                one process       two processes
    batch 0     0 1 2             rank 0:  0       rank 1:  1 2
    batch 1     3 4 5             rank 0:  3       rank 1:  4 5
    batch 2     6 7 8 9           rank 0:  6 7     rank 1:  8 9

Ranks have equally many batches, so that none waits for another in vain, and batch after batch, rank after rank, the
rows are the samples in the source's order. Batches differ by one row at most, and no rank has an empty one: that may
take fewer and larger batches than `batch_size` asks for, where it is less than 2 * ranks - 1 rows.

Some gather by exchanging tensors of one shape. For these `pad` fills the last batches up:

                two processes
    batch 0     rank 0:  0 1     rank 1:  2 3
    batch 1     rank 0:  4 5     rank 1:  6 7
    batch 2     rank 0:  8 9     rank 1:  . .      a row of padding shows a sample of the rank again, with index -1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dalirefurb.checks import flag, rank_of
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask
from dalirefurb.planning.planner import DerivedPlanner, Planner
from dalirefurb.planning.whole_numbers import scaled

_AT_ONCE = 1 << 16
"""Batches looked at together where all are."""


@dataclass(frozen=True)
class Evaluate(Planner):
    """Serves every sample exactly once an epoch, in the source's order: nothing is shuffled, waits or is left out.

    Batches have at most `batch_size` rows, and as evenly many as can be: of 72 samples, by 32, three of 24, where a
    `DataLoader` serves 32, 32 and 8. So a mean over batches is nearly that over samples, and ranks have equally many.
    On so many ranks that one would have an empty batch, there are as many batches as all have a sample in: of 10
    samples, by 4, on 4 ranks two of 5, never more rows than the larger one of `batch_size` and 2 * ranks - 1.

    Each sample has one version, so with a recipe in which nothing is random, as `evaluate()` is, a store holds finished
    images, and a `DiskStore` those of the next run, too. Any number of ranks divides the batches.

    >>> planner = Evaluate(10, batch_size=4)
    >>> [plan.indices.tolist() for plan in planner.epoch(0)]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]

    Attributes:
        batch_size: Most rows of a batch of all ranks together, see above; more than there are samples make one batch.
        coverage: Share of the samples that is cached, in 0..1, spread evenly over the source; the others are computed
            in every epoch.
        pad: Whether all batches of all ranks have `batch_size` / ranks rows, rounded up. Those that only fill a batch
            up are its last ones, those of all ranks together the last ones of an epoch; they have index -1, so the
            loader needs `with_indices`.

    Raises:
        ConfigurationError: If `shards` or `drop_last` is given: batches are divided as they are, and all are served.
    """

    coverage: float = field(default=1.0, kw_only=True)
    pad: bool = field(default=False, kw_only=True)

    may_be_short: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._share("coverage", "pass a share, such as 0.5")
        flag("pad", self.pad)
        if self.shards != 1 or self.drop_last:
            raise ConfigurationError(
                f"shards and drop_last must be left out, since any number of ranks divides the batches and all samples "
                f"are served, got shards={self.shards} and drop_last={self.drop_last}"
            )

    @property
    def any_world_size(self) -> bool:
        return True

    @property
    def padded(self) -> bool:
        return self.pad

    def padding(self, batch: int) -> int:
        return self._whole.padding(batch)

    def __len__(self) -> int:
        """Batches per epoch in one process; several may have another number, all of them the same."""
        return len(self._whole)

    @property
    def shard_slots(self) -> tuple[int, ...]:
        """Samples that are cached, shape (1,)."""
        return self._whole.shard_slots

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        return self._whole.plan(epoch, batch)

    @property
    def rows_per_epoch(self) -> int:
        return self._whole.rows_per_epoch

    def batches_of(self, rows: Indices) -> tuple[Indices, Indices]:
        return self._whole.batches_of(rows)

    def for_rank(self, *, rank: int, world_size: int) -> EvaluatePart:
        """Return what plans the part of rank `rank` of `world_size`.

        Raises:
            ConfigurationError: If there is no such rank, or a rank would have no sample and `pad` is not set.
        """
        return EvaluatePart(self, rank=rank, world_size=world_size)

    @cached_property
    def _whole(self) -> EvaluatePart:
        """The part of a single rank: everything."""
        return self.for_rank(rank=0, world_size=1)

    def wanted(self, epoch: int, batch: int, indices: Indices, versions: Indices, shards: range | None = None) -> Mask:
        """Tell which samples are cached; see `Planner.wanted`."""
        return self._whole.wanted(epoch, batch, indices, versions)

    def is_cached(self, indices: Indices) -> Mask:
        """Tell which of n samples are cached, shape (n,)."""
        return self.cached(indices + 1) > self.cached(indices)

    def cached(self, ends: Indices) -> Indices:
        """Count the samples below each of n that are cached, shape (n,)."""
        return scaled(ends, round(self.coverage * self.num_samples), 0, self.num_samples)


@dataclass(frozen=True)
class EvaluatePart(DerivedPlanner):
    """Plans what rank `rank` of `world_size` serves of an `Evaluate`.

    >>> planner = Evaluate(10, batch_size=4)
    >>> [plan.indices.tolist() for plan in EvaluatePart(planner, rank=1, world_size=2).epoch(0)]
    [[1, 2], [4, 5], [8, 9]]

    Attributes:
        planner: The whole.
        rank: Number of the part, from 0.
        world_size: Number of parts.
    """

    planner: Evaluate
    rank: int = field(kw_only=True)
    world_size: int = field(kw_only=True)

    may_be_short: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        rank_of(self.rank, self.world_size)
        if self.world_size > self.num_samples and not self.planner.pad:
            raise ConfigurationError(
                f"each rank must have a sample to evaluate, got world_size={self.world_size} and num_samples="
                f"{self.num_samples}: evaluate in fewer processes, or pass pad=True"
            )
        object.__setattr__(self, "batch_size", self._rows)

    def __len__(self) -> int:
        """Batches per epoch, on every rank as many."""
        whole = self.planner
        if whole.pad:
            return -(-self.num_samples // (self._rows * self.world_size))
        return max(1, min(-(-self.num_samples // whole.batch_size), self.num_samples // self.world_size))

    @property
    def padded(self) -> bool:
        return self.planner.pad

    @property
    def division(self) -> tuple[int, ...]:
        """Batches of an epoch and, if all are padded to as many, rows of a batch of all ranks together."""
        return (len(self), self._rows * self.world_size) if self.planner.pad else (len(self),)

    @property
    def _rows(self) -> int:
        """Rows of the rank's largest batch."""
        whole = self.planner
        largest = whole.batch_size if whole.pad else -(-self.num_samples // len(self))
        return -(-largest // self.world_size)

    @cached_property
    def shard_slots(self) -> tuple[int, ...]:
        """Samples of the rank that are cached, shape (1,): counted batch by batch where some are, on several ranks."""
        (cached,) = self.planner.cached(np.array([self.num_samples])).tolist()
        if self.world_size == 1 or cached in (0, self.num_samples):
            full, rest = divmod(self.num_samples, self._rows * self.world_size)
            of_rank = full * self._rows + min(max(rest - self.rank * self._rows, 0), self._rows)
            return (min(cached, of_rank if self.planner.pad else self.rows_per_epoch),)
        slots = 0
        for first in range(0, len(self), _AT_ONCE):
            starts, ends = self._bounds(np.arange(first, min(first + _AT_ONCE, len(self))))
            slots += int((self.planner.cached(ends) - self.planner.cached(starts)).sum())
        return (slots,)

    @cached_property
    def rows_per_epoch(self) -> int:
        rows, more = self._sizes
        return len(self) * rows + self.num_samples % len(self) * more

    def batches_of(self, rows: Indices) -> tuple[Indices, Indices]:
        """Return the batch of each of n rows, and its number in the batch; see `Planner.batches_of`.

        Batches that are one larger are spread evenly over an epoch, and so are those of which a rank has a row more, or
        a row less. So of its rows the share b / len(self) comes before batch b: rounded down, or up.
        """
        up = self._sizes[1] < 0
        batches = scaled(rows + (not up), len(self), up - 1, self.rows_per_epoch)
        return batches, rows - scaled(batches, self.rows_per_epoch, up * (len(self) - 1), len(self))

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """Rows of the rank in one of the smaller batches, and how many more in a larger one: -1, 0 or 1."""
        if self.planner.pad:
            return self._rows, 0
        least = self.num_samples // len(self)
        rows, others = (
            (self.rank + 1) * size // self.world_size - self.rank * size // self.world_size
            for size in (least, least + 1)
        )
        return rows, others - rows

    def padding(self, batch: int) -> int:
        (start,), (end,) = self._bounds(np.array([batch]))
        return self._rows - int(end - start) if self.planner.pad else 0

    def plan(self, epoch: int, batch: int) -> BatchPlan:
        epoch, batch = self._check(epoch, batch)
        (start,), (end,) = (bound.tolist() for bound in self._bounds(np.array([batch])))
        indices = np.arange(start, end)
        keep = self.planner.is_cached(indices)
        miss = ~keep if epoch else np.ones(len(indices), np.bool_)
        if padding := self.padding(batch):
            # What fills up shows what is at hand: the last sample of the batch, else the rank's last one.
            shown, at_hand = (end - 1, True) if start < end else self._last
            indices = np.append(indices, np.full(padding, shown))
            keep = np.append(keep, np.zeros(padding, np.bool_))
            miss = np.append(miss, [not at_hand, *[False] * (padding - 1)])
        rows = len(indices)
        nothing = np.empty(0, np.int64)
        return BatchPlan(
            indices, np.zeros(rows, np.int64), np.full(rows, epoch), miss=miss, keep=keep, evict=nothing
        ).read_only()

    def wanted(self, epoch: int, batch: int, indices: Indices, versions: Indices, shards: range | None = None) -> Mask:
        """Tell which of the rank's samples are cached, which they are in every epoch; see `Planner.wanted`."""
        starts, ends = self._bounds(self._batches_with(indices))
        wanted: Mask = (starts <= indices) & (indices < ends) & (versions == 0) & self.planner.is_cached(indices)
        return wanted

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the batches; on every rank the same."""
        return self.planner.fingerprint()

    @property
    def _last(self) -> tuple[int, bool]:
        """The last sample of the rank, or of the source where the rank has none, and whether it is in the store."""
        before = self.rank * self._rows
        if before >= self.num_samples:
            return self.num_samples - 1, False
        _, (end,) = self._bounds(np.array([(self.num_samples - 1 - before) // (self._rows * self.world_size)]))
        return int(end) - 1, bool(self.planner.is_cached(np.array([end - 1]))[0])

    def _bounds(self, batches: Indices) -> tuple[Indices, Indices]:
        """Return where the rank's samples of n batches begin and end in the source, each of shape (n,)."""
        if self.planner.pad:
            start = (batches * self.world_size + self.rank) * self._rows
            return np.minimum(start, self.num_samples), np.minimum(start + self._rows, self.num_samples)
        begin, end = (scaled(each, self.num_samples, 0, len(self)) for each in (batches, batches + 1))
        rows = end - begin
        return begin + rows * self.rank // self.world_size, begin + rows * (self.rank + 1) // self.world_size

    def _batches_with(self, indices: Indices) -> Indices:
        """Return the batch, of all ranks together, that each of n samples is in, shape (n,)."""
        if self.planner.pad:
            return indices // (self._rows * self.world_size)
        return scaled(indices + 1, len(self), -1, self.num_samples)
