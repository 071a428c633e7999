"""Several stores as one: against a dict, at any budget, under threads, closed meanwhile and broken."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dalirefurb import Arrays, ImageFolder, Loader, Refurbish, simple
from dalirefurb.engine.batch_group import Position, grouped, planned
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.image_batch import Image, Images
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Frozen
from dalirefurb.reading.reader import Reader
from dalirefurb.store import Contents, DiskStore, MemoryStore, Store, StoreSpec, Tier, TieredStore
from dalirefurb.store.base import NO_KEYS, Keys
from dalirefurb.store.compressed import Compressed
from dalirefurb.store.device.store import DeviceStore
from dalirefurb.system.processes import shared_by
from dalirefurb.testing import StoreContract
from dalirefurb.testing.plans import pairs
from dalirefurb.testing.store_machine import SHAPE, SLOTS, held, image, ints
from tests.engine.test_bit_identity import NUM_SAMPLES, RECIPES, assert_same, refurbish, serve
from tests.engine.test_cache_client import image_of
from tests.pictures import write_folder
from tests.planners import FEWER, batch_echoes, example_echoes, frozen, refurbishing, smartcaches
from tests.store.test_store import EXAMPLES, ROUNDS, OurMachine

SLOT_BYTES = 60
IMAGE = image_of(0, 0).shape
PLANNERS = st.one_of(refurbishing(ablations=False), frozen(), batch_echoes(), smartcaches(), example_echoes())


def memories(*slots: int, slot_bytes: int = SLOT_BYTES) -> TieredStore:
    return TieredStore.of(*(Tier(MemoryStore(), count * slot_bytes) for count in slots))


def opened(store: TieredStore, slots: int = SLOTS) -> TieredStore:
    store.open(StoreSpec(SHAPE, slots, {}))
    return store


def put(store: Store, *indices: int, version: int = 0) -> list[bool]:
    versions = np.full(len(indices), version)
    return store.put(ints(*indices), versions, [image(index) for index in indices]).tolist()


def tier_of(store: TieredStore, index: int) -> int | None:
    """The tier that lends version 0 of a sample."""
    before = store.hits
    held(store, index)
    found = [tier for tier, (new, old) in enumerate(zip(store.hits, before, strict=True)) if new > old]
    return found[0] if found else None


def of_memory_and_disk(folder: Path) -> TieredStore:
    return TieredStore.of(Tier(MemoryStore(), 2 * SLOT_BYTES), Tier(DiskStore(folder / "store"), 3 * SLOT_BYTES))


def of_device_and_memory(folder: Path) -> TieredStore:
    return TieredStore.of(Tier(DeviceStore(device="cpu"), 3 * SLOT_BYTES), Tier(MemoryStore(), 2 * SLOT_BYTES))


class TestOneMemory(StoreContract):
    machine = OurMachine
    examples = min(EXAMPLES, 25)
    steps = 25
    rounds = ROUNDS

    def store(self, folder: Path) -> Store:
        return memories(5)

    def test_a_call_that_closing_overtook_does_nothing_to_a_later_opening(self, opened: Store) -> None:
        contents = opened._opened()
        opened.close()
        opened.open(self.spec())
        keys = np.arange(SLOTS), np.zeros(SLOTS, np.int64)
        assert put(opened, *range(SLOTS)) == [True] * SLOTS
        calls: list[Callable[[], object]] = [
            lambda: contents.retain(NO_KEYS),
            lambda: contents.evict(keys[0]),
            lambda: contents.put(keys, [image(9)] * SLOTS),
        ]
        for call in calls:
            with suppress(StoreError):
                call()
        with opened.get(*keys) as lease:
            for index, sample in enumerate(lease.samples):
                np.testing.assert_array_equal(sample, image(index))


class TestTwoMemories(TestOneMemory):
    def store(self, folder: Path) -> Store:
        return memories(2, 3)


class TestThreeMemories(TestOneMemory):
    def store(self, folder: Path) -> Store:
        return memories(1, 1, 3)


class TestDeviceAndMemory(TestOneMemory):
    def store(self, folder: Path) -> Store:
        return of_device_and_memory(folder)


class TestMemoryAndDisk(TestOneMemory):
    keeps = "some"

    def store(self, folder: Path) -> Store:
        return of_memory_and_disk(folder)


def test_a_sample_is_in_the_fastest_tier_that_had_room_and_stays_there() -> None:
    with opened(memories(2, 3)) as store:
        assert put(store, 0, 1, 2) == [True] * 3
        store.evict(ints(0))
        assert put(store, 3, 2, 4) == [True] * 3
        assert [tier_of(store, index) for index in range(5)] == [None, 0, 1, 0, 1]
        assert len(store) == 4


def test_what_is_lent_stays_as_it_is_in_every_tier_until_it_is_released() -> None:
    with opened(memories(2, 3)) as store:
        assert put(store, *range(5)) == [True] * 5
        lease = store.get(ints(0, 4), ints(0, 0))
        store.evict(np.arange(5))
        assert put(store, 5, 6, 7, 8, 9) == [True] * 3 + [False] * 2
        for sample, index in zip(lease.samples, (0, 4), strict=True):
            np.testing.assert_array_equal(sample, image(index))
        lease.release()
        assert put(store, 8, 9) == [True] * 2


def test_a_newer_version_takes_the_place_of_older_ones_in_all_tiers() -> None:
    with opened(memories(1, 1, 3)) as store:
        for version in (3, 2, 1):
            assert put(store, 0, version=version) == [True]
        assert len(store) == 3
        assert put(store, 0, version=4) == [True]
        assert [held(store, 0, version) for version in range(1, 5)] == [False, False, False, True]
        assert store.hits == (1, 0, 0)


def test_of_what_two_tiers_kept_of_one_sample_one_is_forgotten(tmp_path: Path) -> None:
    for name in ("fast", "slow"):
        with DiskStore(tmp_path / name) as disk:
            disk.open(StoreSpec(SHAPE, 3, {}))
            put(disk, 0)
    with opened(TieredStore.of(*(Tier(DiskStore(tmp_path / name), 3 * 64) for name in ("fast", "slow"))), 6) as store:
        assert len(store) == 1
        assert tier_of(store, 0) == 0


def test_what_the_disk_held_is_there_again_and_the_rest_is_put_into_memory(tmp_path: Path) -> None:
    for recovered in (0, 3):
        with opened(of_memory_and_disk(tmp_path)) as store:
            assert len(store) == recovered
            put(store, *range(5))
            assert [tier_of(store, index) for index in range(5)] == [0, 0, 1, 1, 1]


class Gate(MemoryStore):
    """A store in which putting waits while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.open_gate, self.reached = threading.Event(), threading.Event()
        self.open_gate.set()

    def _open(self, spec: StoreSpec) -> Contents:
        contents = super()._open(spec)
        put = contents.put

        def wait_and_put(keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
            self.reached.set()
            assert self.open_gate.wait(600)
            return put(keys, samples)

        contents.put = wait_and_put  # type: ignore[method-assign]
        return contents


def test_who_asks_does_not_wait_for_a_slow_tier_to_be_filled() -> None:
    slow = Gate()
    store = opened(TieredStore.of(Tier(MemoryStore(), 2 * SLOT_BYTES), Tier(slow)))
    assert put(store, 0, 1, 2) == [True] * 3
    slow.open_gate.clear()
    slow.reached.clear()
    filler = threading.Thread(target=put, args=(store, 3, 4))
    filler.start()
    assert slow.reached.wait(600)
    assert [held(store, index) for index in range(5)] == [True, True, True, False, False]
    slow.open_gate.set()
    filler.join(600)
    assert [tier_of(store, index) for index in range(5)] == [0, 0, 1, 1, 1]
    store.close()


def test_two_who_put_the_same_sample_put_it_once() -> None:
    slow = Gate()
    store = opened(TieredStore.of(Tier(MemoryStore(), SLOT_BYTES), Tier(slow)))
    put(store, 0)
    slow.open_gate.clear()
    slow.reached.clear()
    threads = [threading.Thread(target=put, args=(store, 1)) for _ in range(2)]
    threads[0].start()
    assert slow.reached.wait(600)
    store._opened()._layers[0].evict(ints(0))  # type: ignore[attr-defined]
    threads[1].start()
    threads[1].join(0.05)
    slow.open_gate.set()
    for thread in threads:
        thread.join(600)
    assert (len(store), tier_of(store, 1)) == (1, 1)
    store.close()


def carry_out(
    planner: Planner, store: TieredStore, *, ahead: int, batches_per_group: int, epochs: int
) -> list[tuple[int, int]]:
    """Pass the batch groups of some epochs through a cache client, without graphs; return what was computed."""
    source = Arrays(np.zeros((planner.num_samples, *IMAGE), np.uint8), np.zeros(planner.num_samples))
    reader = Reader(source, max_batch_size=1, num_threads=1)
    cache = CacheClient(reader, store)
    computed: list[tuple[int, int]] = []
    on_the_way = deque()
    groups = grouped(islice(planned(planner, Position(0, 0)), epochs * len(planner)), batches_per_group)
    for group in [*groups, *[None] * ahead]:
        if group is not None:
            cache_plan = cache.lookup(group)
            made = [pairs(cache_plan.plan)[row] for row in cache_plan.compute.tolist()]
            computed += made
            cache_plan.computed.shown.set_result(cache_plan.plan.indices[cache_plan.compute])
            cache_plan.computed.images.set_result(Images([image_of(*pair) for pair in made]))
            on_the_way.append(cache_plan)
        if on_the_way and (group is None or len(on_the_way) > ahead):
            cache_plan = on_the_way.popleft()
            for pair, sample in zip(pairs(cache_plan.plan), cache_plan.partial_images(), strict=True):
                np.testing.assert_array_equal(sample, image_of(*pair))
            cache.commit(cache_plan)
    reader.close()
    return computed


@FEWER
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


@FEWER
@given(planner=PLANNERS, slots=st.lists(st.integers(1, 3), min_size=1, max_size=3), ahead=st.integers(1, 5))
def test_tiers_too_small_for_what_is_on_its_way_lend_nothing_wrong(
    planner: Planner, slots: list[int], ahead: int
) -> None:
    with memories(*slots, slot_bytes=12) as store:
        store.open(StoreSpec(IMAGE, sum(slots), {}))
        carry_out(planner, store, ahead=ahead, batches_per_group=2, epochs=3)


def test_a_newer_version_stays_where_an_older_one_beside_it_goes() -> None:
    with opened(memories(3, 2)) as store:
        for version in (3, 1, 2):
            assert put(store, 0, version=version) == [True]
        assert [held(store, 0, version) for version in (1, 2, 3)] == [False, True, True]


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


def test_what_one_tier_declines_the_next_one_takes() -> None:
    """The samples fit the slots of the fast arena, but not its bytes."""
    store = TieredStore.of(Tier(MemoryStore(), 256), Tier(MemoryStore()))
    store.open(StoreSpec(None, 4, {}, 512))
    indices = ints(0, 1, 2)
    images = [image(index, (1, 192, 1)) for index in indices]
    assert store.put(indices, indices * 0, images).all()
    assert [tier_of(store, index) for index in indices] == [0, 1, 1]
    store.close()


def test_where_sizes_vary_a_tier_without_a_budget_has_all_slots() -> None:
    """Large samples may have left the fast tier without bytes, and with slots."""
    stores = MemoryStore(), MemoryStore()
    store = TieredStore.of(Tier(stores[0], 512), Tier(stores[1]))
    store.open(StoreSpec(None, 4, {}, 1024))
    assert [each.nbytes for each in stores] == [512, 1024]
    indices = ints(0, 1, 2, 3)
    assert store.put(indices, indices * 0, [image(index, (1, 320, 1)) for index in (0, 1, 2, 3)]).all()
    store.close()


def test_tiers_can_hold_compressed_samples() -> None:
    pytest.importorskip("zstandard")
    store = Compressed(TieredStore.of(Tier(MemoryStore(), 600), Tier(MemoryStore())))
    store.open(StoreSpec(SHAPE, SLOTS, {}))
    assert put(store, *range(SLOTS)) == [True] * SLOTS
    with store.get(np.arange(SLOTS), np.zeros(SLOTS, np.int64)) as lease:
        for index, sample in enumerate(lease.samples):
            np.testing.assert_array_equal(sample, image(index))
    store.close()


@pytest.mark.parametrize(
    ("budgets", "slots", "shares"),
    [
        (["240B", None], 6, [4, 2]),
        (["240B", "120B"], 6, [4, 2]),
        (["1KB", None], 6, [6, 0]),
        (["59B", None], 6, [0, 6]),
        ([120, 60, 600], 6, [2, 1, 3]),
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


def test_tiers_that_are_open_take_nothing_more_whatever_their_budgets_would_pay_for_now() -> None:
    free = [6 * SLOT_BYTES]
    store = TieredStore.of(Tier(MemoryStore(), "100%", available=lambda: free[0]), Tier(MemoryStore()))
    spec = StoreSpec(SHAPE, 6, {})
    taken = store.takes(spec)
    assert taken.host == MemoryStore().takes(spec).host > 0
    store.open(spec)
    free[0] = 0
    assert store.takes(spec) == (0, 0)
    store.close()
    assert store.takes(spec) == taken


def test_budgets_that_leave_samples_without_a_slot_warn_once_with_both_numbers() -> None:
    store = memories(1, 2)
    expected = "needs 6 slots, .* budgets pay for 3: .* coverage of 0.50 times the present one"
    with pytest.warns(UserWarning, match=expected) as told:
        opened(store, 6)
    assert [each.filename for each in told] == [__file__]
    opened(store, 6)
    store.close()


@pytest.mark.parametrize(("shape", "arena_bytes"), [(SHAPE, 0), (None, 6000)])
def test_no_file_is_made_where_memory_has_all_slots(tmp_path: Path, shape: Any, arena_bytes: int) -> None:
    path = tmp_path / "store"
    with TieredStore(memory="1MB", path=path) as store:
        store.open(StoreSpec(shape, 6, {}, arena_bytes))
        assert not path.exists()
    with TieredStore(memory=200, path=path) as store:
        store.open(StoreSpec(shape, 6, {}, arena_bytes))
        assert path.exists()


def test_a_share_of_the_disk_counts_what_the_file_has_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk on which nobody else writes meanwhile."""
    free = SimpleNamespace(disk_usage=lambda folder: SimpleNamespace(free=10_000))
    monkeypatch.setattr("dalirefurb.system.resources.shutil", free)
    (tier,) = TieredStore(disk="50%", path=tmp_path / "store")._tiers
    assert tier.available() == 10_000
    (tmp_path / "store").write_bytes(bytes(500))
    assert tier.available() == 10_500
    with shared_by(4):  # Each has a file of its own; of what is free, an equal part.
        assert tier.available() == 10_000 // 4 + 500


def test_a_share_of_a_device_is_of_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dalirefurb.store.tiered.DeviceStore", lambda: DeviceStore(device="cpu"))
    store = TieredStore(device="50%", memory=SLOT_BYTES)
    device, memory = (tier.store for tier in store._tiers)
    free = {False: 8 * SLOT_BYTES, True: 100 * SLOT_BYTES}
    monkeypatch.setattr(device.memory, "available_bytes", lambda *, pinned: free[pinned])  # type: ignore[attr-defined]
    with opened(store, 5):
        assert (device.nbytes, memory.nbytes) == (4 * SLOT_BYTES, SLOT_BYTES)
        assert put(store, *range(5)) == [True] * 5
        assert [tier_of(store, index) for index in range(5)] == [0, 0, 0, 0, 1]


def test_the_users_home_folder_can_begin_the_path_of_whose_disk_a_share_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    with opened(TieredStore(disk="50%", path="~/store")) as store:
        assert put(store, 0) == [True]
    assert DiskStore.inspect(tmp_path / "store").held == 1


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
        ({"memory": "much"}, "a budget must be bytes as an int .* or text such as '16GB', .* got 'much'"),
        ({"path": 5}, "path must be the path of a file, got 5: pass one to be made"),
        ({"path": 5, "disk": "1GB"}, "path must be the path of a file, got 5"),
    ],
)
def test_tiers_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TieredStore(**arguments)


def test_what_is_no_tier_and_a_tier_of_no_store_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"tiers must be of Tier, got MemoryStore\(not open\): pass such as T"):
        TieredStore.of(Tier(MemoryStore()), MemoryStore())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="store must be a store, got '/local/cache': pass such as MemoryStore"):
        Tier("/local/cache")  # type: ignore[arg-type]


def test_a_tier_that_cannot_open_leaves_none_open(tmp_path: Path) -> None:
    fast, slower = MemoryStore(), DiskStore(tmp_path / "store")
    store = TieredStore.of(
        Tier(fast, SLOT_BYTES), Tier(slower, SLOT_BYTES), Tier(DiskStore(tmp_path / "no" / "folder"))
    )
    with pytest.raises(StoreError):
        opened(store)
    assert fast.nbytes == slower.nbytes == 0
    with pytest.raises(StoreError, match="must be open to be used, but this one is not: call open first"):
        store.get(ints(0), ints(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


@pytest.mark.parametrize(
    ("name", "split"),
    [("paper", "rand_augment_2"), pytest.param("crop_last", "random_resized_crop", marks=pytest.mark.weekly)],
)
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
