"""Validation: every image once, whatever the number of ranks, cached whole, and found again by the next run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import (
    Arrays,
    AutoAssist,
    DiskStore,
    Evaluate,
    ImageFolder,
    Loader,
    MemoryStore,
    Prefetch,
    evaluate,
    simple,
)
from dalirefurb.errors import ConfigurationError, StateMismatchError
from dalirefurb.store import Store
from tests.pictures import write_folder

NUM_SAMPLES, SIZE = 29, 32


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photos"), num_samples=NUM_SAMPLES))


def make(source: ImageFolder, planner: Evaluate, store: Store | None = None, **settings: Any) -> Loader:
    prefetch = Prefetch(num_threads=1, look_ahead=1)
    return Loader(source, evaluate(SIZE), planner, store, prefetch=prefetch, **{"with_indices": True, **settings})


@pytest.fixture(scope="module")
def alone(source: ImageFolder) -> torch.Tensor:
    """The images in the source's order."""
    with make(source, Evaluate(NUM_SAMPLES, batch_size=8)) as loader:
        images, labels, indices = (torch.cat(tensors) for tensors in zip(*loader, strict=True))
    assert indices.tolist() == list(range(NUM_SAMPLES))
    assert labels.tolist() == source.labels.tolist()
    return images


def divided() -> Iterator[Any]:
    """Yield world sizes, batch sizes and whether to pad.

    Each number of ranks is tried with padding and without, and each batch size with 3 ranks or with 4, and some with 2.
    What one process serves alone is what `alone` has; the rest is for every week.
    """
    always = {(1, 8, False), (1, 7, True), (2, 1, False), (2, 7, True), (2, 29, False), (2, 4, True), (2, 8, True)}
    for world_size, (number, batch_size), pad in product(range(1, 5), enumerate((1, 4, 7, 8, 29)), (False, True)):
        case = world_size, batch_size, pad
        chosen = case in always or (world_size == 3 + number % 2 and pad == (number % 4 < 2))
        yield pytest.param(*case, marks=[] if chosen else pytest.mark.weekly)


@pytest.mark.parametrize(("world_size", "batch_size", "pad"), list(divided()))
def test_any_number_of_ranks_serve_each_image_once_and_as_one_process_does(
    source: ImageFolder, alone: torch.Tensor, world_size: int, batch_size: int, pad: bool
) -> None:
    planner = Evaluate(NUM_SAMPLES, batch_size=batch_size, pad=pad)
    ranks = []
    for rank in range(world_size):
        with make(source, planner, MemoryStore(), rank=(rank, world_size)) as loader:
            for _ in range(2):
                batches = list(loader)
                assert len(batches) == len(loader)
                assert max(len(images) for images, _, _ in batches) in (loader.batch_size - 1, loader.batch_size)
                assert not pad or {len(images) for images, _, _ in batches} == {loader.batch_size}
            assert loader.stats().recomputed == 0
            ranks.append(batches)
    images, labels, indices = (
        torch.cat([batch[part] for batches in zip(*ranks, strict=True) for batch in batches]) for part in range(3)
    )
    real = indices >= 0
    assert pad or real.all()
    assert indices[real].tolist() == list(range(NUM_SAMPLES))
    assert torch.equal(images[real], alone)
    assert labels[real].tolist() == source.labels.tolist()


WEEKLY = pytest.mark.weekly


# 10 leaves a last batch of three rows; 64, of 61. Of 1 and of all at once there is no other division than above.
@pytest.mark.weekly  # What is counted is the rows that are served, above.
@pytest.mark.parametrize("batch_size", [1, 10, 64, 253])
def test_accuracy_of_253_samples_is_equal_whatever_the_number_of_ranks(batch_size: int) -> None:
    random = np.random.default_rng(0)
    source = Arrays(random.integers(0, 256, (253, 8, 8, 3), dtype=np.uint8), random.integers(0, 3, 253))
    # Of whole numbers, so that sums do not depend on how many are summed at once.
    weights = torch.from_numpy(random.integers(-9, 10, (192, 3)).astype(np.float64))
    recipe = evaluate(8, raw=True, mean=(0, 0, 0), std=(1 / 255,) * 3)
    correct = []
    for world_size in range(1, 5):
        found = 0
        for rank in range(world_size):
            planner = Evaluate(253, batch_size=batch_size)
            with Loader(source, recipe, planner, rank=(rank, world_size), prefetch=Prefetch(num_threads=1)) as loader:
                for images, labels in loader:
                    scores = images.flatten(1).round().double() @ weights
                    found += int((scores.argmax(1) == labels).sum())
        correct.append(found)
    assert 0 < correct[0] < 253
    assert correct == correct[:1] * 4


def test_without_an_argument_a_rank_finds_out_which_it_is_when_it_is_needed(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(source, Evaluate(NUM_SAMPLES, batch_size=8)) as loader:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert len(loader) == 4
        assert sum(len(labels) for _, labels, _ in loader) == 16


def test_the_next_run_finds_every_image_on_the_disk(source: ImageFolder, alone: torch.Tensor, tmp_path: Path) -> None:
    planner = Evaluate(NUM_SAMPLES, batch_size=8)
    for misses in (NUM_SAMPLES, 0):
        with DiskStore(tmp_path / "val") as store, make(source, planner, store) as loader:
            assert torch.equal(torch.cat([images for images, _, _ in loader]), alone)
            assert loader.stats().misses == misses
    with DiskStore(tmp_path / "val") as store, make(source, Evaluate(NUM_SAMPLES, batch_size=5), store) as loader:
        assert len(list(loader)) == 6
        assert loader.stats().misses == 0


def test_it_goes_on_in_the_middle_of_an_epoch(source: ImageFolder) -> None:
    planner = Evaluate(NUM_SAMPLES, batch_size=8)
    with make(source, planner) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    with make(source, planner) as resumed:
        resumed.load_state_dict(state)
        assert torch.cat([indices for _, _, indices in resumed]).tolist() == list(range(7, NUM_SAMPLES))
    with make(source, Evaluate(NUM_SAMPLES, batch_size=4)) as other, pytest.raises(StateMismatchError):
        other.load_state_dict(state)
    del state["division"]
    with make(source, planner) as other, pytest.raises(StateMismatchError, match="divide an epoch"):
        other.load_state_dict(state)


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 8])
@pytest.mark.parametrize("world_sizes", [(1, 4), pytest.param((4, 1), marks=WEEKLY), (3, 2)])
def test_another_number_of_ranks_goes_on_where_an_epoch_is_divided_alike_and_else_refuses(
    source: ImageFolder, world_sizes: tuple[int, int], batch_size: int, pad: bool
) -> None:
    planner = Evaluate(NUM_SAMPLES, batch_size=batch_size, pad=pad)
    before, after = world_sizes
    served: list[int] = []
    for rank in range(before):
        with make(source, planner, rank=(rank, before)) as loader:
            anew = loader.state_dict()
            served += next(iter(loader))[2].tolist()
            state = loader.state_dict()
    for rank in range(after):
        with make(source, planner, rank=(rank, after)) as loader:
            divisions = [planner.for_rank(rank=0, world_size=each).division for each in world_sizes]
            if divisions[0] != divisions[1]:
                with pytest.raises(StateMismatchError, match="must be loaded by ranks that divide an epoch") as caught:
                    loader.load_state_dict(state)
                assert caught.value.keys == ("division",)
                loader.load_state_dict(anew)
                served = []
                continue
            loader.load_state_dict(state)
            served += [index for _, _, indices in loader for index in indices.tolist()]
    assert not served or sorted(index for index in served if index >= 0) == list(range(NUM_SAMPLES))


def test_what_is_not_covered_is_computed_in_every_epoch(source: ImageFolder, alone: torch.Tensor) -> None:
    planner = Evaluate(NUM_SAMPLES, batch_size=8, coverage=0.5)
    with MemoryStore() as store:
        for misses, stored in ((NUM_SAMPLES, 14), (15, 0)):
            # A loader of its own: one that is still on its way from the epoch before is not computed again.
            with make(source, planner, store) as loader:
                assert torch.equal(torch.cat([images for images, _, _ in loader]), alone)
                assert loader.stats().misses == misses
            assert loader.stats().stored == stored


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_an_assistant_can_choose_from_a_ranks_part(source: ImageFolder, world_size: int) -> None:
    planner = AutoAssist(Evaluate(NUM_SAMPLES, batch_size=1), lag=30)
    epoch, ranks = [], range(world_size)
    for rank in ranks:
        with make(source, planner, rank=(rank, world_size)) as loader:
            for images, _, indices in loader:
                loader.observe(torch.ones(len(images)))
                epoch += indices.tolist()
            assert len(epoch) == (rank + 1) * len(loader) * loader.batch_size
    assert len(epoch) >= NUM_SAMPLES - world_size


def test_padding_needs_the_indices_that_tell_it(source: ImageFolder) -> None:
    with pytest.raises(ConfigurationError, match="pad=True needs with_indices=True: rows that only fill a batch up"):
        make(source, Evaluate(NUM_SAMPLES, batch_size=8, pad=True), with_indices=False)


def test_a_recipe_to_train_with_is_warned_of(source: ImageFolder) -> None:
    planner = Evaluate(NUM_SAMPLES, batch_size=8)
    with pytest.warns(UserWarning, match=r"random_resized_crop, flip in the recipe: pass evaluate\(32\)") as caught:
        Loader(source, simple(SIZE), planner).close()
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        make(source, planner).close()


def test_a_classifier_is_as_accurate_over_ranks_as_in_one_process(source: ImageFolder, alone: torch.Tensor) -> None:
    """By sums over ranks, as `all_reduce` makes them."""
    weights = torch.from_numpy(np.random.default_rng(0).normal(size=(3 * SIZE * SIZE, 4)).astype(np.float32))

    def correct(images: torch.Tensor, labels: torch.Tensor) -> int:
        return int(((images.flatten(1) @ weights).argmax(1) == labels).sum())

    expected = correct(alone, torch.from_numpy(source.labels))
    for world_size in (1, 3):
        right = rows = 0
        for rank in range(world_size):
            with make(source, Evaluate(NUM_SAMPLES, batch_size=8), rank=(rank, world_size)) as loader:
                for images, labels, _ in loader:
                    right, rows = right + correct(images, labels), rows + len(labels)
        assert (right, rows) == (expected, NUM_SAMPLES)
