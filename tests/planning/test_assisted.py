"""AutoAssist through the real loader: what is served depends on the losses, and on nothing else."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dalirefurb import (
    AutoAssist,
    DiskStore,
    Echo,
    ImageFolder,
    Loader,
    MemoryStore,
    Prefetch,
    Refurbish,
    Standard,
    rand_augment,
    simple,
)
from dalirefurb.augment.recipe import Recipe
from dalirefurb.dali.runner import Replica
from dalirefurb.errors import ConfigurationError, LoaderError
from dalirefurb.planning.difficulty import FeatureTable
from dalirefurb.planning.planner import Planner
from tests.engine.test_bit_identity import STORES, Batches, assert_same
from tests.in_turn import in_turn
from tests.loading import flat_loader
from tests.lossy import Meddle, leave_alone
from tests.pictures import write_folder
from tests.resuming import batches_of, losses_of

pytestmark = pytest.mark.usefixtures("traced_once")

SIZE = 32
NUM_SAMPLES = 23
BATCHES = 24
STANDARD = Standard(NUM_SAMPLES, batch_size=4, seed=7)
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=4, reuse_factor=3, seed=7)
LAG = 9

CASES: dict[str, tuple[Recipe, Planner]] = {
    "standard": (simple(SIZE), STANDARD),
    "refurbished": (simple(SIZE), REFURBISH),
    "refurbished, two layers": (rand_augment(SIZE), REFURBISH),
    "echoed": (simple(SIZE, split=1), Echo(STANDARD, echoing_factor=1.5, buffer_size=6)),
}


def assist(planner: Planner, **changes: Any) -> AutoAssist:
    return AutoAssist(planner, **{"lag": LAG, "accuracy_momentum": 0.5, **changes})


class CountingFolder(ImageFolder):
    """Counts what is read."""

    reads = 0

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        self.reads += len(indices)
        return super().read(indices)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES)
    return root


@pytest.fixture(scope="module")
def source(root: Path) -> ImageFolder:
    return ImageFolder(root)


def serve(
    source: ImageFolder,
    recipe: Recipe,
    planner: AutoAssist,
    store: MemoryStore | None = None,
    *,
    meddle: Meddle = leave_alone,
    **prefetch: int,
) -> Batches:
    served = []
    with flat_loader(source, recipe, planner, store, **prefetch) as loader:
        for number, batch in enumerate(islice(batches_of(loader, planner), BATCHES)):
            served.append(batch)
            if store is not None:
                meddle(store, number % len(planner))
        report = loader.assistant_report()
    assert report.accepted == 4 * BATCHES < report.candidates
    return served


@pytest.fixture(scope="module")
def plain(source: ImageFolder) -> dict[str, Batches]:
    """What is served without a store, by one replica with one thread."""
    return {
        name: serve(source, recipe, assist(planner), replicas=1, num_threads=1, look_ahead=1)
        for name, (recipe, planner) in CASES.items()
    }


@pytest.mark.parametrize(
    ("stored", "name"),
    in_turn([store.values for store in STORES], ["refurbished", "refurbished, two layers", "echoed"]),
)
def test_tensors_are_the_same_whatever_the_store_does(
    stored: tuple[type[MemoryStore], Meddle], name: str, source: ImageFolder, plain: dict[str, Batches]
) -> None:
    recipe, planner = CASES[name]
    kind, meddle = stored
    assert_same(plain[name], serve(source, recipe, assist(planner), kind(), meddle=meddle))


def test_a_store_is_not_needed(source: ImageFolder, plain: dict[str, Batches]) -> None:
    assert_same(plain["standard"], serve(source, simple(SIZE), assist(STANDARD), MemoryStore()))


@pytest.mark.parametrize("prefetch", [{"replicas": 3, "num_threads": 3}, {"look_ahead": 1, "num_threads": 1}])
def test_tensors_are_the_same_with_other_threads_and_look_ahead(
    prefetch: dict[str, int], source: ImageFolder, plain: dict[str, Batches]
) -> None:
    assert_same(plain["refurbished"], serve(source, simple(SIZE), assist(REFURBISH), MemoryStore(), **prefetch))


def test_losses_change_what_is_served_after_the_lag_and_not_before(source: ImageFolder) -> None:
    def indices(sign: int) -> list[list[int]]:
        served = []
        with Loader(source, simple(SIZE), assist(STANDARD), with_indices=True) as loader:
            while len(served) < BATCHES:
                for images, _, rows in loader:
                    loader.observe(sign * losses_of(images))
                    served.append(rows.tolist())
        return served[:BATCHES]

    one, other = indices(1), indices(-1)
    assert one[:LAG] == other[:LAG]
    assert one != other


def test_features_made_anew_are_those_of_the_first_pass(source: ImageFolder) -> None:
    everything = np.arange(NUM_SAMPLES)
    with Loader(
        source, rand_augment(SIZE), assist(REFURBISH), MemoryStore(), prefetch=Prefetch(num_threads=1)
    ) as loader:
        for _ in islice(batches_of(loader, assist(REFURBISH)), 2 * len(REFURBISH)):
            pass
        assistant = loader._assistant
        assert assistant is not None
        seen = assistant.features
        assert not len(seen.missing(everything))
        anew = FeatureTable(NUM_SAMPLES, resolution=seen.resolution)
        anew.fill(everything, assistant._difficulty._compute(everything))
    np.testing.assert_array_equal(anew.rows(everything), seen.rows(everything))


def test_features_after_a_failure_are_those_of_their_own_samples(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(replica: Replica) -> Any:
        monkeypatch.undo()
        raise MemoryError

    with Loader(source, simple(SIZE), assist(REFURBISH), MemoryStore(), kernels="dali") as loader:
        assert loader._assistant is not None
        compute = loader._assistant._difficulty._compute
        expected = [image.copy() for image in compute(np.arange(8, 12))]
        monkeypatch.setattr(Replica, "collect", failing)
        with pytest.raises(MemoryError):
            compute(np.arange(4))
        for image, right in zip(compute(np.arange(8, 12)), expected, strict=True):
            np.testing.assert_array_equal(image, right)


def test_an_epoch_left_early_goes_on_with_the_next_candidates(source: ImageFolder, plain: dict[str, Batches]) -> None:
    served: Batches = []
    with Loader(source, simple(SIZE), assist(REFURBISH), MemoryStore()) as loader:
        for length in (6, 2, 1, 5):
            for images, labels in islice(loader, length):
                loader.observe(losses_of(images))
                served.append((images.clone(), labels))
    assert_same(plain["refurbished"][: len(served)], served)


@pytest.mark.filterwarnings("ignore:to begin with hits:dalirefurb.errors.NothingKeptWarning")  # It is a run begun anew.
def test_a_store_full_of_later_versions_has_room_when_training_begins_anew(source: ImageFolder, tmp_path: Path) -> None:
    planner = assist(REFURBISH)
    declined = []
    for epochs in (9, 1):
        with DiskStore(tmp_path / "store") as store, Loader(source, simple(SIZE), planner, store) as loader:
            for _ in islice(batches_of(loader, planner), epochs * len(planner)):
                pass
            declined.append(loader.stats().declined)
    assert declined == [0, 0]


def test_what_is_rejected_is_not_read(root: Path) -> None:
    source = CountingFolder(root)
    with Loader(source, simple(SIZE), assist(STANDARD), prefetch=Prefetch(num_threads=1)) as loader:
        for _ in islice(batches_of(loader, assist(STANDARD)), BATCHES):
            pass
        report = loader.assistant_report()
        ahead = (loader.batches_ahead + 2) * 4
    # Features of samples still on their way at the first epoch's end are computed beside them.
    assert source.reads <= report.accepted + ahead + NUM_SAMPLES
    assert report.saved == 1 - report.accepted / report.candidates > 0


def test_a_sample_that_is_repeated_and_chosen_is_computed_once(source: ImageFolder) -> None:
    recipe, planner = CASES["echoed"]
    with Loader(source, recipe, assist(planner), MemoryStore(), prefetch=Prefetch(look_ahead=1, replicas=1)) as loader:
        for _ in islice(batches_of(loader, assist(planner)), 2 * len(planner)):
            pass
        stats = loader.stats()
    assert stats.recomputed == 0
    assert stats.declined == 0
    assert stats.hits > 0.2 * stats.samples


def test_forgetting_to_observe_raises_and_does_not_hang(source: ImageFolder) -> None:
    with Loader(source, simple(SIZE), assist(STANDARD)) as loader:
        batches = iter(loader)
        images, _ = next(batches)
        with pytest.raises(LoaderError, match=r"observed before the next one is served.*call loader.observe"):
            next(batches)
        with pytest.raises(LoaderError, match="observed before the state is taken"):
            loader.state_dict()
        loader.observe(losses_of(images).to(torch.bfloat16).requires_grad_())  # As a model's are.
        next(batches)


def test_losses_of_another_shape_are_refused(source: ImageFolder) -> None:
    with Loader(source, simple(SIZE), assist(STANDARD)) as loader:
        next(iter(loader))
        with pytest.raises(ConfigurationError, match=r"shape \(4,\), got shape \(\)"):
            loader.observe(torch.tensor(0.5))


def test_losses_are_for_autoassist_only(source: ImageFolder) -> None:
    with Loader(source, simple(SIZE), STANDARD) as loader:
        with pytest.raises(ConfigurationError, match=r"losses are for AutoAssist, but the planner is Standard"):
            loader.observe(np.zeros(4))
        with pytest.raises(ConfigurationError, match="the planner is Standard"):
            loader.assistant_report()


def test_a_lag_shorter_than_what_is_planned_ahead_is_refused_with_both_numbers(source: ImageFolder) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"^lag must be more than the 13 batches planned ahead, got 9: pass lag=14, or a smaller",
    ) as refused:
        Loader(source, simple(SIZE), assist(STANDARD), prefetch=Prefetch(look_ahead=4, replicas=2))
    assert (refused.value.argument, refused.value.given, refused.value.remedy) == ("lag", "9", "pass lag=14")
    for lag in (2, 7):
        with pytest.raises(ConfigurationError, match=rf"the 7 batches planned ahead, got {lag}: .*lag=8 is the least"):
            Loader(source, simple(SIZE), assist(STANDARD, lag=lag), prefetch=Prefetch(replicas=1))


def test_the_least_lag_is_that_of_one_batch_at_a_time(source: ImageFolder) -> None:
    with pytest.raises(ConfigurationError, match=r"the 14 batches planned ahead, got 9: .*lag=8 is the least"):
        Loader(source, simple(SIZE), assist(STANDARD, lag=9), prefetch=Prefetch(replicas=1, batches_per_group=2))


def test_the_least_lag_serves_without_waiting_for_losses_that_cannot_come(source: ImageFolder) -> None:
    with Loader(source, simple(SIZE), assist(STANDARD, lag=8), prefetch=Prefetch(replicas=1)) as loader:
        assert len(list(islice(batches_of(loader, assist(STANDARD, lag=8)), BATCHES))) == BATCHES


def test_only_the_next_epoch_can_be_set(source: ImageFolder) -> None:
    with Loader(source, simple(SIZE), assist(STANDARD)) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            for images, _ in loader:
                loader.observe(losses_of(images))
        for images, _ in loader:
            loader.observe(losses_of(images))
            break
        loader.set_epoch(3)
        with pytest.raises(ConfigurationError, match="got 7 when 3 is next"):
            loader.set_epoch(7)
