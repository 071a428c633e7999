"""Contract of stores: what they hold beside a dictionary, while threads and leases come and go."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from dalirefurb.errors import StoreError
from dalirefurb.image_batch import Image
from dalirefurb.store import Store, StoreSpec
from dalirefurb.testing.store_machine import ARENA_BYTES, SHAPE, SLOTS, Keeps, StoreMachine, held, image, ints

_THREADS = 4


class Overtaken(list[Image]):
    """Samples that are looked at just when something else is done."""

    def __init__(self, samples: list[Image], meanwhile: Callable[[], None]) -> None:
        super().__init__(samples)
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __iter__(self) -> Iterator[Image]:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().__iter__()


class StoreContract:
    """What every store promises: it behaves as a dictionary of few places, whoever asks it meanwhile.

    Derive a class whose name begins with "Test", and say by `store` which store it is. Where a store takes samples of
    one size and of many, derive another class from that one, with `slot_shape = None`. What lasts longer than an
    opening (files, changed sources, a killed process) is yours to test.

    Attributes:
        slot_shape: Shape of the samples; None: their sizes vary.
        keeps: What is held after closing and opening of what was held before: "nothing", "some" or "all" of it.
        machine: State machine that compares the store with a dictionary; one that is derived from it looks at more.
        examples: Runs of the state machine; None: as many as Hypothesis is told.
        steps: Calls of each run, at most.
        rounds: Calls that each of four threads makes.
    """

    slot_shape: ClassVar[tuple[int, int, int] | None] = SHAPE
    keeps: ClassVar[Keeps] = "nothing"
    machine: ClassVar[type[StoreMachine]] = StoreMachine
    examples: ClassVar[int | None] = None
    steps: ClassVar[int] = 30
    rounds: ClassVar[int] = 200

    def store(self, folder: Path) -> Store:
        """Return a new store that is not open.

        Args:
            folder: Folder for what it keeps, the same for stores that keep the same; empty at first.
        """
        raise NotImplementedError("a contract needs a store: define store(self, folder) to return one of yours")

    def spec(self, **changes: Any) -> StoreSpec:
        """Return what the store is opened for."""
        arena_bytes = ARENA_BYTES if self.slot_shape is None else 0
        return replace(StoreSpec(self.slot_shape, SLOTS, {"name": "first"}, arena_bytes), **changes)

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Store]:
        """Give a store that is open."""
        with self.store(tmp_path) as store:
            store.open(self.spec())
            yield store

    def test_it_behaves_as_a_dictionary_while_leases_are_held(self) -> None:
        """Any calls in any order do what they would do to a dictionary with `SLOTS` places; see `StoreMachine`."""
        options = settings(
            deadline=None,
            max_examples=self.examples or settings().max_examples,
            stateful_step_count=self.steps,
            suppress_health_check=list(HealthCheck),
        )
        machine: Any = partial(self.machine, self.store, self.spec(), self.keeps)
        run_state_machine_as_test(machine, settings=options)

    def test_what_is_put_is_copied(self, opened: Store) -> None:
        """Who has put a sample may write to it."""
        pixels = image(0)
        opened.put(ints(0), ints(0), [pixels])
        pixels[:] = 0
        with opened.get(ints(0), ints(0)) as lease:
            np.testing.assert_array_equal(lease.samples[0], image(0), "put must copy samples, but lends what was given")

    def test_what_is_put_beside_what_is_held_is_what_it_is(self, opened: Store) -> None:
        """Of samples that are put together one may be held already, or find no room."""
        images = [image(index, self.slot_shape or (1 + index, 7, 3)) for index in range(SLOTS + 2)]
        for indices in ([1], [1, 0, 2], [*range(3, SLOTS + 2)]):
            stored = opened.put(ints(*indices), ints(*[0] * len(indices)), [images[index] for index in indices])
            for index, was_stored in zip(indices, stored.tolist(), strict=True):
                with opened.get(ints(index), ints(0)) as lease:
                    (found,) = lease.samples
                    assert (found is not None) == was_stored, f"put says {was_stored} of sample {index}, but not get"
                    if found is not None:
                        np.testing.assert_array_equal(found, images[index], "a sample must be what was put")

    def test_what_is_lent_keeps_its_slot_until_it_is_released(self, opened: Store) -> None:
        """What is evicted while it is lent is hidden, but nothing takes its place before the lease is released."""
        indices, versions = np.arange(SLOTS), np.zeros(SLOTS, np.int64)
        images = [image(index) for index in range(SLOTS)]
        opened.put(indices, versions, images)
        with opened.get(indices, versions) as lease:
            opened.evict(indices)
            stored = opened.put(indices, versions, images[::-1])
            assert not stored.any(), f"what is lent must keep its slot, but of {SLOTS} more samples put says {stored}"
            for found, wanted in zip(lease.samples, images, strict=True):
                np.testing.assert_array_equal(found, wanted, "lent samples must stay as they are until released")
        stored = opened.put(indices, versions, images)
        assert stored.all(), f"a lease that is released must give all slots back, but put says {stored}"

    def test_without_slots_everything_is_declined(self, tmp_path: Path) -> None:
        """A store that is opened for no samples works, and holds none."""
        with self.store(tmp_path) as store:
            store.open(self.spec(slots=0))
            assert not store.put(ints(0), ints(0), [image(0)])[0], "a store without slots must hold nothing"

    def test_opening_again_for_the_same_keeps_the_contents(self, opened: Store) -> None:
        """A second loader that opens the store finds what the first one put."""
        opened.put(ints(0), ints(0), [image(0)])
        opened.open(self.spec())
        assert held(opened, 0), "an open store that is opened for the same must keep what it holds"

    def test_a_lease_from_before_closing_is_harmless_to_what_is_opened_after(self, opened: Store) -> None:
        """Leases outlive `close`: to release one late frees no slot of a later opening."""
        indices = np.arange(SLOTS)
        images = [image(index) for index in range(SLOTS)]
        opened.put(indices, 0 * indices, images)
        early, late = opened.get(indices, 0 * indices), opened.get(indices, 0 * indices)
        opened.close()
        early.release()
        opened.open(self.spec())
        opened.put(indices, 0 * indices, images)
        late.release()
        opened.evict(indices)
        stored = opened.put(indices, 0 * indices, images)
        assert stored.all(), f"a lease of an earlier opening must take no slot of a later one, but put says {stored}"

    def test_what_is_put_while_it_is_closed_and_opened_again_is_not_in_it(self, opened: Store) -> None:
        """A call that closing overtook does nothing to a later opening, which may be for other samples."""

        def reopen() -> None:
            opened.close()
            opened.open(self.spec())

        with suppress(StoreError):
            opened.put(ints(0), ints(0), Overtaken([image(0)], reopen))
        assert not held(opened, 0), "what is put by a call that began before closing must not be held after it"
        assert len(opened) == 0

    def test_threads_see_whole_samples_of_the_version_they_asked_for(self, opened: Store) -> None:
        """Several threads may call at once."""
        failures: list[BaseException] = []

        def hammer(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                for _ in range(self.rounds):
                    indices, versions = rng.integers(0, 4, 3), rng.integers(0, 2, 3)
                    names = (2 * indices + versions).tolist()
                    opened.put(indices, versions, [np.full(SHAPE, name, np.uint8) for name in names])
                    with opened.get(indices, versions) as lease:
                        opened.evict(indices[:2])
                        for sample, name in zip(lease.samples, names, strict=True):
                            whole = sample is None or bool((sample == name).all())
                            assert whole, f"all levels must be {name} of what was asked for, got {sample}"
                    assert len(opened) <= SLOTS, f"{SLOTS} slots hold {len(opened)} versions"
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=hammer, args=(seed,), daemon=True) for seed in range(_THREADS)]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # threads take turns after microseconds, not milliseconds
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=600)
        finally:
            sys.setswitchinterval(before)
        assert not failures, f"threads must not disturb each other: {failures[0]!r}"
        assert not any(thread.is_alive() for thread in threads), "threads must not wait for each other for ever"
        opened.clear()
        stored = opened.put(np.arange(SLOTS), np.zeros(SLOTS, np.int64), [image(0)] * SLOTS)
        assert stored.all(), f"an empty store must have all of its slots, but put says {stored}"
