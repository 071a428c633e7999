"""Uses are foreseen, and no placement among tiers serves more from the fast ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from dalirefurb import AutoAssist
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.echo import Echo
from dalirefurb.planning.frozen import Frozen
from dalirefurb.planning.next_uses import NEVER, next_uses, turns
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.store.base import Keys
from dalirefurb.store.tiered.placement import Placement
from dalirefurb.store.tiered.row_queue import RowQueue
from dalirefurb.store.tiered.versions import NOWHERE
from tests.planners import (
    autoassists,
    batch_echoes,
    example_echoes,
    frozen,
    pairs,
    refurbishing,
    smartcaches,
    standards,
)
from tests.store.test_store import ints

PLANNERS = st.one_of(
    standards(), refurbishing(), frozen(), example_echoes(), batch_echoes(), smartcaches(), autoassists()
)
TINY = st.one_of(
    st.builds(
        Refurbish,
        st.integers(2, 5),
        batch_size=st.integers(1, 2),
        reuse_factor=st.integers(2, 3),
        seed=st.integers(0, 99),
    ),
    st.builds(Frozen, st.integers(2, 4), batch_size=st.integers(1, 2), seed=st.integers(0, 99)),
    st.builds(
        lambda inner, buffer_size: Echo(inner, echoing_factor=3, buffer_size=buffer_size),
        st.builds(Standard, st.integers(2, 4), batch_size=st.just(2), seed=st.integers(0, 99)),
        st.integers(1, 9),
    ),
)
WORTHS = (13, 4, 1)

Pair = tuple[int, int]
"""An index and a version."""


def pairs_of(keys: Keys) -> list[Pair]:
    return list(zip(keys[0].tolist(), keys[1].tolist(), strict=True))


class Moved(NamedTuple):
    """What a decision asks for: copies from tier to tier, what is freed where, where what is new was put."""

    copies: list[tuple[Pair, int, int]]
    frees: list[tuple[Pair, int]]
    targets: dict[Pair, int]


class Placed:
    """A placement, asked about one version at a time."""

    def __init__(self, slots: list[int]) -> None:
        self.placement = Placement(slots)
        self.tiers = len(slots)

    def settle(self, uses: dict[Pair, int]) -> Moved:
        """Decide, and say that what is new was put where it was to go."""
        keys = keys_of(uses)
        was_put = self.placement.are_put(keys).tolist()
        copies, frees = (moves := self.placement.settle(keys, ints(*uses.values()))).copies, moves.frees
        homes = self.placement.targets(keys).tolist()
        for pair, tier, is_old in zip(uses, homes, was_put, strict=True):
            if not is_old and tier != NOWHERE:
                self.placement.relocate(keys_of([pair]), tier)
        return Moved(
            [*zip(pairs_of(copies.keys), copies.origins.tolist(), copies.targets.tolist(), strict=True)],
            [*zip(pairs_of(frees.keys), frees.tiers.tolist(), strict=True)],
            {pair: tier for pair, tier, is_old in zip(uses, homes, was_put, strict=True) if not is_old},
        )

    def relocate(self, pair: Pair, tier: int | None) -> None:
        if tier is None:
            self.placement.forget(keys_of([pair]))
        else:
            self.placement.relocate(keys_of([pair]), tier)

    def tier(self, pair: Pair) -> int | None:
        tier = int(self.placement.tiers(keys_of([pair]))[0])
        return None if tier == NOWHERE else tier

    def versions(self, index: int) -> list[int]:
        return self.placement.of(ints(index))[1].tolist()

    def copies(self, pair: Pair) -> list[int]:
        return np.flatnonzero(self.placement.copies(keys_of([pair]))[0]).tolist()

    def held(self) -> list[set[Pair]]:
        """What each tier holds."""
        return [set(pairs_of(self.placement.held(tier))) for tier in range(self.tiers)]


def keys_of(versions: Iterable[Pair]) -> Keys:
    indices, numbers = np.array([*versions], np.int64).reshape(-1, 2).T
    return indices, numbers


def stream(planner: Planner, epochs: int) -> list[BatchPlan]:
    return [plan for epoch in range(epochs) for plan in planner.epoch(epoch)]


def sought(served: list[BatchPlan], batch: int, pair: Pair) -> int:
    """When a version is served next, by looking."""
    return next((later for later in range(batch + 1, len(served)) if pair in pairs(served[later])), NEVER)


@given(planner=PLANNERS, epoch=st.integers(0, 2))
def test_the_next_use_of_each_row_is_the_next_batch_that_serves_its_version(planner: Planner, epoch: int) -> None:
    served = stream(planner, epoch + 8)
    found = next_uses(planner, epoch)
    assert len(found) == len(planner)
    for batch, uses in enumerate(found, epoch * len(planner)):
        assert uses.tolist() == [sought(served, batch, pair) for pair in pairs(served[batch])]


def test_of_a_sample_that_a_batch_serves_in_two_versions_the_older_one_is_used_next() -> None:
    planner = AutoAssist(Refurbish(8, batch_size=5, reuse_factor=2, seed=4), lag=1)
    first, later = stream(planner, 2)[0], stream(planner, 2)[3]
    assert [pair for pair in pairs(later) if pair[0] == 6] == [(6, 0), (6, 2)]
    assert next_uses(planner, 0)[0][pairs(first).index((6, 0))] == 3


def test_a_version_that_is_kept_for_nothing_has_no_next_use() -> None:
    class Keeping(Standard):
        def epoch(self, epoch: int):  # type: ignore[no-untyped-def]
            for plan in super().epoch(epoch):
                rows = [plan.indices, plan.version, plan.serving, plan.miss]
                yield BatchPlan(*rows, keep=np.ones(len(plan.indices), bool), evict=plan.evict)

    assert [uses.tolist() for uses in next_uses(Keeping(4, batch_size=2), 0)] == [[NEVER] * 2] * 2


def advice(planner: Planner, epochs: int, *, exact: bool = True) -> list[dict[Pair, int]]:
    """The next use, or the turn, of each version that a batch serves and a later one too."""
    uses = []
    for epoch in range(epochs):
        found = next_uses(planner, epoch)
        uses += found if exact else turns(found, epoch)
    return [
        {pair: use for pair, use in zip(pairs(plan), each.tolist(), strict=True) if use != NEVER}
        for plan, each in zip(stream(planner, epochs), uses, strict=True)
    ]


def over(placement: Placed, plan: BatchPlan, uses: dict[Pair, int]) -> set[Pair]:
    """Versions that a batch frees or serves for the last time."""
    freed = {(index, version) for index in plan.evict.tolist() for version in placement.versions(index)}
    return freed | {pair for pair in pairs(plan) if pair not in uses}


def hits(planner: Planner, slots: list[int], epochs: int, *, exact: bool = True) -> list[int]:
    """How many versions each batch finds in each tier, in all."""
    placement, found = Placed(slots), Counter()  # type: ignore[var-annotated]
    for plan, uses in zip(stream(planner, epochs), advice(planner, epochs, exact=exact), strict=True):
        found.update(placement.tier(pair) for pair in set(pairs(plan)))
        for pair in over(placement, plan, uses):
            placement.relocate(pair, None)
        placement.settle(uses)
    return [found[tier] for tier in range(len(slots))]


def most_by_trying(planner: Planner, slots: list[int], epochs: int) -> int:
    """What hits can be worth, over all ways to place versions: at hand they go anywhere, else they stay or sink."""
    tiers = range(len(slots))
    nowhere = len(slots)
    reached: dict[frozenset[tuple[Pair, int]], int] = {frozenset(): 0}
    for plan, uses in zip(stream(planner, epochs), advice(planner, epochs), strict=True):
        after: dict[frozenset[tuple[Pair, int]], int] = {}
        served = set(pairs(plan))
        for state, before in reached.items():
            worth = before + sum(WORTHS[tier] for pair, tier in state if pair in served)
            resting = [each for each in state if each[0] not in served]
            choices = [[(pair, tier) for tier in range(first, nowhere + 1)] for pair, first in resting]
            choices += [[(pair, tier) for tier in range(nowhere + 1)] for pair in uses]
            for placed in product(*choices):
                count = Counter(tier for _, tier in placed)
                if all(count[tier] <= slots[tier] for tier in tiers):
                    next_state = frozenset(each for each in placed if each[1] != nowhere)
                    after[next_state] = max(after.get(next_state, 0), worth)
        reached = after
    return max(reached.values())


@settings(max_examples=25)
@given(planner=TINY, slots=st.lists(st.integers(0, 2), min_size=1, max_size=3))
def test_no_placement_serves_more_by_trying_all(planner: Planner, slots: list[int]) -> None:
    epochs = max(1, 8 // len(planner))
    worth = sum(count * worth for count, worth in zip(hits(planner, slots, epochs), WORTHS, strict=False))
    assert worth == most_by_trying(planner, slots, epochs)


def most_by_programming(planner: Planner, slots: list[int], epochs: int) -> list[float]:
    """How many intervals between uses so many slots can hold, for the fastest tier, the two fastest, and so on.

    The matrix of intervals and the batches after which they are held is totally unimodular, so the linear programme
    has a whole solution.
    """
    batches = len(planner) * epochs
    intervals = [
        (start, stop) for start, uses in enumerate(advice(planner, epochs)) for stop in uses.values() if stop < batches
    ]
    if not intervals:
        return [0] * len(slots)
    starts, stops = np.array(intervals).T
    times = np.arange(batches)[:, None]
    held = ((starts <= times) & (times < stops)).astype(float)
    return [
        -linprog(-np.ones(len(intervals)), A_ub=held, b_ub=np.full(batches, budget), bounds=(0, 1)).fun
        for budget in np.cumsum(slots)
    ]


@given(planner=PLANNERS, slots=st.lists(st.integers(0, 12), min_size=1, max_size=3))
def test_hits_in_the_fastest_tiers_are_at_their_most_for_any_number_of_these(
    planner: Planner, slots: list[int]
) -> None:
    assert np.cumsum(hits(planner, slots, 4)) == pytest.approx(most_by_programming(planner, slots, 4))


@given(planner=PLANNERS, slots=st.lists(st.integers(0, 12), min_size=1, max_size=3))
def test_by_turns_at_most_a_batch_of_hits_an_epoch_is_lost(planner: Planner, slots: list[int]) -> None:
    lost = np.cumsum(hits(planner, slots, 4)) - np.cumsum(hits(planner, slots, 4, exact=False))
    assert lost.max() <= 4 * planner.batch_size


@pytest.mark.parametrize(
    "planner",
    [
        Refurbish(997, batch_size=16, reuse_factor=3),
        Refurbish(997, batch_size=16, reuse_factor=3, shards=4),
        Frozen(997, batch_size=16, drop_last=True),
        SmartCache(997, batch_size=16, num_cache_objects=480, replace_percent=0.1),
    ],
    ids=lambda planner: type(planner).__name__,
)
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_by_turns_hardly_a_hit_is_lost_where_batches_are_many(planner: Planner, share: float) -> None:
    slots = [int(share * planner.peak_slots)]
    assert hits(planner, slots, 4, exact=False)[0] >= 0.998 * hits(planner, slots, 4)[0] > 0


class Shelves:
    """Tiers as sets of versions: carries moves out as a store must, and sees that there is always room."""

    def __init__(self, slots: list[int]) -> None:
        self.slots = slots
        self.held: list[set[Pair]] = [set() for _ in slots]
        self.copied: Counter[tuple[Pair, int]] = Counter()

    def carry_out(self, moves: Moved) -> None:
        for pair, origin, target in moves.copies:
            assert pair in self.held[origin]
            assert pair not in self.held[target]
        for tier in reversed(range(len(self.slots))):
            self.held[tier] -= {pair for pair, freed in moves.frees if freed == tier}
            self.add(tier, [pair for pair, origin, target in moves.copies if target == tier > origin])
        for tier in range(len(self.slots)):
            self.add(tier, [pair for pair, origin, target in moves.copies if target == tier < origin])
            self.add(tier, [pair for pair, target in moves.targets.items() if target == tier])

    def add(self, tier: int, pairs: list[Pair]) -> None:
        self.held[tier].update(pairs)
        self.copied.update((pair, tier) for pair in pairs)
        assert len(self.held[tier]) <= self.slots[tier]


@given(
    slots=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    steps=st.lists(st.dictionaries(st.tuples(st.integers(0, 12), st.just(0)), st.integers(1, 9), max_size=4)),
)
def test_moves_bring_every_version_where_it_is_said_to_live_and_never_want_a_slot_too_many(
    slots: list[int], steps: list[dict[Pair, int]]
) -> None:
    placement, shelves = Placed(slots), Shelves(slots)
    for batch, step in enumerate(steps):
        shelves.carry_out(placement.settle({pair: batch + ahead for pair, ahead in step.items()}))
        everywhere = set().union(*shelves.held)
        assert placement.held() == shelves.held
        for pair in everywhere:
            tiers = [tier for tier, held in enumerate(shelves.held) if pair in held]
            assert placement.copies(pair) == tiers
            assert placement.tier(pair) == tiers[0]
        assert placement.placement.num_spares == sum(map(len, shelves.held)) - len(everywhere)


@given(planner=st.one_of(frozen(), refurbishing()), share=st.floats(0.1, 0.9))
def test_a_slow_tier_with_room_for_all_is_written_once_for_each_version(planner: Planner, share: float) -> None:
    slots = [int(share * planner.peak_slots), planner.peak_slots]
    placement, shelves = Placed(slots), Shelves(slots)
    for plan, uses in zip(stream(planner, 6), advice(planner, 6), strict=True):
        for pair in over(placement, plan, uses):
            for tier in placement.copies(pair):
                shelves.held[tier].remove(pair)
            placement.relocate(pair, None)
        shelves.carry_out(placement.settle(uses))
    assert all(count == 1 for (_, tier), count in shelves.copied.items() if tier == 1)


@given(num_batches=st.integers(1, 9), slots=st.lists(st.integers(1, 9), min_size=2, max_size=2))
def test_where_all_is_served_once_an_epoch_nothing_moves_by_turns(num_batches: int, slots: list[int]) -> None:
    planner = Frozen(3 * num_batches, batch_size=3)
    placement = Placed(slots)
    for uses in advice(planner, 4, exact=False):
        assert not placement.settle(uses).copies


def test_of_equal_uses_nothing_moves() -> None:
    placement = Placed([2, 2])
    placement.settle({(0, 0): 5, (1, 0): 5, (2, 0): 6})
    moves = placement.settle({(0, 0): 9, (1, 0): 9, (2, 0): 9, (3, 0): 9})
    assert moves == Moved([], [], {(3, 0): 1})


def test_a_version_of_unknown_use_stays_where_it_is() -> None:
    placement = Placed([1, 1])
    placement.relocate((0, 0), 0)
    assert placement.settle({(1, 0): 1}).targets == {(1, 0): 1}
    assert placement.tier((0, 0)) == 0


def test_of_spare_copies_the_one_that_became_one_first_is_given_up() -> None:
    placement = Placed([2, 4])
    a, b, x, y, z = ((index, 0) for index in range(5))
    placement.settle({x: 10, y: 11, a: 20, b: 21})
    placement.settle({a: 5})
    placement.settle({b: 6})
    assert (placement.copies(a), placement.copies(b)) == ([0, 1], [0, 1])
    assert placement.settle({a: 30, z: 7}) == Moved([], [(a, 0)], {z: 0})
    # Its copy becomes a spare one again, after b's.
    assert placement.settle({a: 4}) == Moved([(a, 1, 0), (z, 0, 1)], [(z, 0), (b, 1)], {})


def test_what_a_placement_remembers_does_not_grow_with_time() -> None:
    placement = Placed([3])
    for batch in range(5000):
        placement.settle({(batch % 3, 0): batch + 3})
    queue = placement.placement._by_use[0]
    assert len(queue._unsorted) + sum(map(len, queue._sorted.values())) <= queue._size < 100
    assert len(queue._numbers) == len(queue._sorted) < 100


def test_a_row_that_is_queued_twice_comes_once() -> None:
    for tidied in (False, True):
        queue = RowQueue(lambda rows, numbers: np.ones(len(rows), np.bool_))
        for rows in ([7, 8, *range(100, 500)], [7]):
            queue.add(ints(*rows), np.full(len(rows), 5))
        if tidied:
            queue.tidy(0)
        popped = queue.pop(500).tolist()
        assert popped == [7, *reversed(range(100, 500)), 8]
