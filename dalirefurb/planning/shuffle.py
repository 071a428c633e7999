"""Cache-aware shuffle: every batch misses equally, and is random otherwise.

The batch shuffler is the cache-aware shuffle of Revamper (Lee et al., USENIX ATC 2021): every batch has the
same ratio of misses to hits, drawn at random within each class, so that no batch waits longer than another.
The plain shuffler ignores the cache; it is there to be compared with.

A cell is the slice of one batch that one shard fills. Shard s fills the s-th of `shards` equal slices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dalirefurb.planning.batch_plan import Indices, Mask, side_by_side
from dalirefurb.rng import sort_keys


@dataclass(frozen=True)
class BatchOrder(ABC):
    """Puts the rows that an epoch serves in order."""

    @abstractmethod
    def order(
        self, rows: Sequence[Indices], miss: Mask, keep: Mask, *, batch_size: int, seed: int, epoch: int
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

        Returns:
            The positions in `rows`, each once, shape (n,): batch after batch, in a batch shard after shard.
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
        self, rows: Sequence[Indices], miss: Mask, keep: Mask, *, batch_size: int, seed: int, epoch: int
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

    def extra_slots(self, *, shards: int, batches: int, samples: int) -> int:
        """Return 0 for one shard; for several, what the rounding of `share_misses` costs.

        Let a shard have M misses of which K are stored, and H hits of which L are evicted. When it has served
        x M + d misses after the share x of an epoch, it has stored less than 1 + d (K / M + L / H) versions
        more than a straight line between the epoch's ends. With one shard d is at most 0. With several it is
        at most twice the discrepancy of van der Corput's sequence, log2(n) / 3 + 1 (Béjian and Faure, 1977).
        """
        return 0 if shards == 1 else math.ceil(4 * (math.log2(batches) / 3 + 1))


@dataclass(frozen=True)
class PlainShuffler(BatchOrder):
    """Ignores the cache: misses fall where they fall."""

    def order(
        self, rows: Sequence[Indices], miss: Mask, keep: Mask, *, batch_size: int, seed: int, epoch: int
    ) -> Indices:
        """Serve each shard's rows in the random order in which they come."""
        return side_by_side(rows, width=batch_size // len(rows))

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
