"""Batch groups: consecutive batches that go through the graphs together; small ones several at a time.

A group costs milliseconds however few its rows are. What is served does not depend on which rows are together.
"""

from __future__ import annotations

import time
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

    def after(self, num_batches: int) -> Position:
        """Return the place of the following batch, where an epoch has so many."""
        return Position(self.epoch, self.batch + 1) if self.batch + 1 < num_batches else Position(self.epoch + 1, 0)


class GroupFailed(Exception):  # noqa: N818 - its cause is the error
    """A group of several batches failed, or a sample in it is replaced from now on: it can be made, one by one."""


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


def planned(
    planner: Planner, start: Position, plan: Callable[[int, int], BatchPlan] | None = None
) -> Iterator[tuple[Position, BatchPlan]]:
    """Yield plans from `start` on, epoch after epoch, without end: the planner's own, or another function's.

    Raises:
        LoaderError: An epoch has no batch.
    """
    position, make, num_batches = start, plan or planner.plan, len(planner)
    if not num_batches:
        raise LoaderError(f"a planner must plan a batch in every epoch at least: see {type(planner).__name__}.__len__")
    while True:
        yield position, make(*position)
        position = position.after(num_batches)


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
        epoch, first = group.position
        for batch, plan in enumerate(group.plans, first):
            yield BatchGroup(Position(epoch, batch), (plan,))
    yield from groups


class UpcomingGroups(Iterator[BatchGroup]):
    """Batch groups in order. Those put back come first; what planning raised comes after them, again.

    Args:
        groups: Batch groups in order.
        announce: Function that is told of each group.
        ahead: Number of groups, after the one that is taken, that are announced before it is.

    Attributes:
        announcing_s: Seconds that announcing took.
    """

    def __init__(self, groups: Iterator[BatchGroup], announce: Callable[[BatchGroup], None], ahead: int) -> None:
        self._groups = groups
        self._announce = announce
        self._ahead = ahead
        self._announced: deque[BatchGroup] = deque()
        self._error: Exception | None = None
        self.announcing_s = 0.0

    def put_back(self, groups: Iterable[BatchGroup]) -> None:
        """Have groups that were taken, the last ones, taken again."""
        self._announced.extendleft(reversed([*groups]))

    def __next__(self) -> BatchGroup:
        while self._error is None and len(self._announced) <= self._ahead:
            self._announce_next()
        if self._announced:
            return self._announced.popleft()
        assert self._error is not None
        raise self._error

    def _announce_next(self) -> None:
        try:
            group = next(self._groups)
            self._announced.append(group)
            began = time.perf_counter()
            self._announce(group)
            self.announcing_s += time.perf_counter() - began
        except Exception as error:
            self._error = error
