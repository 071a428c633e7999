"""What users of PyTorch's DataLoader look for is there, or is told where it is."""

from __future__ import annotations

from importlib import metadata

import numpy as np
import pytest

import dalirefurb
from dalirefurb import Arrays, DiskStore, Evaluate, Loader, MemoryStore, Output, Recipe, Refurbish
from dalirefurb.augment import HorizontalFlip
from dalirefurb.store import StoreSpec

SOURCE = Arrays(np.zeros((6, 8, 8, 3), np.uint8), np.arange(6))
SOURCE.classes = list("abcdef")
RECIPE = Recipe([HorizontalFlip()], Output(8), split=1)


def make(planner: Refurbish | Evaluate | None = None) -> Loader:
    return Loader(SOURCE, RECIPE, planner or Refurbish(6, batch_size=2, reuse_factor=2), MemoryStore())


def test_a_loader_says_what_it_is_made_of() -> None:
    with make() as loader:
        assert (loader.source, loader.dataset, loader.recipe) == (SOURCE, SOURCE, RECIPE)
        assert loader.planner == Refurbish(6, batch_size=2, reuse_factor=2)
        assert len(loader.dataset) == loader.num_samples == 6
        assert (loader.drop_last, loader.pin_memory, loader.num_workers) == (False, False, 0)
        assert loader.collate_fn is loader.batch_sampler is loader.generator is None
        next(iter(loader))
        assert repr(loader) == (
            "Loader(6 samples of 6 classes by Refurbish in batches of 2, next: batch 0 of epoch 1, or by "
            "resume() batch 1 of epoch 0; cached: flip; "
            "kernels: numba)"
        )


def test_arrays_that_are_cached_as_they_are_are_not_called_files() -> None:
    with Loader(SOURCE, RECIPE.at(0), Refurbish(6, batch_size=2, reuse_factor=2), MemoryStore()) as loader:
        assert "cached: arrays, as they are read;" in repr(loader)


def test_a_sampler_that_sets_the_epoch_sets_the_loaders() -> None:
    with make() as loader:
        assert len(loader.sampler) == 6
        loader.sampler.set_epoch(4)
        assert loader.epoch == 4
    planner = Refurbish(6, batch_size=2, reuse_factor=2, shards=2)
    with Loader(SOURCE, RECIPE, planner, MemoryStore(), rank=(1, 2)) as loader:
        assert (len(loader.sampler), loader.rows_per_epoch) == (6, 3)
        assert loader.drop_last, "a batch is the same number of rows on each rank"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "batch_size",
            r"Loader: there is no argument 'batch_size': the planner has it: Refurbish\(len\(source\), batch",
        ),
        ("shuffle", "'shuffle': planners shuffle, each epoch anew; Evaluate serves in the source's order"),
        ("num_workers", r"'num_workers': threads take the place of processes: prefetch=Prefetch\(num_threads=4\)"),
        ("sampler", "'sampler': planners serve each sample once an epoch; .* indices drawn by the weights"),
        ("transform", "'transform': images are transformed by a recipe, the loader's second argument"),
        ("num_threads", r"'num_threads': pass prefetch=Prefetch\(num_threads=...\)"),
        ("on_bad_sample", r"'on_bad_sample': pass bad_samples=BadSamplePolicy\(on_bad_sample=...\)"),
        ("world_size", r"'world_size': pass rank=\(rank, world_size\)"),
        ("timeout", "'timeout': nothing can time out"),
        ("with_index", "'with_index': it is with_indices here"),
        ("colour", "'colour': it takes source, recipe, planner, store, partial_device"),
    ],
)
def test_arguments_of_other_loaders_are_refused_with_what_takes_their_place(name: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Loader(SOURCE, RECIPE, Refurbish(6, batch_size=2, reuse_factor=2), **{name: 1})  # type: ignore[arg-type]


def test_sources_and_stores_say_what_they_hold(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert repr(SOURCE) == "Arrays(6 images of 8 x 8, 6 classes)"
    assert SOURCE.class_to_idx == {name: label for label, name in enumerate("abcdef")}
    assert Arrays(np.zeros((6, 8, 8, 3), np.uint8), np.arange(6)).class_to_idx == {}
    for store in (MemoryStore(), DiskStore(tmp_path / "store")):
        name = type(store).__name__
        assert repr(store) == f"{name}(not open)"
        with store:
            store.open(StoreSpec((8, 8, 3), 4, {}))
            store.put(np.arange(2), np.zeros(2, np.int64), [np.zeros((8, 8, 3), np.uint8)] * 2)
            assert repr(store).startswith(f"{name}(2 of 4 samples, ")
            assert repr(store).endswith("B)")


def test_the_version_is_that_of_the_installed_package() -> None:
    assert dalirefurb.__version__ == metadata.version("dalirefurb")
