"""In which order are an epoch's rows served? So that every batch misses equally, and is random otherwise.

The batch shuffler is the cache-aware shuffle of Revamper (Lee et al., USENIX ATC 2021): every batch has the
same ratio of misses to hits, drawn at random within each class, so that no batch waits longer than another.
The plain shuffler ignores the cache; it is there to be compared with.

Misses that are equally many need not cost equally much: of photographs, some take ten times as long to decode as
others. The cost-aware shuffler, which goes beyond Revamper, gives every batch an equal share of their costs, too.

A cell is the slice of one batch that one shard fills. Shard s fills the s-th of `shards` equal slices.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError
from dalirefurb.plan import Indices, Mask
from dalirefurb.rng import sort_keys


@dataclass(frozen=True)
class BatchOrder(ABC):
    """Puts the rows that an epoch serves in order."""

    @abstractmethod
    def order(
        self,
        rows: Sequence[Indices],
        miss: Mask,
        keep: Mask,
        *,
        batch_size: int,
        seed: int,
        epoch: int,
        samples: Indices,
    ) -> Indices:
        """Put the rows of an epoch in serving order.

        Args:
            rows: Positions that each shard serves, in random order. Several shards fill whole batches: they
                have as many rows each, a multiple of batch_size // shards. One shard may leave a short batch.
            miss: Whether a position misses, shape (num_samples,).
            keep: Whether a position's version is served again in a later epoch, shape (num_samples,).
            batch_size: Rows of a batch, a multiple of the number of shards.
            seed: The run's seed.
            epoch: Number of the epoch.
            samples: Index of the sample at each position, shape (num_samples,).

        Returns:
            The positions in `rows`, each once, shape (n,): batch after batch, in a batch shard after shard.
        """

    def check(self, num_samples: int) -> None:  # noqa: B027 - most fit any planner
        """Refuse a planner of that many samples, if need be.

        Raises:
            ConfigurationError: It has another number of samples than the shuffler was made for.
        """

    @abstractmethod
    def extra_slots(self, *, shards: int, batches: int, samples: int) -> int:
        """Bound how far a shard's stored versions rise, inside an epoch, above their number at its ends.

        Args:
            shards: Number of shards.
            batches: Batches per epoch.
            samples: Samples of the shard.
        """


@dataclass(frozen=True)
class BatchShuffler(BatchOrder):
    """Gives each batch an equal share of the misses, at random places.

    Versions that are stored and versions that are served for the last time are spread evenly over the epoch
    too, so that evictions balance insertions.
    """

    def order(
        self,
        rows: Sequence[Indices],
        miss: Mask,
        keep: Mask,
        *,
        batch_size: int,
        seed: int,
        epoch: int,
        samples: Indices,
    ) -> Indices:
        """Deal misses and hits to cells, each in random order, then shuffle every cell."""
        num_rows, width = sum(map(len, rows)), batch_size // len(rows)
        misses, hits = [], []
        for positions in rows:
            missed, kept = miss[positions], keep[positions]
            misses.append(spread(positions[missed & kept], positions[missed & ~kept]))
            hits.append(spread(positions[~missed & ~kept], positions[~missed & kept]))
        shares = share_misses([len(missed) for missed in misses], num_rows=num_rows, batch_size=batch_size)
        batches = len(shares)
        misses = [
            self._arranged(missed, keep[missed], share, samples, seed=seed, epoch=epoch, shard=shard)
            for shard, (missed, share) in enumerate(zip(misses, shares.T, strict=True))
        ]
        cells = np.empty((batches, len(rows), width), np.int64)
        column = np.arange(width)
        filled = np.arange(batches * width).reshape(batches, width) < len(rows[0])  # a short batch ends early
        for shard in range(len(rows)):
            first = column < shares[:, shard, None]
            cells[:, shard][first] = misses[shard]
            cells[:, shard][filled & ~first] = hits[shard]
        keys = sort_keys(cells.size, seed, "cell shuffle", epoch).reshape(cells.shape)
        keys.reshape(-1)[num_rows:] = np.iinfo(np.uint64).max  # unfilled places sort last
        return np.take_along_axis(cells, np.argsort(keys, axis=-1), axis=-1).reshape(-1)[:num_rows]

    def _arranged(
        self, missed: Indices, kept: Mask, share: Indices, samples: Indices, *, seed: int, epoch: int, shard: int
    ) -> Indices:
        """Choose which of one shard's misses come where; each place keeps its kind.

        Args:
            missed: Positions in random order, the first share[0] of them for the first batch, and so on, shape (n,).
            kept: Whether their versions are served again, shape (n,).
            share: Of each batch, shape (batches,).
            samples: Index of the sample at each position, shape (num_samples,).
            seed: The run's seed.
            epoch: Number of the epoch.
            shard: Whose misses they are.

        Returns:
            The same positions, shape (n,).
        """
        return missed

    def extra_slots(self, *, shards: int, batches: int, samples: int) -> int:
        """Return 0 for one shard; for several, what the rounding of `share_misses` costs.

        Let a shard have M misses of which K are stored, and H hits of which L are evicted. When it has served
        x M + d misses after the share x of an epoch, it has stored less than 1 + d (K / M + L / H) versions
        more than a straight line between the epoch's ends. With one shard d is at most 0. With several it is
        at most twice the discrepancy of van der Corput's sequence, log2(n) / 3 + 1 (Béjian and Faure, 1977).
        """
        return 0 if shards == 1 else math.ceil(4 * (math.log2(batches) / 3 + 1))


@dataclass(frozen=True)
class CostAwareShuffler(BatchShuffler):
    """Also gives each batch an equal share of what its misses cost, as far as costs are known beforehand.

    A batch of n misses takes one from each n-th of them in the order of their costs, at random. So every sample is as
    likely in one batch as in another; two of nearly equal cost meet less often than by chance.

    Example:
        >>> from dalirefurb import Refurbish
        >>> costs = np.array([9, 1, 1, 9, 9, 1])
        >>> planner = Refurbish(6, batch_size=2, reuse_factor=1, batch_shuffler=CostAwareShuffler(costs))
        >>> [int(costs[plan.indices].sum()) for plan in planner.epoch(0)]
        [10, 10, 10]

    Attributes:
        costs: What computing each sample's partial image costs, in any unit, shape (num_samples,): see `Source.costs`.
        digest: Of the costs.

    Raises:
        ConfigurationError: If costs are not finite numbers of at least 0.
    """

    costs: NDArray[np.float64] = field(repr=False, compare=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        try:
            costs = np.array(self.costs, np.float64)
        except (TypeError, ValueError):
            costs = np.full(1, np.nan)
        if costs.ndim != 1 or not (np.isfinite(costs) & (costs >= 0)).all():
            raise ConfigurationError(
                f"costs must be finite numbers of at least 0, one for each sample, got {self.costs!r}: "
                f"pass source.costs(), or figures of your own"
            )
        costs.flags.writeable = False
        object.__setattr__(self, "costs", costs)
        object.__setattr__(self, "digest", hashlib.blake2b(costs.data, digest_size=8).hexdigest())

    def check(self, num_samples: int) -> None:
        """Refuse a planner of another number of samples; see `BatchOrder.check`."""
        if len(self.costs) != num_samples:
            raise ConfigurationError(
                f"there must be one cost for each sample, got {len(self.costs)} for num_samples={num_samples}: "
                f"pass the costs of the planner's source"
            )

    def _arranged(
        self, missed: Indices, kept: Mask, share: Indices, samples: Indices, *, seed: int, epoch: int, shard: int
    ) -> Indices:
        """Deal the dearest first, in as many rounds as a batch has misses; see `BatchShuffler._arranged`."""
        arranged = missed.copy()
        batch = np.repeat(np.arange(len(share)), share)
        chance = sort_keys(len(missed), seed, "costs", epoch, shard) / 2.0**64
        for places in (np.flatnonzero(kept), np.flatnonzero(~kept)):
            mine = batch[places]
            count = np.bincount(mine, minlength=len(share))
            turn = np.arange(len(places)) - np.repeat(np.cumsum(count) - count, count)
            rounds = np.argsort((turn + chance[places]) / count[mine], kind="stable")
            dearest = np.argsort(-self.costs[samples[missed[places]]], kind="stable")
            arranged[places[rounds]] = missed[places[dearest]]
        return arranged


@dataclass(frozen=True)
class PlainShuffler(BatchOrder):
    """Ignores the cache: misses fall where they fall."""

    def order(
        self,
        rows: Sequence[Indices],
        miss: Mask,
        keep: Mask,
        *,
        batch_size: int,
        seed: int,
        epoch: int,
        samples: Indices,
    ) -> Indices:
        """Serve each shard's rows in the random order in which they come."""
        if len(rows) == 1:
            return rows[0]
        width = batch_size // len(rows)
        return np.stack([positions.reshape(-1, width) for positions in rows], axis=1).reshape(-1)

    def extra_slots(self, *, shards: int, batches: int, samples: int) -> int:
        """Return the samples of the shard: every version may be stored before the first is evicted."""
        return samples


def spread(chosen: Indices, others: Indices) -> Indices:
    """Interleave two arrays so that every prefix holds its share of `chosen`, rounded down.

    >>> spread(np.array([7, 8]), np.array([0, 1, 2])).tolist()
    [0, 1, 7, 2, 8]
    """
    size = len(chosen) + len(others)
    cumulative = np.arange(size + 1) * len(chosen) // max(size, 1)
    here = np.diff(cumulative) > 0
    mixed = np.empty(size, np.int64)
    mixed[here] = chosen
    mixed[~here] = others
    return mixed


def share_misses(misses: Sequence[int], *, num_rows: int, batch_size: int) -> Indices:
    """Apportion each shard's misses to the batches.

    With one shard the misses of the batches up to t are the share of the rows up to t, rounded down. With
    several, batch t of n has (k_t + misses of shards up to s) // n misses in the shards up to s. Because k_t
    takes each value of 0..n-1 once, every column sums to its shard's misses (Hermite's identity). The order
    of k_t is that of van der Corput, so that each shard keeps close to its share throughout the epoch.

    >>> share_misses([3], num_rows=10, batch_size=4).tolist()
    [[1], [1], [1]]
    >>> share_misses([3, 3], num_rows=16, batch_size=4).tolist()
    [[0, 1], [1, 1], [1, 0], [1, 1]]

    Args:
        misses: Misses of each shard, shape (shards,).
        num_rows: Rows that the epoch serves; with several shards a multiple of batch_size.
        batch_size: Rows of a batch.

    Returns:
        Misses of each cell, shape (batches, shards). In every batch every contiguous run of shards is less
        than one miss away from its share, and so is the batch.
    """
    batches = -(-num_rows // batch_size)
    if len(misses) == 1:
        rows_before = np.minimum(np.arange(batches + 1) * batch_size, num_rows)
        return np.diff(rows_before * misses[0] // num_rows)[:, None]
    cumulative = np.concatenate([[0], np.cumsum(misses)])
    shares: Indices = np.diff((_bit_reversed(batches)[:, None] + cumulative) // batches, axis=1)
    return shares


def _bit_reversed(size: int) -> Indices:
    """Order 0..size-1 by their reversed bits, shape (size,): the order of van der Corput."""
    order = np.zeros(1, np.int64)
    while len(order) < size:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order[order < size]
