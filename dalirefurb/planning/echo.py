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
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import integer
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.batch_plan import BatchPlan, Indices, batch_plans, joined, side_by_side
from dalirefurb.planning.planner import DerivedPlanner
from dalirefurb.rng import key, permutation, sort_keys


def repeats(units: int, total: int, *, seed: int, epoch: int) -> Indices:
    """Repeat `units` things `total` times in all, each floor or ceil of the mean m = total / units times.

    The k-th is repeated floor(m (k + 1) + u) - floor(m k + u) times, where u, a multiple of 1 / units in [0, 1), is
    drawn once per epoch: so the mean number of repeats is m for each k. All is counted in integers.

    >>> repeats(6, 9, seed=0, epoch=0).tolist()
    [2, 1, 2, 1, 2, 1]

    Returns:
        How often each is repeated, shape (units,).
    """
    whole, rest = divmod(total, units)
    drawn = int(key(seed, "echo", epoch)) % units
    counts: Indices = whole + np.diff((rest * np.arange(units + 1) + drawn) // units)
    return counts


def leave_buffer(size: int, buffer_size: int, *, seed: int, epoch: int) -> Indices:
    """Pass `size` rows through a shuffle buffer.

    The first `buffer_size` rows fill it. Each further row takes the place of a row drawn at random, which leaves. At
    the end the rest leaves in random order.

    >>> leave_buffer(6, 2, seed=0, epoch=0).tolist()
    [5, 0, 1, 2, 3, 4]

    Args:
        size: Number of rows, at least 1.
        buffer_size: Number of rows that the buffer holds; with 0 or 1 rows leave as they come.
        seed: The run's seed.
        epoch: Number of the epoch.

    Returns:
        When each row leaves, shape (size,): a permutation of 0..size-1 in which no row leaves more than
        `buffer_size` - 1 places early.
    """
    places = min(max(1, buffer_size), size)
    drawn = sort_keys(size - places, seed, "echo buffer", epoch) % np.uint64(places)
    place = np.concatenate([np.arange(places), drawn.astype(np.int64)])  # that each row takes
    by_place = np.argsort(place, kind="stable")
    taken = np.flatnonzero(place[by_place[1:]] == place[by_place[:-1]])  # those whose place the next one took
    leaves = np.empty(size, np.int64)
    leaves[by_place[taken]] = by_place[taken + 1] - places
    leaves[np.delete(by_place, taken)] = size - places + permutation(places, seed, "echo drain", epoch)
    return leaves


@dataclass(frozen=True)
class Echoing(DerivedPlanner):
    """What both kinds of echoing have in common."""

    echoing_factor: float = field(kw_only=True)

    serves_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_padding()
        if not self.planner.serves_once:
            raise ConfigurationError(
                f"planner must serve no sample twice in an epoch, got {self.planner!r}: pass its inner planner, and "
                f"the product of both echoing factors"
            )
        if isinstance(self.planner, DerivedPlanner):
            raise ConfigurationError(
                f"planner must know its batches before an epoch begins, since those in the buffer and their repeats "
                f"were chosen before, got {self.planner!r}, which chooses by losses that come meanwhile: pass "
                f"AutoAssist(Echo(planner, ...), lag=...), which chooses among repeats"
            )
        remedy = "pass the mean number of times that a sample is served, 1 to repeat nothing"
        self._number("echoing_factor", "of at least 1", lambda factor: 1 <= factor < math.inf, remedy)

    @cached_property
    def fresh_samples(self) -> int:
        """Rows per epoch that the inner planner serves; the others are repeats."""
        return sum(len(plan.indices) for plan in self.planner.epoch(0))

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

    def epoch(self, epoch: int) -> Iterator[BatchPlan]:
        """Plan one epoch; see `Planner.epoch`."""
        epoch = integer("epoch", epoch, 0, None, "epochs count from 0")
        plans = list(self.planner.epoch(epoch))
        shards = []
        for shard in range(self.shards):
            rows = joined([self.part(plan, rank=shard, world_size=self.shards) for plan in plans])
            shards.append(self._echo(rows, seed=self._seed_of(shard), epoch=epoch))
        arrays = {name: side_by_side([rows[name] for rows in shards], width=self._width) for name in shards[0]}
        return batch_plans(**arrays, batch_size=self.batch_size)

    def _echo(self, rows: BatchPlan, *, seed: int, epoch: int) -> dict[str, NDArray[Any]]:
        """Repeat and shuffle a shard's rows of an epoch; return what `batch_plans` takes."""
        counts = repeats(len(rows.indices), self._rows, seed=seed, epoch=epoch)
        starts = np.cumsum(counts) - counts
        leaves = leave_buffer(self._rows, self._buffer, seed=seed, epoch=epoch)
        first, last = np.minimum.reduceat(leaves, starts), np.maximum.reduceat(leaves, starts)
        last_batch = last // self._width
        stored = first // self._width < last_batch
        evict = np.isin(rows.indices, rows.evict) | (rows.miss & ~rows.keep & stored)

        order = np.empty_like(leaves)  # the echoed row at each place
        order[leaves] = np.arange(self._rows)
        row = np.repeat(np.arange(len(counts)), counts)[order]
        place = np.arange(self._rows)
        return {
            "indices": rows.indices[row],
            "version": rows.version[row],
            "serving": rows.serving[row] * self._most + order - starts[row],
            "miss": rows.miss[row] & (place == first[row]),
            "keep": rows.keep[row] | (place // self._width < last_batch[row]),
            "evict": evict[row] & (place == last[row]),
        }

    @cached_property
    def _rows(self) -> int:
        """Rows of a shard per epoch."""
        rows = self._echoed(self.fresh_samples // self.shards)
        return rows - rows % self._width if self.drop_last or self.shards > 1 else rows

    @property
    def _buffer(self) -> int:
        """Rows of a shard's shuffle buffer."""
        return max(1, self.buffer_size // self.shards)
