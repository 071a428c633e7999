"""BatchPlan: what one batch will do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BatchPlan:
    """What one batch will do, one row per sample in serving order. The arrays are read-only.

    >>> none = np.zeros(3, bool)
    >>> rows = np.arange(3)
    >>> BatchPlan(rows, version=rows, serving=rows, miss=~none, keep=none, evict=rows[:1])
    BatchPlan(3 rows: 3 misses, 0 hits; keeps 0, evicts 1)

    Attributes:
        indices: Samples to serve, shape (B,).
        version: Which draw of the partial augmentation each row has, shape (B,).
        serving: Which draw of the final augmentation each row has, shape (B,); never repeats for one index.
        miss: Whether the partial augmentation is expected to run, shape (B,).
        keep: Whether this version is served again later, so that it is worth a slot, shape (B,).
        evict: Indices whose slots are free once this batch is served, shape (k,).
    """

    indices: Indices
    version: Indices
    serving: Indices
    miss: Mask
    keep: Mask
    evict: Indices

    def read_only(self) -> BatchPlan:
        """Forbid writing to the arrays, which nobody else may have, and return the plan."""
        for array in (self.indices, self.version, self.serving, self.miss, self.keep, self.evict):
            array.flags.writeable = False
        return self

    def part(self, rows: slice | Indices, *, evict: Indices) -> BatchPlan:
        """Return some of the rows, with evictions of their own."""
        return BatchPlan(
            self.indices[rows], self.version[rows], self.serving[rows], self.miss[rows], self.keep[rows], evict
        )

    def __repr__(self) -> str:
        rows, misses = len(self.indices), int(self.miss.sum())
        return (
            f"BatchPlan({rows} rows: {misses} misses, {rows - misses} hits; "
            f"keeps {int(self.keep.sum())}, evicts {len(self.evict)})"
        )


def joined(plans: Sequence[BatchPlan]) -> BatchPlan:
    """Put the rows and evictions of consecutive batches into one."""
    if len(plans) == 1:
        return plans[0]
    return BatchPlan(
        **{each.name: np.concatenate([getattr(plan, each.name) for plan in plans]) for each in fields(BatchPlan)}
    )


def planned_together(batch: int, batches: int, rows: int) -> range:
    """Return which of some batches are planned at once with one of them, if each is of so many rows.

    A call costs as much for one row as for some hundred.
    """
    count = max(1, 1024 // rows)
    first = batch - batch % count
    return range(first, min(first + count, batches))
