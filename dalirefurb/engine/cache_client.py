"""CacheClient: where each row's partial image comes from, and what the store keeps, as the plan says.

How it is intended to behave (if the code differs, that is a bug):

* A row that the store does not hold is computed, whatever the plan expected.
* No version is computed twice while it is at hand: a row whose version another row of its run, or a run on its way,
  computes, takes that image.
* A settled run has first evicted what the plan no longer needs, then stored what it computed: a store of the plan's
  `peak_slots` always has room.
* What replaces a bad sample is never stored, and a sample known to be bad is not asked for.
* In between, a store that takes advice has learned when each version that the run served is served next, if the plan
  is known beforehand.

Where nothing but reading is partial the same holds of encoded samples: what is computed is what is read. The store's
are copied when a run is admitted, and looked at as what is read is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.engine.batch_group import Position, Run
from dalirefurb.engine.in_flight import Borrowed, Computed, InFlightVersions, part_repeats
from dalirefurb.image_batch import Image, Images, Rows
from dalirefurb.planning.batch_plan import BatchPlan, Indices
from dalirefurb.planning.next_uses import next_uses, turns
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.reader import Reader, Samples
from dalirefurb.store import Lease, Store

_LARGEST = (1 << 31) - 1
"""Bytes of an encoded sample that a store can keep: it counts the sides of what it holds in 32 bits."""


@dataclass
class Ticket:
    """One run on its way.

    Attributes:
        run: Its batches.
        plan: The rows of all of them.
        rows: Those to compute, ascending.
        reading: The source's samples for `rows`, in that order.
        computed: The partial images of `rows`.
        stored: Which of `rows` go into the store.
        lease: What the store lends, for the rows in `leased`.
        leased: Rows that the store was asked for, ascending; it may have found some of them only.
        in_flight: What `InFlightVersions.remove` needs of it.
        borrowed: Rows whose images are computed for other rows.
        shown: The sample that each row shows: the plan's, or what replaces it.
        images: What a graph of both parts made of it, a DALI tensor list.
        samples: What the images are computed from, once that has begun.
    """

    run: Run
    plan: BatchPlan
    rows: NDArray[np.int64]
    reading: Future[Samples]
    computed: Computed = field(default_factory=Computed)
    stored: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    lease: Lease | None = None
    leased: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    in_flight: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    borrowed: list[Borrowed] = field(default_factory=list)
    shown: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    images: Any = None
    samples: Samples | None = None

    @property
    def position(self) -> Position:
        """Which batch is the first."""
        return self.run.position

    @property
    def missed(self) -> NDArray[np.int64]:
        """Rows that are made for this run, ascending: neither lent nor borrowed."""
        return self.rows

    def begin(self, samples: Samples) -> Samples:
        """Be given what was read; return what is to be computed from. The runs before it have begun."""
        self.computed.indices = samples.indices
        self.shown = self.samples_shown()
        self.samples = samples
        return samples

    def made(self, places: NDArray[np.int64]) -> Sequence[Image]:
        """Return what the store is to keep of some of `rows`, given their places among these, shape (n,)."""
        return self.computed.images.chosen(places)

    def samples_shown(self) -> Indices:
        """Find out which sample each row shows, shape (B,); asked before the images."""
        if not len(self.rows) and not self.borrowed:
            return self.plan.indices
        shown = self.plan.indices.copy()
        if len(self.rows):
            shown[self.rows] = self.computed.indices
        for rows, computed, places in self.borrowed:
            shown[rows] = computed.indices[places]
        return shown

    def partial_sizes(self) -> NDArray[np.int64]:
        """Return heights and widths of partial images, shape (B, 2); the runs before it have set theirs."""
        sizes = np.empty((len(self.plan.indices), 2), np.int64)
        sizes[self.rows] = self.computed.sizes
        rows, images = self.lent_images()
        sizes[rows] = images.places.sizes
        for rows, computed, places in self.borrowed:
            sizes[rows] = computed.sizes[places]
        return sizes

    def partial_images(self) -> Images:
        """Return the partial image of each row; the runs before it have computed theirs."""
        return Images.joined(len(self.plan.indices), [*self.computed_images(), self.lent_images()])

    def lent_images(self) -> Rows:
        """Return rows that the store lends, with their partial images."""
        if self.lease is None:
            return Rows(self.leased, Images(()))
        return Rows(self.leased[self.lease.found], self.lease.images)

    def computed_images(self) -> list[Rows]:
        """Return rows that the store did not lend, with their partial images; asked once, as above."""
        return [Rows(self.rows, self.computed.images), *self.borrowed_images()]

    def borrowed_images(self) -> list[Rows]:
        """Return those computed for other rows; asked once, when these are there."""
        borrowed = [Rows(rows, computed.images.chosen(places)) for rows, computed, places in self.borrowed]
        self.borrowed = []  # Else each run in a chain of borrowers would keep all before it in memory.
        return borrowed

    def forget(self, in_flight: InFlightVersions) -> None:
        """Have no other run wait for its images."""
        slots, self.in_flight = self.in_flight, np.empty(0, np.int64)
        in_flight.remove(slots)

    def release(self) -> None:
        """Give back what the store lent."""
        if self.lease is not None:
            self.lease.release()


@dataclass
class EncodedTicket(Ticket):
    """One run on its way, whose samples wait encoded: `rows` are all that are not borrowed.

    Attributes:
        held: Which of `rows` the store had.
    """

    held: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    @property
    def missed(self) -> NDArray[np.int64]:
        """Rows that are read for this run, ascending."""
        return self.rows[~self.held]

    def begin(self, samples: Samples) -> Samples:
        """Be given what was read, or the store had; return the samples of all rows, shape (B,)."""
        super().begin(samples)
        self.stored &= np.array([len(sample) <= _LARGEST for sample in samples.as_read], np.bool_)
        self.computed.images = Images(samples.data)
        self.computed.sizes = np.stack((samples.heights, samples.widths), axis=1)
        if self.borrowed:
            sizes = self.partial_sizes()
            samples = Samples([*self.partial_images()], sizes[:, 0], sizes[:, 1], self.shown)
        self.samples = samples
        return samples

    def made(self, places: NDArray[np.int64]) -> Sequence[Image]:
        """Return the files of some rows as they were read, as `Ticket.made` says, each of shape (length, 1, 1)."""
        samples = self.reading.result().as_read
        return [samples[place].reshape(-1, 1, 1) for place in places.tolist()]


class CacheClient:
    """Carries out the part of a plan that concerns the store. Without a store every row is computed.

    One thread admits, another settles.

    Args:
        reader: Reads samples.
        store: Where partial images are, or samples as they were read.
        encoded: Whether it is these.
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
        # What is on its way comes first: a run that settles in between has put its images into the store by then.
        borrowed = self._in_flight.find(plan.indices, plan.version)
        missing = np.ones(len(plan.indices), np.bool_)
        for rows, _, _ in borrowed:
            missing[rows] = False
        if self._encoded:
            return self._admit_encoded(run, np.flatnonzero(missing), borrowed, self._store)
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

    def _admit_encoded(
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
