"""Candidates: the samples that AutoAssist may serve, and how batches are filled with those that are accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dalirefurb.planning.batch_plan import BatchPlan, Indices, Mask, joined
from dalirefurb.planning.planner import Planner

Accepts = Callable[[Indices, Indices], Mask]
"""Tells which of n candidates are accepted, shape (n,), from their indices and servings, each of shape (n,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The candidates of one inner batch.

    Attributes:
        rows: All candidates, in order, and what the inner planner evicts after them.
        evicted_after: The last candidate, by number, that each eviction waits for, ascending.
    """

    rows: BatchPlan
    evicted_after: Indices

    @classmethod
    def of(cls, plan: BatchPlan) -> Candidates:
        """Return the rows of an inner batch.

        Batches are cut anew: repeats that the inner planner serves in one batch may come to be in two. So what is
        repeated is kept until its last row, and evicted after it, unless the inner planner keeps or evicts it then.
        """
        places = np.arange(len(plan.indices))
        evicted_after = np.full(len(plan.evict), len(places) - 1)
        repeated, which, counts = np.unique(plan.indices, return_inverse=True, return_counts=True)
        if len(repeated) == len(places):
            return cls(plan, evicted_after)
        last = np.zeros(len(repeated), np.int64)
        np.maximum.at(last, which, places)
        again = last[which] > places
        ends = np.flatnonzero((counts[which] > 1) & ~again & ~plan.keep & ~np.isin(plan.indices, plan.evict))
        evict = np.concatenate([plan.indices[ends], plan.evict])
        return cls(replace(plan, keep=plan.keep | again, evict=evict), np.concatenate([ends, evicted_after]))


class CandidateStream:
    """Cuts full batches out of the candidates of all inner epochs.

    Args:
        planner: The inner planner.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._known: tuple[tuple[int, int], Candidates] | None = None

    def batch(self, epoch: int, row: int, accepts: Accepts | None = None) -> tuple[BatchPlan, int, int, int]:
        """Consider candidates until a batch is full.

        Args:
            epoch: Number of the inner epoch of the first candidate to consider.
            row: Number of that candidate in its epoch.
            accepts: What chooses; None accepts all. The first inner epoch is accepted whole, and so is what comes once
                a batch has considered as many candidates as there are samples.

        Returns:
            The batch, inner epoch and row of the next candidate to consider, and how many were considered.
        """
        parts: list[BatchPlan] = []
        epochs: list[int] = []
        considered, needed = 0, self._planner.batch_size
        while needed:
            if row == self._planner.rows_per_epoch:
                epoch, row = epoch + 1, 0
            (number,), (first,) = self._planner.batches_of(np.array([row]))
            candidates = self._of(epoch, int(number))
            rows, start, stop = candidates.rows, int(first), len(candidates.rows.indices)
            if accepts is None or epoch == 0 or considered >= self._planner.num_samples:
                accepted = np.arange(start, stop)
            else:
                stop = min(stop, start + self._planner.num_samples - considered)
                accepted = start + np.flatnonzero(accepts(rows.indices[start:stop], rows.serving[start:stop]))
            accepted = accepted[:needed]
            needed -= len(accepted)
            if not needed:
                stop = int(accepted[-1]) + 1
            evictions = slice(*np.searchsorted(candidates.evicted_after, (start, stop)))
            parts.append(rows.part(accepted, evict=rows.evict[evictions]))
            epochs.append(epoch)
            considered, row = considered + stop - start, row + stop - start
        return _batch_of(parts, epochs), epoch, row, considered

    def _of(self, epoch: int, batch: int) -> Candidates:
        """Plan an inner batch, once as long as it is the present one."""
        known = self._known
        if known is None or known[0] != (epoch, batch):
            known = self._known = (epoch, batch), Candidates.of(self._planner.plan(epoch, batch))
        return known[1]


def _batch_of(parts: Sequence[BatchPlan], epochs: Sequence[int]) -> BatchPlan:
    """Join parts of inner epochs, numbered `epochs`, to a batch that the store can carry out as one.

    All evictions come before anything is stored, so what is evicted after its row is not kept: in the same epoch, where
    a sample is evicted after the last of its rows, or in a later one.
    """
    plan = joined(parts)
    last_evicted = {index: epoch for part, epoch in zip(parts, epochs, strict=True) for index in part.evict.tolist()}
    row_epochs = np.repeat(epochs, [len(part.indices) for part in parts]).tolist()
    stays = [
        last_evicted.get(index, -1) < epoch for index, epoch in zip(plan.indices.tolist(), row_epochs, strict=True)
    ]
    return replace(plan, keep=plan.keep & np.array(stays), evict=np.array([*last_evicted], np.int64)).read_only()
