"""BatchPlan: what one batch will do, and how an epoch's rows are cut into such plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

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
        for each in fields(self):
            getattr(self, each.name).flags.writeable = False
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


def batch_plans(
    *,
    indices: Indices,
    version: Indices,
    serving: Indices,
    miss: Mask,
    keep: Mask,
    evict: Mask,
    batch_size: int,
) -> Iterator[BatchPlan]:
    """Cut an epoch's rows, each array of shape (n,), into batches; the last one may be short.

    `evict` marks the rows after whose batch the row's sample gives up its slot. Batches are read-only views.
    """
    evicted_rows = np.flatnonzero(evict)
    starts = np.arange(0, len(indices) + batch_size, batch_size)
    evictions = np.searchsorted(evicted_rows, starts).tolist()
    whole = BatchPlan(*map(read_only, (indices, version, serving, miss, keep, indices[evicted_rows])))
    for batch, start in enumerate(range(0, len(indices), batch_size)):
        evicted = whole.evict[evictions[batch] : evictions[batch + 1]]
        yield whole.part(slice(start, start + batch_size), evict=evicted)


def joined(plans: Sequence[BatchPlan]) -> BatchPlan:
    """Put the rows and evictions of consecutive batches into one."""
    if len(plans) == 1:
        return plans[0]
    return BatchPlan(
        **{each.name: np.concatenate([getattr(plan, each.name) for plan in plans]) for each in fields(BatchPlan)}
    )


def side_by_side(parts: Sequence[NDArray[Any]], *, width: int) -> NDArray[Any]:
    """Fill batches with the rows of all shards, each of shape (n,): `width` rows of each in turn.

    >>> side_by_side([np.array([1, 2, 3, 4]), np.array([5, 6, 7, 8])], width=2).tolist()
    [1, 2, 5, 6, 3, 4, 7, 8]

    Args:
        parts: The values of each shard's rows, one array of shape (n,) per shard. Only a shard that is alone may leave
            a short batch.
        width: Rows of a batch that one shard fills.
    """
    if len(parts) == 1:
        return parts[0]
    return np.stack([part.reshape(-1, width) for part in parts], axis=1).reshape(-1)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view
