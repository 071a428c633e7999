"""Who carries out the plans? One owner thread: it alone touches the store and the graph's replicas.

    planner ─▶ admit ─────────▶ submit ───────▶ collect ───────────▶ take
               lease hits,      draw, feed      hand over,           by the training loop
               read misses      a replica       settle the store

Batches pass every step in plan order, small ones several at a time: a run of the graph costs milliseconds however few
its rows are. What is served does not depend on which rows run together. An exception in any step ends the thread and
is raised by `take`.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from numpy.typing import NDArray

from dalirefurb.augment.stage import Stage
from dalirefurb.errors import DalirefurbError, LoaderError, SampleError
from dalirefurb.exchange import Exchange, Position, Ticket
from dalirefurb.feeds import Feeder
from dalirefurb.graph import GraphError, Replica, first_undecodable
from dalirefurb.handover import Handover, Served
from dalirefurb.plan import BatchPlan, Planner
from dalirefurb.reader import Reader, Samples
from dalirefurb.recipe import Recipe
from dalirefurb.source import Source
from dalirefurb.stats import Stats
from dalirefurb.store import Store

_ALIVE: weakref.WeakSet[Engine] = weakref.WeakSet()
_POLL_S = 1.0
_READ_AHEAD = 2


class Engine:
    """Turns plans into batches, a bounded number of them ahead.

    Args:
        source: Named in errors.
        recipe: What the replicas do.
        planner: What to serve.
        feeder: Lays out the inputs of the replicas' graph.
        store: Where partial images wait, open; None if nothing is cached.
        replicas: Take batches in turn.
        reader: Reads what is computed.
        look_ahead: Runs submitted at a time; two more are admitted, so that their files are being read.
        batches_per_run: Batches that run together, at most.
        pin_memory: Whether images are copied into pinned memory.
    """

    def __init__(
        self,
        *,
        source: Source,
        recipe: Recipe,
        planner: Planner,
        feeder: Feeder,
        store: Store | None,
        replicas: list[Replica],
        reader: Reader,
        look_ahead: int,
        batches_per_run: int,
        pin_memory: bool,
    ) -> None:
        self._source = source
        self._recipe = recipe
        self._planner = planner
        self._replicas = replicas
        self._turn = 0
        self._running: deque[Replica] = deque()
        self._reader = reader
        self._look_ahead = look_ahead
        self._batches_per_run = batches_per_run
        self._pin_memory = pin_memory
        # A row that waits for the run before its own leaves all replicas but one idle; in short epochs many rows do.
        runs_per_epoch = -(-len(planner) // batches_per_run)
        not_waited_for = min(len(replicas) - 1, runs_per_epoch // 8)
        self._exchange = Exchange(planner, reader, store, not_waited_for=not_waited_for)
        self._feeder = feeder
        self._handover = Handover()
        self._thread: threading.Thread | None = None
        self._expected: Position | None = None
        self._counts: Counter[str] = Counter()
        self._consumer_wait_s = 0.0
        _ALIVE.add(self)

    # The training loop's side.

    def seek(self, position: Position) -> None:
        """Make `position` the next batch to be taken; free where it is already."""
        if self._expected == position and self._thread is not None:
            return
        self.stop()
        self._expected = position
        self._thread = threading.Thread(target=self._run, args=(position,), name="dalirefurb-owner", daemon=True)
        self._thread.start()

    def take(self) -> Served:
        """Wait for the next batch.

        Raises:
            DalirefurbError: Whatever stopped the owner thread.
        """
        began = time.perf_counter()
        try:
            served = self._handover.take(lambda: self._thread is not None and self._thread.is_alive())
        except Exception:
            self._expected = None
            raise
        self._consumer_wait_s += time.perf_counter() - began
        self._expected = self.after(served.position)
        return served

    def after(self, position: Position) -> Position:
        """Return the place of the following batch."""
        epoch, batch = position
        return Position(epoch, batch + 1) if batch + 1 < len(self._planner) else Position(epoch + 1, 0)

    def stats(self) -> Stats:
        """Return a snapshot of the counts."""
        return replace(Stats(), **self._counts, consumer_wait_s=self._consumer_wait_s)

    def stop(self) -> None:
        """End the owner thread and forget what was made ahead."""
        thread, self._thread = self._thread, None
        self._handover.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._handover.clear()
        self._expected = None

    def close(self) -> None:
        """Stop, and let the graph and the reading threads go."""
        self.stop()
        self._reader.close()
        self._replicas.clear()

    # The owner thread's side.

    def _run(self, start: Position) -> None:
        try:
            failed = self._carry_out(start, self._batches_per_run)
            if failed is not None:
                self._carry_out(failed, 1)
        except BaseException as error:  # Whatever happened belongs to the caller of `take`.
            self._handover.fail(error)

    def _carry_out(self, start: Position, batches_per_run: int) -> Position | None:
        """Make batches until the loader is stopped, or one cannot be made.

        Returns:
            If a run of several batches fails, where it begins: one by one, those before the culprit can be made.
        """
        submitted: deque[Ticket] = deque()
        admitted: deque[Ticket] = deque()
        try:
            self._exchange.begin(start)
            runs = self._runs(start, batches_per_run)
            while not self._handover.stopping:
                self._fill(runs, submitted, admitted)
                self._collect(submitted[0])
                submitted.popleft()
        except Exception:
            failed = next(iter((*submitted, *admitted)), None)
            if failed is None or failed.served or len(failed.batch_rows) == 1:
                raise
            return failed.position
        finally:
            self._abandon(submitted, admitted)
        return None

    def _fill(
        self, runs: Iterator[tuple[Position, list[BatchPlan]]], submitted: deque[Ticket], admitted: deque[Ticket]
    ) -> None:
        """Admit and submit as much as may be ahead. An error waits until the batches before it are served."""
        try:
            while len(submitted) + len(admitted) < self._look_ahead + _READ_AHEAD:
                admitted.append(self._admit(runs, (*submitted, *admitted)))
            while admitted and len(submitted) < self._look_ahead and _ready(admitted[0], submitted):
                self._submit(admitted[0])
                submitted.append(admitted.popleft())
        except Exception:
            while submitted:
                self._collect(submitted[0])
                submitted.popleft()
            raise

    def _runs(self, start: Position, batches_per_run: int) -> Iterator[tuple[Position, list[BatchPlan]]]:
        """Yield plans from `start` on, epoch after epoch, without end; no sample is twice in a run."""
        epoch = start.epoch
        while True:
            run: list[BatchPlan] = []
            first = start.batch if epoch == start.epoch else 0
            for plan in islice(self._planner.epoch(epoch), first, None):
                if len(run) == batches_per_run or any(np.isin(plan.indices, each.indices).any() for each in run):
                    yield Position(epoch, first), run
                    first += len(run)
                    run = []
                run.append(plan)
            if run:
                yield Position(epoch, first), run
            epoch += 1

    def _admit(self, runs: Iterator[tuple[Position, list[BatchPlan]]], ahead: tuple[Ticket, ...]) -> Ticket:
        began = time.perf_counter()
        position, plans = next(runs)
        planned = time.perf_counter()
        ticket = self._exchange.admit(position, plans, ahead)
        self._count(planning_s=planned - began, storing_s=time.perf_counter() - planned)
        return ticket

    def _submit(self, ticket: Ticket) -> None:
        """Draw the parameters and feed a replica."""
        self._exchange.ask_again(ticket)
        samples = self._samples(ticket)
        began = time.perf_counter()
        feeds = self._feeder.lay_out(ticket.plan, ticket.rows, samples, ticket.cached)
        replica = self._replicas[self._turn]
        self._turn = (self._turn + 1) % len(self._replicas)
        replica.submit(feeds)
        self._running.append(replica)
        self._count(preparing_s=time.perf_counter() - began)

    def _samples(self, ticket: Ticket) -> Samples:
        """Wait for the files of a batch, or until the loader is stopped."""
        began = time.perf_counter()
        while not ticket.reading.done():
            wait([ticket.reading], timeout=_POLL_S)
            if self._handover.stopping:
                raise LoaderError("the loader was stopped while it waited for files")
        self._count(reading_wait_s=time.perf_counter() - began)
        return ticket.reading.result()

    def _collect(self, ticket: Ticket) -> None:
        """Hand the oldest batch over, then bring the store to where the plan wants it."""
        began = time.perf_counter()
        try:
            images, computed = self._running.popleft().collect()
        except GraphError as error:
            raise self._explain(ticket, error) from error
        self._check(images, computed)
        plan = ticket.plan
        self._count(
            batches=len(ticket.batch_rows),
            samples=len(plan.indices),
            hits=len(plan.indices) - len(ticket.rows),
            misses=len(ticket.rows),
            recomputed=int((~plan.miss[ticket.rows]).sum()) - ticket.repeated,
            repeated=ticket.repeated,
            graph_wait_s=time.perf_counter() - began,
        )
        self._hand_over(ticket, self._tensor(images))
        began = time.perf_counter()
        stored = self._exchange.settle(ticket, computed)
        self._count(stored=int(stored.sum()), declined=int((~stored).sum()), storing_s=time.perf_counter() - began)

    def _check(self, images: Any, computed: list[NDArray[np.uint8]]) -> None:
        """Refuse what a stage made of another size or type than it declares."""
        expected = self._feeder.partial_size
        for image in computed:
            right_size = expected is None or image.shape[:2] == expected
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not right_size:
                raise LoaderError(
                    f"the partial part must leave uint8 images of shape {(*(expected or ('H', 'W')), 3)}, got "
                    f"{image.dtype} of {image.shape}; one of its stages ({_names(self._recipe.partial)}) makes "
                    f"another size or type than it declares"
                )
        size = self._recipe.output.size
        sides = images.shape()[1:3] if self._recipe.output.channels_last else images.shape()[2:]
        if sides != [size, size]:
            raise LoaderError(
                f"the last stage must leave images of the output's size {size} x {size}, got "
                f"{' x '.join(map(str, sides))}; one of the stages ({_names(self._recipe.stages)}) "
                f"makes another size than it declares"
            )

    def _tensor(self, images: Any) -> torch.Tensor:
        """View a run's images as the training loop wants them, or copy them into pinned memory."""
        tensor = torch.utils.dlpack.from_dlpack(images)
        if self._recipe.output.channels_last:
            tensor = tensor.permute(0, 3, 1, 2)
        return tensor.pin_memory() if self._pin_memory else tensor

    def _hand_over(self, ticket: Ticket, images: torch.Tensor) -> None:
        """Part a run into its batches, views of its images, once the batches before it are taken."""
        epoch, first = ticket.position
        served, start = [], 0
        for batch, rows in enumerate(ticket.batch_rows, first):
            stop = start + rows
            served.append(Served(Position(epoch, batch), images[start:stop], ticket.plan.indices[start:stop]))
            start = stop
        self._handover.put(served)
        ticket.served = True

    def _explain(self, ticket: Ticket, error: GraphError) -> DalirefurbError:
        """Name the sample that made the graph fail, if one did."""
        row, reason = error.row, error.reason
        if self._recipe.encoded and row is None:
            row, reason = first_undecodable(ticket.reading.result().data) or (None, reason)
        if row is None:
            epoch, batch = ticket.position
            return LoaderError(f"batch {batch} of epoch {epoch} failed in the graph: {reason}")
        index = int(ticket.plan.indices[ticket.rows[row]])
        return SampleError(index, self._source.name(index), f"decoding failed ({reason})")

    def _abandon(self, submitted: deque[Ticket], admitted: deque[Ticket]) -> None:
        """Leave replicas and store consistent after the last batch."""
        self._running.clear()
        for replica in self._replicas:
            replica.restart()
        for ticket in (*submitted, *admitted):
            ticket.reading.cancel()
            ticket.release()

    def _count(self, **increments: Any) -> None:
        for name, value in increments.items():
            self._counts[name] += value


def _names(stages: tuple[Stage, ...]) -> str:
    return ", ".join(stage.name for stage in stages)


def _ready(ticket: Ticket, submitted: deque[Ticket]) -> bool:
    """Whether to submit now rather than collect first; with nothing submitted there is nothing to collect."""
    if not submitted:
        return True
    if ticket.waits_for is not None and submitted[0].position <= ticket.waits_for:
        return False
    return ticket.reading.done()


@atexit.register
def _close_all() -> None:
    """Close what is still open when the interpreter ends; registered after DALI's own clean-up, so called before it."""
    for engine in list(_ALIVE):
        engine.close()
