"""Echoing and SmartCache through the real loader: the cache is only an accelerator, whatever the planner does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dalirefurb import (
    AutoAssist,
    Echo,
    ImageFolder,
    Loader,
    MemoryStore,
    Prefetch,
    Refurbish,
    SmartCache,
    Standard,
    evaluate,
    simple,
)
from dalirefurb.augment.recipe import Recipe
from dalirefurb.planning import BatchEcho, Fresh
from dalirefurb.planning.planner import Planner
from dalirefurb.store import Lease
from tests.engine.test_bit_identity import Batches, assert_same, chosen, serve
from tests.in_turn import in_turn
from tests.lossy import Meddle, leave_alone
from tests.pictures import write_folder

pytestmark = [
    pytest.mark.usefixtures("traced_once"),
    pytest.mark.filterwarnings("ignore:with SmartCache the partial part should not be random"),
]

SIZE = 32
NUM_SAMPLES = 23
EPOCHS = 3
BEFORE = simple(SIZE, split=1)
AFTER = simple(SIZE, split=3)
STANDARD = Standard(NUM_SAMPLES, batch_size=4, seed=7)
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=4, reuse_factor=2, seed=7)
ECHO = Echo(STANDARD, echoing_factor=2.5, buffer_size=12)
SMART_CACHE = SmartCache(NUM_SAMPLES, batch_size=4, num_cache_objects=16, replace_percent=0.3, seed=7)  # wraps around

TECHNIQUES = [
    pytest.param(BEFORE.at(0), ECHO, id="echoing before decoding"),
    pytest.param(BEFORE, ECHO, id="echoing before augmentation"),
    pytest.param(AFTER, ECHO, id="echoing after augmentation"),
    pytest.param(BEFORE, BatchEcho(STANDARD, echoing_factor=2.5), id="batch echoing"),
    pytest.param(BEFORE.at(0), BatchEcho(STANDARD, echoing_factor=2.5), id="batch echoing before decoding"),
    pytest.param(BEFORE, BatchEcho(STANDARD, echoing_factor=2.5, buffer_size=3), id="shuffled batch echoing"),
    pytest.param(simple(SIZE), Echo(REFURBISH, echoing_factor=2, buffer_size=12), id="echoing of refurbished samples"),
    pytest.param(BEFORE.at(BEFORE.deterministic_prefix), SMART_CACHE, id="SmartCache of decoded images"),
    pytest.param(BEFORE.at(0), SMART_CACHE, id="SmartCache of files"),
    pytest.param(evaluate(SIZE), SMART_CACHE, id="SmartCache of whole images"),
    pytest.param(BEFORE.at(2), SMART_CACHE, id="SmartCache of random crops"),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


@pytest.fixture(scope="module")
def without_store(source: ImageFolder) -> dict[int, Batches]:
    """What each technique serves without a store, by its place in the table."""
    return {
        number: serve(source, *technique.values, num_threads=1, replicas=1, look_ahead=1, epochs=EPOCHS)[0]
        for number, technique in enumerate(TECHNIQUES)
    }


NUMBERS = [pytest.param(number, id=technique.id) for number, technique in enumerate(TECHNIQUES)]


@pytest.mark.parametrize(("number", "kind", "meddle"), chosen(NUMBERS, ""))
def test_tensors_are_the_same_whatever_the_store_does(
    number: int,
    kind: type[MemoryStore],
    meddle: Meddle,
    source: ImageFolder,
    without_store: dict[int, Batches],
) -> None:
    recipe, planner = TECHNIQUES[number].values
    served, stats = serve(source, recipe, planner, kind(), meddle=meddle, look_ahead=5, epochs=EPOCHS)
    assert_same(without_store[number], served)
    assert stats.hits > 0
    if kind is MemoryStore and meddle is leave_alone:
        assert stats.declined == 0  # a wiped store may be full of images that are still lent


@pytest.mark.parametrize(("number", "batches_per_group"), in_turn(range(len(TECHNIQUES)), [2, 7]))
def test_tensors_are_the_same_when_batches_run_together(
    number: int, batches_per_group: int, source: ImageFolder, without_store: dict[int, Batches]
) -> None:
    recipe, planner = TECHNIQUES[number].values
    served, stats = serve(source, recipe, planner, MemoryStore(), batches_per_group=batches_per_group, epochs=EPOCHS)
    assert_same(without_store[number], served)
    assert stats.declined == 0


def images_of(recipe: Recipe, planner: Planner, source: ImageFolder) -> dict[int, list[torch.Tensor]]:
    """Serve an epoch; list the images of each sample."""
    batches, _ = serve(source, recipe, planner, MemoryStore(), epochs=1)
    found: dict[int, list[torch.Tensor]] = {}
    for (images, _), plan in zip(batches, planner.epoch(0), strict=True):
        for image, index in zip(images, plan.indices.tolist(), strict=True):
            found.setdefault(index, []).append(image)
    return found


@pytest.mark.parametrize("planner", [ECHO, BatchEcho(STANDARD, echoing_factor=2.5)])
def test_repeats_are_alike_after_augmentation_and_differ_before_it(planner: Planner, source: ImageFolder) -> None:
    after = images_of(AFTER, planner, source)
    assert len(after) == NUM_SAMPLES
    assert all(torch.equal(images[0], image) for images in after.values() for image in images)
    before = images_of(BEFORE, planner, source)
    assert all(not torch.equal(images[0], image) for images in before.values() for image in images[1:])
    for index, images in after.items():
        assert 2 <= len(images) == len(before[index]) <= 3


def test_smartcache_reads_a_sample_when_it_enters_and_not_again(source: ImageFolder) -> None:
    rounds = 5
    with Loader(source, evaluate(SIZE), SMART_CACHE, MemoryStore(), prefetch=Prefetch(num_threads=2)) as loader:
        for _ in range(rounds):
            for _ in loader:
                pass
        stats = loader.stats()
    assert stats.misses == 16 + 5 * (rounds - 1)
    assert stats.recomputed == 0


@pytest.mark.parametrize(
    "planner",
    [
        SMART_CACHE,
        Echo(SMART_CACHE, echoing_factor=2, buffer_size=8),
        AutoAssist(Echo(SMART_CACHE, echoing_factor=2, buffer_size=8), lag=32),
    ],
)
def test_smartcache_of_what_is_random_is_warned_about_where_the_loader_is_made(
    planner: Planner, source: ImageFolder
) -> None:
    with pytest.warns(UserWarning, match="with SmartCache the partial part should not be random") as seen:
        Loader(source, BEFORE.at(3), planner).close()
    assert str(seen[0].message).endswith(
        "got random_resized_crop, flip in it: pass recipe.at(recipe.deterministic_prefix)"
    )
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("recipe", "planner"),
    [
        (BEFORE.at(BEFORE.deterministic_prefix), SMART_CACHE),
        (evaluate(SIZE), SMART_CACHE),
        (BEFORE.at(3), REFURBISH),
        (BEFORE.at(3), Fresh(SMART_CACHE)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_nothing_is_warned_about_where_nothing_random_is_cached_or_where_it_is_drawn_anew(
    recipe: Recipe, planner: Planner, source: ImageFolder
) -> None:
    Loader(source, recipe, planner, MemoryStore()).close()


class Told(MemoryStore):
    """A store that remembers which versions it was told to prepare, and those it was asked for without.

    Of how many runs it was told before it was asked for each, it remembers, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs_told = 0
        self.told_before: list[int] = []
        self.announced: set[tuple[int, int]] = set()
        self.surprises: list[tuple[int, int]] = []

    def prefetch(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        self.runs_told += 1
        self.announced |= set(zip(indices.tolist(), versions.tolist(), strict=True))

    def get(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Lease:
        self.told_before.append(self.runs_told)
        lease = super().get(indices, versions)
        asked = zip(indices[lease.found].tolist(), versions[lease.found].tolist(), strict=True)
        self.surprises += [pair for pair in asked if pair not in self.announced]
        return lease


@pytest.mark.parametrize("planner", [REFURBISH, SMART_CACHE, ECHO])
def test_a_store_is_told_of_every_hit_before_it_is_asked_for_it(planner: Planner, source: ImageFolder) -> None:
    store = Told()
    _, stats = serve(source, simple(SIZE), planner, store, look_ahead=1, epochs=EPOCHS)
    assert stats.hits > 0
    assert store.announced
    assert not store.surprises


@pytest.mark.parametrize("batches_per_group", [1, 2])
def test_a_store_is_told_of_each_run_four_runs_before_it_is_asked_for_it(
    batches_per_group: int, source: ImageFolder
) -> None:
    store = Told()
    serve(source, simple(SIZE), REFURBISH, store, look_ahead=1, batches_per_group=batches_per_group, epochs=EPOCHS)
    assert len(store.told_before) > EPOCHS
    assert store.told_before == [number + 1 + 4 for number in range(len(store.told_before))]


ECHOES = [
    pytest.param(Echo(STANDARD, echoing_factor=2, buffer_size=1), id="repeats follow at once"),
    pytest.param(Echo(STANDARD, echoing_factor=2.5, buffer_size=6), id="a buffer of a batch or two"),
    pytest.param(Echo(STANDARD, echoing_factor=3, buffer_size=20), id="a buffer of nearly all samples"),
    pytest.param(BatchEcho(STANDARD, echoing_factor=2.5), id="batch echoing"),
    pytest.param(BatchEcho(STANDARD, echoing_factor=2.5, buffer_size=4), id="batch echoing, a buffer of 4 batches"),
    pytest.param(BatchEcho(Standard(NUM_SAMPLES, batch_size=1, seed=7), echoing_factor=3), id="batches of one"),
]


AHEAD = [(1, 1), (6, 1), (3, 4)]
PAIRS = [
    pytest.param(
        (ahead + number) % 2,
        *planner.values,
        *AHEAD[ahead],
        id=f"{planner.id}-{AHEAD[ahead]}",
        marks=[] if ahead == number % len(AHEAD) else pytest.mark.weekly,
    )
    for number, planner in enumerate(ECHOES)
    for ahead in range(len(AHEAD))
]
"""Each planner with a look-ahead in turn, and weekly with each: a split decides what is kept, not when."""


@pytest.mark.parametrize(("split", "planner", "look_ahead", "batches_per_group"), PAIRS)
def test_a_sample_that_is_repeated_is_computed_once(
    split: int, planner: Echo | BatchEcho, look_ahead: int, batches_per_group: int, source: ImageFolder
) -> None:
    _, stats = serve(
        source,
        BEFORE.at(split),
        planner,
        MemoryStore(),
        look_ahead=look_ahead,
        batches_per_group=batches_per_group,
        epochs=2,
    )
    assert stats.recomputed == 0
    plans = [plan for epoch in range(9) for plan in planner.epoch(epoch)][: stats.batches]
    assert stats.misses == sum(int(plan.miss.sum()) for plan in plans)
    assert stats.hits == stats.samples - stats.misses > 0
