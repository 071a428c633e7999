"""Schedule: the batch groups to serve from a position on, each announced to the store some time before its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from dalirefurb.engine.batch_group import BatchGroup, Position, first_one_by_one, grouped, numbered, planned
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.engine.prefetch import Depths
from dalirefurb.planning.assistant import Assistant
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.planner import Planner


class UpcomingGroups(Iterator[BatchGroup]):
    """Batch groups in order. Those put back come first; what planning raised comes after them, again.

    Args:
        groups: Batch groups in order.
        announce: Function that is told of each group.
        ahead: Number of groups, after the one that is taken, that are announced before it is.
    """

    def __init__(self, groups: Iterator[BatchGroup], announce: Callable[[BatchGroup], None], ahead: int) -> None:
        self._groups = groups
        self._announce = announce
        self._ahead = ahead
        self._announced: deque[BatchGroup] = deque()
        self._error: Exception | None = None

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
            self._announce(group)
        except Exception as error:
            self._error = error


class Schedule:
    """What is served from any position on.

    Args:
        planner: Planner of the batches, or of a rank's part of them.
        assistant: Assistant that makes the plans, if they depend on losses; otherwise None.
        cache: Cache client, which is told what will be asked for.
        depths: Numbers of batches in a group, and of groups that are announced.
    """

    def __init__(self, planner: Planner, assistant: Assistant | None, cache: CacheClient, depths: Depths) -> None:
        self._planner = planner
        self._assistant = assistant
        self._cache = cache
        self._depths = depths

    @property
    def num_batches(self) -> int:
        """Number of batches in an epoch."""
        return len(self._planner)

    def begin(self, position: Position, *, one_by_one: bool = False) -> UpcomingGroups:
        """Have the store keep what is asked for from a position on; return the groups from there on, without end.

        Args:
            position: Position of the first batch.
            one_by_one: Whether the batches of the first group come each in a group of its own.
        """
        groups = grouped(self._plans(position), self._depths.batches_per_group, self._depths.hits_per_group)
        if one_by_one:
            groups = first_one_by_one(groups)
        return UpcomingGroups(groups, self._cache.announce, self._depths.announced)

    def _plans(self, start: Position) -> Iterator[tuple[Position, BatchPlan]]:
        assistant = self._assistant
        if assistant is None:
            self._cache.retain(self._planner, start)
            return planned(self._planner, start)
        assistant.rewind()
        (epoch, row), candidates = assistant.upcoming, assistant.chooses_from
        self._cache.retain(candidates, Position(epoch, row // candidates.batch_size))
        return numbered(iter(assistant.plan, None), start, len(self._planner))
