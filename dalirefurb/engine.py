"""Who carries out the plans? One owner thread: it alone touches the graph's replicas and the store.

    planner ─▶ admit ─────▶ submit ───────▶ collect ────────────▶ take
               lease hits,  draw, feed      evict, put computed,  by the training loop
               read misses  a replica       release, hand over

Batches pass every step in plan order. How it is intended to behave (if the code differs, that is a bug):

* A row that the store does not hold is computed, whatever the plan expected.
* A row whose version an earlier batch in flight is computing waits until that batch is collected, then asks again.
* A collected batch first evicts what the plan no longer needs, then stores what it computed: a store of the plan's
  `peak_slots` always has room.
* An exception stops the thread and is raised by `take`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils.dlpack
from numpy.typing import NDArray

from dalirefurb.errors import DalirefurbError, LoaderError, SampleError
from dalirefurb.graph import Feed, GraphError, Replica, first_undecodable
from dalirefurb.plan import BatchPlan, Planner
from dalirefurb.reader import Reader, Samples
from dalirefurb.recipe import Recipe, draw
from dalirefurb.source import Source
from dalirefurb.stats import Stats
from dalirefurb.store import Lease, Store

_NO_SAMPLE = {True: np.empty(0, np.uint8), False: np.empty((0, 0, 3), np.uint8)}
_NO_IMAGE = np.empty((0, 0, 3), np.uint8)
_POLL_S = 1.0


class Position(NamedTuple):
    """A place in the stream of batches."""

    epoch: int
    batch: int


@dataclass(frozen=True)
class Served:
    """One batch as the training loop gets it.

    Attributes:
        position: Which batch it is.
        images: (B, 3, H, W) float32 or float16, on the final part's device.
        indices: Sample indices in serving order, (B,).
    """

    position: Position
    images: torch.Tensor
    indices: NDArray[np.int64]


@dataclass
class _Ticket:
    """One batch in flight.

    Attributes:
        cached: The partial image of each row that the store lent, None for the others.
        leases: What keeps those images in place.
        waiting: Rows to ask the store for again before submission, because a batch in flight computes them.
        waits_for: The last such batch.
        rows: Rows to compute, in the order in which `reading` delivers them.
    """

    position: Position
    plan: BatchPlan
    cached: list[NDArray[np.uint8] | None]
    leases: list[Lease]
    waiting: NDArray[np.int64]
    waits_for: Position | None
    rows: NDArray[np.int64]
    reading: Future[Samples]
    data: list[NDArray[np.uint8]] = field(default_factory=list)

    def computes(self) -> set[tuple[int, int]]:
        """Return (index, version) of the rows that will be stored once they are computed."""
        kept = self.rows[self.plan.keep[self.rows]]
        return set(zip(self.plan.indices[kept].tolist(), self.plan.version[kept].tolist(), strict=True))


class Engine:
    """Turns plans into batches, a bounded number of them ahead."""

    def __init__(
        self,
        *,
        source: Source,
        recipe: Recipe,
        planner: Planner,
        store: Store | None,
        replicas: list[Replica],
        reader: Reader,
        look_ahead: int,
    ) -> None:
        self._source = source
        self._recipe = recipe
        self._planner = planner
        self._store = store
        self._replicas = replicas
        self._reader = reader
        self._look_ahead = look_ahead
        entering = None if source.image_shape is None else (source.image_shape[0], source.image_shape[1])
        self._partial_size = recipe.partial_size(entering)
        self._changed = threading.Condition()
        self._finished: deque[Served] = deque()
        self._error: BaseException | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._expected: Position | None = None
        self._stats = Stats()
        self._consumer_wait_s = 0.0

    # ---- called by the training loop's thread

    def seek(self, position: Position) -> None:
        """Make `position` the next batch to be taken; free where it is already."""
        if self._expected == position and self._thread is not None:
            return
        self.stop()
        self._expected = position
        self._thread = threading.Thread(
            target=self._run, args=(position,), name="dalirefurb-owner", daemon=True
        )
        self._thread.start()

    def take(self) -> Served:
        """Wait for the next batch.

        Raises:
            DalirefurbError: Whatever stopped the owner thread.
        """
        began = time.perf_counter()
        with self._changed:
            while not self._finished:
                if self._error is not None:
                    error = self._error
                    self._thread = None
                    raise error
                if self._thread is None or not self._thread.is_alive():
                    raise LoaderError("the loader's owner thread ended without an error; iterate again")
                self._changed.wait(_POLL_S)
            served = self._finished.popleft()
            self._changed.notify_all()
        self._consumer_wait_s += time.perf_counter() - began
        self._expected = self.after(served.position)
        return served

    def stats(self) -> Stats:
        """Return a snapshot of the counts."""
        return self._stats.plus(consumer_wait_s=self._consumer_wait_s)

    def stop(self) -> None:
        """End the owner thread and forget what was made ahead."""
        thread, self._thread = self._thread, None
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._finished.clear()
        self._error = None
        self._stopping = False
        self._expected = None

    def close(self) -> None:
        """Stop, and let the graph and the reading threads go."""
        self.stop()
        self._reader.close()
        self._replicas.clear()

    # ---- the owner thread

    def _run(self, start: Position) -> None:
        in_flight: deque[_Ticket] = deque()
        admitted: deque[_Ticket] = deque()
        try:
            self._retain(start)
            plans = self._plans(start)
            while not self._stopping:
                while len(admitted) + len(in_flight) < self._look_ahead + 2:
                    began = time.perf_counter()
                    position, plan = next(plans)
                    self._count(planning_s=time.perf_counter() - began)
                    admitted.append(self._admit(position, plan, [*in_flight, *admitted]))
                while admitted and len(in_flight) < self._look_ahead and self._ready(admitted[0], in_flight):
                    ticket = admitted.popleft()
                    in_flight.append(ticket)
                    self._submit(ticket)
                self._collect(in_flight[0])
                in_flight.popleft()
        except BaseException as error:  # whatever happened belongs to the caller of `take`
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._abandon(in_flight, admitted)

    def _plans(self, start: Position) -> Iterator[tuple[Position, BatchPlan]]:
        """Yield plans from `start` on, epoch after epoch, without end."""
        epoch = start.epoch
        while True:
            for batch, plan in enumerate(self._planner.epoch(epoch)):
                if epoch > start.epoch or batch >= start.batch:
                    yield Position(epoch, batch), plan
            epoch += 1

    def after(self, position: Position) -> Position:
        """Return the place of the following batch."""
        epoch, batch = position
        return Position(epoch, batch + 1) if batch + 1 < len(self._planner) else Position(epoch + 1, 0)

    # ---- the steps of one batch

    def _admit(self, position: Position, plan: BatchPlan, ahead: list[_Ticket]) -> _Ticket:
        """Lease what the store holds and start to read the rest."""
        count = len(plan.indices)
        if self._store is None:
            rows = np.arange(count)
            return _Ticket(
                position, plan, [None] * count, [], rows[:0], None, rows, self._reader.read(plan.indices)
            )
        began = time.perf_counter()
        lease = self._store.get(plan.indices, plan.version)
        rows = np.flatnonzero(~lease.found)
        waiting, waits_for = self._in_flight(plan, rows, ahead)
        rows = np.setdiff1d(rows, waiting, assume_unique=True)
        self._count(storing_s=time.perf_counter() - began)
        reading = self._reader.read(plan.indices[rows])
        return _Ticket(position, plan, list(lease.samples), [lease], waiting, waits_for, rows, reading)

    def _in_flight(
        self, plan: BatchPlan, rows: NDArray[np.int64], ahead: list[_Ticket]
    ) -> tuple[NDArray[np.int64], Position | None]:
        """Find the rows whose versions batches ahead of this one are computing, and the last such batch."""
        expected = rows[~plan.miss[rows]]
        if not len(expected):
            return expected, None
        keys = list(zip(plan.indices[expected].tolist(), plan.version[expected].tolist(), strict=True))
        waiting: set[int] = set()
        waits_for = None
        for ticket in ahead:
            coming = ticket.computes()
            found = {int(row) for row, key in zip(expected, keys, strict=True) if key in coming}
            if found:
                waiting |= found
                waits_for = ticket.position
        return np.array(sorted(waiting), dtype=np.int64), waits_for

    def _ready(self, ticket: _Ticket, in_flight: deque[_Ticket]) -> bool:
        """Whether to submit now rather than collect first. With nothing in flight there is nothing to collect."""
        if not in_flight:
            return True
        if ticket.waits_for is not None and in_flight[0].position <= ticket.waits_for:
            return False
        return ticket.reading.done()

    def _submit(self, ticket: _Ticket) -> None:
        """Draw the parameters and feed a replica."""
        samples = self._samples(ticket)
        if self._store is not None and len(ticket.waiting):
            samples = self._ask_again(ticket, samples)
        began = time.perf_counter()
        ticket.data = samples.data
        feeds = self._feeds(ticket, samples)
        self._replica(ticket).submit(feeds)
        self._count(preparing_s=time.perf_counter() - began)

    def _samples(self, ticket: _Ticket) -> Samples:
        """Wait for the files of a batch, or until the loader is stopped."""
        began = time.perf_counter()
        while not ticket.reading.done():
            wait([ticket.reading], timeout=_POLL_S)
            if self._stopping:
                raise LoaderError("the loader was stopped while it waited for files")
        self._count(reading_wait_s=time.perf_counter() - began)
        return ticket.reading.result()

    def _ask_again(self, ticket: _Ticket, samples: Samples) -> Samples:
        """Lease what batches ahead have computed meanwhile; read what they did not leave in the store."""
        assert self._store is not None
        plan, waiting = ticket.plan, ticket.waiting
        lease = self._store.get(plan.indices[waiting], plan.version[waiting])
        ticket.leases.append(lease)
        for row, image in zip(waiting.tolist(), lease.samples, strict=True):
            ticket.cached[row] = image
        lost = waiting[~lease.found]
        if not len(lost):
            return samples
        ticket.reading = self._reader.read(plan.indices[lost])
        more = self._samples(ticket)
        rows = np.concatenate([ticket.rows, lost])
        order = np.argsort(rows)
        ticket.rows = rows[order]
        return Samples(
            [(*samples.data, *more.data)[place] for place in order],
            np.concatenate([samples.heights, more.heights])[order],
            np.concatenate([samples.widths, more.widths])[order],
        )

    def _feeds(self, ticket: _Ticket, samples: Samples) -> dict[str, Feed]:
        """Draw every parameter and lay out the graph's inputs; rows that the graph discards are empty or 0."""
        plan, rows = ticket.plan, ticket.rows
        count = len(plan.indices)
        partial, heights, widths = draw(
            self._recipe.partial,
            seed=self._planner.seed,
            indices=plan.indices[rows],
            numbers=plan.version[rows],
            heights=samples.heights,
            widths=samples.widths,
        )
        heights, widths = self._partial_sizes(ticket, heights, widths)
        final, _, _ = draw(
            self._recipe.final,
            seed=self._planner.seed,
            indices=plan.indices,
            numbers=plan.serving,
            heights=heights,
            widths=widths,
        )
        feeds: dict[str, Feed] = {
            f"{stage}/{name}": _spread(values, rows, count)
            for stage, arrays in partial.items()
            for name, values in arrays.items()
        }
        feeds |= {
            f"{stage}/{name}": values for stage, arrays in final.items() for name, values in arrays.items()
        }
        data: list[NDArray[np.uint8]] = [_NO_SAMPLE[self._recipe.encoded]] * count
        for row, sample in zip(rows.tolist(), samples.data, strict=True):
            data[row] = sample
        feeds["sample"] = data
        if self._store is not None:
            feeds["hit"] = np.array([image is not None for image in ticket.cached])
            feeds["cached"] = [_NO_IMAGE if image is None else image for image in ticket.cached]
        return feeds

    def _partial_sizes(
        self, ticket: _Ticket, heights: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return heights and widths of all rows' partial images, given those of the computed ones."""
        count = len(ticket.plan.indices)
        if self._partial_size is not None:
            return np.full(count, self._partial_size[0]), np.full(count, self._partial_size[1])
        sizes = np.empty((count, 2), dtype=np.int64)
        for row, image in enumerate(ticket.cached):
            if image is not None:
                sizes[row] = image.shape[:2]
        sizes[ticket.rows, 0] = heights
        sizes[ticket.rows, 1] = widths
        return sizes[:, 0], sizes[:, 1]

    def _collect(self, ticket: _Ticket) -> None:
        """Hand the oldest batch over, then bring the store to where the plan wants it."""
        began = time.perf_counter()
        try:
            images, computed = self._replica(ticket).collect()
        except GraphError as error:
            raise self._explain(ticket, error) from error
        self._count(graph_wait_s=time.perf_counter() - began)
        hits = len(ticket.plan.indices) - len(ticket.rows)
        self._count(
            batches=1,
            samples=len(ticket.plan.indices),
            hits=hits,
            misses=len(ticket.rows),
            recomputed=int((~ticket.plan.miss[ticket.rows]).sum()),
        )
        self._hand_over(Served(ticket.position, torch.utils.dlpack.from_dlpack(images), ticket.plan.indices))
        if self._store is not None:
            began = time.perf_counter()
            self._settle(ticket, computed, self._store)
            self._count(storing_s=time.perf_counter() - began)

    def _settle(self, ticket: _Ticket, computed: list[NDArray[np.uint8]], store: Store) -> None:
        plan = ticket.plan
        for lease in ticket.leases:
            lease.release()
        store.evict(plan.evict)
        self._check_sizes(computed)
        places = np.flatnonzero(plan.keep[ticket.rows])
        rows = ticket.rows[places]
        stored = store.put(plan.indices[rows], plan.version[rows], [computed[place] for place in places])
        self._count(stored=int(stored.sum()), declined=int((~stored).sum()))

    def _check_sizes(self, computed: list[NDArray[np.uint8]]) -> None:
        expected = self._partial_size
        for image in computed:
            if image.shape[2] != 3 or (expected is not None and image.shape[:2] != expected):
                raise LoaderError(
                    f"the partial part must leave images of shape {expected and (*expected, 3)}, got {image.shape}; "
                    f"one of its stages ({', '.join(stage.name for stage in self._recipe.partial)}) declares "
                    f"another size than it makes"
                )

    def _hand_over(self, served: Served) -> None:
        with self._changed:
            while self._finished and not self._stopping:
                self._changed.wait(_POLL_S)
            self._finished.append(served)
            self._changed.notify_all()

    def _explain(self, ticket: _Ticket, error: GraphError) -> DalirefurbError:
        """Name the sample that made the graph fail, if one did."""
        row, reason = error.row, error.reason
        if self._recipe.encoded and row is None:
            row, reason = first_undecodable(ticket.data) or (None, reason)
        if row is None:
            epoch, batch = ticket.position
            return LoaderError(f"batch {batch} of epoch {epoch} failed in the graph: {reason}")
        index = int(ticket.plan.indices[ticket.rows[row]])
        return SampleError(index, self._source.name(index), f"decoding failed ({reason})")

    # ---- keeping order

    def _replica(self, ticket: _Ticket) -> Replica:
        """Return the replica that a batch is dealt to: each in turn."""
        epoch, batch = ticket.position
        return self._replicas[(epoch * len(self._planner) + batch) % len(self._replicas)]

    def _retain(self, start: Position) -> None:
        """After a jump, evict every version that the epoch of `start` will not ask for."""
        if self._store is None or not len(self._store):
            return
        indices, versions = [], []
        for batch, plan in enumerate(self._planner.epoch(start.epoch)):
            wanted = plan.keep if batch < start.batch else slice(None)
            indices.append(plan.indices[wanted])
            versions.append(plan.version[wanted])
        self._store.retain(np.concatenate(indices), np.concatenate(versions))

    def _abandon(self, in_flight: deque[_Ticket], admitted: deque[_Ticket]) -> None:
        """Leave replicas and store consistent after the last batch."""
        for ticket in admitted:
            ticket.reading.cancel()
        if in_flight:
            for replica in self._replicas:
                replica.restart()
        for ticket in (*in_flight, *admitted):
            for lease in ticket.leases:
                lease.release()

    def _count(self, **increments: Any) -> None:
        self._stats = self._stats.plus(**increments)


def _spread(values: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Place the computed rows' parameters among all rows, shape (count, ...)."""
    if len(rows) == count:
        return values
    spread = np.zeros((count, *values.shape[1:]), dtype=values.dtype)
    spread[rows] = values
    return spread
