"""What a store that was filled by another run brings to a loader, and the warning where that is nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dalirefurb import (
    Arrays,
    AutoAssist,
    Compressed,
    DiskStore,
    Echo,
    Evaluate,
    Loader,
    MemoryStore,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    Stats,
    TieredStore,
    evaluate,
    simple,
)
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.errors import NothingKeptWarning
from dalirefurb.planning import Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import ReferenceCount
from dalirefurb.store import Store
from tests.engine.test_bit_identity import Batches, assert_same

SIZE = 32
NUM_SAMPLES = 48
IMAGE_BYTES = 3 * SIZE * SIZE
ARGUMENTS: dict[str, Any] = {"batch_size": 8, "seed": 3}
RECIPE = simple(SIZE, raw=True)
FIXED = RECIPE.at(RECIPE.deterministic_prefix)
REFURBISH = Refurbish(NUM_SAMPLES, reuse_factor=2, **ARGUMENTS)
SMART_CACHE = SmartCache(NUM_SAMPLES, num_cache_objects=16, replace_percent=0.25, **ARGUMENTS)

STORES: dict[str, Callable[[Path], Store]] = {
    "a file": DiskStore,
    "memory, then a file": lambda path: TieredStore(memory=4 * IMAGE_BYTES, path=path),
    "a compressed file": lambda path: Compressed(DiskStore(path)),
}


@pytest.fixture(scope="module")
def source() -> Arrays:
    images = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, SIZE, SIZE, 3), np.uint8)
    return Arrays(images, np.arange(NUM_SAMPLES))


def serve(loader: Loader, batches: int) -> Batches:
    """Serve so many batches, and learn from them where the planner wants it."""
    served: Batches = []
    for images, labels in islice((batch for _ in range(batches) for batch in loader), batches):
        served.append((images.clone(), labels))
        if loader.planner.feedback_lag is not None:
            loader.observe(np.ones(len(labels)))
    return served


@contextmanager
def filled(
    source: Arrays,
    path: Path,
    planner: Planner,
    *,
    epochs: int = 5,
    batches: int = 0,
    recipe: Recipe = RECIPE,
    store: Callable[[Path], Store] = DiskStore,
    rank: tuple[int, int] = (0, 1),
) -> Iterator[tuple[dict[str, Any], Callable[[], Loader]]]:
    """Run some epochs and batches with a new store; yields the state, and what makes a loader with the store again."""
    with store(path) as first, Loader(source, recipe, planner, first, rank=rank) as loader:
        serve(loader, epochs * len(planner) + batches)
        state = loader.state_dict()
    with store(path) as again:
        yield state, lambda: Loader(source, recipe, planner, again, rank=rank)


def begun(loader: Loader, state: dict[str, Any] | None = None) -> Stats:
    """Serve what would be the first epoch of a run, or the rest of the one that a state was taken in."""
    with loader:
        if state is not None:
            loader.load_state_dict(state)
        serve(loader, len(loader) - (state["batch"] if state else 0))
        return loader.stats()


PLANNERS: dict[str, Planner] = {
    "refurbished": REFURBISH,
    "three uses": Refurbish(NUM_SAMPLES, reuse_factor=3, **ARGUMENTS),
    "partly cached": Refurbish(NUM_SAMPLES, reuse_factor=2, coverage=0.5, **ARGUMENTS),
    "two batches an epoch": Refurbish(NUM_SAMPLES, batch_size=24, reuse_factor=2),
    "echoed": Echo(REFURBISH, echoing_factor=2, buffer_size=16),
    "a window": SMART_CACHE,
    "chosen": AutoAssist(REFURBISH, lag=64),
}


def recipe_of(planner: Planner) -> Recipe:
    return FIXED if isinstance(planner, SmartCache) else RECIPE


# A script that is run again


ALIKE = {"three uses", "two batches an epoch", "partly cached"}
"""Planners that are as one of the others here: only weekly."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.weekly if name in ALIKE else []) for name in PLANNERS]
)
def test_a_run_that_begins_anew_on_a_file_of_later_epochs_has_no_hits_of_it_and_says_so_once(
    name: str, source: Arrays, tmp_path: Path
) -> None:
    planner = PLANNERS[name]
    with filled(source, tmp_path / "cache", planner, recipe=recipe_of(planner)) as (_, make):
        with pytest.warns(NothingKeptWarning) as warned, make() as loader:
            serve(loader, 2 * len(loader))
        planned = sum(int(plan.miss.sum()) for epoch in range(2) for plan in planner.epoch(epoch))
        assert planner.feedback_lag is not None or loader.stats().misses == planned
    (warning,) = warned
    assert warning.filename == __file__
    for part in ("DiskStore(", "nothing of epoch 0", "load_state_dict", "Kept(source, path)"):
        assert part in str(warning.message)


@pytest.mark.parametrize("kind", STORES)
def test_every_store_with_a_file_is_warned_of_and_serves_what_is_served_without(
    kind: str, source: Arrays, tmp_path: Path
) -> None:
    with Loader(source, RECIPE, REFURBISH) as loader:
        expected = serve(loader, 12)
    again = filled(source, tmp_path / "cache", REFURBISH, store=STORES[kind])
    with again as (_, make), pytest.warns(NothingKeptWarning) as warned, make() as loader:
        assert_same(expected, serve(loader, 12))
    assert len(warned) == 1


def test_a_store_in_memory_that_another_loader_has_filled_is_warned_of(source: Arrays) -> None:
    store = MemoryStore()
    with Loader(source, RECIPE, REFURBISH, store) as loader:
        serve(loader, 5 * len(loader))
    with pytest.warns(NothingKeptWarning, match="MemoryStore"):
        begun(Loader(source, RECIPE, REFURBISH, store))


def test_an_epoch_that_is_chosen_far_from_what_the_store_holds_is_warned_of_by_its_number(
    source: Arrays, tmp_path: Path
) -> None:
    with filled(source, tmp_path / "cache", REFURBISH) as (_, make), make() as loader:
        loader.set_epoch(40)
        with pytest.warns(NothingKeptWarning, match="nothing of epoch 40"):
            serve(loader, 1)


def test_as_an_error_the_warning_leaves_the_file_to_the_run_that_goes_on(source: Arrays, tmp_path: Path) -> None:
    with filled(source, tmp_path / "cache", REFURBISH) as (state, make):
        with make() as loader, pytest.raises(NothingKeptWarning):  # Pytest is told to make errors of warnings.
            serve(loader, 1)
        assert begun(make(), state).hits >= NUM_SAMPLES // 2


# Where the store is of use


PLACES = {"an epoch's end": 0, "a first batch": 1, "before a last batch": -1}


def gone_on() -> Iterator[Any]:
    """Yield planners and places: each kind of planner in the middle, one of them everywhere, the rest weekly."""
    for name, (place, batches) in product([*PLANNERS, "echoed anew"], PLACES.items()):
        chosen = (place == "a first batch" and name not in ALIKE) or name == "refurbished"
        yield pytest.param(name, batches, id=f"{name}, {place}", marks=[] if chosen else pytest.mark.weekly)


@pytest.mark.parametrize(("name", "batches"), list(gone_on()))
def test_a_run_that_goes_on_begins_with_hits_and_without_a_warning(
    name: str, batches: int, source: Arrays, tmp_path: Path
) -> None:
    planner = {**PLANNERS, "echoed anew": Echo(Standard(NUM_SAMPLES, **ARGUMENTS), echoing_factor=2, buffer_size=16)}[
        name
    ]
    run = {"epochs": 3, "batches": batches, "recipe": recipe_of(planner)}
    with filled(source, tmp_path / "cache", planner, **run) as (state, make):
        stats = begun(make(), state)
    assert stats.hits or name == "echoed anew" or batches == -1


def test_a_run_that_goes_on_from_a_state_of_the_epoch_before_is_not_warned(source: Arrays, tmp_path: Path) -> None:
    """It was ended in the next epoch, of which the store holds what is echoed, and nothing of the epoch before."""
    planner = Echo(Standard(NUM_SAMPLES, **ARGUMENTS), echoing_factor=2, buffer_size=16)
    with DiskStore(tmp_path / "cache") as store:
        with Loader(source, RECIPE, planner, store) as loader:
            serve(loader, len(planner) - 1)
            state = loader.state_dict()
            serve(loader, 8)
            assert set(store.held()[1].tolist()) == {1}
        begun(Loader(source, RECIPE, planner, store), state)


@pytest.mark.parametrize("kind", STORES)
def test_every_store_with_a_file_hits_in_a_run_that_goes_on(kind: str, source: Arrays, tmp_path: Path) -> None:
    with filled(source, tmp_path / "cache", REFURBISH, store=STORES[kind]) as (state, make):
        stats = begun(make(), state)
    lost = 4 if kind.startswith("memory") else 0  # what was in memory is gone
    assert NUM_SAMPLES // 2 - lost - 8 <= stats.hits <= NUM_SAMPLES // 2


@pytest.mark.parametrize(
    ("planner", "recipe", "kept"),
    [
        (Frozen(NUM_SAMPLES, **ARGUMENTS), FIXED, 1),
        (Evaluate(NUM_SAMPLES, batch_size=8), evaluate(SIZE, raw=True), 1),
        (Refurbish(NUM_SAMPLES, reuse_factor=99, evict_shuffler=ReferenceCount(), **ARGUMENTS), RECIPE, 1),
        (Refurbish(NUM_SAMPLES, reuse_factor=48, **ARGUMENTS), RECIPE, 1 - 5 / 48),
    ],
    ids=["frozen", "evaluated", "one version for very long", "a very long reuse factor"],
)
def test_what_is_kept_for_ever_hits_in_a_run_that_begins_anew(
    planner: Planner, recipe: Recipe, kept: float, source: Arrays, tmp_path: Path
) -> None:
    with filled(source, tmp_path / "cache", planner, recipe=recipe) as (_, make):
        assert begun(make()).hit_rate == pytest.approx(kept, abs=1 / NUM_SAMPLES)


def test_a_part_of_hits_is_not_warned_of(source: Arrays, tmp_path: Path) -> None:
    with filled(source, tmp_path / "cache", REFURBISH, epochs=1) as (_, make):
        assert 0 < begun(make()).hit_rate < 1


def test_a_new_store_is_not_warned_of_nor_is_a_jump_in_the_same_run(source: Arrays, tmp_path: Path) -> None:
    with DiskStore(tmp_path / "cache") as store, Loader(source, RECIPE, REFURBISH, store) as loader:
        serve(loader, 3 * len(loader))
        loader.set_epoch(40)
        serve(loader, 1)
        loader.set_epoch(0)
        serve(loader, 1)


# Ranks, of which each has a path of its own


def test_each_rank_is_told_of_its_own_share(source: Arrays, tmp_path: Path) -> None:
    planner = Refurbish(NUM_SAMPLES, reuse_factor=2, shards=2, **ARGUMENTS)
    for number in range(2):
        rank = (number, 2)
        with filled(source, tmp_path / f"cache{number}", planner, rank=rank) as (state, make):
            assert begun(make(), state).hits
        swapped = Loader(source, RECIPE, planner, DiskStore(tmp_path / f"cache{number}"), rank=(1 - number, 2))
        with pytest.warns(NothingKeptWarning, match="each rank with its own path"):
            begun(swapped, state)
        again = filled(source, tmp_path / f"again{number}", planner, rank=rank)
        with again as (_, make), pytest.warns(NothingKeptWarning):
            begun(make())


class Holding:
    """A store that holds one sample."""

    def held(self) -> Any:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)

    def retain(self, *_: Any) -> None:
        pass

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("start", "warns"), [((4, 0), False), ((3, 5), False), ((3, 0), False), ((2, 5), True), ((0, 0), True)]
)
def test_a_run_that_goes_on_may_have_a_store_that_is_ahead_by_an_epoch(start: Any, warns: bool) -> None:
    """Of what is held epoch 4 wants something, and so does epoch 1, with which no run goes on."""
    cache: Any = CacheClient(None, Holding())  # type: ignore[arg-type]
    planner: Any = SimpleNamespace(num_samples=1, wanted=lambda epoch, *_: np.array([epoch in (1, 4)]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache.retain(planner, Position(*start))
    assert [each.category for each in caught] == [NothingKeptWarning] * warns
