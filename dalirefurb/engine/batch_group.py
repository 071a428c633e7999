"""Batch groups: consecutive batches that go through the graphs together; small ones several at a time.

A group costs milliseconds however few its rows are. What is served does not depend on which rows are together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


class GroupFailed(Exception):  # noqa: N818 - its cause is the error
    """A group of several batches failed: those before the culprit can be made, one by one."""


@dataclass(frozen=True)
class BatchGroup:
    """Consecutive batches of one epoch.

    Attributes:
        position: Position of the first batch.
        plans: Plans of the batches, in order.
    """

    position: Position
    plans: tuple[BatchPlan, ...]

    @cached_property
    def plan(self) -> BatchPlan:
        """One plan of all rows of the group."""
        return joined(self.plans)

    def fail(self, error: BaseException) -> NoReturn:
        """Raise what carrying the group out has met; if it is of several batches, that they met it together."""
        try:
            if len(self.plans) > 1 and isinstance(error, Exception):
                raise GroupFailed from error
            raise error
        finally:
            del error  # Else this frame would keep it, and it this frame.

    def one_by_one(self) -> Iterator[BatchGroup]:
        """Part it into groups of one batch."""
        epoch, first = self.position
        return (BatchGroup(Position(epoch, batch), (plan,)) for batch, plan in enumerate(self.plans, first))


def planned(planner: Planner, start: Position) -> Iterator[tuple[Position, BatchPlan]]:
    """Yield plans from `start` on, epoch after epoch, without end.

    Raises:
        LoaderError: An epoch has no batch.
    """
    epoch, batch = start
    if not len(planner):
        raise LoaderError(f"a planner must plan a batch in every epoch at least: see {type(planner).__name__}.__len__")
    while True:
        for number in range(batch, len(planner)):
            yield Position(epoch, number), planner.plan(epoch, number)
        epoch, batch = epoch + 1, 0


def numbered(plans: Iterable[BatchPlan], start: Position, num_batches: int) -> Iterator[tuple[Position, BatchPlan]]:
    """Say where in the stream plans are: from `start` on, `num_batches` an epoch."""
    epoch, batch = start
    for plan in plans:
        yield Position(epoch, batch), plan
        epoch, batch = (epoch, batch + 1) if batch + 1 < num_batches else (epoch + 1, 0)


def grouped(
    plans: Iterable[tuple[Position, BatchPlan]], batches_per_group: int, hits_per_group: int = 1
) -> Iterator[BatchGroup]:
    """Put at most so many batches into one group, and at most so many, if that is more, of which all rows are hits."""
    longest = max(batches_per_group, hits_per_group)
    first, group, most = Position(0, 0), list[BatchPlan](), longest
    try:
        for position, plan in plans:
            computed = bool(plan.miss.any())
            end = batches_per_group if computed else most
            if group and (position.epoch != first.epoch or len(group) >= end):
                yield BatchGroup(first, tuple(group))
                group = []
            if not group:
                first, most = position, longest
            group.append(plan)
            if computed:
                most = batches_per_group
            if len(group) >= most:
                yield BatchGroup(first, tuple(group))
                group = []
    except Exception:
        if group:
            yield BatchGroup(first, tuple(group))
        raise
    if group:
        yield BatchGroup(first, tuple(group))


def first_one_by_one(groups: Iterator[BatchGroup]) -> Iterator[BatchGroup]:
    """Part the first group into groups of one batch."""
    for group in islice(groups, 1):
        yield from group.one_by_one()
    yield from groups
