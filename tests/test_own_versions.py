"""Views with versions of their own: does a loader serve what is planned, however it is cached, divided or resumed?"""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import (
    Arrays,
    BadSamplePolicy,
    FileList,
    ImageFolder,
    Kept,
    Loader,
    MemoryStore,
    Output,
    PartialSource,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    simple,
)
from dalirefurb.augment import HorizontalFlip, HostStage
from dalirefurb.augment.published import simclr
from dalirefurb.errors import ConfigurationError, DalirefurbError, LoaderError, SampleError, StateMismatchError
from dalirefurb.planning import Frozen
from dalirefurb.source import Source
from dalirefurb.targets import Annotated, Values
from tests.pictures import write_folder
from tests.test_views import same, served

pytestmark = [
    pytest.mark.usefixtures("traced_once"),
    pytest.mark.filterwarnings("ignore:.* reuses partial images, but there is no store"),
    pytest.mark.filterwarnings("ignore:the store is smaller than the plan needs"),
]

COUNT, BATCH = 16, 8
PLANNER = Refurbish(COUNT, batch_size=BATCH, reuse_factor=2, shards=4, seed=3)
ALONE = Refurbish(COUNT, batch_size=BATCH, reuse_factor=2, seed=3)
RECIPE = simclr(32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=COUNT))


@pytest.mark.parametrize(
    "split",
    [0, RECIPE.split, len(RECIPE.stages), *(pytest.param(split, marks=pytest.mark.weekly) for split in (1, 2))],
)
def test_a_store_changes_nothing_and_the_first_view_is_a_loaders_without_views(folder: ImageFolder, split: int) -> None:
    recipe = RECIPE.at(split)
    first = served(Loader(folder, recipe, ALONE, MemoryStore()))
    expected = served(Loader(folder, recipe, ALONE, views=2))
    same([(one, labels) for one, _, labels in expected], first)
    assert not any(torch.equal(one, two) for one, two, _ in expected)
    loader = Loader(folder, recipe, ALONE, MemoryStore(), views=2)
    same(served(loader), expected)
    stats = loader.stats()
    assert (stats.misses, stats.hits, stats.recomputed) == (4 * COUNT, 2 * COUNT, 0)
    same(served(Loader(folder, recipe, ALONE, MemoryStore(max_bytes="20KB"), views=2)), expected)


def test_each_view_is_planned_as_its_versions_say(folder: ImageFolder) -> None:
    """What is partial is the version's, what is final is drawn anew: with all partial, images say which version."""
    recipe = RECIPE.at(len(RECIPE.stages))
    seen: dict[tuple[int, int], list[torch.Tensor]] = {}
    with Loader(folder, recipe, ALONE, MemoryStore(), views=2, with_indices=True) as loader:
        for _ in range(4):
            for images, labels, indices in loader:
                assert labels.tolist() == folder.labels[indices.numpy()].tolist()
                for view, each in enumerate(images):
                    for index, image in zip(indices.tolist(), each, strict=True):
                        seen.setdefault((index, view), []).append(image)
    for (index, view), images in seen.items():
        same_as_before = [torch.equal(one, two) for one, two in pairwise(images)]
        other = seen[index, 1 - view]
        assert same_as_before == [not torch.equal(one, two) for one, two in pairwise(other)]
        assert same_as_before.count(True) in (1, 2)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_together_serve_what_one_process_would(folder: ImageFolder, world_size: int) -> None:
    expected = served(Loader(folder, RECIPE, PLANNER, MemoryStore(), views=2), 2)
    parts = [
        served(Loader(folder, RECIPE, PLANNER, MemoryStore(), views=2, rank=(rank, world_size)), 2)
        for rank in range(world_size)
    ]
    for whole, *ranks in zip(expected, *parts, strict=True):
        for view, images in enumerate(whole):
            assert torch.equal(torch.cat([part[view] for part in ranks]), images)


def test_it_goes_on_from_a_state_at_every_batch(folder: ImageFolder) -> None:
    planner = Refurbish(COUNT, batch_size=6, reuse_factor=2, drop_last=False, seed=3)
    loader = Loader(folder, RECIPE, planner, MemoryStore(), views=2)
    expected = served(loader, 2)
    for batches in range(len(loader)):
        with Loader(folder, RECIPE, planner, MemoryStore(), views=2) as before:
            list(before)
            list(islice(before, batches))
            state = before.state_dict()
        with Loader(folder, RECIPE, planner, MemoryStore(), views=2) as after:
            after.load_state_dict(state)
            rest = [(*images, labels) for images, labels in after.resume()]
        same(rest, expected[len(loader) + batches :])
    with (
        Loader(folder, RECIPE, planner, MemoryStore(), views=3) as other,
        pytest.raises(StateMismatchError, match="views"),
    ):
        other.load_state_dict(state)


def test_dali_computes_views_too(folder: ImageFolder) -> None:
    recipe = simple(32)
    expected = served(Loader(folder, recipe, ALONE, kernels="dali", views=2), 2)
    same(served(Loader(folder, recipe, ALONE, MemoryStore(), kernels="dali", views=2), 2), expected)


def test_without_reuse_and_from_arrays_each_view_is_fresh() -> None:
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 40, 40, 3), np.uint8)
    source, planner = Arrays(images, np.arange(COUNT)), Standard(COUNT, batch_size=5, seed=1)
    loader = Loader(source, RECIPE.for_arrays(), planner, views=np.int64(3))  # type: ignore[arg-type]
    assert "views: 3" in repr(loader)
    assert (loader.batch_size, loader.num_samples, len(loader)) == (5, COUNT, 4)
    assert loader.rows_per_epoch == COUNT
    for *views, labels in served(loader, 1):
        assert [len(each) for each in views] == [len(labels)] * 3
        assert all(each.is_contiguous() for each in views)
        assert not torch.equal(views[0], views[1])
        assert not torch.equal(views[1], views[2])


class Stacked(Arrays):
    """Returns one array of all that it is asked for."""

    def read(self, indices: Any) -> Any:
        return np.stack([*super().read(indices)])


def test_views_of_samples_that_come_as_one_array_are_each_of_its_own_sample() -> None:
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 40, 40, 3), np.uint8)
    planner, recipe = Standard(COUNT, batch_size=5, seed=1), RECIPE.for_arrays()
    one, other = (
        served(Loader(kind(images, np.arange(COUNT)), recipe, planner, views=2), 1) for kind in (Arrays, Stacked)
    )
    same(one, other)


class Watched(FileList):
    """Notes the files that are asked for together."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: list[list[int]] = []

    def read(self, indices: Any) -> Any:
        self.asked.append(indices.tolist())
        return super().read(indices)


def test_a_file_is_read_once_for_all_views_that_miss(folder: ImageFolder) -> None:
    source = Watched([folder.name(index) for index in range(COUNT)], list(folder.labels))
    settings = Prefetch(num_threads=1, batches_per_group=1)
    with Loader(source, RECIPE, Standard(COUNT, batch_size=4), views=2, prefetch=settings) as loader:
        list(loader)
        assert loader.stats().misses >= 2 * COUNT
    batches = [tuple(sorted(asked)) for asked in source.asked if len(asked) == 4]
    assert len({*batches}) == len(batches) >= 4  # none is asked for again, for its other views


def test_views_of_a_keep(folder: ImageFolder, tmp_path: Path) -> None:
    expected = served(Loader(folder, RECIPE, ALONE, views=2), 2)
    for form in ("decoded", "encoded"):
        kept = Kept(folder, tmp_path / form, form=form)
        found = served(Loader(kept, RECIPE, ALONE, MemoryStore(), views=2), 2)
        same(found, expected)


def test_a_bad_sample_is_told_by_its_own_number(folder: ImageFolder, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    names = [folder.name(index) for index in range(COUNT)]
    names[4] = str(broken)
    source = FileList(names, [0] * COUNT)
    for recipe in (RECIPE, RECIPE.at(1)):  # whose partial images have one size, and whose sizes are looked at first
        for planner in (ALONE, PLANNER):  # which begins when the loader is made, and when it is iterated
            with (
                pytest.raises(SampleError) as raised,
                Loader(source, recipe, planner, MemoryStore(), views=2) as loader,
            ):
                list(loader)
            assert (raised.value.index, raised.value.name, raised.value.lasting) == (4, str(broken), True)


def test_what_a_users_function_raises_in_another_view_is_told_by_the_samples_number() -> None:
    seen: list[int] = []

    def fails(image: Any) -> Any:
        if len(image) == 20:  # One that it is tried on is smaller.
            seen.append(int(image[0, 0, 0]))
            if seen.count(5) == 2:
                raise ValueError("the second view of number 5")
        return image

    images = np.arange(COUNT, dtype=np.uint8)[:, None, None, None] * np.ones((1, 20, 20, 3), np.uint8)
    recipe = Recipe([HostStage(fails, "fails"), HorizontalFlip()], Output(20), split=1)
    source, planner = Arrays(images, np.arange(COUNT)), Standard(COUNT, batch_size=BATCH)
    with (
        pytest.raises(LoaderError, match=r"sample 5, which source\.name\(5\) names"),
        Loader(source, recipe, planner, views=2, prefetch=Prefetch(num_threads=1)) as loader,
    ):
        list(loader)


class Short(FileList):
    """Returns a file less than it is asked for."""

    def read(self, indices: Any) -> Any:
        return super().read(indices[1:])


def test_a_source_that_returns_too_few_is_told(folder: ImageFolder) -> None:
    source = Short([folder.name(index) for index in range(COUNT)], [0] * COUNT)
    with (
        pytest.raises(DalirefurbError, match=r"must return as many samples as it is asked for, but .* returned"),
        Loader(source, RECIPE, ALONE, MemoryStore(), views=2) as loader,
    ):
        list(loader)


def annotated(source: Source) -> Source:
    return Annotated(source, {"values": Values(np.arange(COUNT))})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"views": 1}, r"views must be an int in 2\.\.1024, got 1"),
        ({"views": 2**31}, r"views must be an int in 2\.\.1024, got 2147483648: pass 2 for pairs"),
        ({"views": True}, r"views must be a list of recipes, or a number, got True"),
        ({"planner": Frozen(COUNT, batch_size=4)}, r"planner must be a Refurbish or Standard where views is a number"),
        ({"planner": Standard(8, batch_size=4)}, r"the same number of samples, got 8 and 16"),
        ({"bad_samples": BadSamplePolicy("replace")}, r"with views=2 bad samples cannot be replaced yet"),
        ({"source": annotated}, r"a source with targets cannot be served in several views yet"),
    ],
)
def test_what_cannot_be_had_is_refused(folder: ImageFolder, settings: dict[str, Any], said: str) -> None:
    given = {"planner": ALONE, "views": 2, "source": lambda source: source} | settings
    with pytest.raises(ConfigurationError, match=said):
        Loader(given.pop("source")(folder), RECIPE, given.pop("planner"), **given)


def test_without_a_store_the_planner_that_was_given_is_named(folder: ImageFolder) -> None:
    with pytest.warns(UserWarning, match="^Refurbish reuses partial images, but"):
        Loader(folder, RECIPE, ALONE, views=2).close()


def test_what_takes_one_image_of_each_sample_refuses_them(folder: ImageFolder) -> None:
    with (
        Loader(folder, RECIPE, ALONE, MemoryStore(), views=2) as loader,
        pytest.raises(ConfigurationError, match="serves one image of each sample, but this loader has views"),
    ):
        loader.dali_iterator()
    with pytest.raises(ConfigurationError, match="views must be a list of recipes, got 2"):
        PartialSource(folder, RECIPE, ALONE, MemoryStore(), views=2)  # type: ignore[arg-type]
