"""The cache is only an accelerator: whatever it does, the served tensors are the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import (
    Arrays,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    Stats,
    auto_augment,
    rand_augment,
    timm_augment,
    trivial_augment,
)
from dalirefurb.augment import (
    Decode,
    RandomCrop,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    VerticalFlip,
)
from dalirefurb.engine.kernel_choice import Kernels
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import Store
from tests.in_turn import in_turn
from tests.lossy import Forgetful, Leaky, Meddle, TooSmall, leave_alone, wipe_mid_epoch
from tests.pictures import picture, write_folder
from tests.placements import ON_CPU, Placement

pytestmark = pytest.mark.usefixtures("traced_once")
SIZE = 32
NUM_SAMPLES = 23
BATCH_SIZE = 6
EPOCHS = 5

Batches = list[tuple[torch.Tensor, torch.Tensor]]


class SmallStore(TooSmall, MemoryStore):
    pass


class LeakyStore(Leaky, MemoryStore):
    pass


class ForgetfulStore(Forgetful, MemoryStore):
    pass


def serve(
    source: Source,
    recipe: Recipe,
    planner: Planner,
    store: Store | None = None,
    *,
    meddle: Meddle = leave_alone,
    placement: Placement = ON_CPU,
    num_threads: int = 2,
    replicas: int = 2,
    look_ahead: int = 3,
    batches_per_group: int = 1,
    epochs: int = EPOCHS,
    kernels: Kernels | None = None,
) -> tuple[Batches, Stats]:
    batches = []
    partial_device, final_device = placement
    with Loader(
        source,
        recipe,
        planner,
        store,
        partial_device=partial_device,
        final_device=final_device,
        prefetch=Prefetch(
            num_threads=num_threads, replicas=replicas, look_ahead=look_ahead, batches_per_group=batches_per_group
        ),
        kernels=kernels,
    ) as loader:
        for _ in range(epochs):
            for number, (images, labels) in enumerate(loader):
                batches.append((images.clone(), labels.clone()))
                if store is not None:
                    meddle(store, number)
        return batches, loader.stats()


def assert_same(expected: Batches, actual: Batches) -> None:
    assert len(expected) == len(actual)
    for number, ((images, labels), (other_images, other_labels)) in enumerate(zip(expected, actual, strict=True)):
        assert torch.equal(labels, other_labels), f"labels of batch {number}"
        assert torch.equal(images, other_images), f"images of batch {number}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    images = [np.asarray(picture(i, height=SIZE, width=SIZE)) for i in range(NUM_SAMPLES)]
    return Arrays(np.stack(images), np.arange(NUM_SAMPLES))


def refurbish(reuse_factor: int = 3) -> Refurbish:
    return Refurbish(NUM_SAMPLES, batch_size=BATCH_SIZE, reuse_factor=reuse_factor, seed=7)


GEOMETRY = Recipe(
    [
        Decode(),
        RandomResizedCrop(SIZE + 4, interpolation="random"),
        RandomRotation(20, "bilinear"),
        RandomPerspective(),
        RandomCrop(SIZE, padding=2, padding_mode="reflect"),
        VerticalFlip(),
    ],
    Output(SIZE),
    "random_rotation",
)
RECIPES = {
    "paper": rand_augment(SIZE),
    "crop_last": rand_augment(SIZE, order="crop_last"),
    "auto_augment": auto_augment(SIZE),
    "trivial_augment": trivial_augment(SIZE),
    "timm": timm_augment(SIZE),
    "timm's weights": timm_augment(SIZE, config="rand-m9-mstd0.5-tweights"),
    "augmix": timm_augment(SIZE, config="augmix-m5-w2-d2", order="crop_last"),
    "geometry": GEOMETRY,
}

SPLITS = [
    pytest.param("paper", 0, id="paper, split before decoding"),
    pytest.param("paper", "random_resized_crop", id="paper, split after decoding"),
    pytest.param("paper", "rand_augment_1", id="paper, split before the first layer"),
    pytest.param("paper", "rand_augment_2", id="paper, split in the middle"),
    pytest.param("paper", 5, id="paper, split at the end"),
    pytest.param("crop_last", "random_resized_crop", id="crop_last, split after decoding"),
    pytest.param("crop_last", "rand_augment_2", id="crop_last, split in the middle"),
    pytest.param("crop_last", "random_crop", id="crop_last, split before the crop"),
    pytest.param("crop_last", 6, id="crop_last, split at the end"),
    pytest.param("auto_augment", "auto_augment_2", id="auto_augment, split in the middle"),
    pytest.param("trivial_augment", "trivial_augment", id="trivial_augment, split before its layer"),
    pytest.param("timm", "rand_augment_2", id="timm, split in the middle"),
    pytest.param("timm's weights", "rand_augment_2", id="timm's weights, split in the middle"),
    pytest.param("augmix", "aug_mix", id="augmix, split before it"),
    pytest.param("augmix", "random_crop", id="augmix, split after it"),
    pytest.param("geometry", "random_rotation", id="geometry, split after the crop"),
    pytest.param("geometry", "random_perspective", id="geometry, split between warps"),
]

STORES = [
    pytest.param(MemoryStore, leave_alone, id="store on"),
    pytest.param(SmallStore, leave_alone, id="too small"),
    pytest.param(LeakyStore, leave_alone, id="half lost on the way in"),
    pytest.param(ForgetfulStore, leave_alone, id="lost after use"),
    pytest.param(MemoryStore, wipe_mid_epoch, id="wiped in the middle of an epoch"),
]


WHOLLY_TRIED = "paper, split in the middle"


def chosen(rows: Sequence[Any], wholly: str) -> list[Any]:
    """Return rows with stores: each with one in turn, and one, if it is named, with all.

    What a store loses it loses by indices and numbers, whatever the images are, so the others run weekly.
    """
    pairs = []
    for number, row in enumerate(rows):
        for store in STORES:
            left_out = store is not STORES[number % len(STORES)] and row.id != wholly
            marks = [pytest.mark.weekly] if left_out else []
            pairs.append(pytest.param(*row.values, *store.values, id=f"{row.id}-{store.id}", marks=marks))
    return pairs


@pytest.fixture(scope="module")
def without_store(folder: ImageFolder) -> Callable[[str, int | str], Batches]:
    """What each recipe serves without any store, from one pipeline with one thread."""
    known: dict[tuple[str, int | str], Batches] = {}

    def look_up(name: str, split: int | str) -> Batches:
        if (name, split) not in known:
            recipe = RECIPES[name].at(split)
            known[name, split], stats = serve(folder, recipe, refurbish(), num_threads=1, replicas=1, look_ahead=1)
            assert stats.hits == 0
        return known[name, split]

    return look_up


@pytest.fixture(scope="module")
def standard(folder: ImageFolder) -> Callable[[str], Batches]:
    """What each recipe serves in two epochs where nothing is reused."""
    planner = Standard(NUM_SAMPLES, batch_size=BATCH_SIZE, seed=7)
    return cache(lambda name: serve(folder, RECIPES[name].at(1), planner, epochs=2)[0])


@pytest.mark.parametrize(("name", "split", "kind", "meddle"), chosen(SPLITS, WHOLLY_TRIED))
def test_tensors_are_the_same_whatever_the_store_does(
    name: str,
    split: int | str,
    kind: type[MemoryStore],
    meddle: Meddle,
    folder: ImageFolder,
    without_store: Callable[[str, int | str], Batches],
) -> None:
    served, stats = serve(folder, RECIPES[name].at(split), refurbish(), kind(), meddle=meddle)
    assert_same(without_store(name, split), served)
    assert stats.hits > 0
    if kind is MemoryStore and meddle is leave_alone:
        assert stats.recomputed == 0


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *SPLITS[3::12],
        *(pytest.param(*row.values, id=row.id, marks=pytest.mark.weekly) for row in (*SPLITS[::6], SPLITS[9])),
    ],
)
def test_tensors_are_the_same_whatever_the_store_does_where_dali_computes_all(
    name: str, split: int | str, folder: ImageFolder
) -> None:
    """The other tests take the kernels, where they are installed; each of DALI's operators is in `test_any_recipe`."""
    recipe = RECIPES[name].at(split)
    expected, _ = serve(folder, recipe, refurbish(), kernels="dali", epochs=3)
    served, stats = serve(folder, recipe, refurbish(), LeakyStore(), kernels="dali", epochs=3)
    assert_same(expected, served)
    assert stats.hits > 0


@pytest.mark.parametrize(("kind", "meddle"), STORES[1:])
def test_what_a_store_loses_is_computed_again(kind: type[MemoryStore], meddle: Meddle, folder: ImageFolder) -> None:
    """Epochs are longer than what is on its way at a time, which no store can lose."""
    planner = Refurbish(NUM_SAMPLES, batch_size=1, reuse_factor=3, seed=7)
    _, stats = serve(folder, RECIPES["paper"], planner, kind(), meddle=meddle, look_ahead=1, epochs=3)
    assert stats.recomputed > 0


@pytest.mark.parametrize(
    ("depths", "recipe"),
    in_turn(
        [(1, 1, 1, 1), (2, 1, 4, 1), (1, 2, 2, 2), (2, 3, 9, 1), (2, 2, 3, 3), (1, 1, 2, 9)],
        [("paper", 0), ("auto_augment", "auto_augment_2"), ("crop_last", "random_resized_crop")],
    ),
)
def test_tensors_are_the_same_with_other_threads_replicas_and_look_ahead(
    depths: tuple[int, int, int, int],
    recipe: tuple[str, int | str],
    folder: ImageFolder,
    without_store: Callable[[str, int | str], Batches],
) -> None:
    num_threads, replicas, look_ahead, batches_per_group = depths
    name, split = recipe
    served, stats = serve(
        folder,
        RECIPES[name].at(split),
        refurbish(),
        MemoryStore(),
        num_threads=num_threads,
        replicas=replicas,
        look_ahead=look_ahead,
        batches_per_group=batches_per_group,
    )
    assert_same(without_store(name, split), served)
    assert stats.recomputed == 0


def split_anywhere() -> Iterator[Any]:
    """Yield recipes and splits: of the recipes together every split is tried, the other splits of each weekly."""
    for number, (name, recipe) in enumerate(RECIPES.items()):
        for split in range(len(recipe.stages) + 1):
            yield pytest.param(name, split, marks=[] if split % 3 == number % 3 else pytest.mark.weekly)


@pytest.mark.parametrize(("name", "split"), list(split_anywhere()))
def test_at_reuse_factor_1_every_split_serves_what_standard_does(
    name: str, split: int, folder: ImageFolder, standard: Callable[[str], Batches]
) -> None:
    served, _ = serve(folder, RECIPES[name].at(split), refurbish(1), MemoryStore(), epochs=2)
    assert_same(standard(name), served)


def test_reuse_changes_what_is_served_after_the_first_epoch_only(
    folder: ImageFolder, without_store: Callable[[str, int | str], Batches]
) -> None:
    fresh, _ = serve(folder, RECIPES["paper"].at("rand_augment_2"), refurbish(1))
    reused = without_store("paper", "rand_augment_2")
    first, later = slice(0, 4), slice(4, None)

    def pixel_sets(batches: Batches) -> set[bytes]:
        return {image.numpy().tobytes() for images, _ in batches for image in images}

    assert pixel_sets(fresh[first]) == pixel_sets(reused[first])
    assert pixel_sets(fresh[later]) != pixel_sets(reused[later])


@pytest.mark.parametrize(("split", "order"), in_turn([0, 1, "flip", None], ["paper", "crop_last"]))
def test_arrays_are_served_alike_with_and_without_a_store(order: str, split: int | str | None, arrays: Arrays) -> None:
    recipe = rand_augment(SIZE, order="paper" if order == "paper" else "crop_last", split=split, raw=True)
    expected, _ = serve(arrays, recipe, refurbish(), replicas=1)
    served, stats = serve(arrays, recipe, refurbish(), MemoryStore())
    assert_same(expected, served)
    assert stats.hits > 0
    assert stats.recomputed == 0


@pytest.mark.parametrize(("batch_size", "reuse_factor", "look_ahead"), [(12, 4, 8), (1, 2, 8), (23, 3, 4)])
def test_a_version_that_a_run_on_its_way_computes_is_not_computed_again(
    batch_size: int, reuse_factor: int, look_ahead: int, folder: ImageFolder
) -> None:
    """With 23 samples in few batches and more in flight, later epochs are planned before the first is made."""
    planner = Refurbish(NUM_SAMPLES, batch_size=batch_size, reuse_factor=reuse_factor, seed=3)
    recipe = RECIPES["paper"].at("rand_augment_2")
    expected, _ = serve(folder, recipe, planner, replicas=1, look_ahead=1, epochs=9)
    served, stats = serve(folder, recipe, planner, MemoryStore(), replicas=2, look_ahead=look_ahead, epochs=9)
    assert_same(expected, served)
    assert stats.recomputed == 0


def test_leaving_an_epoch_early_keeps_later_epochs_the_same(folder: ImageFolder) -> None:
    recipe = RECIPES["paper"].at("rand_augment_2")

    def stream(store: MemoryStore | None) -> Batches:
        batches: Batches = []
        with Loader(folder, recipe, refurbish(), store) as loader:
            for length in (4, 2, 1, 4, 3, 4):
                batches += [(images.clone(), labels) for images, labels in islice(loader, length)]
        return batches

    assert_same(stream(None), stream(MemoryStore()))
