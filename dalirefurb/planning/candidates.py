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
    """The candidates of one inner epoch.

    Attributes:
        epoch: Number of the inner epoch.
        rows: All candidates, in order, and what the inner planner evicts meanwhile.
        evicted_after: The last candidate of the inner batch that each eviction belongs to, ascending.
    """

    epoch: int
    rows: BatchPlan
    evicted_after: Indices

    @classmethod
    def of(cls, planner: Planner, epoch: int) -> Candidates:
        """Return the rows of an epoch of the inner planner.

        Batches are cut anew: repeats that the inner planner serves in one batch may come to be in two. So what is
        repeated is kept until its last row, and evicted after it, unless the inner planner keeps or evicts it then.
        """
        plans = list(planner.epoch(epoch))
        last = np.cumsum([len(plan.indices) for plan in plans]) - 1
        evicted_after = np.repeat(last, [len(plan.evict) for plan in plans])
        rows, places = joined(plans), np.arange(last[-1] + 1)
        last_places = np.zeros(planner.num_samples, np.int64)  # of each sample; one that comes twice has the later one
        last_places[rows.indices] = places
        again = last_places[rows.indices] > places
        if not again.any():
            return cls(epoch, rows, evicted_after)
        repeated = np.zeros(planner.num_samples, np.bool_)
        repeated[rows.indices[again]] = True
        repeated[rows.evict] = False
        ends = np.flatnonzero(repeated[rows.indices] & ~again & ~rows.keep)
        order = np.argsort(np.concatenate([evicted_after, ends]), kind="stable")
        evict = np.concatenate([rows.evict, rows.indices[ends]])[order]
        evicted_after = np.concatenate([evicted_after, ends])[order]
        return cls(epoch, replace(rows, keep=rows.keep | again, evict=evict), evicted_after)

    def __len__(self) -> int:
        return len(self.rows.indices)


class CandidateStream:
    """Cuts full batches out of the candidates of all inner epochs.

    Args:
        planner: The inner planner.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._candidates: Candidates | None = None

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
            candidates = self._of(epoch)
            if row == len(candidates):
                epoch, row = epoch + 1, 0
                continue
            rows = candidates.rows
            stop = min(row + 2 * self._planner.batch_size, len(candidates))
            if accepts is None or epoch == 0 or considered >= self._planner.num_samples:
                accepted = np.arange(row, stop)
            else:
                stop = min(stop, row + self._planner.num_samples - considered)
                accepted = row + np.flatnonzero(accepts(rows.indices[row:stop], rows.serving[row:stop]))
            accepted = accepted[:needed]
            needed -= len(accepted)
            if not needed:
                stop = int(accepted[-1]) + 1
            evictions = slice(*np.searchsorted(candidates.evicted_after, (row, stop)))
            parts.append(rows.part(accepted, evict=rows.evict[evictions]))
            epochs.append(epoch)
            considered, row = considered + stop - row, stop
        return _batch_of(parts, epochs), epoch, row, considered

    def _of(self, epoch: int) -> Candidates:
        """Plan an inner epoch, once as long as it is the present one."""
        if self._candidates is None or self._candidates.epoch != epoch:
            self._candidates = Candidates.of(self._planner, epoch)
        return self._candidates


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
