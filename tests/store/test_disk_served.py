"""DiskStore through the real loader: the same tensors, also after the process ended and another one went on."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path

import pytest

from dalirefurb import Compressed, DiskStore, ImageFolder, Loader, Prefetch, Recipe, Refurbish, evaluate, simple
from dalirefurb.augment import HorizontalFlip
from dalirefurb.errors import StoreError
from dalirefurb.planning.planner import Planner
from dalirefurb.store import Store
from tests.engine.test_bit_identity import Batches, assert_same
from tests.pictures import write_folder

SIZE = 32
NUM_SAMPLES = 23
EPOCHS = 4
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3, seed=7)
RECIPES = {
    "images of one size": simple(SIZE),
    "images of varying size": simple(SIZE, split=1),
    "encoded images": simple(SIZE, split=0),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES)
    return root


@pytest.fixture(scope="module")
def source(root: Path) -> ImageFolder:
    return ImageFolder(root)


@pytest.fixture(scope="module")
def plain(source: ImageFolder) -> dict[str, Batches]:
    """What is served without a store."""
    return {name: serve(source, recipe, None, EPOCHS) for name, recipe in RECIPES.items()}


def serve(
    source: ImageFolder, recipe: Recipe, store: Store | None, epochs: int, planner: Planner = REFURBISH
) -> Batches:
    with Loader(source, recipe, planner, store, prefetch=Prefetch(num_threads=2)) as loader:
        return [(images.clone(), labels) for _ in range(epochs) for images, labels in loader]


@pytest.mark.parametrize("name", RECIPES)
def test_tensors_are_the_same_from_disk(
    name: str, source: ImageFolder, plain: dict[str, Batches], tmp_path: Path
) -> None:
    with DiskStore(tmp_path / "cache") as store:
        assert_same(plain[name], serve(source, RECIPES[name], store, EPOCHS))
        assert len(store) > 0


@pytest.mark.parametrize("name", RECIPES)
def test_tensors_are_the_same_from_compressed_files(
    name: str, source: ImageFolder, plain: dict[str, Batches], tmp_path: Path
) -> None:
    pytest.importorskip("zstandard")
    with Compressed(DiskStore(tmp_path / "cache")) as store:
        assert_same(plain[name], serve(source, RECIPES[name], store, EPOCHS))


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_that_goes_on_in_another_store_object_begins_with_hits(
    name: str, source: ImageFolder, plain: dict[str, Batches], tmp_path: Path
) -> None:
    """At every fourth batch of 3 epochs."""
    recipe, expected = RECIPES[name], plain[name]
    for served in range(0, 12, 4):
        path = tmp_path / f"cache{served}"
        with DiskStore(path) as store, Loader(source, recipe, REFURBISH, store) as loader:
            batches = (batch for _ in range(EPOCHS) for batch in loader)
            for _ in islice(batches, served):
                pass
            state = json.dumps(loader.state_dict())
        with DiskStore(path) as store, Loader(source, recipe, REFURBISH, store) as loader:
            loader.load_state_dict(json.loads(state))
            epochs = EPOCHS - loader.epoch
            rest = [(images.clone(), labels) for _ in range(epochs) for images, labels in loader]
            stats = loader.stats()
        assert_same(expected[served:], rest)
        # What was handed out last may not have been stored when the loader was closed.
        assert stats.recomputed <= 2 * REFURBISH.batch_size


def test_a_new_run_finds_what_nothing_random_made_whatever_its_seed(source: ImageFolder, tmp_path: Path) -> None:
    recipe = evaluate(SIZE)
    first, second = (Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=99, seed=seed) for seed in (1, 2))
    with DiskStore(tmp_path / "cache") as store:
        expected = serve(source, recipe, store, 2, first)[4:]
    with DiskStore(tmp_path / "cache") as store, Loader(source, recipe, second, store) as loader:
        served = [image for images, _ in loader for image in images]
        assert loader.stats().hits >= NUM_SAMPLES - REFURBISH.batch_size
    assert {image.numpy().tobytes() for image in served} == {
        image.numpy().tobytes() for images, _ in expected for image in images
    }


def test_a_new_run_finds_what_nothing_random_made_though_its_final_part_is_random(
    source: ImageFolder, tmp_path: Path
) -> None:
    plain = evaluate(SIZE)
    recipe = Recipe([*plain.stages, HorizontalFlip()], plain.output, split="flip")
    for seed in (1, 2):
        planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=99, seed=seed)
        with DiskStore(tmp_path / "cache") as store, Loader(source, recipe, planner, store) as loader:
            assert sum(1 for _ in loader) == len(loader)
            hits = loader.stats().hits
    assert hits >= NUM_SAMPLES - REFURBISH.batch_size


def test_a_random_part_with_another_seed_is_refused_by_name(source: ImageFolder, tmp_path: Path) -> None:
    with DiskStore(tmp_path / "cache") as store:
        serve(source, simple(SIZE), store, 1)
    other = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3, seed=8)
    with DiskStore(tmp_path / "cache") as store, pytest.raises(StoreError, match=r"seed.*7.*8"):
        Loader(source, simple(SIZE), other, store)


def test_a_file_that_is_cut_while_in_use_costs_one_warning_and_nothing_else(
    source: ImageFolder, plain: dict[str, Batches], tmp_path: Path, copying: None
) -> None:
    """Where samples are copied; what is lent where it lies is gone with the file, and the process with it."""

    def serve_and_cut() -> Batches:
        served: Batches = []
        with DiskStore(tmp_path / "cache") as store, Loader(source, simple(SIZE), REFURBISH, store) as loader:
            for epoch in range(EPOCHS):
                served += [(images.clone(), labels) for images, labels in loader]
                if epoch == 0:
                    for file in tmp_path.iterdir():
                        os.truncate(file, 0)
        return served

    with pytest.warns(UserWarning, match="cache") as warned:
        served = serve_and_cut()
    assert_same(plain["images of one size"], served)
    assert len(warned) == 1


@pytest.mark.parametrize("name", RECIPES)
def test_what_another_plan_left_is_served_and_then_gives_its_slot_up(
    name: str, source: ImageFolder, tmp_path: Path
) -> None:
    """Else it would be in the way until its sample's next version is stored."""
    covered = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3, seed=7, coverage=0.5)
    expected = serve(source, RECIPES[name], None, 2, covered)
    with DiskStore(tmp_path / "cache") as store:
        serve(source, RECIPES[name], store, 1)
    with DiskStore(tmp_path / "cache") as store:
        with Loader(source, RECIPES[name], covered, store, prefetch=Prefetch(num_threads=2)) as loader:
            batches = [(images.clone(), labels) for _ in range(2) for images, labels in loader]
            stats = loader.stats()
        assert_same(expected, batches)
        planned = sum(int(plan.miss.sum()) for epoch in range(2) for plan in covered.epoch(epoch))
        assert stats.misses < planned  # what was left was of use
        later = {
            pair
            for epoch in range(2, 6)
            for plan in covered.epoch(epoch)
            for pair in zip(plan.indices.tolist(), plan.version.tolist(), strict=True)
        }
        last = {*[*covered.epoch(1)][-1].indices.tolist()}  # its batch is not committed yet
        held = set(zip(*(each.tolist() for each in store.held()), strict=True))
        assert {pair for pair in held - later if pair[0] not in last} == set()
