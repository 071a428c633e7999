"""State machine of stores: any calls in any order, beside a dictionary that does the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from dalirefurb.image_batch import Image, Images
from dalirefurb.store import Lease, Store, StoreSpec

SLOTS = 5
SHAPE = (4, 5, 3)
ARENA_BYTES = 1024

_INDICES = 0, 1, 2, 3, 1 << 40, -1

Key = tuple[int, int]
"""Index and version of a sample."""

Lent = tuple[Lease, list[Image | None]]
"""A lease with the images that it must show; None for rows that were not found."""

Room = tuple[Images, list[Image]]
"""What was made in a store's room, with the pixels that were written there."""

Keeps = Literal["nothing", "some", "all"]
"""What a store holds after closing and opening, of what it held before."""


def ints(*values: int) -> NDArray[np.int64]:
    """Return an array of integers."""
    return np.array(values, np.int64)


def columns(keys: Sequence[Key]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of some keys, and the versions."""
    return ints(*(index for index, _ in keys)), ints(*(version for _, version in keys))


def image(value: int, shape: tuple[int, int, int] = SHAPE) -> Image:
    """Return pixels that tell one image from another at every byte."""
    return np.random.default_rng(value).integers(0, 256, shape, dtype=np.uint8)


def held(store: Store, index: int, version: int = 0) -> bool:
    """Tell whether a store lends a sample."""
    with store.get(ints(index), ints(version)) as lease:
        return bool(lease.found[0])


def listed(store: Store, indices: NDArray[np.int64] | None = None) -> list[Key]:
    """Return what a store says that it holds, sorted."""
    found, versions = store.held(indices)
    return sorted(zip(found.tolist(), versions.tolist(), strict=True))


class StoreMachine(RuleBasedStateMachine):
    """A store beside a dictionary from index and version to pixels; leases stay open across everything.

    Args:
        make: Function that makes the store, given an empty folder.
        spec: What the store is opened for.
        keeps: What is held after closing and opening.
    """

    def __init__(self, make: Callable[[Path], Store], spec: StoreSpec, keeps: Keeps) -> None:
        super().__init__()
        self.spec = spec
        self.keeps = keeps
        self.folder = tempfile.TemporaryDirectory()
        self.store = make(Path(self.folder.name))
        self.store.open(spec)
        self.images: dict[Key, Image] = {}
        self.leases: list[Lent] = []
        self.closed: list[Lent] = []
        self.rooms: list[Room] = []
        self.closed_rooms: list[Room] = []
        self.puts = 0

    def occupied(self) -> list[Image]:
        """Return the images that take a slot: held, or lent."""
        lent = [image for _, images in self.leases for image in images if image is not None]
        return list({id(image): image for image in [*self.images.values(), *lent]}.values())

    def next_image(self, shape: tuple[int, int, int]) -> Image:
        """Return an image that was not put yet."""
        self.puts += 1
        return image(self.puts, shape)

    keys = st.lists(st.tuples(st.sampled_from(_INDICES), st.integers(0, 3)), max_size=5)

    @rule(keys=keys, heights=st.lists(st.integers(1, 12), min_size=5, max_size=5))
    def put(self, keys: list[Key], heights: list[int]) -> None:
        """Put some."""
        shapes = [self.spec.slot_shape or (height, 7, 3) for height in heights]
        images = [self.next_image(shape) for _, shape in zip(keys, shapes, strict=False)]
        self.compare(keys, images, self.store.put(*columns(keys), images))

    def compare(self, keys: list[Key], images: list[Image], stored: NDArray[np.bool_]) -> None:
        """Do the same with the dictionary."""
        for key, new, was_stored in zip(keys, images, stored, strict=True):
            if key in self.images:
                assert was_stored, f"put must answer True for {key}, which is held already"
                continue
            for other in [other for other in self.images if other[0] == key[0] and other[1] < key[1]]:
                del self.images[other]
            used = len(self.occupied())
            assert used < SLOTS or not was_stored, f"{SLOTS} slots must hold no more, lent ones included, but {key} is"
            if self.spec.slot_shape is not None:
                assert was_stored or used >= SLOTS, f"put must hold {key}, since only {used} of {SLOTS} slots are taken"
            if was_stored:
                self.images[key] = new

    @rule(count=st.integers(0, SLOTS))
    def make_some_in_its_room(self, count: int) -> None:
        """Make images where the store has room for them, if it lends any."""
        room = self.store.reserve(count)
        if room is not None:
            assert len(room) == count, f"reserve must lend room for {count} images or None, got {len(room)}"
            written = [self.next_image(SHAPE) for _ in range(count)]
            for made, pixels in zip(room, written, strict=True):
                made[:] = pixels
            self.rooms.append((room, written))

    @precondition(lambda self: self.rooms)
    @rule(keys=keys, data=st.data())
    def put_what_was_made_there(self, keys: list[Key], data: st.DataObject) -> None:
        """Put some of these, also several times."""
        room, written = self.rooms[data.draw(st.integers(0, len(self.rooms) - 1))]
        rows = data.draw(st.lists(st.integers(0, len(written) - 1), min_size=len(keys), max_size=len(keys)))
        stored = self.store.put(*columns(keys), room.chosen(ints(*rows)))
        self.compare(keys, [written[row].copy() for row in rows], stored)

    @precondition(lambda self: self.rooms)
    @rule(data=st.data())
    def have_no_more_of_what_was_made_there(self, data: st.DataObject) -> None:
        """Give room back."""
        self.rooms.pop(data.draw(st.integers(0, len(self.rooms) - 1)))

    @rule(keys=keys)
    def get(self, keys: list[Key]) -> None:
        """Borrow some."""
        lease = self.store.get(*columns(keys))
        expected = [self.images.get(key) for key in keys]
        found = [image is not None for image in expected]
        assert lease.found.tolist() == found, f"of {keys} get must find {found}, got {lease.found.tolist()}"
        self.leases.append((lease, expected))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Release a lease, twice."""
        lease, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        lease.release()
        lease.release()

    @rule(keys=keys)
    def prefetch(self, keys: list[Key]) -> None:
        """Announce some."""
        self.store.prefetch(*columns(keys))

    @rule(indices=st.lists(st.integers(0, 7), max_size=4))
    def evict(self, indices: list[int]) -> None:
        """Forget some, in every version."""
        self.store.evict(ints(*indices))
        self.images = {key: image for key, image in self.images.items() if key[0] not in indices}

    @rule(keys=keys)
    def evict_versions(self, keys: list[Key]) -> None:
        """Forget some versions."""
        self.store.evict(*columns(keys))
        self.images = {key: image for key, image in self.images.items() if key not in keys}

    @rule(indices=st.lists(st.sampled_from(_INDICES), max_size=4))
    def ask_what_it_holds_of_some(self, indices: list[int]) -> None:
        """Ask for what is held of some."""
        said, expected = listed(self.store, ints(*indices)), sorted(key for key in self.images if key[0] in indices)
        assert said == expected, f"held({indices}) must name {expected}, got {said}"

    @rule(wanted=keys)
    def retain(self, wanted: list[Key]) -> None:
        """Forget all but some."""
        self.store.retain(*columns(wanted))
        self.images = {key: image for key, image in self.images.items() if key in wanted}

    @rule()
    def clear(self) -> None:
        """Forget everything."""
        self.store.clear()
        self.images = {}

    @rule()
    def open_again(self) -> None:
        """Open it for what it is open for."""
        self.store.open(self.spec)

    @rule()
    def close_and_open(self) -> None:
        """Close it, twice, and open it."""
        self.store.close()
        self.store.close()
        assert len(self.store) == 0, f"a closed store must say that it holds nothing, got {len(self.store)}"
        self.store.open(self.spec)
        if self.keeps == "some":
            self.images = {key: image for key, image in self.images.items() if held(self.store, *key)}
        elif self.keeps == "nothing":
            self.images = {}
        self.closed += self.leases
        self.closed_rooms += self.rooms
        self.leases, self.rooms = [], []

    @precondition(lambda self: not self.occupied())
    @rule()
    def fill_it_with_its_largest_sample(self) -> None:
        """Put a sample of all bytes while it is empty."""
        largest = image(0, self.spec.slot_shape or (1, ARENA_BYTES, 1))
        assert self.store.put(ints(0), ints(0), [largest])[0], "an empty store must have room for its largest sample"
        self.store.evict(ints(0))

    @precondition(lambda self: self.closed)
    @rule()
    def release_what_was_lent_before_closing(self) -> None:
        """Release a lease of an earlier opening."""
        lease, _ = self.closed.pop()
        lease.release()

    @invariant()
    def it_holds_what_the_dictionary_holds(self) -> None:
        """Compare what is held."""
        said, expected = listed(self.store), sorted(self.images)
        assert said == expected, f"held() must name {expected}, got {said}"
        count = len(self.store)
        assert count == len(self.images), f"len must count the {len(self.images)} versions held, got {count}"
        taken = sum(image.nbytes for image in self.occupied())
        assert taken <= self.store.nbytes, f"{taken} bytes are taken, but nbytes says {self.store.nbytes}"

    @invariant()
    def every_lease_shows_the_pixels_it_was_given(self) -> None:
        """Compare pixels, to the last lease of an earlier opening."""
        for lease, expected in [*self.leases, *self.closed]:
            for sample, pixels in zip(lease.samples, expected, strict=True):
                assert (sample is None) == (pixels is None), "a lease must have a sample where one was found, or None"
                if sample is not None and pixels is not None:
                    assert sample.flags.c_contiguous, "lent samples must be C-contiguous"
                    assert not sample.flags.writeable, "lent samples must be read-only"
                    np.testing.assert_array_equal(sample, pixels, "lent samples must stay as they are until released")

    @invariant()
    def what_was_made_in_its_room_stays_as_it_is(self) -> None:
        """Compare what was made in the store's room."""
        for room, written in [*self.rooms, *self.closed_rooms]:
            for made, pixels in zip(room, written, strict=True):
                np.testing.assert_array_equal(made, pixels, "room must be nobody else's while somebody has it")

    def teardown(self) -> None:
        """Close it, and take its folder away."""
        self.store.close()
        self.folder.cleanup()
