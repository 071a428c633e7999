"""What does a batch take from the store, and what does it leave there? As the plan says, and never more.

How it is intended to behave (if the code differs, that is a bug):

* A row that the store does not hold is computed, whatever the plan expected.
* A row whose version a run ahead is computing waits until that run has settled, then asks again. Where that is one of
  the last few runs of the epoch before, it is computed again: a handful of rows, for which a replica would idle.
* A settled batch has first evicted what the plan no longer needs, then stored what it computed: a store of the
  plan's `peak_slots` always has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.plan import BatchPlan, Planner, joined
from dalirefurb.reader import Reader, Samples
from dalirefurb.store import Lease, Store


class Position(NamedTuple):
    """A place in the stream of batches."""

    epoch: int
    batch: int


@dataclass
class Ticket:
    """One run of the graph on its way: a batch, or several small ones in a row.

    Attributes:
        position: Which batch is the first.
        plan: The rows of all its batches.
        batch_rows: How many of them belong to each batch.
        rows: Those to compute, ascending.
        repeated: How many of them a run just ahead computes, too.
        reading: The source's samples for `rows`, in that order.
        cached: The partial image of each row that the store lent, None for the others.
        waiting: Rows to ask the store for again before submission, because batches ahead compute them.
        waits_for: The last such batch.
        leases: What keeps the cached images in place.
        served: Whether its batches were handed to the training loop.
    """

    position: Position
    plan: BatchPlan
    batch_rows: list[int]
    rows: NDArray[np.int64]
    repeated: int
    reading: Future[Samples]
    cached: list[NDArray[np.uint8] | None]
    waiting: NDArray[np.int64]
    waits_for: Position | None = None
    leases: list[Lease] = field(default_factory=list)
    served: bool = False

    @property
    def coming(self) -> set[tuple[int, int]]:
        """The (index, version) pairs that it will put into the store."""
        return set(_pairs(self.plan, self.rows[self.plan.keep[self.rows]]))

    def release(self) -> None:
        """Give the cached images back."""
        for lease in self.leases:
            lease.release()


class Exchange:
    """Carries out the part of a plan that concerns the store. Without a store every row is computed.

    Args:
        planner: What to serve.
        reader: Reads what is computed.
        store: Where partial images wait.
        not_waited_for: How many runs before its own a row need not wait for, if they are of an earlier epoch.
    """

    def __init__(self, planner: Planner, reader: Reader, store: Store | None, *, not_waited_for: int) -> None:
        self._planner = planner
        self._reader = reader
        self._store = store
        self._not_waited_for = not_waited_for

    def begin(self, start: Position) -> None:
        """After a jump to `start`, evict every version that its epoch will not ask for any more."""
        if self._store is None or not len(self._store):
            return
        plans = list(self._planner.epoch(start.epoch))
        served, ahead = plans[: start.batch], plans[start.batch :]
        evicted = np.concatenate([np.empty(0, np.int64), *(plan.evict for plan in served)])
        wanted = [np.flatnonzero(plan.keep & ~np.isin(plan.indices, evicted)) for plan in served]
        wanted += [np.arange(len(plan.indices)) for plan in ahead]
        indices = [plan.indices[rows] for plan, rows in zip(plans, wanted, strict=True)]
        versions = [plan.version[rows] for plan, rows in zip(plans, wanted, strict=True)]
        self._store.retain(np.concatenate(indices), np.concatenate(versions))

    def admit(self, position: Position, plans: list[BatchPlan], ahead: Sequence[Ticket]) -> Ticket:
        """Lease what the store holds, and start to read what must be computed.

        Args:
            position: Which batch is the first.
            plans: The batches; no sample is in two of them.
            ahead: The runs before this one that have not settled, in order.
        """
        batch_rows = [len(plan.indices) for plan in plans]
        plan = plans[0] if len(plans) == 1 else joined(plans)
        rows = np.arange(len(plan.indices))
        if self._store is None:
            reading = self._reader.read(plan.indices)
            return Ticket(position, plan, batch_rows, rows, 0, reading, [None] * len(rows), rows[:0])
        lease = self._store.get(plan.indices, plan.version)
        rows = rows[~lease.found]
        near = max(0, len(ahead) - self._not_waited_for)
        waited_for = [ticket for i, ticket in enumerate(ahead) if i < near or ticket.position.epoch == position.epoch]
        waiting, waits_for = _computed_ahead(plan, rows, waited_for)
        rows = np.setdiff1d(rows, waiting, assume_unique=True)
        repeated, _ = _computed_ahead(plan, rows, ahead[near:])
        reading = self._reader.read(plan.indices[rows])
        cached = list(lease.samples)
        return Ticket(position, plan, batch_rows, rows, len(repeated), reading, cached, waiting, waits_for, [lease])

    def ask_again(self, ticket: Ticket) -> None:
        """Lease what batches ahead have stored meanwhile; what they could not store is read and computed, too."""
        if self._store is None or not len(ticket.waiting):
            return
        plan, waiting = ticket.plan, ticket.waiting
        lease = self._store.get(plan.indices[waiting], plan.version[waiting])
        ticket.leases.append(lease)
        for row, image in zip(waiting.tolist(), lease.samples, strict=True):
            ticket.cached[row] = image
        lost = waiting[~lease.found]
        if len(lost):
            ticket.rows = np.union1d(ticket.rows, lost)
            ticket.reading = self._reader.read(plan.indices[ticket.rows])

    def settle(self, ticket: Ticket, computed: list[NDArray[np.uint8]]) -> NDArray[np.bool_]:
        """Bring the store to where the plan wants it after a batch.

        Args:
            ticket: The batch.
            computed: The partial images of `ticket.rows`, HWC uint8; copied where kept.

        Returns:
            For each image that the plan keeps, whether it was stored.
        """
        ticket.release()
        if self._store is None:
            return np.empty(0, np.bool_)
        plan = ticket.plan
        self._store.evict(plan.evict)
        places = np.flatnonzero(plan.keep[ticket.rows])
        rows = ticket.rows[places]
        return self._store.put(plan.indices[rows], plan.version[rows], [computed[place] for place in places])


def _pairs(plan: BatchPlan, rows: NDArray[np.int64]) -> list[tuple[int, int]]:
    return list(zip(plan.indices[rows].tolist(), plan.version[rows].tolist(), strict=True))


def _computed_ahead(
    plan: BatchPlan, rows: NDArray[np.int64], ahead: Sequence[Ticket]
) -> tuple[NDArray[np.int64], Position | None]:
    """Return those of `rows` whose versions batches ahead are computing, and the last of these batches."""
    expected = rows[~plan.miss[rows]]
    waiting = np.zeros(len(expected), dtype=np.bool_)
    waits_for = None
    if len(expected):
        pairs = _pairs(plan, expected)
        for ticket in ahead:
            coming = ticket.coming
            found = np.array([pair in coming for pair in pairs])
            if found.any():
                waiting |= found
                waits_for = ticket.position
    return expected[waiting], waits_for
