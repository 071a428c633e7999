"""Coverages that are proposed for a budget, and stores that are smaller than the plan needs."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dalirefurb import (
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
from dalirefurb.augment import CenterCrop, Decode, Resize
from dalirefurb.engine.partial_sizes import PartialSizes, Proposal, partial_sizes, propose_coverage
from dalirefurb.errors import ConfigurationError
from dalirefurb.reading.reader import Reader
from dalirefurb.rng import permutation
from dalirefurb.source import Source
from dalirefurb.store import DiskStore
from dalirefurb.system.resources import amount
from dalirefurb.testing.plans import Replay
from tests.engine.test_bit_identity import assert_same, serve
from tests.pictures import write_folder
from tests.planners import joined, refurbishing

SIZE = 32
SLOT_BYTES = SIZE * SIZE * 3
NUM_SAMPLES = 23


class Unread(Source):
    """Samples whose number matters, and nothing else."""

    encoded = True

    def __init__(self, num_samples: int) -> None:
        self.labels = np.zeros(num_samples, np.int64)

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        raise AssertionError("no sample needs to be read")

    def name(self, index: int) -> str:
        return f"number {index}"

    def fingerprint(self) -> dict[str, int]:
        return {"num_samples": len(self)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


def refurbish(**changes: object) -> Refurbish:
    arguments: dict[str, object] = {"batch_size": 6, "reuse_factor": 3, "seed": 7, **changes}
    return Refurbish(NUM_SAMPLES, **arguments)  # type: ignore[arg-type]


RECIPES = {"fixed": simple(SIZE), "varying": simple(SIZE).at(1)}


@pytest.fixture(params=RECIPES.values(), ids=RECIPES.keys())
def recipe(request: pytest.FixtureRequest) -> Recipe:
    value: Recipe = request.param
    return value


def reusing(planner: Refurbish) -> Refurbish:
    return replace(planner, reuse_factor=max(2, planner.reuse_factor))


@given(refurbishing().map(reusing), st.integers(0, 40 * SLOT_BYTES))
def test_the_proposed_coverage_fits_and_one_sample_more_does_not(planner: Refurbish, budget: int) -> None:
    source = Unread(planner.num_samples)

    def nbytes(covered: int) -> int:
        return SLOT_BYTES * replace(planner, coverage=covered / planner.num_samples).peak_slots

    if nbytes(1) > budget:
        with pytest.raises(ConfigurationError, match="at least one partial image"):
            propose_coverage(source, simple(SIZE), planner, budget)
        return
    proposal = propose_coverage(source, simple(SIZE), planner, budget)
    assert proposal.nbytes == nbytes(proposal.covered) <= budget == proposal.budget_bytes
    assert proposal.covered == planner.num_samples or nbytes(proposal.covered + 1) > budget
    assert proposal.nbytes == SLOT_BYTES * replace(planner, coverage=proposal.coverage).peak_slots


@given(refurbishing(waiting=False, ablations=False).map(reusing), st.integers(SLOT_BYTES, 40 * SLOT_BYTES))
def test_a_plan_of_the_proposed_coverage_does_what_the_proposal_says(planner: Refurbish, budget: int) -> None:
    planner = replace(planner, shards=1)
    proposal = propose_coverage(Unread(planner.num_samples), simple(SIZE), planner, budget)
    proposed = replace(planner, coverage=proposal.coverage)
    replay, hit = Replay(), Counter[int]()
    for epoch in range(2 * planner.reuse_factor):
        for plan in proposed.epoch(epoch):
            replay.carry_out(plan)
            hit.update(plan.indices[~plan.miss].tolist())
        if epoch > 0:
            assert abs(int(joined(proposed, epoch, "miss").sum()) - proposal.misses_per_epoch) <= 1
    assert len(hit) == proposal.covered
    assert replay.peak <= proposal.slots


@pytest.mark.parametrize("budget", ["120KB", "1GB"])
def test_a_proposal_counts_the_bytes_that_a_loader_sets_aside(
    folder: ImageFolder, recipe: Recipe, budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where sizes vary, of the samples that the planner's seed chooses."""
    monkeypatch.setattr("dalirefurb.engine.partial_sizes.PROBES", 5)
    file = tmp_path / "store"
    for store, path in ((MemoryStore(), None), (DiskStore(file), file)):
        proposal = propose_coverage(folder, recipe, refurbish(), budget if path is None else "220KB", path=path)
        with Loader(
            folder, recipe, refurbish(coverage=proposal.coverage), store, prefetch=Prefetch(num_threads=1, replicas=1)
        ):
            assert proposal.nbytes == (store.nbytes if path is None else path.stat().st_size)
        assert 0 < proposal.nbytes <= proposal.budget_bytes


def test_a_proposal_counts_the_bytes_that_all_ranks_set_aside(
    folder: ImageFolder, recipe: Recipe, tmp_path: Path
) -> None:
    """Each has room of its own for sizes that are not the mean, and a file with a header of its own."""
    for kind, budget in (("memory", "250KB"), ("disk", "500KB")):
        paths = [tmp_path / str(rank) for rank in range(2)]
        planner = refurbish(shards=2)
        proposal = propose_coverage(folder, recipe, planner, budget, path=paths[0] if kind == "disk" else None)
        taken = 0
        for rank, path in enumerate(paths):
            store = DiskStore(path) if kind == "disk" else MemoryStore()
            planned, prefetch = replace(planner, coverage=proposal.coverage), Prefetch(num_threads=1, replicas=1)
            with Loader(folder, recipe, planned, store, prefetch=prefetch, rank=(rank, 2)) as loader:
                next(iter(loader))
                taken += path.stat().st_size if kind == "disk" else store.nbytes
        assert proposal.nbytes == taken <= proposal.budget_bytes, kind


def test_a_share_is_of_the_memory_or_of_the_disk_that_is_free_or_the_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = Unread(NUM_SAMPLES)
    monkeypatch.setattr("dalirefurb.engine.partial_sizes.available_bytes", lambda: 10 * SLOT_BYTES)
    assert propose_coverage(source, simple(SIZE), refurbish(), "30%").slots == 3
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10**6))
    assert propose_coverage(source, simple(SIZE), refurbish(), "10%", path=tmp_path / "new").budget_bytes == 10**5
    (tmp_path / "old").write_bytes(bytes(5000))
    assert propose_coverage(source, simple(SIZE), refurbish(), "10%", path=tmp_path / "old").budget_bytes == 100_500


def test_the_users_home_folder_can_begin_the_path_of_whose_disk_a_share_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10**6 if folder == tmp_path else 0))
    proposal = propose_coverage(Unread(NUM_SAMPLES), simple(SIZE), refurbish(), "10%", path="~/store")
    assert proposal.budget_bytes == 10**5


def test_a_proposal_says_what_it_means() -> None:
    num_samples = 1_281_167
    planner = Refurbish(num_samples, batch_size=256, reuse_factor=3)
    proposal = propose_coverage(Unread(num_samples), rand_augment(224), planner, "16GB")
    assert str(proposal) == (
        "coverage=0.1244475: 159,438 of 1,281,167 samples are cached, in 106,292 slots of together 16.00 GB; "
        "the budget is 16.00 GB\n"
        "after the first epoch, an epoch computes 1,174,875 partial images, 91.7% of all; "
        "all cached, it would be 33.3%\n"
        "pass coverage=0.1244475 to Refurbish, the same in every run that is to continue this one"
    )
    whole = propose_coverage(Unread(num_samples), rand_augment(224), planner, "1TB")
    assert (whole.coverage, whole.misses_per_epoch) == (1.0, 427_056)
    assert "computes 427,056 partial images, 33.3% of all\n" in str(whole)


def test_a_proposal_is_the_same_whatever_coverage_the_planner_has() -> None:
    def proposed(coverage: float) -> Proposal:
        return propose_coverage(Unread(NUM_SAMPLES), simple(SIZE), refurbish(coverage=coverage), "30KB")

    assert proposed(0.1) == proposed(1.0)


def test_plans_without_coverage_are_refused() -> None:
    source, expected = Unread(NUM_SAMPLES), "must be a Refurbish with a reuse_factor of at least 2, got .*: pass one"
    for planner in (Standard(NUM_SAMPLES, batch_size=6), refurbish(reuse_factor=1)):
        with pytest.raises(ConfigurationError, match=expected):
            propose_coverage(source, simple(SIZE), planner, "1GB")  # type: ignore[arg-type]


def test_a_planner_for_another_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"same number of samples, got 23 and 9; pass len\(source\)"):
        propose_coverage(Unread(9), simple(SIZE), refurbish(), "1GB")


def test_a_budget_without_room_for_one_image_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigurationError, match=r"is 3000 bytes, and one needs 3072: pass a larger budget"):
        propose_coverage(Unread(NUM_SAMPLES), simple(SIZE), refurbish(), "3KB")


def test_partial_images_of_varying_size_are_counted_as_their_stages_leave_them(
    folder: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe([Decode(), Resize(SIZE), CenterCrop(SIZE)], Output(SIZE), 2)
    with closing(Reader(folder, max_batch_size=64, num_threads=1)) as reader:
        found = partial_sizes(folder, recipe, reader, seed=0)
        monkeypatch.setattr("dalirefurb.engine.partial_sizes.PROBES", 9)
        guessed = partial_sizes(folder, recipe, reader, seed=0)
    shapes = np.array([folder[index][0].shape[:2] for index in range(NUM_SAMPLES)])
    nbytes = 3 * SIZE * (SIZE * shapes.max(axis=1) // shapes.min(axis=1))
    assert len(np.unique(nbytes)) > 1
    assert found.slot_shape is None
    counted = found.mean_bytes, found.std_bytes, found.largest_bytes, found.mean_error_bytes
    assert counted == pytest.approx((nbytes.mean(), nbytes.std(), nbytes.max(), 0))
    probed = nbytes[permutation(NUM_SAMPLES, 0, "size probes")[:9]]
    counted = guessed.mean_bytes, guessed.std_bytes, guessed.largest_bytes, guessed.mean_error_bytes
    assert counted == pytest.approx((probed.mean(), probed.std(), probed.max(), probed.std() / 3))


def test_there_is_room_for_four_deviations_of_the_sum_of_sizes_and_of_what_is_known_of_their_mean() -> None:
    """Beside a tenth more than they take on average, and four times the largest."""
    known, guessed = (PartialSizes(None, 100.0, 10.0, 200.0, error) for error in (0.0, 2.0))
    assert known.arena_bytes(25) == 2750 + 4 * 5 * 10 + 4 * 200
    assert guessed.arena_bytes(25) == known.arena_bytes(25) + 4 * 25 * 2


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_store_smaller_than_the_plan_warns_once_and_serves_the_same_tensors(
    folder: ImageFolder, recipe: Recipe, share: float
) -> None:
    expected, whole = serve(folder, recipe, refurbish(), MemoryStore())
    with Loader(folder, recipe, refurbish(), store := MemoryStore(), prefetch=Prefetch(num_threads=1, replicas=1)):
        needed = store.nbytes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Loader(folder, recipe, refurbish(), MemoryStore(max_bytes=int(share * needed))).close()
    assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        served, small = serve(folder, recipe, refurbish(), MemoryStore(max_bytes=int(share * needed)))
    assert [str(each.message).split(":")[0] for each in caught] == ["the store is smaller than the plan needs"]
    assert f"{amount(needed)} and {amount(int(share * needed))} are allowed" in str(caught[0].message)
    assert_same(expected, served)
    assert whole.recomputed == whole.declined == 0
    assert small.recomputed > 0
    assert small.declined > 0
    assert (small.stored > 0) == (share > 0)
