"""Nothing moves in a tiered store, and yet no placement serves more from memory, where epochs serve versions once."""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.planning.echo import Echo
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Frozen, Refurbish, Standard
from dalirefurb.planning.smart_cache import SmartCache
from dalirefurb.store import DiskStore, MemoryStore, StoreSpec, Tier, TieredStore
from dalirefurb.testing.plans import pairs
from tests.in_turn import in_turn
from tests.planners import frozen, refurbishing, smartcaches

ONCE = st.one_of(refurbishing(ablations=False), frozen(), smartcaches())
"""Planners that serve a version at most once an epoch."""
TINY = st.one_of(
    st.builds(
        Refurbish,
        st.integers(2, 5),
        batch_size=st.integers(1, 2),
        reuse_factor=st.integers(2, 3),
        seed=st.integers(0, 99),
    ),
    st.builds(Frozen, st.integers(2, 4), batch_size=st.integers(1, 2), seed=st.integers(0, 99)),
)
LARGE = [
    Refurbish(997, batch_size=16, reuse_factor=2),
    Refurbish(997, batch_size=16, reuse_factor=3),
    Refurbish(997, batch_size=16, reuse_factor=3, shards=4),
    Frozen(997, batch_size=16, drop_last=True),
    SmartCache(997, batch_size=16, num_cache_objects=480, replace_percent=0.1),
]
LARGE_AND_SHARES = in_turn(LARGE, [0.25, 0.75, 0.5])
"""Each planner, and a share of memory below, above or at the half."""
PIXELS = np.zeros((1, 1, 1), np.uint8)
LEAST = 0.99
"""The rest are versions that wait for the next epoch, and slots that are freed after the last version is computed."""

Pair = tuple[int, int]
"""An index and a version."""


def memories(*slots: int) -> TieredStore:
    return TieredStore.of(*(Tier(MemoryStore(), count) for count in slots))


def opened(store: TieredStore, slots: int) -> TieredStore:
    with warnings.catch_warnings(action="ignore"):
        store.open(StoreSpec(PIXELS.shape, slots, {}))
    return store


def serve(planner: Planner, store: TieredStore, epochs: range) -> NDArray[np.int64]:
    """Bring a store through some epochs; return what each tier has lent in each, shape (epochs, tiers).

    A version that a batch serves twice is asked for once.
    """
    lent = [store.hits]
    for epoch in epochs:
        for plan in planner.epoch(epoch):
            asked = np.unique([plan.indices, plan.version], axis=1, return_index=True)[1]
            with store.get(plan.indices[asked], plan.version[asked]) as lease:
                computed = asked[~lease.found]
            store.evict(plan.evict)
            rows = computed[plan.keep[computed]]
            store.put(plan.indices[rows], plan.version[rows], [PIXELS] * len(rows))
        lent.append(store.hits)
    return np.diff(lent, axis=0)


def first_come(planner: Planner, slots: list[int], epochs: int) -> NDArray[np.int64]:
    with opened(memories(*slots), sum(slots)) as store:
        return serve(planner, store, range(epochs))


def stream(planner: Planner, epochs: int) -> list[BatchPlan]:
    return [plan for epoch in range(epochs) for plan in planner.epoch(epoch)]


def next_uses(planner: Planner, epochs: int) -> list[dict[Pair, int]]:
    """The next batch, for each version that a batch serves and a later one of these epochs too."""
    found: list[dict[Pair, int]] = []
    sooner: dict[Pair, int] = {}
    for batch, plan in reversed(list(enumerate(stream(planner, epochs)))):
        found.append({pair: sooner[pair] for pair in pairs(plan) if pair in sooner})
        sooner.update(dict.fromkeys(pairs(plan), batch))
    return found[::-1]


def most_by_trying(planner: Planner, slots: int, epochs: int) -> int:
    """Hits, over all ways to place versions in a fast tier: those at hand go there or not, others stay or leave."""
    reached: dict[frozenset[Pair], int] = {frozenset(): 0}
    for plan, uses in zip(stream(planner, epochs), next_uses(planner, epochs), strict=True):
        after: dict[frozenset[Pair], int] = {}
        served = set(pairs(plan))
        for state, before in reached.items():
            hits = before + len(state & served)
            candidates = [*(state - served), *uses]
            for chosen in product((False, True), repeat=len(candidates)):
                if sum(chosen) <= slots:
                    held = frozenset(pair for pair, is_held in zip(candidates, chosen, strict=True) if is_held)
                    after[held] = max(after.get(held, 0), hits)
        reached = after
    return max(reached.values())


def most_by_programming(planner: Planner, slots: int, epochs: int) -> float:
    """Hits, as many intervals between uses as so many slots can hold.

    The matrix of intervals and the batches after which they are held is totally unimodular, so the linear programme
    has a whole solution.
    """
    intervals = [(start, stop) for start, uses in enumerate(next_uses(planner, epochs)) for stop in uses.values()]
    if not intervals:
        return 0
    starts, stops = np.array(intervals).T
    times = np.arange(len(planner) * epochs)[:, None]
    held = ((starts <= times) & (times < stops)).astype(float)
    found = linprog(-np.ones(len(intervals)), A_ub=held, b_ub=np.full(len(times), slots), bounds=(0, 1))
    return -float(found.fun)


def most_by_counting(planner: Planner, slots: int, epochs: int) -> list[int]:
    """Hits of each epoch, if all slots were full when it began, as far as so many versions are held."""
    hits = [sum(int(np.count_nonzero(~plan.miss)) for plan in planner.epoch(epoch)) for epoch in range(epochs)]
    return np.minimum(hits, slots).tolist()


@settings(max_examples=25)
@given(planner=TINY, slots=st.integers(0, 4))
def test_no_placement_serves_more_in_an_epoch_than_there_are_slots(planner: Planner, slots: int) -> None:
    epochs = max(1, 8 // len(planner))
    most = most_by_trying(planner, slots, epochs)
    assert most == pytest.approx(most_by_programming(planner, slots, epochs))
    assert most <= sum(most_by_counting(planner, slots, epochs))


@given(planner=ONCE, slots=st.lists(st.integers(1, 12), min_size=1, max_size=3))
def test_first_come_loses_at_most_a_batch_of_hits_an_epoch(planner: Planner, slots: list[int]) -> None:
    """For any number of the fastest tiers."""
    served = np.cumsum(first_come(planner, slots, 4).sum(axis=0))
    most = [most_by_programming(planner, int(budget), 4) for budget in np.cumsum(slots)]
    assert (served <= np.array(most) + 1e-6).all()
    assert (served >= np.array(most) - 3 * planner.batch_size).all()


@pytest.mark.parametrize(("planner", "share"), LARGE_AND_SHARES, ids=repr)
def test_first_come_loses_nothing_to_speak_of_where_batches_are_many(planner: Planner, share: float) -> None:
    fast = int(share * planner.peak_slots)
    served = first_come(planner, [fast, planner.peak_slots - fast], 4)
    most = np.array(most_by_counting(planner, fast, 4))
    assert (served[:, 0] <= most).all()
    assert served[1:, 0].sum() >= LEAST * most[1:].sum() > 0


@pytest.mark.parametrize(("planner", "share"), LARGE_AND_SHARES, ids=repr)
def test_memory_serves_as_much_as_ever_from_the_second_epoch_after_a_restart(
    planner: Planner, share: float, tmp_path: Path
) -> None:
    """Only what lies on the disk is there again; memory is filled by what is computed again."""
    slots = planner.peak_slots
    fast = int(share * slots)

    def begin() -> TieredStore:
        tiers = Tier(MemoryStore(), fast), Tier(DiskStore(tmp_path / "store"))
        return opened(TieredStore.of(*tiers), slots)

    with begin() as store:
        before = serve(planner, store, range(4))
    with begin() as store:
        after = serve(planner, store, range(4, 8))
    assert after[0, 1] > 0
    assert after[1:, 0].sum() >= LEAST * before[1:, 0].sum() > 0


def test_of_an_echo_half_of_its_buffer_in_memory_serves_nearly_all_that_any_placement_would() -> None:
    planner = Echo(Standard(600, batch_size=20), echoing_factor=2, buffer_size=100)
    served, most = (
        [count(planner, slots) for slots in (25, 50)]
        for count in (
            lambda planner, slots: first_come(planner, [slots, 100 - slots], 3)[:, 0].sum(),
            lambda planner, slots: most_by_programming(planner, slots, 3),
        )
    )
    few, half = np.divide(served, most)
    assert few < 0.8
    assert half > 0.95
