"""Each row gets its own version, computed once, whatever is on its way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dalirefurb import Output, Recipe
from dalirefurb.engine.batch_group import BatchGroup, Position, UpcomingGroups, grouped, planned
from dalirefurb.engine.cache_client import CacheClient, CachePlan
from dalirefurb.engine.closable_queue import ClosableQueue
from dalirefurb.engine.finisher import Finisher
from dalirefurb.engine.preparer import Prepared, Preparer
from dalirefurb.engine.stats import Tally
from dalirefurb.image_batch import Images
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Arrays, Source
from dalirefurb.store import MemoryStore, StoreSpec
from tests.planners import batch_echoes, example_echoes, refurbishing, smartcaches

PLANNERS = st.one_of(refurbishing(ablations=False), example_echoes(), batch_echoes(), smartcaches())
SHAPE = (2, 2, 3)


def image_of(index: int, version: int) -> NDArray[np.uint8]:
    """Tell a version from all others."""
    return np.frombuffer(np.array([index, version, 0], "<i4").tobytes(), np.uint8).reshape(SHAPE)


class Line:
    """Batch groups on their way through a cache client, without graphs.

    Attributes:
        computed: Each version as often as it was computed.
        declined: What the store had no room for.
        held: Versions in the store at the end.
    """

    def __init__(self, planner: Planner, *, slots: int | None = None, store: MemoryStore | None = None) -> None:
        self.source = Arrays(np.zeros((planner.num_samples, *SHAPE), np.uint8), np.zeros(planner.num_samples))
        self.reader = Reader(self.source, max_batch_size=1, num_threads=1)
        self.store = MemoryStore() if store is None else store
        self.store.open(StoreSpec(SHAPE, max(1, planner.peak_slots if slots is None else slots), "tests"))
        self.cache = CacheClient(self.reader, self.store)
        self.computed: list[tuple[int, int]] = []
        self.declined = 0
        self.held = 0

    def lookup(self, group: BatchGroup) -> CachePlan:
        cache_plan = self.cache.lookup(group)
        plan, rows = cache_plan.plan, cache_plan.compute
        pairs = list(zip(plan.indices[rows].tolist(), plan.version[rows].tolist(), strict=True))
        self.computed += pairs
        cache_plan.computed.shown.set_result(plan.indices[rows])
        cache_plan.computed.images.set_result(Images([image_of(*pair) for pair in pairs]))
        return cache_plan

    def finish(self, cache_plan: CachePlan) -> None:
        plan = cache_plan.plan
        for row, image in enumerate(cache_plan.partial_images()):
            np.testing.assert_array_equal(image, image_of(int(plan.indices[row]), int(plan.version[row])))
        stored = self.cache.commit(cache_plan)
        self.declined += int((~stored).sum())

    def close(self) -> None:
        self.held = len(self.store)
        self.reader.close()
        self.store.close()


class Files(Source):
    """Tiny images, encoded, no two alike."""

    encoded = True
    image_shape = None

    def __init__(self, count: int) -> None:
        self.labels = np.zeros(count, np.int64)

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        return [file_of(index) for index in indices.tolist()]

    def name(self, index: int) -> str:
        return str(index)

    def fingerprint(self) -> dict[str, Any]:
        return {"source": "Files"}


@cache
def file_of(index: int) -> NDArray[np.uint8]:
    """Encode an image of a few pixels as PPM, so that its length varies."""
    width = 1 + index % 7
    return np.frombuffer(b"P6 %d 1 255 " % width + bytes((0, 0, index % 256)) * width, np.uint8)


class LineOfFiles(Line):
    """Batch groups on their way through a cache client whose store holds encoded samples.

    Attributes:
        computed: Each version as often as it was read.
    """

    def __init__(self, planner: Planner, *, slots: int | None = None) -> None:
        self.source = Files(planner.num_samples)
        self.reader = Reader(self.source, max_batch_size=64, num_threads=1)
        self.store = MemoryStore()
        slots = max(1, planner.peak_slots if slots is None else slots)
        self.store.open(StoreSpec(None, slots, "tests", 64 * slots))
        self.cache = CacheClient(self.reader, self.store, caches_encoded=True)
        self.computed = []
        self.declined = 0
        self.held = 0

    def lookup(self, group: BatchGroup) -> CachePlan:
        cache_plan = self.cache.lookup(group)
        plan = cache_plan.plan
        missed = plan.indices[cache_plan.missed].tolist(), plan.version[cache_plan.missed].tolist()
        self.computed += zip(*missed, strict=True)
        samples = cache_plan.begin(cache_plan.reading.result())
        assert np.array_equal(samples.indices, plan.indices)
        assert [sample.tobytes() for sample in samples.data] == [file_of(i).tobytes() for i in plan.indices.tolist()]
        return cache_plan

    def finish(self, cache_plan: CachePlan) -> None:
        stored = self.cache.commit(cache_plan)
        self.declined += int((~stored).sum())


LINES = pytest.mark.parametrize("kind", [Line, LineOfFiles])


def carry_out(
    kind: type[Line], planner: Planner, *, ahead: int, batches_per_group: int, epochs: int, slots: int | None = None
) -> Line:
    line = kind(planner, slots=slots)
    batches = islice(planned(planner, Position(0, 0)), epochs * len(planner))
    on_the_way: deque[CachePlan] = deque()
    for group in grouped(batches, batches_per_group):
        on_the_way.append(line.lookup(group))
        if len(on_the_way) > ahead:
            line.finish(on_the_way.popleft())
    while on_the_way:
        line.finish(on_the_way.popleft())
    line.close()
    return line


@LINES
@given(planner=PLANNERS, ahead=st.integers(0, 6), batches_per_group=st.integers(1, 4))
@example(planner=Echo(Standard(9, batch_size=3), echoing_factor=3, buffer_size=0), ahead=3, batches_per_group=2)
@example(planner=BatchEcho(Standard(9, batch_size=3), echoing_factor=2.5), ahead=2, batches_per_group=2)
def test_what_is_planned_as_a_miss_is_computed_once_and_nothing_else(
    kind: type[Line], planner: Planner, ahead: int, batches_per_group: int
) -> None:
    line = carry_out(kind, planner, ahead=ahead, batches_per_group=batches_per_group, epochs=4)
    misses = [
        (int(index), int(version))
        for epoch in range(4)
        for plan in planner.epoch(epoch)
        for index, version in zip(plan.indices[plan.miss], plan.version[plan.miss], strict=True)
    ]
    assert sorted(line.computed) == sorted(misses)
    assert line.declined == 0


@LINES
@given(planner=PLANNERS, ahead=st.integers(0, 6), batches_per_group=st.integers(1, 4), slots=st.integers(1, 5))
def test_a_store_too_small_costs_computing_and_nothing_else(
    kind: type[Line], planner: Planner, ahead: int, batches_per_group: int, slots: int
) -> None:
    line = carry_out(kind, planner, ahead=ahead, batches_per_group=batches_per_group, epochs=3, slots=slots)
    misses = sum(int(plan.miss.sum()) for epoch in range(3) for plan in planner.epoch(epoch))
    assert len(line.computed) >= misses


@LINES
@given(planner=PLANNERS, ahead=st.integers(0, 3), batches_per_group=st.integers(1, 4))
def test_after_an_epoch_the_store_holds_what_later_ones_ask_for(
    kind: type[Line], planner: Planner, ahead: int, batches_per_group: int
) -> None:
    line = carry_out(kind, planner, ahead=ahead, batches_per_group=batches_per_group, epochs=3)
    known = set(line.computed)
    later = [plan for epoch in range(3, 9) for plan in planner.epoch(epoch)]
    wanted = {pair for plan in later for pair in zip(plan.indices.tolist(), plan.version.tolist(), strict=True)} & known
    assert line.held == len(wanted)


@LINES
def test_a_group_that_is_abandoned_leaves_nothing_to_share(kind: type[Line]) -> None:
    planner = Refurbish(6, batch_size=3, reuse_factor=2)
    line = kind(planner)
    (first, second, third) = grouped(islice(planned(planner, Position(0, 0)), 3), 1)
    for group in (first, second):
        line.cache.abandon([line.lookup(group)])
    assert len(line.lookup(third).compute) == 3
    line.close()


def test_what_the_store_has_but_the_plan_neither_expects_nor_keeps_is_served_and_given_up() -> None:
    planner = Standard(6, batch_size=3)
    line = Line(planner, slots=6)
    (group,) = grouped(islice(planned(planner, Position(0, 0)), 1), 1)
    indices = group.plan.indices
    line.store.put(indices, group.plan.version, [image_of(index, 0) for index in indices.tolist()])
    line.finish(line.lookup(group))
    assert (line.computed, len(line.store)) == ([], 0)
    line.close()


def test_no_slot_stays_pinned_where_reading_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    line, group, _ = two_groups(MemoryStore())

    def read(*_: Any) -> Any:
        raise OSError("no more threads")

    monkeypatch.setattr(line.reader, "read", read)
    with pytest.raises(OSError, match="no more threads"):
        line.lookup(group)
    assert not len(line.store._opened().slot_table.pinned)  # type: ignore[attr-defined]
    line.close()


class Watched(MemoryStore):
    """Calls somebody before and after each of its own steps, as another thread might come between them."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[], None] | None = None

    def get(self, *arguments: Any) -> Any:
        return self._watched(super().get, *arguments)

    def put(self, *arguments: Any) -> Any:
        return self._watched(super().put, *arguments)

    def evict(self, *arguments: Any) -> Any:
        return self._watched(super().evict, *arguments)

    def _watched(self, step: Callable[..., Any], *arguments: Any) -> Any:
        between, self.between = self.between, None  # What is called in between is not watched.
        try:
            if between is not None:
                between()
            result = step(*arguments)
            if between is not None:
                between()
        finally:
            self.between = between
        return result


def two_groups(store: MemoryStore) -> tuple[Line, BatchGroup, BatchGroup]:
    """Of the second some rows hit what the first computes, which evicts something, too."""
    planner = Refurbish(6, batch_size=6, reuse_factor=3)
    line = Line(planner, store=store)
    zeroth, first, second = islice(grouped(planned(planner, Position(0, 0)), 1), 3)
    line.finish(line.lookup(zeroth))
    assert set(first.plan.indices[first.plan.miss]) <= set(second.plan.indices[~second.plan.miss])
    assert first.plan.miss.any()
    assert len(first.plan.evict)
    return line, first, second


def test_at_no_moment_of_committing_a_group_are_its_images_computed_again() -> None:
    """They are in the store before others stop waiting for them."""
    store = Watched()
    line, first, second = two_groups(store)
    cache_plan = line.lookup(first)
    computed: list[list[int]] = []

    def lookup() -> None:
        other = line.cache.lookup(second)
        computed.append(other.compute.tolist())
        line.cache.abandon([other])

    store.between = lookup
    line.finish(cache_plan)
    store.between = None
    lookup()
    assert len(computed) == 5  # around evicting, around putting, and once more
    assert computed == [np.flatnonzero(second.plan.miss).tolist()] * len(computed)
    line.close()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_group_that_commits_while_another_asks_the_store_is_not_computed_again(moment: str) -> None:
    """The other one looks for what is on its way before it asks the store."""
    store = Watched()
    line, first, second = two_groups(store)
    cache_plan, moments = line.lookup(first), iter(["before", "after"])

    def commit() -> None:
        if next(moments) == moment:
            line.finish(cache_plan)

    store.between = commit
    other = line.lookup(second)
    store.between = None
    assert other.compute.tolist() == np.flatnonzero(second.plan.miss).tolist()
    line.finish(other)
    line.close()


@pytest.mark.parametrize("ahead", [0, 1, 4, 9])
def test_the_store_is_told_of_groups_the_full_distance_before_they_begin(ahead: int) -> None:
    planner = Refurbish(8, batch_size=2, reuse_factor=2)
    groups = list(grouped(islice(planned(planner, Position(0, 0)), 12), 1))
    told: list[BatchGroup] = []
    for number, group in enumerate(UpcomingGroups(iter(groups), told.append, ahead)):
        assert group is groups[number]
        assert told == groups[: number + 1 + ahead]
    assert number == 11


def test_time_in_which_the_store_is_told_is_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning a group takes 1 s here, telling the store of it 10, looking up 100; one group is told ahead."""
    now = 0.0

    def take(seconds: float) -> None:
        nonlocal now
        now += seconds

    def made() -> Iterator[BatchGroup]:
        for group in grouped(planned(Standard(8, batch_size=2), Position(0, 0)), 1):
            take(1)
            yield group

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    upcoming, tally = UpcomingGroups(made(), lambda _: take(10), 1), Tally()
    preparer: Any = SimpleNamespace(cache=SimpleNamespace(lookup=lambda _: take(100)), tally=tally)
    for _ in range(3):
        Preparer._admit(preparer, upcoming)
    stats = tally.stats()
    assert (stats.planning_s, stats.storing_s) == (4, 340)


def test_each_time_of_the_two_threads_is_its_own_and_what_the_store_took_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the prepare thread, then in the finish thread: to draw takes 7 s and 1 s here, to compute 40 and 10."""
    now = 0.0

    def take(seconds: float, result: Any = None) -> Any:
        nonlocal now
        now += seconds
        return result

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    (group,) = grouped(islice(planned(Standard(4, batch_size=4), Position(0, 0)), 1), 1)
    cache_plan, tally, none = CachePlan(group, np.arange(4), Future()), Tally(), ClosableQueue[Any](9)
    cache_plan.computed.shown.set_result(group.plan.indices)
    beginning: Any = SimpleNamespace(begin=lambda _: take(1), compute=[])
    preparer: Any = SimpleNamespace(
        tally=tally,
        features=None,
        targets=SimpleNamespace(begin=lambda _: take(4)),
        backend=SimpleNamespace(submit=lambda *_: take(2), collect=lambda _: take(40)),
        _samples=lambda *_: take(5000),
    )
    Preparer._collect(preparer, Preparer._submit(preparer, beginning, none))
    assert (tally.stats().preparing_s, tally.stats().graph_wait_s) == (7, 40)
    final: Any = SimpleNamespace(submit=lambda *_: take(1), collect=lambda: take(10, torch.zeros(4, 3, 8, 8)))
    cache: Any = SimpleNamespace(commit=lambda _: take(100, np.array([True, True, False])))
    finisher = Finisher(
        recipes=(Recipe([], Output(8), 0),),
        cache=cache,
        finals=[final],
        most_groups=1,
        batches_per_group=1,
        pin_memory=False,
        tally=tally,
    )
    finisher._submit(Prepared(cache_plan, None))
    finisher._finish(deque([Prepared(cache_plan, None)]), none)
    stats = tally.stats()
    assert (stats.preparing_s, stats.graph_wait_s, stats.storing_s) == (7 + 1, 40 + 10, 100)
    assert (stats.stored, stats.declined) == (2, 1)


@pytest.mark.parametrize("ahead", [0, 3])
def test_groups_put_back_come_again_in_order_before_what_planning_raised(ahead: int) -> None:
    planner = Refurbish(8, batch_size=2, reuse_factor=2)
    groups = list(grouped(islice(planned(planner, Position(0, 0)), 4), 1))

    def failing() -> Iterator[BatchGroup]:
        yield from groups
        raise ValueError("no plan")

    told: list[BatchGroup] = []
    upcoming = UpcomingGroups(failing(), told.append, ahead)
    taken = [next(upcoming) for _ in range(3)]
    upcoming.put_back(taken[1:])
    assert [next(upcoming) for _ in range(3)] == groups[1:]
    assert told == groups
    for _ in range(2):
        with pytest.raises(ValueError, match="no plan"):
            next(upcoming)
    upcoming.put_back(groups[3:])
    assert next(upcoming) is groups[3]


@pytest.mark.parametrize("batches_per_group", [1, 2, 3, 9])
def test_a_group_is_of_one_epoch_and_of_so_many_batches_at_most(batches_per_group: int) -> None:
    planner = Standard(10, batch_size=2)
    found = list(islice(grouped(planned(planner, Position(1, 2)), batches_per_group), 8))
    positions = [
        (group.position.epoch, group.position.batch + number) for group in found for number, _ in enumerate(group.plans)
    ]
    expected = [(1, batch) for batch in range(2, 5)] + [(epoch, batch) for epoch in range(2, 20) for batch in range(5)]
    assert positions == expected[: len(positions)]
    assert max(len(group.plans) for group in found) == min(batches_per_group, 5)


@given(planner=PLANNERS, batches_per_group=st.integers(1, 4), hits_per_group=st.integers(1, 7), first=st.integers(0, 3))
def test_only_batches_of_hits_run_together_in_larger_numbers(
    planner: Planner, batches_per_group: int, hits_per_group: int, first: int
) -> None:
    start = Position(0, first % len(planner))
    found = list(islice(grouped(planned(planner, start), batches_per_group, hits_per_group), 40))
    batches = [(*group.position[:1], group.position.batch + n) for group in found for n, _ in enumerate(group.plans)]
    assert batches == [tuple(position) for position, _ in islice(planned(planner, start), len(batches))]
    for group, following in pairwise(found):
        most = batches_per_group if group.plan.miss.any() else max(batches_per_group, hits_per_group)
        assert len(group.plans) <= most
        if following.position.epoch == group.position.epoch and len(group.plans) < most:
            assert len(group.plans) >= batches_per_group
            assert following.plans[0].miss.any()
