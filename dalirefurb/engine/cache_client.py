"""CacheClient: where each row's partial image comes from, and what the store keeps, as the plan says.

How it is intended to behave (if the code differs, that is a bug):

* A row that the store does not hold is computed, whatever the plan expected.
* No version is computed twice while it is at hand: a row whose version another row of its run, or a run on its way,
  computes, takes that image.
* A run that is committed has first evicted what the plan no longer needs, then stored what it computed: a store of the
  plan's `peak_slots` always has room.
* What replaces a bad sample is never stored, and a sample known to be bad is not asked for.
* In between, a store that takes advice has learned when each version that the run served is served next, if the plan
  is known beforehand.

Where nothing but reading is partial the same holds of encoded samples: what is computed is what is read. The store's
are copied when a run is looked up, and looked at as what is read is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from dalirefurb.engine.batch_group import Position, Run
from dalirefurb.engine.in_flight import Borrowed, Computed, InFlightVersions, part_repeats
from dalirefurb.engine.ticket import EncodedTicket, Ticket
from dalirefurb.image_batch import Image
from dalirefurb.planning.batch_plan import BatchPlan, Indices
from dalirefurb.planning.next_uses import next_uses, turns
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.reader import Reader
from dalirefurb.store import Store


class CacheClient:
    """Carries out the part of a plan that concerns the store. Without a store every row is computed.

    One thread looks up, another commits.

    Args:
        reader: Reader of the samples.
        store: Store of partial images, or of encoded samples as they were read; None: every row is computed.
        encoded: Whether the store holds encoded samples as they were read, not partial images.
    """

    def __init__(self, reader: Reader, store: Store | None, *, encoded: bool = False) -> None:
        self._reader = reader
        self._store = store
        self._encoded = encoded
        self._in_flight = InFlightVersions()
        self._planner: Planner | None = None
        # The epoch that is being settled, and when the rows of its batches are served next.
        self._next_uses: tuple[int, list[Indices]] = (-1, [])

    def begin(self, planner: Planner, start: Position) -> None:
        """Before a planner's batches from `start` on, all of which are known."""
        self._planner = planner
        self.retain(planner, start)

    def retain(self, planner: Planner, start: Position) -> None:
        """After a jump to `start`, evict every version that its epoch will not ask for any more."""
        if self._store is None or not len(self._store):
            return
        plans = list(planner.epoch(start.epoch))
        served, ahead = plans[: start.batch], plans[start.batch :]
        evicted = np.concatenate([np.empty(0, np.int64), *(plan.evict for plan in served)])
        wanted = [np.flatnonzero(plan.keep & ~np.isin(plan.indices, evicted)) for plan in served]
        wanted += [np.arange(len(plan.indices)) for plan in ahead]
        indices = [plan.indices[rows] for plan, rows in zip(plans, wanted, strict=True)]
        versions = [plan.version[rows] for plan, rows in zip(plans, wanted, strict=True)]
        self._store.retain(np.concatenate(indices), np.concatenate(versions))

    def announce(self, run: Run) -> None:
        """Tell the store what a run that comes soon will ask it for."""
        if self._store is not None:
            hits = ~run.plan.miss
            self._store.prefetch(run.plan.indices[hits], run.plan.version[hits])

    def lookup(self, run: Run) -> Ticket:
        """Find out where each row's partial image comes from, and start to read what must be computed."""
        plan = run.plan
        if self._store is None:
            return Ticket(run, plan, np.arange(len(plan.indices)), self._reader.read(plan.indices, plan.version))
        # What is on its way comes first: a run that commits in between has put its images into the store by then.
        borrowed = self._in_flight.find(plan.indices, plan.version)
        missing = np.ones(len(plan.indices), np.bool_)
        for rows, _, _ in borrowed:
            missing[rows] = False
        if self._encoded:
            return self._lookup_encoded(run, np.flatnonzero(missing), borrowed, self._store)
        leased = np.flatnonzero(missing & ~self._reader.bad(plan.indices))
        lease = self._store.get(plan.indices[leased], plan.version[leased])
        missing[leased[lease.found]] = False
        missed = np.flatnonzero(missing)
        computed = Computed()
        first, repeats, places = part_repeats(plan.indices[missed], plan.version[missed])
        to_compute = missed[first]
        if len(repeats):
            borrowed.append(Borrowed(missed[repeats], computed, places))
        try:
            reading = self._reader.read(plan.indices[to_compute], plan.version[to_compute])
        except BaseException:
            lease.release()
            raise
        return Ticket(
            run,
            plan,
            to_compute,
            reading,
            computed,
            _stored(run, plan, to_compute),
            lease,
            leased,
            self._in_flight.add(plan.indices[to_compute], plan.version[to_compute], computed),
            borrowed,
        )

    def _lookup_encoded(
        self, run: Run, missing: NDArray[np.int64], borrowed: list[Borrowed], store: Store
    ) -> EncodedTicket:
        """Start to read what the store does not have of rows, shape (n,), and to look at what it has."""
        plan, computed = run.plan, Computed()
        first, repeats, places = part_repeats(plan.indices[missing], plan.version[missing])
        rows = missing[first]
        if len(repeats):
            borrowed.append(Borrowed(missing[repeats], computed, places))
        indices, versions = plan.indices[rows], plan.version[rows]
        asked = np.flatnonzero(~self._reader.bad(indices))
        samples: list[Image | None] = [None] * len(rows)
        with store.get(indices[asked], versions[asked]) as lease:
            for row, sample in zip(asked.tolist(), lease.samples, strict=True):
                samples[row] = None if sample is None else sample.reshape(-1).copy()
        held = np.array([sample is not None for sample in samples], np.bool_)
        return EncodedTicket(
            run,
            plan,
            rows,
            self._reader.read(indices, versions, samples),
            computed,
            _stored(run, plan, rows) & ~held,
            in_flight=self._in_flight.add(indices, versions, computed),
            borrowed=borrowed,
            held=held,
        )

    def commit(self, ticket: Ticket) -> NDArray[np.bool_]:
        """Bring the store to where the plan wants it after a run.

        Returns:
            For each image that the plan keeps, whether it was stored.
        """
        ticket.release()
        if self._store is None:
            return np.empty(0, np.bool_)
        plan = ticket.plan
        if len(plan.evict):
            self._store.evict(plan.evict)
        self._advise(ticket, self._store)
        if not len(ticket.rows):
            return np.empty(0, np.bool_)
        places = np.flatnonzero(ticket.stored & (ticket.computed.indices == plan.indices[ticket.rows]))
        rows = ticket.rows[places]
        stored = np.empty(0, np.bool_)
        if len(rows):
            stored = self._store.put(plan.indices[rows], plan.version[rows], ticket.made(places))
        ticket.forget(self._in_flight)
        return stored

    def _advise(self, ticket: Ticket, store: Store) -> None:
        """Tell the store when the run's versions are served after it."""
        if not store.takes_advice or self._planner is None:
            return
        epoch, first = ticket.position
        if self._next_uses[0] != epoch:
            self._next_uses = epoch, turns(next_uses(self._planner, epoch), epoch)
        uses = self._next_uses[1][first : first + len(ticket.run.plans)]
        store.advise(ticket.plan.indices, ticket.plan.version, np.concatenate(uses))

    def abandon(self, tickets: Iterable[Ticket]) -> None:
        """Forget runs that will not be served. Never fails: the store's error would hide why it came to this."""
        for ticket in tickets:
            ticket.reading.cancel()
            with suppress(Exception):
                ticket.release()
            ticket.forget(self._in_flight)


def _stored(run: Run, plan: BatchPlan, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of `rows` the plan keeps beyond the run, shape (n,)."""
    stored = plan.keep[rows]
    if len(run.plans) == 1 or not len(rows):
        return stored
    evicted = np.flatnonzero(np.isin(plan.indices[rows], plan.evict))
    if not len(evicted):
        return stored
    rows, indices = rows[evicted], plan.indices[rows[evicted]]
    ends = np.cumsum([len(each.indices) for each in run.plans])
    for end, later in zip(ends[:-1], run.plans[1:], strict=True):
        stored[evicted] &= ~((rows < end) & np.isin(indices, later.evict))
    return stored
