"""Several stores as one: against a dict, at any budget, with and without advice, moving and broken."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from numpy.typing import NDArray

from dalirefurb import Arrays, ImageFolder, Loader, Refurbish, simple
from dalirefurb.engine.batch_group import Position, grouped, planned
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.image_batch import Images
from dalirefurb.planning.batch_echo import BatchEcho
from dalirefurb.planning.frozen import Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.reader import Reader
from dalirefurb.store import DiskStore, Lease, MemoryStore, Store, StoreSpec, Tier, TieredStore
from dalirefurb.store.device.store import DeviceStore
from tests.engine.test_bit_identity import NUM_SAMPLES, RECIPES, assert_same, refurbish, serve
from tests.engine.test_cache_client import image_of
from tests.pictures import write_folder
from tests.planners import batch_echoes, example_echoes, frozen, pairs, refurbishing, smartcaches
from tests.store.test_placement import hits
from tests.store.test_store import (
    SHAPE,
    SLOTS,
    Kind,
    StoreMachine,
    agree,
    assert_overtaken_put_stores_nothing,
    held,
    image,
    ints,
)

SLOT_BYTES = 60
IMAGE = image_of(0, 0).shape
DISTINCT = st.one_of(refurbishing(ablations=False), frozen(), batch_echoes(), smartcaches())
"""Planners that serve no version twice in one batch."""
PLANNERS = st.one_of(DISTINCT, example_echoes())


def memories(*slots: int, slot_bytes: int = SLOT_BYTES) -> TieredStore:
    return TieredStore.of(*(Tier(MemoryStore(), count * slot_bytes) for count in slots))


def opened(store: TieredStore, slots: int = SLOTS) -> TieredStore:
    store.open(StoreSpec(SHAPE, slots, {}))
    return store


def put(store: Store, *indices: int, version: int = 0) -> list[bool]:
    versions = np.full(len(indices), version)
    return store.put(ints(*indices), versions, [image(index) for index in indices]).tolist()


def advise(store: Store, uses: dict[int, int]) -> None:
    store.advise(ints(*uses), np.zeros(len(uses), np.int64), ints(*uses.values()))


def tier_of(store: TieredStore, index: int) -> int | None:
    """The tier that lends version 0 of a sample."""
    before = store.hits
    held(store, index)
    found = [tier for tier, (new, old) in enumerate(zip(store.hits, before, strict=True)) if new > old]
    return found[0] if found else None


class ForgettingMachine(StoreMachine):
    """For stores that hold after closing and opening some of what they held before."""

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        assert len(self.store) == 0
        self.kind.open(self.store)
        self.images = {key: image for key, image in self.images.items() if held(self.store, *key)}
        self.closed += self.leases
        self.leases = []


def of_memory_and_disk(folder: Path) -> TieredStore:
    return TieredStore.of(Tier(MemoryStore(), 2 * SLOT_BYTES), Tier(DiskStore(folder / "store"), 3 * SLOT_BYTES))


MACHINES = {
    "one memory": (StoreMachine, Kind(lambda folder: memories(5), SHAPE)),
    "two memories": (StoreMachine, Kind(lambda folder: memories(2, 3), SHAPE)),
    "three memories": (StoreMachine, Kind(lambda folder: memories(1, 1, 3), SHAPE)),
    "device and memory": (
        StoreMachine,
        Kind(
            lambda folder: TieredStore.of(
                Tier(DeviceStore(device="cpu"), 3 * SLOT_BYTES), Tier(MemoryStore(), 2 * SLOT_BYTES)
            ),
            SHAPE,
        ),
    ),
    "memory and disk": (ForgettingMachine, Kind(of_memory_and_disk, SHAPE)),
}


@pytest.mark.parametrize(("machine", "kind"), MACHINES.values(), ids=MACHINES.keys())
def test_a_tiered_store_agrees_with_a_dict_while_leases_are_held(machine: type[StoreMachine], kind: Kind) -> None:
    agree(machine, kind, examples=25, steps=25)


@pytest.mark.parametrize("kind", [kind for _, kind in MACHINES.values()], ids=MACHINES.keys())
def test_what_is_put_while_a_store_is_closed_and_opened_again_is_not_in_it(kind: Kind, tmp_path: Path) -> None:
    with kind.make(tmp_path) as store:
        kind.open(store)
        assert_overtaken_put_stores_nothing(kind, store)


def test_what_is_asked_for_before_a_store_is_opened_for_something_else_is_not_lent_from_that() -> None:
    class Overtaken(MemoryStore):
        def get(self, indices: np.ndarray, versions: np.ndarray) -> Lease:
            if store.hits == (0,) and not reopened:
                reopened.append(True)
                store.close()
                store.open(StoreSpec(SHAPE, SLOTS, {"name": "other"}))
                put(store, 0)
            return super().get(indices, versions)

    reopened: list[bool] = []
    with TieredStore.of(Tier(Overtaken())) as store:
        opened(store)
        with pytest.raises(StoreError, match="must be open"):
            store.get(ints(0), ints(0))
        assert held(store, 0)
        assert put(store, *range(1, SLOTS)) == [True] * (SLOTS - 1)
        store.clear()
        assert put(store, *range(SLOTS)) == [True] * SLOTS


KernelOp = tuple[dict[int, int], list[int], bool]


@given(
    slots=st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any),
    steps=st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 9), st.integers(-1, 9), max_size=4),
            st.lists(st.integers(0, 9), max_size=2),
            st.booleans(),
        )
    ),
)
def test_advice_moves_samples_and_changes_none(slots: list[int], steps: list[KernelOp]) -> None:
    """Leases taken at some steps are held until two steps later."""
    leases: deque[tuple[list[int], list[NDArray[np.uint8] | None]]] = deque()
    with opened(memories(*slots), sum(slots)) as store:
        for batch, (uses, evicted, is_lent) in enumerate(steps):
            indices = ints(*range(10))
            lease = store.get(indices, indices * 0)
            leases.append((lease, [image(index) if found else None for index, found in enumerate(lease.found)]))
            while leases and (len(leases) > 2 or not is_lent):
                leases.popleft()[0].release()
            store.evict(ints(*evicted))
            advise(store, {index: use if use < 0 else batch + use for index, use in uses.items()})
            newcomers = [index for index, use in uses.items() if use >= 0 and not held(store, index)]
            stored = put(store, *newcomers)
            assert [held(store, index) for index in newcomers] == stored
            assert not any(held(store, index) for index, use in uses.items() if use < 0)
            assert len(store) == sum(held(store, index) for index in range(10))
            for lease, expected in leases:
                for sample, pixels in zip(lease.samples, expected, strict=True):
                    assert (sample is None) == (pixels is None)
                    assert pixels is None or (sample == pixels).all()


def carry_out(
    planner: Planner, store: TieredStore, *, ahead: int, batches_per_group: int, epochs: int
) -> list[tuple[int, int]]:
    """Pass the batch groups of some epochs through a cache client, without graphs; return what was computed."""
    source = Arrays(np.zeros((planner.num_samples, *IMAGE), np.uint8), np.zeros(planner.num_samples))
    reader = Reader(source, max_batch_size=1, num_threads=1)
    cache = CacheClient(reader, store)
    cache.begin(planner, Position(0, 0))
    computed: list[tuple[int, int]] = []
    on_the_way = deque()
    groups = grouped(islice(planned(planner, Position(0, 0)), epochs * len(planner)), batches_per_group)
    for group in [*groups, *[None] * ahead]:
        if group is not None:
            cache_plan = cache.lookup(group)
            made = [pairs(cache_plan.plan)[row] for row in cache_plan.compute.tolist()]
            computed += made
            cache_plan.computed.indices.set_result(cache_plan.plan.indices[cache_plan.compute])
            cache_plan.computed.images.set_result(Images([image_of(*pair) for pair in made]))
            on_the_way.append(cache_plan)
        if on_the_way and (group is None or len(on_the_way) > ahead):
            cache_plan = on_the_way.popleft()
            for pair, sample in zip(pairs(cache_plan.plan), cache_plan.partial_images(), strict=True):
                np.testing.assert_array_equal(sample, image_of(*pair))
            cache.commit(cache_plan)
    reader.close()
    return computed


@settings(max_examples=25)
@given(planner=DISTINCT, slots=st.lists(st.integers(1, 8), min_size=1, max_size=3))
def test_each_tier_lends_as_many_samples_as_the_best_placement_has_there(planner: Planner, slots: list[int]) -> None:
    store = memories(*slots, slot_bytes=12)
    with warnings.catch_warnings(action="ignore"):
        store.open(StoreSpec(IMAGE, max(sum(slots), planner.peak_slots), {}))
    carry_out(planner, store, ahead=0, batches_per_group=1, epochs=4)
    assert list(store.hits) == hits(planner, slots, 4, exact=False)
    store.close()


# The copy that a version has just left, and that is still lent, goes after older ones.
@example(planner=BatchEcho(Frozen(5, batch_size=1), echoing_factor=2.0), share=0.5, ahead=1, batches_per_group=1)
@settings(max_examples=25)
@given(planner=PLANNERS, share=st.floats(0, 1), ahead=st.integers(0, 5), batches_per_group=st.integers(1, 3))
def test_with_room_for_the_plan_and_for_what_is_on_its_way_nothing_is_computed_twice(
    planner: Planner, share: float, ahead: int, batches_per_group: int
) -> None:
    slots, lent = max(1, planner.peak_slots), ahead * batches_per_group * planner.batch_size
    fast = int(share * slots)
    store = memories(fast + lent, slots - fast + lent, slot_bytes=12)
    store.open(StoreSpec(IMAGE, slots + 2 * lent, {}))
    computed = carry_out(planner, store, ahead=ahead, batches_per_group=batches_per_group, epochs=4)
    assert len(set(computed)) == len(computed)
    store.close()


@settings(max_examples=25)
@given(planner=PLANNERS, slots=st.lists(st.integers(1, 3), min_size=1, max_size=3), ahead=st.integers(1, 5))
def test_tiers_too_small_for_what_is_on_its_way_lend_nothing_wrong(
    planner: Planner, slots: list[int], ahead: int
) -> None:
    with memories(*slots, slot_bytes=12) as store:
        store.open(StoreSpec(IMAGE, sum(slots), {}))
        carry_out(planner, store, ahead=ahead, batches_per_group=2, epochs=3)


def test_a_version_goes_where_it_is_used_in_time_and_leaves_a_copy_below() -> None:
    disk = MemoryStore()
    with opened(TieredStore.of(Tier(MemoryStore(), SLOT_BYTES), Tier(disk))) as store:
        advise(store, {0: 5, 1: 9})
        assert put(store, 0, 1) == [True, True]
        assert [tier_of(store, index) for index in (0, 1)] == [0, 1]
        advise(store, {0: 12, 1: 11})
        assert [tier_of(store, index) for index in (0, 1)] == [1, 0]
        assert (len(store), len(disk)) == (2, 2)


def test_two_samples_that_change_places_stay_what_they_are() -> None:
    with opened(memories(1, 1), 2) as store:
        advise(store, {0: 5, 1: 9})
        assert put(store, 0, 1) == [True, True]
        assert [tier_of(store, index) for index in (0, 1)] == [0, 1]
        advise(store, {0: 20, 1: 6})
        assert [tier_of(store, index) for index in (0, 1)] == [1, 0]
        with store.get(ints(0, 1), ints(0, 0)) as lease:
            for index, sample in enumerate(lease.samples):
                assert (sample == image(index)).all()


def test_the_last_of_several_uses_in_one_run_counts() -> None:
    with opened(memories(1, 1), 2) as store:
        advise(store, {0: 5, 1: 9})
        put(store, 0, 1)
        store.advise(ints(0, 1, 0, 1), ints(0, 0, 0, 0), ints(6, 10, 20, 11))
        assert [tier_of(store, index) for index in (0, 1)] == [1, 0]
        store.advise(ints(0, 0), ints(0, 0), ints(12, -1))
        assert not held(store, 0)
        assert held(store, 1)
        store.advise(ints(2, 2), ints(0, 0), ints(3, 19))
        put(store, 2)
        assert [tier_of(store, index) for index in (1, 2)] == [0, 1]


def test_a_newer_version_stays_where_an_older_one_beside_it_goes() -> None:
    with opened(memories(3, 2)) as store:
        for version in (3, 1, 2):
            assert put(store, 0, version=version) == [True]
        assert [held(store, 0, version) for version in (1, 2, 3)] == [False, True, True]


def test_what_no_tier_has_room_for_is_declined_unless_it_is_used_sooner() -> None:
    with opened(memories(1), 1) as store:
        advise(store, {0: 5})
        assert put(store, 0) == [True]
        advise(store, {1: 6})
        assert put(store, 1) == [False]
        advise(store, {2: 4})
        assert put(store, 2) == [True]
        assert not held(store, 0)


def test_advice_without_a_sample_to_follow_is_forgotten() -> None:
    with opened(memories(1), 1) as store:
        advise(store, {0: 1})
        advise(store, {1: 9})
        assert put(store, 1) == [True]


class Gate(MemoryStore):
    """A store in which putting waits while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.open_gate, self.reached = threading.Event(), threading.Event()
        self.open_gate.set()

    def put(self, *arguments) -> NDArray[np.bool_]:  # type: ignore[no-untyped-def]
        self.reached.set()
        assert self.open_gate.wait(10)
        return super().put(*arguments)


def test_nothing_waits_for_a_slow_move_but_who_asks_for_what_moves() -> None:
    fast, slow = Gate(), MemoryStore()
    store = opened(TieredStore.of(Tier(fast, 2 * SLOT_BYTES), Tier(slow, 2 * SLOT_BYTES)), 4)
    advise(store, {0: 5, 1: 6, 2: 7, 3: 8})
    assert all(put(store, 0, 1, 2, 3))
    fast.open_gate.clear()
    fast.reached.clear()
    mover = threading.Thread(target=advise, args=(store, {0: 20, 2: 10}))
    mover.start()
    assert fast.reached.wait(10)
    # Both tiers are full, so 2 has left the slow tier when it is put into the fast one.
    assert [held(store, 1), held(store, 3), held(store, 9)] == [True, True, False]
    found = []
    asker = threading.Thread(target=lambda: found.append(held(store, 2)))
    asker.start()
    asker.join(0.05)
    assert asker.is_alive()
    fast.open_gate.set()
    mover.join(10)
    asker.join(10)
    assert found == [True]
    assert [tier_of(store, index) for index in range(4)] == [1, 0, 0, 1]
    store.close()


def test_what_a_tier_lost_is_stored_again() -> None:
    disk = MemoryStore()
    with opened(TieredStore.of(Tier(disk))) as store:
        put(store, 0)
        disk.clear()
        assert not held(store, 0)
        assert put(store, 0) == [True]
        assert held(store, 0)


def test_samples_that_are_put_together_find_the_room_that_those_before_them_made() -> None:
    with opened(memories(2), 2) as store:
        assert put(store, 0) + put(store, 3, version=1) == [True, True]
        stored = store.put(ints(3, 0), ints(0, 1), [image(3), image(0)])
        assert stored.tolist() == [False, True]


def test_what_is_lost_on_its_way_down_is_not_said_to_be_held() -> None:
    class Declining(MemoryStore):
        def put(self, indices: NDArray[np.int64], *_) -> NDArray[np.bool_]:  # type: ignore[no-untyped-def]
            return np.zeros(len(indices), np.bool_)

    with opened(TieredStore.of(Tier(MemoryStore(), SLOT_BYTES), Tier(Declining(), SLOT_BYTES)), 2) as store:
        advise(store, {0: 5})
        assert put(store, 0) == [True]
        advise(store, {0: 9, 1: 3})
        assert put(store, 1) == [True]
        assert put(store, 0) == [False]


def test_what_one_tier_declines_the_next_one_takes() -> None:
    """The samples fit the slots of the fast arena, but not its bytes."""
    store = TieredStore.of(Tier(MemoryStore(), 256), Tier(MemoryStore()))
    store.open(StoreSpec(None, 4, {}, 512))
    indices = ints(0, 1, 2)
    images = [image(index, (1, 192, 1)) for index in indices]
    store.advise(indices, indices * 0, ints(5, 6, 7))
    assert store.put(indices, indices * 0, images).all()
    assert [tier_of(store, index) for index in indices] == [0, 1, 1]
    store.close()


def test_only_the_tier_that_will_lend_a_sample_prepares_it() -> None:
    told = []

    class Listening(MemoryStore):
        def prefetch(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
            told.append((self is fast, indices.tolist()))

    fast, slow = Listening(), Listening()
    with opened(TieredStore.of(Tier(fast, SLOT_BYTES), Tier(slow))) as store:
        put(store, 0, 1, 2)
        store.prefetch(ints(3, 2, 1, 0), ints(0, 0, 0, 0))
    assert told == [(True, [0]), (False, [2, 1])]


def test_what_the_disk_held_is_there_again_and_moves_again(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(of_memory_and_disk(tmp_path)) as store:
            recovered = [held(store, index) for index in range(5)]
            put(store, *range(5))
            advise(store, {index: 9 - index for index in range(5)})
            tiers = [tier_of(store, index) for index in range(5)]
    assert recovered == [True, True, True, False, False]
    assert tiers == [1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("budgets", "slots", "shares"),
    [
        (["240B", None], 6, [4, 6]),
        (["240B", "120B"], 6, [4, 2]),
        (["1KB", None], 6, [6, 0]),
        (["59B", None], 6, [0, 6]),
        ([120, 60, 600], 6, [2, 1, 6]),
        ([None], 0, [0]),
    ],
)
def test_each_tier_has_the_slots_that_its_budget_pays_for_and_no_more_than_are_needed(
    budgets: list[str | int | None], slots: int, shares: list[int]
) -> None:
    stores = [MemoryStore() for _ in budgets]
    with opened(TieredStore.of(*map(Tier, stores, budgets)), slots) as store:
        assert [each.nbytes for each in stores] == [share * SLOT_BYTES for share in shares]
        assert store.nbytes == sum(shares) * SLOT_BYTES


def test_budgets_that_leave_samples_without_a_slot_warn_once_with_both_numbers() -> None:
    store = memories(1, 2)
    expected = "needs 6 slots, .* budgets pay for 3: .* coverage of 0.50 times the present one"
    with pytest.warns(UserWarning, match=expected):
        opened(store, 6)
    opened(store, 6)
    store.close()


def test_a_share_of_the_disk_counts_what_the_file_has_already(tmp_path: Path) -> None:
    (tier,) = TieredStore(disk="50%", path=tmp_path / "store")._tiers
    before = tier.available()
    (tmp_path / "store").write_bytes(bytes(5 * 10**7))
    assert abs(tier.available() - before) < 3 * 10**7


@pytest.mark.parametrize(("slots", "asked", "advice"), [((4, 9), 4, False), ((4, 9), 5, True), ((4,), 5, True)])
def test_no_advice_is_taken_where_one_tier_has_all_slots(slots: tuple[int, ...], asked: int, advice: bool) -> None:
    store = memories(*slots)
    assert store.takes_advice
    with warnings.catch_warnings(action="ignore"):
        opened(store, asked)
    assert store.takes_advice == advice
    store.close()
    assert store.takes_advice


@pytest.mark.parametrize(
    ("shape", "arena_bytes", "sample_bytes"),
    [((4, 5, 3), 0, 64), ((37, 37, 3), 0, 2 * 4096), (None, 6 * 1000, 4096 + 2 * 4096 / 6)],
)
def test_a_budget_on_disk_pays_for_what_the_file_sets_aside(
    tmp_path: Path, shape: tuple[int, int, int] | None, arena_bytes: int, sample_bytes: float
) -> None:
    for budget, expected in [(5 * sample_bytes - 1, 4), (5 * sample_bytes + 6, 5)]:
        path = tmp_path / f"store_{expected}"
        with TieredStore(disk=int(budget), path=path) as store:
            with pytest.warns(UserWarning, match=f"pay for {expected}"):
                store.open(StoreSpec(shape, 6, {}, arena_bytes))
            if shape is not None:
                assert store.nbytes <= budget
                samples = [image(index, shape) for index in range(6)]
                held = store.put(np.arange(6), np.zeros(6, np.int64), samples).tolist()
                assert held == [True] * expected + [False] * (6 - expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs at least one tier, got none: pass memory='60%', path=... or both"),
        ({"memory": "1GB", "disk": "1GB"}, "a disk tier needs a file, but disk='1GB' came without path: pass path=..."),
    ],
)
def test_tiers_that_cannot_be_are_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TieredStore(**arguments)


def test_a_tier_that_cannot_open_leaves_none_open(tmp_path: Path) -> None:
    fast = MemoryStore()
    store = TieredStore.of(Tier(fast, SLOT_BYTES), Tier(DiskStore(tmp_path / "no" / "folder")))
    with pytest.raises(StoreError):
        opened(store)
    assert fast.nbytes == 0
    with pytest.raises(StoreError, match="must be open to be used, but this one is not: call open first"):
        store.get(ints(0), ints(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


@pytest.mark.parametrize(("name", "split"), [("paper", "rand_augment_2"), ("crop_last", "random_resized_crop")])
def test_tensors_are_the_same_at_every_budget(name: str, split: str, folder: ImageFolder, tmp_path: Path) -> None:
    recipe = RECIPES[name].at(split)
    planners = [refurbish(), Frozen(NUM_SAMPLES, batch_size=5, seed=7)]
    for planner in planners:
        expected, _ = serve(folder, recipe, planner, num_threads=1, replicas=1, look_ahead=1)
        for number, memory in enumerate(["10KB", "40KB", "1GB"]):
            with TieredStore(memory=memory, path=tmp_path / f"{type(planner).__name__} {number}") as store:
                served, stats = serve(folder, recipe, planner, store)
            assert_same(expected, served)
            assert stats.hits > 0


@pytest.mark.filterwarnings("ignore:the store is smaller than the plan needs", "ignore:.*computed again")
def test_a_budget_that_pays_for_no_slot_costs_computing_and_nothing_else() -> None:
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
    planner = Refurbish(16, batch_size=4, reuse_factor=2)
    with Loader(Arrays(images, np.arange(16)), simple(8, raw=True), planner, TieredStore(memory=100)) as loader:
        assert sum(len(labels) for _ in range(3) for _, labels in loader) == 48
        assert loader.stats().stored == 0
