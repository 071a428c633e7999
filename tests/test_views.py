"""Several views of each sample: is each what a loader of its recipe serves, from partial images that they share?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali import fn

from dalirefurb import (
    Arrays,
    BadSamplePolicy,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    rand_augment,
    simple,
)
from dalirefurb.augment import CenterCrop, Custom, Decode, HorizontalFlip, HostStage, RandomGrayscale, RandomResizedCrop
from dalirefurb.augment.published import simclr
from dalirefurb.errors import ConfigurationError, LoaderError, SampleError, StateMismatchError
from dalirefurb.planning import Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.store import DeviceStore, Store
from tests.pictures import write_folder

pytestmark = pytest.mark.usefixtures("traced_once")

COUNT, BATCH = 17, 5
REFURBISH = Refurbish(COUNT, batch_size=BATCH, reuse_factor=2, seed=3)
RECIPE = simclr(32).at(1)
LOCAL = Recipe(
    [Decode(), RandomResizedCrop((20, 24), (0.05, 0.4), name="local"), HorizontalFlip(name="local_flip")],
    Output((20, 24), "float16", channels_last=True),
    1,
)
GREY = Recipe([Decode(), RandomResizedCrop(16, name="crop"), RandomGrayscale(0.5)], Output(16, "bfloat16"), 1)
VIEWS = [RECIPE.view(2), LOCAL, GREY]

CROPPED = simple(32).at(2)
CROPPED_TWICE = Recipe([*CROPPED.partial, HorizontalFlip(name="another"), RandomGrayscale(0.5)], CROPPED.output, 2)
"""Partial images of one size, which a device's store needs."""

NONE: Callable[[], Store | None] = lambda: None  # noqa: E731 - which is told by what it is
DEVICE: Callable[[], Store | None] = lambda: DeviceStore(device="cpu")  # noqa: E731

Served = list[tuple[torch.Tensor, ...]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=COUNT))


def served(loader: Loader, epochs: int = 3) -> Served:
    with loader:
        return [
            (*((images,) if isinstance(images, torch.Tensor) else images), labels)
            for _ in range(epochs)
            for images, labels in loader
        ]


def same(found: Served, expected: Served) -> None:
    assert len(found) == len(expected) > 0
    for batch, other in zip(found, expected, strict=True):
        for one, two in zip(batch, other, strict=True):
            assert one.dtype == two.dtype
            assert one.stride() == two.stride()
            assert torch.equal(one, two)


def each_alone(
    source: Any,
    recipes: list[Recipe],
    planner: Planner,
    store: Callable[[], Store | None] = MemoryStore,
    **settings: Any,
) -> Served:
    """What loaders of the recipes serve, put together."""
    alone = [served(Loader(source, recipe, planner, store(), **settings)) for recipe in recipes]
    return [(*(images for images, _ in batches), batches[0][1]) for batches in zip(*alone, strict=True)]


@pytest.mark.parametrize(
    ("store", "kernels"),
    [
        pytest.param(MemoryStore, "numba", id="memory, numba"),
        pytest.param(MemoryStore, "dali", id="memory, dali"),
        pytest.param(NONE, "numba", id="none, numba"),
        pytest.param(NONE, "dali", id="none, dali", marks=pytest.mark.weekly),
        pytest.param(DEVICE, "numba", id="device, numba"),
        pytest.param(DEVICE, "dali", id="device, dali", marks=pytest.mark.weekly),
    ],
)
@pytest.mark.filterwarnings("ignore:Refurbish reuses partial images, but there is no store")
def test_each_view_is_what_a_loader_of_its_recipe_serves(folder: ImageFolder, kernels: Any, store: Any) -> None:
    if kernels == "numba":
        pytest.importorskip("numba")
    recipe, views = (RECIPE, VIEWS) if kernels == "numba" else (simple(32).at(1), [LOCAL, GREY])
    if store is DEVICE:
        recipe, views = CROPPED, [CROPPED_TWICE]
    expected = each_alone(folder, [recipe, *views], REFURBISH, kernels=kernels)
    with Loader(folder, recipe, REFURBISH, store(), views=views, kernels=kernels) as loader:
        assert f"further views: {len(views)}" in repr(loader)
        same(served(loader), expected)
        assert loader.stats().hits > 0 or store is NONE


def test_views_of_arrays_and_of_groups_of_batches(folder: ImageFolder) -> None:
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 40, 40, 3), np.uint8)
    source, recipe = Arrays(images, np.arange(COUNT)), RECIPE.for_arrays()
    views = [recipe.view(2), recipe.view(3)]
    planner = Standard(COUNT, batch_size=2, seed=1)
    expected = each_alone(source, [recipe, *views], planner, lambda: None)
    settings = Prefetch(batches_per_group=3, look_ahead=4)
    same(served(Loader(source, recipe, planner, views=(*views,), prefetch=settings)), expected)


def test_after_a_view_has_failed_no_view_shows_what_was_made_for_the_batch_that_failed() -> None:
    pytest.importorskip("numba")
    fails = [True]

    def picky(image: Any) -> Any:
        if image.shape[0] == 40 and fails:
            fails.clear()
            raise ValueError("not now")
        return image

    images = np.random.default_rng(0).integers(0, 256, (COUNT, 40, 40, 3), np.uint8)
    source, planner = Arrays(images, np.arange(COUNT)), Standard(COUNT, batch_size=BATCH, seed=1)
    recipe, view = (Recipe([stage], Output(40), 0) for stage in (HostStage(picky, "picky"), HorizontalFlip()))
    for recipes in ((recipe, view), (view, recipe)):
        fails[:] = []
        expected = served(Loader(source, recipes[0], planner, views=recipes[1:], kernels="numba"), 1)
        with Loader(source, recipes[0], planner, views=recipes[1:], kernels="numba") as loader:
            fails[:] = [True]
            with pytest.raises(LoaderError, match="not now"):
                next(iter(loader))
            loader.set_epoch(0)
            same([(*views, labels.clone()) for views, labels in loader], expected)


def test_samples_are_read_once_for_all_views(folder: ImageFolder) -> None:
    planner = Frozen(COUNT, batch_size=BATCH, seed=3)
    with Loader(folder, RECIPE, planner, MemoryStore(), views=VIEWS) as loader:
        before = loader.stats().files  # Which were looked at for their size.
        for _ in range(2):
            list(loader)
        assert loader.stats().files - before == COUNT


@pytest.mark.parametrize("batches", [2, *(pytest.param(each, marks=pytest.mark.weekly) for each in (0, 3))])
def test_views_go_on_from_a_state(folder: ImageFolder, batches: int) -> None:
    expected = each_alone(folder, [RECIPE, *VIEWS], REFURBISH)
    with Loader(folder, RECIPE, REFURBISH, MemoryStore(), views=VIEWS) as loader:
        list(loader)
        list(islice(loader, batches))
        state = loader.state_dict()
    per_epoch = len(expected) // 3
    with Loader(folder, RECIPE, REFURBISH, MemoryStore(), views=VIEWS) as loader:
        loader.load_state_dict(state)
        rest = [(*images, labels) for images, labels in loader.resume()]
    same(rest, expected[per_epoch + batches : 2 * per_epoch])
    fewer = Loader(folder, RECIPE, REFURBISH, MemoryStore(), views=VIEWS[:1])
    with fewer, pytest.raises(StateMismatchError, match="views"):
        fewer.load_state_dict(state)


def test_a_state_of_other_views_is_refused(folder: ImageFolder) -> None:
    one, other = (
        Loader(folder, RECIPE, REFURBISH, MemoryStore(), views=[RECIPE.view(2), RECIPE.view(number)])
        for number in (3, 4)
    )
    with one, other, pytest.raises(StateMismatchError, match="these differ: views"):
        other.load_state_dict(one.state_dict())


def test_bad_samples_are_replaced_in_all_views(folder: ImageFolder, tmp_path: Any) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    names = [folder.name(index) for index in range(COUNT)]
    names[4] = str(broken)
    source, policy = FileList(names, [0] * COUNT), BadSamplePolicy("replace")
    expected = each_alone(source, [RECIPE, *VIEWS], REFURBISH, bad_samples=policy)
    same(served(Loader(source, RECIPE, REFURBISH, MemoryStore(), views=VIEWS, bad_samples=policy)), expected)


def test_an_image_that_one_of_the_views_cannot_take_is_a_bad_sample(folder: ImageFolder) -> None:
    large = Recipe([Decode(), CenterCrop(900, name="large")], Output(900), 1)
    with (
        pytest.raises(SampleError, match="large: images must have at least 900 x 900 pixels"),
        Loader(folder, RECIPE, Standard(COUNT, batch_size=BATCH), views=[RECIPE.view(2), large]) as loader,
    ):
        next(iter(loader))


def test_each_view_has_the_type_of_its_own_output(folder: ImageFolder) -> None:
    brain = RECIPE.with_output(dtype="bfloat16")
    views = [RECIPE.view(2), brain.view(3)]
    with Loader(folder, brain, Standard(COUNT, batch_size=BATCH), views=views) as loader:
        images, _ = next(iter(loader))
    assert [view.dtype for view in images] == [torch.bfloat16, torch.float32, torch.bfloat16]


def test_indices_come_behind_the_views(folder: ImageFolder) -> None:
    with Loader(folder, RECIPE, REFURBISH, MemoryStore(), views=VIEWS, with_indices=True) as loader:
        images, labels, indices = next(iter(loader))
        assert [len(each) for each in images] == [BATCH] * 4
        assert labels.tolist() == loader.source.labels[indices.numpy()].tolist()


def test_a_stage_without_a_kernel_in_any_view_leaves_all_to_dali(folder: ImageFolder) -> None:
    pytest.importorskip("numba")
    recipe = simple(32).at(1)
    darker = Custom(lambda images: fn.brightness(images, brightness=0.5), "own")
    own = Recipe([*recipe.view(2).stages, darker], recipe.output, 1)
    expected = each_alone(folder, [recipe, own], REFURBISH, kernels="dali")
    with Loader(folder, recipe, REFURBISH, MemoryStore(), views=[own]) as loader:
        assert "kernels: dali" in repr(loader)
        same(served(loader), expected)
    with pytest.raises(ConfigurationError, match=r"kernels='numba' needs kernels for all stages where there are views"):
        Loader(folder, recipe, REFURBISH, MemoryStore(), views=[own], kernels="numba")


@pytest.mark.parametrize(
    ("recipe", "views", "said"),
    [
        (RECIPE, [RECIPE], r"views must differ, but stages of the same names .* pass recipe\.view\(2\)"),
        (RECIPE, [RECIPE.view(2), RECIPE.view(2)], r"views must differ"),
        (rand_augment(32), [rand_augment(32).view(2)], r"views must be recipes whose partial part is that of the"),
        (RECIPE, [RECIPE.view(2).at(0)], r"views must be recipes whose partial part is that .* got split 0"),
        (RECIPE, [HorizontalFlip()], r"views must be recipes, got HorizontalFlip"),
        (RECIPE, RECIPE.view(2), r"views must be a list of recipes, or a number, got Recipe"),
    ],
)
def test_views_that_cannot_be_had_are_refused(folder: ImageFolder, recipe: Recipe, views: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Loader(folder, recipe, REFURBISH, MemoryStore(), views=views)


def test_views_that_share_too_much_are_told_where_to_part(folder: ImageFolder) -> None:
    arrays = Arrays(np.zeros((COUNT, 40, 40, 3), np.uint8), np.arange(COUNT))
    for source, recipe in ((folder, simclr(32)), (arrays, simclr(32).for_arrays())):
        with pytest.raises(ConfigurationError, match=r"with recipe = recipe\.at\(\d\), views=") as refusal:
            Loader(source, recipe, REFURBISH, MemoryStore(), views=[recipe.view(2)])
        parted = recipe.at(int(str(refusal.value).partition("recipe.at(")[2][0]))
        with Loader(source, parted, REFURBISH, MemoryStore(), views=[parted.view(2)]) as loader:
            assert len(next(iter(loader))[0]) == 2


def test_a_dali_iterator_of_views_is_refused(folder: ImageFolder) -> None:
    loader = Loader(folder, RECIPE, REFURBISH, MemoryStore(), views=VIEWS)
    with loader, pytest.raises(ConfigurationError, match="serves one image of each sample, but this loader has views"):
        loader.dali_iterator()
