"""Stores beside a dictionary, under threads, when full, and when refused. A new store joins with a class of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import rule

from dalirefurb.errors import ConfigurationError, OutOfMemoryError, StoreError
from dalirefurb.store import DiskStore, MemoryStore, Store, StoreSpec
from dalirefurb.store.compressed import Compressed
from dalirefurb.store.disk import slot_file
from dalirefurb.store.memory import ALIGNMENT, Allocator
from dalirefurb.system.resources import available_bytes
from dalirefurb.testing import StoreContract, StoreMachine
from dalirefurb.testing.store_machine import SHAPE, SLOTS, held, image, ints, listed
from tests.in_turn import EACH_CHANGE

EXAMPLES, ROUNDS = (8, 50) if EACH_CHANGE else (60, 600)
"""Runs of a state machine, and calls that each of four threads makes: the first that differ are found in a few."""


class OurMachine(StoreMachine):
    """Knows when our stores lend room."""

    lends = False

    @rule(count=st.integers(0, SLOTS))
    def make_some_in_its_room(self, count: int) -> None:
        rooms, used = len(self.rooms), sum(len(pixels) for _, pixels in self.rooms)
        super().make_some_in_its_room(count)
        assert (len(self.rooms) > rooms) == (self.lends and 0 < count <= SLOTS - used)


class LendingMachine(OurMachine):
    lends = True


class OurStore(StoreContract):
    """What the contract comes to in examples, and what `Store` sees to for every kind."""

    machine = OurMachine
    examples = EXAMPLES
    rounds = ROUNDS

    def test_a_full_store_declines_and_keeps_what_it_holds(self, opened: Store) -> None:
        indices = np.arange(SLOTS + 1)
        stored = opened.put(indices, indices * 0, [image(index) for index in indices])
        assert stored.tolist() == [True] * SLOTS + [False]
        assert len(opened) == SLOTS
        assert [held(opened, index) for index in indices] == stored.tolist()

    def test_a_newer_version_takes_the_slot_of_the_older_one(self, opened: Store) -> None:
        indices = np.arange(SLOTS)
        images = [image(index) for index in indices]
        assert opened.put(indices, indices * 0, images).all()
        assert opened.put(indices, indices * 0 + 1, images).all()
        assert not held(opened, 0, version=0)

    def test_samples_that_are_put_together_find_the_room_that_those_before_them_made(self, opened: Store) -> None:
        indices = np.arange(SLOTS)
        assert opened.put(indices, indices * 0, [image(index) for index in indices]).all()
        stored = opened.put(ints(8, 0, 9), ints(0, 1, 0), [image(8), image(0), image(9)])
        assert stored.tolist() == [False, True, False]

    def test_an_older_version_is_held_beside_a_newer_one_until_the_index_is_evicted(self, opened: Store) -> None:
        opened.put(ints(0, 0), ints(3, 2), [image(3), image(2)])
        assert held(opened, 0, version=3)
        assert held(opened, 0, version=2)
        opened.evict(ints(0))
        assert len(opened) == 0

    def test_what_is_named_twice_counts_once_and_negative_indices_are_as_good_as_others(self, opened: Store) -> None:
        images = [image(version) for version in range(4)]
        assert opened.put(ints(0, 0, 0, -1), ints(3, 2, 1, 0), images).all()
        assert listed(opened, ints(0, -1, 0)) == [(-1, 0), (0, 1), (0, 2), (0, 3)]
        opened.evict(ints(0, 0), ints(2, 2))
        assert [held(opened, 0, version) for version in (1, 2, 3)] == [True, False, True]
        assert (len(opened), held(opened, -1)) == (3, True)
        others = np.arange(4, 4 + SLOTS)
        stored = opened.put(others, others, [image(other) for other in others])
        assert stored.tolist() == [True] * 2 + [False] * (SLOTS - 2)

    def test_an_evicted_slot_is_reused_only_after_its_last_lease(self, opened: Store) -> None:
        indices = np.arange(SLOTS)
        opened.put(indices, indices * 0, [image(index) for index in indices])
        first, second = opened.get(ints(0), ints(0)), opened.get(ints(0, 0), ints(0, 0))
        opened.evict(ints(0))
        assert not held(opened, 0)
        assert not opened.put(ints(9), ints(0), [image(9)])[0]
        first.release()
        assert not opened.put(ints(9), ints(0), [image(9)])[0]
        second.release()
        assert opened.put(ints(9), ints(0), [image(9)])[0]

    def test_a_lease_released_twice_gives_its_slot_back_once(self, opened: Store) -> None:
        opened.put(ints(0), ints(0), [image(0)])
        first, second = opened.get(ints(0), ints(0)), opened.get(ints(0), ints(0))
        first.release()
        first.release()
        opened.evict(ints(0))
        opened.put(np.arange(1, SLOTS + 1), np.zeros(SLOTS, np.int64), [image(1)] * SLOTS)
        np.testing.assert_array_equal(second.samples[0], image(0))

    def test_it_holds_nothing_of_samples_that_cannot_be_had(self, opened: Store) -> None:
        with pytest.raises(OSError, match="it cannot be read"):
            opened.put(ints(0, 1), ints(0, 0), Unreadable([image(0), image(1)]))
        assert not opened.get(ints(0, 1), ints(0, 0)).found.any()
        assert len(opened) == 0

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"fingerprint": {"name": "second"}}, "open for fingerprint.name 'first', not 'second': close it first"),
            ({"slots": 6}, "open for slots 5, not 6: close it first"),
            ({"slot_shape": (1, 1, 3), "arena_bytes": 0}, r"slot_shape .*, not \(1, 1, 3\).*: close it first"),
        ],
    )
    def test_an_open_store_refuses_other_arguments_by_name(
        self, opened: Store, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(StoreError, match=message):
            opened.open(self.spec(**changes))
        opened.close()
        if self.keeps == "nothing":
            opened.open(self.spec(**changes))

    def test_a_closed_store_holds_nothing_and_refuses_work(self, opened: Store) -> None:
        opened.put(ints(0), ints(0), [image(0)])
        opened.close()
        assert (len(opened), opened.nbytes) == (0, 0)
        with pytest.raises(StoreError, match="must be open to be used, but this one is not: call open first"):
            opened.get(ints(0), ints(0))

    @pytest.mark.parametrize(
        ("samples", "message"),
        [
            ([], "one sample per index, but got 0 for 1 indices"),
            ([np.zeros(SHAPE, np.float32)], "HWC uint8 images, but number 0 is float32"),
            ([np.zeros((4, 5), np.uint8)], r"HWC uint8 images, but number 0 is uint8 of shape \(4, 5\)"),
            ([np.zeros((0, 5, 3), np.uint8)], r"non-empty .* shape \(0, 5, 3\)"),
        ],
    )
    def test_put_refuses_samples_that_are_no_images(
        self, opened: Store, samples: list[np.ndarray], message: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=message):
            opened.put(ints(0), ints(0), samples)

    @pytest.mark.parametrize(
        ("indices", "versions", "message"),
        [
            (ints(0, 1), ints(0), r"shapes \(2,\) and \(1,\): pass one version per index"),
            (np.zeros(1), ints(0), "float64 and int64: convert"),
            (ints(0), np.zeros(1), "int64 and float64: convert"),
        ],
    )
    def test_it_refuses_keys_that_do_not_pair(
        self, opened: Store, indices: np.ndarray, versions: np.ndarray, message: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=message):
            opened.get(indices, versions)


class Unreadable(list[np.ndarray]):
    """Samples of which the second cannot be copied, but be looked at."""

    def __getitem__(self, row: Any) -> Any:
        if row == 1:
            raise OSError("it cannot be read")
        return super().__getitem__(row)


class TestMemory(OurStore):
    machine = LendingMachine

    def store(self, folder: Path) -> Store:
        return MemoryStore()


class TestMemoryOfVaryingSizes(OurStore):
    slot_shape = None

    def store(self, folder: Path) -> Store:
        return MemoryStore()


class TestDisk(OurStore):
    keeps = "all"

    def store(self, folder: Path) -> Store:
        return DiskStore(folder / "store")


class TestDiskOfVaryingSizes(TestDisk):
    slot_shape = None


class CopyingDiskStore(DiskStore):
    """As where memory has no room for the file: nothing is lent where it lies."""

    def open(self, spec: StoreSpec) -> None:
        with patch.object(slot_file, "available_bytes", lambda: 0):
            super().open(spec)


class TestDiskCopied(TestDisk):
    def store(self, folder: Path) -> Store:
        return CopyingDiskStore(folder / "store")


class TestDiskCopiedOfVaryingSizes(TestDiskCopied):
    slot_shape = None


class TestCompressedMemory(OurStore):
    test_it_holds_nothing_of_samples_that_cannot_be_had = None  # which it looks at to compress them

    def store(self, folder: Path) -> Store:
        return Compressed(MemoryStore(), expected_ratio=1)


class TestCompressedDiskOfVaryingSizes(TestCompressedMemory):
    slot_shape = None
    keeps = "all"

    def store(self, folder: Path) -> Store:
        return Compressed(DiskStore(folder / "store"), expected_ratio=1)


def test_a_memory_store_copies_nothing_to_lend_it() -> None:
    store = MemoryStore()
    store.open(StoreSpec(SHAPE, 1, {}))
    store.put(ints(0), ints(0), [image(0)])
    with store.get(ints(0, 0), ints(0, 0)) as lease:
        assert np.shares_memory(lease.samples[0], lease.samples[1])


def test_a_memory_store_does_not_copy_what_was_made_in_its_room() -> None:
    store = MemoryStore()
    store.open(StoreSpec(SHAPE, 3, {}))
    room = store.reserve(2)
    assert room is not None
    for row, made in enumerate(room):
        made[:] = row
    assert store.put(ints(7, 8), ints(0, 0), room).all()
    with store.get(ints(8, 7), ints(0, 0)) as lease:
        assert lease.images.places.addresses.tolist() == room.places.addresses[::-1].tolist()


def test_what_was_made_once_in_a_memory_stores_room_can_be_put_twice() -> None:
    store = MemoryStore()
    store.open(StoreSpec(SHAPE, 3, {}))
    room = store.reserve(1)
    assert room is not None
    room[0][:] = image(7)
    assert store.put(ints(7, 8), ints(0, 0), room.chosen(ints(0, 0))).all()
    del room
    store.evict(ints(7))
    assert store.put(ints(9, 10), ints(0, 0), [image(9), image(10)]).all()
    with store.get(ints(8, 9), ints(0, 0)) as lease:
        for sample, made in zip(lease.samples, (7, 9), strict=True):
            np.testing.assert_array_equal(sample, image(made))


def test_a_memory_store_takes_its_room_back_when_nobody_has_what_was_made_there() -> None:
    store = MemoryStore()
    store.open(StoreSpec(SHAPE, 2, {}))
    for index in range(9):
        room = store.reserve(2)
        assert room is not None
        assert store.reserve(1) is None
        chosen = room.chosen(ints(1))
        store.put(ints(index % 3), ints(index), chosen)
        store.evict(ints(index % 3))
        del room
        assert store.reserve(1) is None
        view = chosen[0][1:, ::2]
        del chosen
        assert store.reserve(1) is None
        del view


def test_a_memory_store_lends_room_anew_once_what_was_made_there_is_stored() -> None:
    store = MemoryStore()
    store.open(StoreSpec(SHAPE, 2, {}))
    for version in range(4):
        room = store.reserve(2)
        assert room is not None
        assert store.put(ints(0, 1), ints(version, version), room).all()
        del room


def test_room_for_fewer_than_no_images_is_refused_and_costs_no_slot() -> None:
    store = MemoryStore()
    store.open(StoreSpec(SHAPE, 2, {}))
    assert store.put(ints(0), ints(0), [image(0)])[0]
    with pytest.raises(ConfigurationError, match="count must be an int of at least 0, got -1: pass the number"):
        store.reserve(-1)
    assert store.put(ints(1), ints(0), [image(1)])[0]
    with store.get(ints(0, 1), ints(0, 0)) as lease:
        for index, sample in enumerate(lease.samples):
            np.testing.assert_array_equal(sample, image(index))


CALLS: dict[str, Any] = {
    "get": lambda store, *keys: store.get(*keys),
    "prefetch": lambda store, *keys: store.prefetch(*keys),
    "put": lambda store, *keys: store.put(*keys, [image(0)]),
    "evict": lambda store, *keys: store.evict(*keys),
    "retain": lambda store, *keys: store.retain(*keys),
}
"""What is asked of a store by the keys of samples."""


@pytest.mark.parametrize("call", CALLS)
def test_keys_are_signed_integers_as_many_indices_as_versions(call: str) -> None:
    whole = np.array([1])
    with MemoryStore() as store:
        store.open(StoreSpec(SHAPE, SLOTS, {}))
        store.put(whole, whole, [image(1)])
        for odd in (np.array([1.5]), np.array([1], np.uint64), np.array([True]), np.array(["1"])):
            for keys in ((odd, whole), (whole, odd)):
                with pytest.raises(ConfigurationError, match=r"must be signed integers, but are .*: convert them"):
                    CALLS[call](store, *keys)
        for other in (np.array([1, 2]), np.array([[1]]), np.array(1)):
            for keys in ((other, whole), (whole, other)):
                with pytest.raises(ConfigurationError, match="one-dimensional and equally long, but have shapes"):
                    CALLS[call](store, *keys)
        for alone in (store.held, store.evict):
            with pytest.raises(ConfigurationError, match="must be signed integers"):
                alone(np.array([1.5]))
        assert [each.tolist() for each in store.held()] == [[1], [1]]


def test_lists_of_no_keys_hold_nothing_whatever_numbers_they_would_have() -> None:
    """NumPy makes floats of an empty list."""
    with MemoryStore() as store:
        store.open(StoreSpec(SHAPE, 2, {}))
        assert not len(store.put(np.array([]), np.array([]), []))
        assert store.get(np.array([]), np.array([])).found.shape == (0,)


def test_put_stores_nothing_when_one_sample_does_not_fit_the_slots() -> None:
    with MemoryStore() as store:
        store.open(StoreSpec(SHAPE, 2, {}))
        with pytest.raises(ConfigurationError, match=r"shape \(4, 5, 3\), but number 1 has \(5, 4, 3\): .*=None"):
            store.put(ints(0, 1), ints(0, 0), [image(0), image(0, (5, 4, 3))])
        assert len(store) == 0


@pytest.mark.parametrize(
    ("slot_shape", "slots", "arena_bytes", "message"),
    [
        ((4, 0, 3), 1, 0, r"each at least 1, got \(4, 0, 3\)"),
        (SHAPE, -1, 0, "slots must be at least 0, got -1"),
        (None, 1, 0, "arena_bytes must be positive if slot_shape is None, otherwise 0, but is 0"),
        (SHAPE, 1, 64, "arena_bytes must be positive if slot_shape is None, otherwise 0, but is 64"),
    ],
)
def test_open_refuses_arguments_that_make_no_slots(
    slot_shape: tuple[int, int, int] | None, slots: int, arena_bytes: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        MemoryStore().open(StoreSpec(slot_shape, slots, {}, arena_bytes))


def test_a_memory_store_with_less_than_it_needs_says_so_once_with_both_numbers_and_is_smaller() -> None:
    store = MemoryStore(max_bytes="50MB")
    expected = "1000 slots need 150.53 MB and 50.00 MB are allowed by max_bytes.*use smaller images, .*smaller coverage"
    with pytest.warns(UserWarning, match=expected) as warned:
        store.open(StoreSpec((224, 224, 3), 1000, {}))
    assert len(warned) == 1
    assert repr(store) == "MemoryStore(0 of 1,000 samples, 49.98 MB)"
    store.open(StoreSpec((224, 224, 3), 1000, {}))
    assert store.nbytes == 332 * 224 * 224 * 3 <= 50 * 10**6 < 333 * 224 * 224 * 3
    store.close()
    store.open(StoreSpec((224, 224, 3), 332, {}))
    assert store.nbytes == 332 * 224 * 224 * 3
    exact = MemoryStore(max_bytes=store.nbytes)
    exact.open(StoreSpec((224, 224, 3), 332, {}))
    assert exact.nbytes == store.nbytes


def test_a_memory_store_refuses_more_than_is_available() -> None:
    expected = r"need 1505280\.00 TB and \d+\.\d\d [GM]B are available: use smaller images, .*; or pass max_bytes"
    with pytest.raises(OutOfMemoryError, match=expected):
        MemoryStore().open(StoreSpec((224, 224, 3), 10**13, {}))


def test_a_memory_store_that_the_system_does_not_give_its_memory_says_how_much_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(nbytes: int) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr("dalirefurb.store.memory.aligned_empty", fail)
    with pytest.raises(OutOfMemoryError, match=r"must fit in memory, but 4\.10 KB cannot be allocated: use smaller"):
        MemoryStore().open(StoreSpec(None, 2, {}, 4096))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_the_store_to_its_parent_whoever_used_it_then() -> None:
    with MemoryStore() as store:
        store.open(StoreSpec(SHAPE, 1, {}))
        with store._lock:
            if not (child := os.fork()):
                signal.alarm(20)
                store.__exit__()
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_the_room_of_all_whose_images_are_gone_is_free_at_once() -> None:
    with MemoryStore() as store:
        store.open(StoreSpec(SHAPE, SLOTS, {}))
        rooms = [store.reserve(1) for _ in range(SLOTS)]
        assert None not in rooms
        assert store.reserve(1) is None
        del rooms
        assert store.reserve(SLOTS) is not None


def test_untouched_slots_take_no_memory() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident_bytes()
    with MemoryStore() as store:
        store.open(StoreSpec((224, 224, 3), 1000, {}))
        assert resident_bytes() - before < 15 * 10**6


def grow(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n"}
GROUP_V2 = {
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/step/memory.max": "max\n",
    "sys/fs/cgroup/job/step/memory.current": "100\n",
    "sys/fs/cgroup/job/memory.max": "3000000\n",
    "sys/fs/cgroup/job/memory.current": "1500000\n",
    "sys/fs/cgroup/job/memory.stat": "anon 400000\nactive_file 200000\ninactive_file 300000\n",
}
GROUP_V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/abc\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "1500000\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300000\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (MACHINE, 5000 * 1024),
        ({**MACHINE, **GROUP_V2}, 3000000 - 1500000 + 200000 + 300000),
        ({**MACHINE, **GROUP_V1}, 2000000 - 1500000 + 300000),
        (
            {**MACHINE, **GROUP_V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"},
            5120000,
        ),
        ({**MACHINE, **GROUP_V1, "sys/fs/cgroup/memory/memory.usage_in_bytes": "2900000"}, 0),
        ({**MACHINE, **GROUP_V1, "sys/fs/cgroup/memory/memory.usage_in_bytes": "200000"}, 2000000),
        ({**MACHINE, **GROUP_V1, "sys/fs/cgroup/memory/memory.usage_in_bytes": ""}, 5120000),
    ],
    ids=[
        *("no accounts", "machine", "group v2", "group v1", "without limit", "overdrawn", "with cache of others, too"),
        "of unknown use",
    ],
)
def test_the_memory_at_hand_is_the_least_that_machine_and_groups_leave(
    tmp_path: Path, files: dict[str, str], expected: int | None
) -> None:
    assert available_bytes(grow(tmp_path, files)) == expected


def test_an_arena_store_that_was_filled_and_evicted_holds_one_sample_of_its_whole_size() -> None:
    with MemoryStore() as store:
        store.open(StoreSpec(None, 100, {}, 4096))
        small = [image(index, (index % 5 + 1, 9, 3)) for index in range(40)]
        stored = store.put(np.arange(40), np.zeros(40, np.int64), small)
        assert 0 < stored.sum() < 40
        store.evict(np.random.default_rng(0).permutation(40))
        whole = image(0, (64, 64, 1))
        assert store.put(ints(0), ints(0), [whole])[0]
        with store.get(ints(0), ints(0)) as lease:
            np.testing.assert_array_equal(lease.samples[0], whole)


def test_an_arena_store_declines_what_does_not_fit_and_stays_usable() -> None:
    with MemoryStore() as store:
        store.open(StoreSpec(None, 2, {}, 256))
        assert store.put(ints(0, 1), ints(0, 0), [image(0, (9, 32, 1)), image(1, (8, 32, 1))]).tolist() == [
            False,
            True,
        ]
        assert len(store) == 1


def test_an_arena_store_that_may_take_nothing_holds_nothing() -> None:
    with MemoryStore(max_bytes=0) as store:
        with pytest.warns(UserWarning, match="2 slots need 256 B and 0 B are allowed by max_bytes"):
            store.open(StoreSpec(None, 2, {}, 256))
        assert not store.put(ints(0), ints(0), [image(0, (1, 2, 1))])[0]


@given(st.lists(st.one_of(st.integers(1, 700), st.floats(0, 0.999)), max_size=60))
def test_blocks_of_an_arena_never_overlap_and_joined_again_make_the_whole(
    steps: list[int | float],
) -> None:
    arena = Allocator(4096)
    blocks: dict[int, int] = {}
    for step in steps:
        if isinstance(step, int):
            start = arena.allocate(step)
            if start is None:
                continue
            assert start % ALIGNMENT == 0
            assert 0 <= start <= 4096 - step
            assert all(start + step <= other or other + size <= start for other, size in blocks.items())
            blocks[start] = step
        elif blocks:
            start = list(blocks)[int(step * len(blocks))]
            del blocks[start]
            arena.free(start)
    for start in blocks:
        arena.free(start)
    assert arena.allocate(4096) == 0


def test_an_arena_takes_the_smallest_block_that_fits() -> None:
    arena = Allocator(1024)
    starts = [arena.allocate(size) for size in (256, 64, 128, 64, 512)]
    arena.free(starts[0])
    arena.free(starts[2])
    assert arena.allocate(100) == starts[2]
    assert arena.allocate(200) == starts[0]
