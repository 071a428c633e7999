"""Stores against a dict, under threads, when full, and when refused. New stores join through `KINDS`."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dalirefurb.errors import ConfigurationError, OutOfMemoryError, StoreError
from dalirefurb.image_batch import Images
from dalirefurb.store import DiskStore, MemoryStore, Store, StoreSpec
from dalirefurb.store.allocator import ALIGNMENT, Allocator
from dalirefurb.store.available import available_bytes
from dalirefurb.store.compressed import Compressed
from dalirefurb.store.disk import slot_file
from tests.in_turn import EACH_CHANGE

SLOTS = 5
INDICES = 0, 1, 2, 3, 1 << 40, -1
SHAPE = (4, 5, 3)
ARENA_BYTES = 1024
EXAMPLES, ROUNDS = (8, 50) if EACH_CHANGE else (60, 600)
"""Runs of a state machine, and calls that each of four threads makes: the first that differ are found in a few."""


@dataclass(frozen=True)
class Kind:
    """A store to test, made in an empty folder, and the arguments it is opened with.

    One that `lasts` holds after closing and opening what it held before; one that `gives_room` lets samples be made in
    its memory.
    """

    make: Callable[[Path], Store]
    slot_shape: tuple[int, int, int] | None
    arena_bytes: int = 0
    lasts: bool = False
    gives_room: bool = False

    def open(self, store: Store, **changes: Any) -> None:
        spec = StoreSpec(self.slot_shape, SLOTS, {"name": "first"}, self.arena_bytes)
        store.open(replace(spec, **changes))


class CopyingDiskStore(DiskStore):
    """As where memory has no room for the file: nothing is lent where it lies."""

    def open(self, spec: StoreSpec) -> None:
        with patch.object(slot_file, "available_bytes", lambda: 0):
            super().open(spec)


KINDS = {
    "memory, fixed slots": Kind(lambda folder: MemoryStore(), SHAPE, gives_room=True),
    "memory, arena": Kind(lambda folder: MemoryStore(), None, ARENA_BYTES),
    "disk, fixed slots": Kind(lambda folder: DiskStore(folder / "store"), SHAPE, lasts=True),
    "disk, arena": Kind(lambda folder: DiskStore(folder / "store"), None, ARENA_BYTES, lasts=True),
    "disk, copied, fixed slots": Kind(lambda folder: CopyingDiskStore(folder / "store"), SHAPE, lasts=True),
    "disk, copied, arena": Kind(lambda folder: CopyingDiskStore(folder / "store"), None, ARENA_BYTES, lasts=True),
    "compressed in memory, fixed slots": Kind(lambda folder: Compressed(MemoryStore(), expected_ratio=1), SHAPE),
    "compressed on disk, arena": Kind(
        lambda folder: Compressed(DiskStore(folder / "store"), expected_ratio=1), None, ARENA_BYTES, lasts=True
    ),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request: pytest.FixtureRequest) -> Kind:
    value: Kind = request.param
    return value


@pytest.fixture
def store(kind: Kind, tmp_path: Path) -> Iterator[Store]:
    with kind.make(tmp_path) as store:
        kind.open(store)
        yield store


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def image(value: int, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    """Pixels that tell one image from another at every byte."""
    return np.random.default_rng(value).integers(0, 256, shape, dtype=np.uint8)


def held(store: Store, index: int, version: int = 0) -> bool:
    with store.get(ints(index), ints(version)) as lease:
        return bool(lease.found[0])


def listed(store: Store, indices: np.ndarray | None = None) -> list[tuple[int, int]]:
    """What a store says that it holds, sorted."""
    return sorted(zip(*(each.tolist() for each in store.held(indices)), strict=True))


class StoreMachine(RuleBasedStateMachine):
    """Compares a store with a dict from (index, version) to pixels; leases stay open across everything."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.folder = tempfile.TemporaryDirectory()
        self.store = kind.make(Path(self.folder.name))
        kind.open(self.store)
        self.images: dict[tuple[int, int], np.ndarray] = {}
        # Leases with the images they must show; None for rows that were not found.
        self.leases: list[tuple[Any, list[np.ndarray | None]]] = []
        self.closed: list[tuple[Any, list[np.ndarray | None]]] = []
        self.puts = 0
        # What was made in the store's room, with the pixels that were written there.
        self.rooms: list[tuple[Images, list[np.ndarray]]] = []
        self.closed_rooms: list[tuple[Images, list[np.ndarray]]] = []

    def occupied(self) -> list[np.ndarray]:
        """The images that take a slot: held, or lent."""
        lent = [image for _, images in self.leases for image in images if image is not None]
        return list({id(image): image for image in [*self.images.values(), *lent]}.values())

    keys = st.lists(st.tuples(st.sampled_from(INDICES), st.integers(0, 3)), max_size=5)

    @rule(keys=keys, heights=st.lists(st.integers(1, 12), min_size=5, max_size=5))
    def put(self, keys: list[tuple[int, int]], heights: list[int]) -> None:
        images = []
        for height in heights[: len(keys)]:
            self.puts += 1
            images.append(image(self.puts, self.kind.slot_shape or (height, 7, 3)))
        indices, versions = (ints(*(key[axis] for key in keys)) for axis in (0, 1))
        self.expect(keys, images, self.store.put(indices, versions, images))

    def expect(self, keys: list[tuple[int, int]], images: list[np.ndarray], stored: np.ndarray) -> None:
        for key, new, was_stored in zip(keys, images, stored, strict=True):
            if key in self.images:
                assert was_stored
                continue
            for other in [other for other in self.images if other[0] == key[0] and other[1] < key[1]]:
                del self.images[other]
            has_slot = len(self.occupied()) < SLOTS
            if self.kind.slot_shape is None:
                assert has_slot or not was_stored
            else:
                assert was_stored == has_slot
            if was_stored:
                self.images[key] = new

    @rule(count=st.integers(0, SLOTS))
    def make_some_in_its_room(self, count: int) -> None:
        room = self.store.reserve(count)
        used = sum(len(pixels) for _, pixels in self.rooms)
        assert (room is not None) == (self.kind.gives_room and 0 < count <= SLOTS - used)
        if room is not None:
            written = []
            for row in range(count):
                self.puts += 1
                written.append(image(self.puts))
                room[row][:] = written[-1]
            self.rooms.append((room, written))

    @precondition(lambda self: self.rooms)
    @rule(keys=keys, data=st.data())
    def put_what_was_made_there(self, keys: list[tuple[int, int]], data: st.DataObject) -> None:
        room, written = self.rooms[data.draw(st.integers(0, len(self.rooms) - 1))]
        rows = data.draw(st.lists(st.integers(0, len(written) - 1), min_size=len(keys), max_size=len(keys)))
        indices, versions = (ints(*(key[axis] for key in keys)) for axis in (0, 1))
        stored = self.store.put(indices, versions, room.chosen(ints(*rows)))
        self.expect(keys, [written[row].copy() for row in rows], stored)

    @precondition(lambda self: self.rooms)
    @rule(data=st.data())
    def have_no_more_of_what_was_made_there(self, data: st.DataObject) -> None:
        self.rooms.pop(data.draw(st.integers(0, len(self.rooms) - 1)))

    @rule(keys=keys)
    def get(self, keys: list[tuple[int, int]]) -> None:
        lease = self.store.get(*(ints(*(key[axis] for key in keys)) for axis in (0, 1)))
        expected = [self.images.get(key) for key in keys]
        assert lease.found.tolist() == [image is not None for image in expected]
        self.leases.append((lease, expected))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        lease.release()
        lease.release()

    @rule(keys=keys)
    def prefetch(self, keys: list[tuple[int, int]]) -> None:
        self.store.prefetch(*(ints(*(key[axis] for key in keys)) for axis in (0, 1)))

    @rule(indices=st.lists(st.integers(0, 7), max_size=4))
    def evict(self, indices: list[int]) -> None:
        self.store.evict(ints(*indices))
        self.images = {key: image for key, image in self.images.items() if key[0] not in indices}

    @rule(keys=keys)
    def evict_versions(self, keys: list[tuple[int, int]]) -> None:
        self.store.evict(*(ints(*(key[axis] for key in keys)) for axis in (0, 1)))
        self.images = {key: image for key, image in self.images.items() if key not in keys}

    @rule(indices=st.lists(st.sampled_from(INDICES), max_size=4))
    def ask_what_it_holds_of_some(self, indices: list[int]) -> None:
        assert listed(self.store, ints(*indices)) == sorted(key for key in self.images if key[0] in indices)

    @rule(wanted=keys)
    def retain(self, wanted: list[tuple[int, int]]) -> None:
        self.store.retain(*(ints(*(key[axis] for key in wanted)) for axis in (0, 1)))
        self.images = {key: image for key, image in self.images.items() if key in wanted}

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.images = {}

    @rule()
    def open_again(self) -> None:
        self.kind.open(self.store)

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.store.close()
        assert len(self.store) == 0
        self.kind.open(self.store)
        self.images = self.images if self.kind.lasts else {}
        self.closed += self.leases
        self.leases = []
        self.closed_rooms += self.rooms
        self.rooms = []

    @precondition(lambda self: not self.occupied())
    @rule()
    def a_store_that_is_empty_again_has_room_for_its_largest_sample(self) -> None:
        largest = image(0, self.kind.slot_shape or (1, ARENA_BYTES, 1))
        assert self.store.put(ints(0), ints(0), [largest])[0]
        self.store.evict(ints(0))

    @precondition(lambda self: self.closed)
    @rule()
    def release_what_was_lent_before_closing(self) -> None:
        lease, _ = self.closed.pop()
        lease.release()

    @invariant()
    def the_store_holds_what_the_dict_holds(self) -> None:
        assert len(self.store) == len(self.images) <= SLOTS
        assert listed(self.store) == sorted(self.images)
        assert sum(image.nbytes for image in self.occupied()) <= self.store.nbytes

    @invariant()
    def every_lease_shows_the_pixels_it_was_given(self) -> None:
        for lease, expected in [*self.leases, *self.closed]:
            for sample, pixels in zip(lease.samples, expected, strict=True):
                assert (sample is None) == (pixels is None)
                if pixels is not None:
                    assert sample.flags.c_contiguous
                    assert not sample.flags.writeable
                    np.testing.assert_array_equal(sample, pixels)

    @invariant()
    def what_was_made_in_its_room_stays_as_it_is(self) -> None:
        for room, written in [*self.rooms, *self.closed_rooms]:
            for made, pixels in zip(room, written, strict=True):
                np.testing.assert_array_equal(made, pixels)

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


def agree(machine: type[StoreMachine], kind: Kind, *, examples: int = EXAMPLES, steps: int = 30) -> None:
    """See whether a kind of store agrees with a dict."""
    options = {"max_examples": examples, "stateful_step_count": steps, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        partial(machine, kind), settings=settings(deadline=None, **options)
    )


def test_a_store_agrees_with_a_dict_while_leases_are_held(kind: Kind) -> None:
    agree(StoreMachine, kind)


def test_a_store_copies_what_is_put(store: Store) -> None:
    pixels = image(0)
    expected = pixels.copy()
    store.put(ints(0), ints(0), [pixels])
    pixels[:] = 0
    with store.get(ints(0), ints(0)) as lease:
        np.testing.assert_array_equal(lease.samples[0], expected)


@pytest.mark.parametrize("name", [name for name in KINDS if "compressed" not in name])
def test_a_store_holds_nothing_of_samples_that_cannot_be_had(name: str, tmp_path: Path) -> None:
    class Unreadable(list[np.ndarray]):
        def __getitem__(self, row: Any) -> Any:
            if row == 1:
                raise OSError("it cannot be read")
            return super().__getitem__(row)

    with KINDS[name].make(tmp_path) as store:
        KINDS[name].open(store)
        with pytest.raises(OSError, match="it cannot be read"):
            store.put(ints(0, 1), ints(0, 0), Unreadable([image(0), image(1)]))
        assert not store.get(ints(0, 1), ints(0, 0)).found.any()
        assert len(store) == 0


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


def test_a_full_store_declines_and_keeps_what_it_holds(store: Store) -> None:
    indices = np.arange(SLOTS + 1)
    stored = store.put(indices, indices * 0, [image(index) for index in indices])
    assert stored.tolist() == [True] * SLOTS + [False]
    assert len(store) == SLOTS
    assert [held(store, index) for index in indices] == stored.tolist()


def test_a_newer_version_takes_the_slot_of_the_older_one(store: Store) -> None:
    indices = np.arange(SLOTS)
    images = [image(index) for index in indices]
    assert store.put(indices, indices * 0, images).all()
    assert store.put(indices, indices * 0 + 1, images).all()
    assert not held(store, 0, version=0)


def test_samples_that_are_put_together_find_the_room_that_those_before_them_made(store: Store) -> None:
    indices = np.arange(SLOTS)
    assert store.put(indices, indices * 0, [image(index) for index in indices]).all()
    assert store.put(ints(8, 0, 9), ints(0, 1, 0), [image(8), image(0), image(9)]).tolist() == [False, True, False]


def test_an_older_version_is_held_beside_a_newer_one_until_the_index_is_evicted(store: Store) -> None:
    store.put(ints(0, 0), ints(3, 2), [image(3), image(2)])
    assert held(store, 0, version=3)
    assert held(store, 0, version=2)
    store.evict(ints(0))
    assert len(store) == 0


def test_an_evicted_slot_is_reused_only_after_its_last_lease(store: Store) -> None:
    indices = np.arange(SLOTS)
    store.put(indices, indices * 0, [image(index) for index in indices])
    first, second = store.get(ints(0), ints(0)), store.get(ints(0, 0), ints(0, 0))
    store.evict(ints(0))
    assert not held(store, 0)
    assert not store.put(ints(9), ints(0), [image(9)])[0]
    first.release()
    assert not store.put(ints(9), ints(0), [image(9)])[0]
    second.release()
    assert store.put(ints(9), ints(0), [image(9)])[0]


def test_a_lease_released_twice_gives_its_slot_back_once(store: Store) -> None:
    store.put(ints(0), ints(0), [image(0)])
    first, second = store.get(ints(0), ints(0)), store.get(ints(0), ints(0))
    first.release()
    first.release()
    store.evict(ints(0))
    store.put(np.arange(1, SLOTS + 1), np.zeros(SLOTS, np.int64), [image(1)] * SLOTS)
    np.testing.assert_array_equal(second.samples[0], image(0))


def test_a_lease_from_before_closing_is_harmless_to_the_store_opened_after(kind: Kind, store: Store) -> None:
    indices = np.arange(SLOTS)
    images = [image(index) for index in indices]
    store.put(indices, indices * 0, images)
    early, late = store.get(indices, indices * 0), store.get(indices, indices * 0)
    store.close()
    early.release()
    kind.open(store)
    store.put(indices, indices * 0, images)
    late.release()
    store.evict(indices)
    assert store.put(indices, indices * 0, images).all()


class Overtaken(list[np.ndarray]):
    """Samples that are looked at just when something else is done."""

    def __init__(self, samples: list[np.ndarray], meanwhile: Callable[[], None]) -> None:
        super().__init__(samples)
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __iter__(self) -> Iterator[np.ndarray]:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().__iter__()


def assert_overtaken_put_stores_nothing(kind: Kind, store: Store) -> None:
    def reopen() -> None:
        store.close()
        kind.open(store)

    with suppress(StoreError):
        store.put(ints(0), ints(0), Overtaken([image(0)], reopen))
    assert not held(store, 0)
    assert len(store) == 0


def test_what_is_put_while_a_store_is_closed_and_opened_again_is_not_in_it(kind: Kind, store: Store) -> None:
    assert_overtaken_put_stores_nothing(kind, store)


def test_a_store_without_slots_declines_everything(kind: Kind, tmp_path: Path) -> None:
    with kind.make(tmp_path) as store:
        kind.open(store, slots=0)
        assert not store.put(ints(0), ints(0), [image(0)])[0]


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads take turns after microseconds instead of milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_threads_see_whole_samples_of_the_version_they_asked_for(store: Store) -> None:
    failures: list[BaseException] = []

    def hammer(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(ROUNDS):
                indices, versions = rng.integers(0, 4, 3), rng.integers(0, 2, 3)
                names = (2 * indices + versions).tolist()
                store.put(indices, versions, [np.full(SHAPE, name, np.uint8) for name in names])
                with store.get(indices, versions) as lease:
                    store.evict(indices[:2])
                    for sample, name in zip(lease.samples, names, strict=True):
                        assert sample is None or (sample == name).all()
                assert len(store) <= SLOTS
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    store.clear()
    assert store.put(np.arange(SLOTS), np.zeros(SLOTS, np.int64), [image(0)] * SLOTS).all()


def test_opening_again_with_the_same_arguments_keeps_the_contents(kind: Kind, store: Store) -> None:
    store.put(ints(0), ints(0), [image(0)])
    kind.open(store)
    assert held(store, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fingerprint": {"name": "second"}}, "open for fingerprint.name 'first', not 'second': close it first"),
        ({"slots": 6}, "open for slots 5, not 6: close it first"),
        ({"slot_shape": (1, 1, 3), "arena_bytes": 0}, r"slot_shape .*, not \(1, 1, 3\).*: close it first"),
    ],
)
def test_an_open_store_refuses_other_arguments_by_name(
    kind: Kind, store: Store, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        kind.open(store, **changes)
    store.close()
    if not kind.lasts:
        kind.open(store, **changes)


def test_a_closed_store_holds_nothing_and_refuses_work(store: Store) -> None:
    store.put(ints(0), ints(0), [image(0)])
    store.close()
    assert (len(store), store.nbytes) == (0, 0)
    with pytest.raises(StoreError, match="must be open to be used, but this one is not: call open first"):
        store.get(ints(0), ints(0))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "one sample per index, but got 0 for 1 indices"),
        ([np.zeros(SHAPE, np.float32)], "HWC uint8 images, but number 0 is float32"),
        ([np.zeros((4, 5), np.uint8)], r"HWC uint8 images, but number 0 is uint8 of shape \(4, 5\)"),
        ([np.zeros((0, 5, 3), np.uint8)], r"non-empty .* shape \(0, 5, 3\)"),
    ],
)
def test_put_refuses_samples_that_are_no_images(store: Store, samples: list[np.ndarray], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        store.put(ints(0), ints(0), samples)


def test_put_stores_nothing_when_one_sample_does_not_fit_the_slots() -> None:
    with MemoryStore() as store:
        store.open(StoreSpec(SHAPE, 2, {}))
        with pytest.raises(ConfigurationError, match=r"shape \(4, 5, 3\), but number 1 has \(5, 4, 3\): .*=None"):
            store.put(ints(0, 1), ints(0, 0), [image(0), image(0, (5, 4, 3))])
        assert len(store) == 0


@pytest.mark.parametrize(
    ("indices", "versions", "message"),
    [
        (ints(0, 1), ints(0), r"shapes \(2,\) and \(1,\): pass one version per index"),
        (np.zeros(1), ints(0), "float64 and int64: convert"),
    ],
)
def test_a_store_refuses_keys_that_do_not_pair(
    store: Store, indices: np.ndarray, versions: np.ndarray, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        store.get(indices, versions)


@pytest.mark.parametrize(
    ("slot_shape", "slots", "arena_bytes", "message"),
    [
        ((4, 0, 3), 1, 0, r"each at least 1, but is \(4, 0, 3\)"),
        (SHAPE, -1, 0, "slots must be at least 0, but is -1"),
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
    store.open(StoreSpec((224, 224, 3), 1000, {}))
    assert store.nbytes == 332 * 224 * 224 * 3 <= 50 * 10**6 < 333 * 224 * 224 * 3
    store.close()
    store.open(StoreSpec((224, 224, 3), 332, {}))
    assert store.nbytes == 332 * 224 * 224 * 3


def test_a_memory_store_refuses_more_than_is_available() -> None:
    expected = r"need 1505280\.00 TB and \d+\.\d\d [GM]B are available: use smaller images, .*; or pass max_bytes"
    with pytest.raises(OutOfMemoryError, match=expected):
        MemoryStore().open(StoreSpec((224, 224, 3), 10**13, {}))


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
    ],
    ids=["no accounts", "machine", "group v2", "group v1", "group v1 without limit", "group v1 overdrawn"],
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
