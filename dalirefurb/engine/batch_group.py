"""Runs: batches that go through the graphs together; small ones several at a time.

A run costs milliseconds however few its rows are. What is served does not depend on which rows run together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple, NoReturn

from dalirefurb.errors import LoaderError
from dalirefurb.planning.batch_plan import BatchPlan, joined
from dalirefurb.planning.planner import Planner


class Position(NamedTuple):
    """A place in the stream of batches."""

    epoch: int
    batch: int


class RunFailed(Exception):  # noqa: N818 - its cause is the error
    """A run of several batches failed: those before the culprit can be made, one by one."""


@dataclass(frozen=True)
class Run:
    """Consecutive batches of one epoch.

    Attributes:
        position: Position of the first batch.
        plans: Plans of the batches, in order.
    """

    position: Position
    plans: list[BatchPlan]

    @cached_property
    def plan(self) -> BatchPlan:
        """Of all of them; asked once the run is complete."""
        return joined(self.plans)

    def fail(self, error: BaseException) -> NoReturn:
        """Raise what carrying it out has met; if it is of several batches, that they met it together."""
        try:
            if len(self.plans) > 1 and isinstance(error, Exception):
                raise RunFailed from error
            raise error
        finally:
            del error  # Else this frame would keep it, and it this frame.

    def one_by_one(self) -> Iterator[Run]:
        """Part it into runs of one batch."""
        epoch, first = self.position
        return (Run(Position(epoch, batch), [plan]) for batch, plan in enumerate(self.plans, first))


def planned(planner: Planner, start: Position) -> Iterator[tuple[Position, BatchPlan]]:
    """Yield plans from `start` on, epoch after epoch, without end.

    Raises:
        LoaderError: An epoch has no batch.
    """
    epoch, first = start
    while True:
        batch = -1
        for batch, plan in enumerate(islice(planner.epoch(epoch), first, None), first):
            yield Position(epoch, batch), plan
        if batch < 0:
            raise LoaderError(
                f"a planner must plan {len(planner)} batches in every epoch, but planned none in epoch {epoch} from "
                f"batch {first} on: see {type(planner).__name__}.epoch"
            )
        epoch, first = epoch + 1, 0


def numbered(plans: Iterable[BatchPlan], start: Position, num_batches: int) -> Iterator[tuple[Position, BatchPlan]]:
    """Say where in the stream plans are: from `start` on, `num_batches` an epoch."""
    epoch, batch = start
    for plan in plans:
        yield Position(epoch, batch), plan
        epoch, batch = (epoch, batch + 1) if batch + 1 < num_batches else (epoch + 1, 0)


def runs(plans: Iterable[tuple[Position, BatchPlan]], batches_per_run: int, hits_per_run: int = 1) -> Iterator[Run]:
    """Put at most so many batches into one run, and at most so many, if that is more, of which all rows are hits."""
    run: Run | None = None
    most = longest = max(batches_per_run, hits_per_run)
    try:
        for position, plan in plans:
            computed = bool(plan.miss.any())
            end = batches_per_run if computed else most
            if run is not None and (position.epoch != run.position.epoch or len(run.plans) >= end):
                yield run
                run = None
            if run is None:
                run, most = Run(position, []), longest
            run.plans.append(plan)
            if computed:
                most = batches_per_run
            if len(run.plans) >= most:
                yield run
                run = None
    except Exception:
        if run is not None:
            yield run
        raise
    if run is not None:
        yield run


def parted(runs: Iterator[Run]) -> Iterator[Run]:
    """Part the first run into runs of one batch."""
    for run in islice(runs, 1):
        yield from run.one_by_one()
    yield from runs


def announced(runs: Iterable[Run], announce: Callable[[Run], None], ahead: int) -> Iterator[Run]:
    """Announce each run so many runs before it is yielded."""
    in_flight: deque[Run] = deque()
    try:
        for run in runs:
            in_flight.append(run)
            announce(run)
            if len(in_flight) > ahead:
                yield in_flight.popleft()
    except Exception:
        yield from in_flight
        raise
    yield from in_flight
