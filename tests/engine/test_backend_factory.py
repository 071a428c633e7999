"""Who computes, and does everybody know?"""

from __future__ import annotations

import importlib.util
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from nvidia.dali import fn

from dalirefurb import (
    Arrays,
    BadSamplePolicy,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Prefetch,
    Recipe,
    Refurbish,
    Standard,
    auto_augment,
    rand_augment,
    simple,
)
from dalirefurb.augment import CenterCrop, Custom, Decode, Resize
from dalirefurb.augment.policies.operations import OPERATIONS
from dalirefurb.augment.stage import Device
from dalirefurb.engine import kernel_choice
from dalirefurb.engine.backend_factory import BackendFactory
from dalirefurb.engine.backends import PartialBackend
from dalirefurb.engine.kernel_choice import Devices, choose_kernels, done_by_kernels
from dalirefurb.engine.prefetch import Depths
from dalirefurb.errors import ConfigurationError, LoaderError, StateMismatchError
from dalirefurb.image_batch import Images
from dalirefurb.planning import Frozen
from dalirefurb.store import StoreSpec
from dalirefurb.store.memory import SlotRows
from tests.in_turn import EACH_CHANGE, weekly
from tests.pictures import picture, write_folder
from tests.pipelines import living_pipelines

pytest.importorskip("numba")
from dalirefurb.kernels.buffers import Buffers

pytestmark = pytest.mark.usefixtures("traced_once")
SIZE = 32
RECIPE = rand_augment(SIZE)
NUM_SAMPLES = 20


def with_own_stage(split: int, place: int = len(RECIPE.stages)) -> Recipe:
    own = Custom(lambda images: fn.brightness(images, brightness=0.5), "own")
    return Recipe([*RECIPE.stages[:place], own, *RECIPE.stages[place:]], RECIPE.output, split)


def flipped_before_own_stage() -> Recipe:
    """Of which the stages before it have kernels, but leave images of any size."""
    decode, crop, flip = RECIPE.stages[:3]
    return Recipe([decode, flip, with_own_stage(1).stages[-1], crop], RECIPE.output, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    images = [np.asarray(picture(i, height=SIZE, width=SIZE)) for i in range(NUM_SAMPLES)]
    return Arrays(np.stack(images), np.arange(NUM_SAMPLES))


def epochs(loader: Loader, count: int) -> torch.Tensor:
    with loader:
        return torch.cat([images.clone() for _ in range(count) for images, _ in loader])


def test_numba_computes_on_the_cpu_and_dali_elsewhere_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_choice, "_installed", lambda package: package != "cupy")
    assert choose_kernels(None, RECIPE, Devices()) == "numba"
    assert choose_kernels(None, RECIPE, Devices("cpu", "gpu")) == "dali"
    assert choose_kernels(None, RECIPE, Devices("gpu", "gpu")) == "dali"
    assert choose_kernels("dali", RECIPE, Devices()) == "dali"


@pytest.mark.parametrize("split", [0, 1, 4, 6])
def test_kernels_do_what_comes_before_a_stage_of_the_users_wherever_the_split(split: int) -> None:
    assert [done_by_kernels(with_own_stage(split, place)) for place in (1, 2, 3, 5)] == [0, 2, 3, 5]
    assert done_by_kernels(RECIPE.at(split if split < 6 else 5)) == 5
    for recipe in (with_own_stage(split or 1, 1), with_own_stage(split or 1, 1).for_arrays()):
        assert choose_kernels(None, recipe, Devices()) == "dali"
    assert choose_kernels(None, with_own_stage(split, 2), Devices()) == "numba"


@pytest.mark.parametrize("place", [3, *weekly(2, 5)])
def test_dali_goes_on_where_kernels_end_alike_at_every_split(folder: ImageFolder, place: int) -> None:
    """With a store and without; and nearly as if DALI had done all."""
    standard = Standard(NUM_SAMPLES, batch_size=6)
    by_dali = epochs(Loader(folder, with_own_stage(1, place), standard, kernels="dali"), 1)
    expected = epochs(Loader(folder, with_own_stage(1, place), standard), 1)
    assert 0 < (expected - by_dali).abs().mean() < 0.05
    for split in range(0, len(RECIPE.stages) + 2, 4 if EACH_CHANGE else 1):
        recipe = with_own_stage(split, place)
        assert torch.equal(epochs(Loader(folder, recipe, standard), 1), expected)
        refurbish = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            without = epochs(Loader(folder, recipe, refurbish), 3)
        assert torch.equal(epochs(Loader(folder, recipe, refurbish, MemoryStore()), 3), without)


def _auto_augment_with_own_stage_between() -> Recipe:
    recipe = auto_augment(SIZE)
    own = Custom(lambda images: fn.brightness(images, brightness=0.5), "own")
    place = next(i for i, stage in enumerate(recipe.stages) if stage.follows is not None)
    return Recipe([*recipe.stages[:place], own, *recipe.stages[place:]], recipe.output, 1)


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(with_own_stage(4).with_output(dtype="bfloat16"), marks=pytest.mark.weekly),
        with_own_stage(4).with_output(dtype="float16", channels_last=True),
        Recipe(with_own_stage(4).stages, Output(SIZE, channels=1), 4),
        _auto_augment_with_own_stage_between(),
    ],
    ids=["bfloat16", "float16", "grey", "auto_augment"],
)
def test_what_dali_goes_on_with_is_served_alike_with_a_store_and_without(folder: ImageFolder, recipe: Recipe) -> None:
    standard = Standard(NUM_SAMPLES, batch_size=6)
    expected = epochs(Loader(folder, recipe, standard), 1)
    by_dali = epochs(Loader(folder, recipe, standard, kernels="dali"), 1)
    assert (expected.shape, expected.dtype) == (by_dali.shape, by_dali.dtype)
    assert (expected.float() - by_dali.float()).abs().mean() < 0.05
    frozen = Frozen(NUM_SAMPLES, batch_size=6)
    for split in (*(() if EACH_CHANGE else (1,)), len(recipe.stages) - 1):
        assert torch.equal(epochs(Loader(folder, recipe.at(split), standard), 1), expected)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            without = epochs(Loader(folder, recipe.at(split), frozen), 2)
        assert torch.equal(epochs(Loader(folder, recipe.at(split), frozen, MemoryStore()), 2), without)


def test_dali_goes_on_with_images_of_the_size_that_kernels_leave(folder: ImageFolder) -> None:
    own = Custom(lambda images: images, "own")
    first, last = [Decode(), Resize((40, 44))], CenterCrop(SIZE)
    one, other = (
        epochs(Loader(folder, Recipe([*stages, last], Output(SIZE), 1), Standard(NUM_SAMPLES, batch_size=6)), 1)
        for stages in ([*first, own], first)
    )
    assert (one - other).abs().max() < 0.01


def test_arrays_meet_a_stage_of_the_users(arrays: Arrays) -> None:
    recipe, standard = with_own_stage(4).for_arrays(), Standard(NUM_SAMPLES, batch_size=6)
    assert choose_kernels(None, recipe, Devices()) == "numba"
    by_dali = epochs(Loader(arrays, recipe, standard, kernels="dali"), 1)
    assert (epochs(Loader(arrays, recipe, standard), 1) - by_dali).abs().mean() < 0.05


def test_bad_samples_are_replaced_before_a_stage_of_the_users(tmp_path: Path) -> None:
    """One that is found out when it is decoded."""
    files = sorted(write_folder(tmp_path, num_samples=NUM_SAMPLES).rglob("*.jpg"))
    files[3].write_bytes(files[3].read_bytes()[:-200])
    policy = BadSamplePolicy("replace")
    for place in (3, 5):
        streams = []
        for store in (None, MemoryStore()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=2)
                loader = Loader(ImageFolder(tmp_path), with_own_stage(4, place), planner, store, bad_samples=policy)
            streams.append(epochs(loader, 3))
            assert [each.index for each in loader.bad_samples()] == [3]
        assert torch.equal(*streams)


@pytest.mark.parametrize(("place", "lent"), [(3, False), (5, True)])
def test_the_stores_slots_are_lent_to_partial_images_alone(
    folder: ImageFolder, monkeypatch: pytest.MonkeyPatch, place: int, lent: bool
) -> None:
    """Not to what a stage of the partial part is yet to work on."""
    asked: list[int] = []

    def reserve(store: MemoryStore, count: int, reserve: Any = MemoryStore.reserve) -> Any:
        asked.append(count)
        return reserve(store, count)

    monkeypatch.setattr(MemoryStore, "reserve", reserve)
    epochs(
        Loader(folder, with_own_stage(4, place), Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=2), MemoryStore()), 1
    )
    assert (len(asked) > 0) == lent


def test_a_stage_of_the_users_gets_what_kernels_made_and_is_named(folder: ImageFolder) -> None:
    with Loader(folder, with_own_stage(4), Standard(NUM_SAMPLES, batch_size=6)) as loader:
        assert "kernels: numba, DALI from 'own' on" in repr(loader)
    dark, plain = (
        epochs(Loader(folder, recipe, Standard(NUM_SAMPLES, batch_size=6)), 1)
        for recipe in (with_own_stage(4).with_output(mean=0, std=1), RECIPE.with_output(mean=0, std=1))
    )
    assert (dark - plain / 2).abs().max() <= 1 / 255


def test_dali_computes_where_numba_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose_kernels(None, RECIPE, Devices()) == "dali"
    with pytest.raises(ConfigurationError, match=r"not installed: pip install numba"):
        choose_kernels("numba", RECIPE, Devices())


@pytest.mark.parametrize(
    ("kernels", "recipe", "devices", "message"),
    [
        ("torch", RECIPE, ("cpu", "cpu"), r"kernels must be one of \('numba', 'cuda', 'dali'\) or None, got 'torch'"),
        ("numba", RECIPE, ("cpu", "gpu"), "for the CPU, got partial_device='cpu' and final_device='gpu'"),
        ("numba", with_own_stage(1, 1), ("cpu", "cpu"), "before 'own', which has none"),
        ("numba", with_own_stage(2, 1).for_arrays(), ("cpu", "cpu"), "before 'own', which has none"),
        (
            "numba",
            flipped_before_own_stage(),
            ("cpu", "cpu"),
            "before 'own', which has none, and to leave it images of",
        ),
    ],
)
def test_kernels_that_cannot_be_had_are_refused(
    kernels: Any, recipe: Recipe, devices: tuple[Device, Device], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        choose_kernels(kernels, recipe, Devices(*devices))


@pytest.mark.parametrize("split", [1, *weekly("rand_augment_2")])
def test_arrays_are_served_by_kernels_as_by_dali(
    arrays: Arrays, split: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all operations but Equalize, which kernels do as Pillow does."""
    others = tuple(operation for operation in OPERATIONS if operation.name != "Equalize")
    assert len(others) == len(OPERATIONS) - 1
    monkeypatch.setattr("dalirefurb.augment.policies.layers.OPERATIONS", others)
    recipe, planner = rand_augment(SIZE, raw=True, split=split), Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=2)
    ours = epochs(Loader(arrays, recipe, planner, MemoryStore(), kernels="numba"), 3)
    assert torch.equal(ours, epochs(Loader(arrays, recipe, planner, MemoryStore(), kernels="dali"), 3))


@pytest.mark.parametrize("store", [None, MemoryStore])
def test_encoded_images_are_served_by_kernels_within_one_level_of_dalis(folder: ImageFolder, store: Any) -> None:
    recipe = simple(SIZE, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))
    planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=2)
    ours = epochs(Loader(folder, recipe, planner, store and store(), kernels="numba"), 3)
    theirs = epochs(Loader(folder, recipe, planner, store and store(), kernels="dali"), 3)
    assert (ours - theirs).abs().max() <= 1
    assert ours.ne(theirs).any()


def test_a_state_of_other_kernels_is_refused(folder: ImageFolder) -> None:
    planner = Standard(NUM_SAMPLES, batch_size=6)
    with (
        Loader(folder, simple(SIZE), planner) as loader,
        Loader(folder, simple(SIZE), planner, kernels="dali") as other,
    ):
        with pytest.raises(StateMismatchError, match="these differ: kernels;") as caught:
            other.load_state_dict(loader.state_dict())
        assert caught.value.keys == ("kernels",)


def test_a_store_is_told_which_kernels_made_its_images(folder: ImageFolder) -> None:
    class Listening(MemoryStore):
        def open(self, spec: StoreSpec) -> None:
            told.append(spec.fingerprint)
            super().open(spec)

    told: list[Any] = []
    planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=2)
    for kernels in ("numba", "dali"):
        Loader(folder, simple(SIZE), planner, Listening(), kernels=kernels).close()  # type: ignore[arg-type]
    assert told[0] != told[1]


def test_a_batch_stays_as_it_is_while_later_ones_are_made(arrays: Arrays) -> None:
    planner = Standard(NUM_SAMPLES, batch_size=2)
    recipe = rand_augment(SIZE, raw=True)
    with Loader(arrays, recipe, planner, kernels="numba") as loader:
        kept = [images for _ in range(4) for images, _ in loader]
    assert torch.equal(torch.cat(kept), epochs(Loader(arrays, recipe, planner, kernels="numba"), 4))


def test_batches_that_are_let_go_together_leave_their_memory_to_later_ones(
    arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory: dict[int, object] = {}
    take = Buffers.take

    def watched(self: Buffers, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        lent = take(self, shape, dtype)
        of_all: Any = lent.base
        if dtype == "float32":
            memory[id(of_all.base.obj)] = of_all.base.obj  # Kept, so that no other is in its place.
        return lent

    monkeypatch.setattr(Buffers, "take", watched)
    planner = Refurbish(NUM_SAMPLES, batch_size=2, reuse_factor=2, drop_last=True)
    with Loader(
        arrays,
        rand_augment(SIZE, raw=True),
        planner,
        MemoryStore(),
        prefetch=Prefetch(batches_per_group=1, look_ahead=6),
    ) as loader:
        kept = []
        for _ in range(6):
            for images, _ in loader:
                kept.append(images)
                if len(kept) == 5:
                    kept.clear()
                    del images
        assert len(memory) <= 5 + loader.batches_ahead


@pytest.mark.parametrize(
    ("replicas", "threads_each", "expected"),
    [*weekly((1, 1, [1]), (2, 1, [2])), (3, 1, [3]), (4, 1, [2, 2]), (1, 5, [3, 3])],
)
def test_two_lanes_decode_where_each_has_two_threads(replicas: int, threads_each: int, expected: list[int]) -> None:
    depths = Depths(
        replicas=replicas,
        final_replicas=replicas,
        threads_each=threads_each,
        batches_per_group=1,
        hits_per_group=1,
        look_ahead=1,
        admitted=1,
        announced=1,
    )
    factory = BackendFactory(rand_augment(SIZE), "numba", Devices(), max_rows=4, depths=depths)
    before = living_pipelines()
    part = factory.build("partial")
    made = [each for each in living_pipelines() if each not in before]
    decoding = [each.num_threads for each in made if each.max_batch_size == 4]
    assert decoding == expected
    del part
    factory.close()


def test_closing_a_loader_ends_the_kernels_threads(arrays: Arrays) -> None:
    def running() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("dalirefurb-kernels")]

    epochs(Loader(arrays, rand_augment(SIZE, raw=True), Standard(NUM_SAMPLES, batch_size=6), kernels="numba"), 1)
    deadline = time.monotonic() + 600
    while running() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not running()


def test_kernels_make_partial_images_where_a_memory_store_keeps_them(
    folder: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    monkeypatch.setattr(SlotRows, "place", lambda self, slot, sample: copied.append(slot))
    planner = Refurbish(NUM_SAMPLES, batch_size=2, reuse_factor=3)
    expected = epochs(Loader(folder, RECIPE, planner, kernels="numba"), 4)
    with MemoryStore() as store:
        loader = Loader(
            folder, RECIPE, planner, store, kernels="numba", prefetch=Prefetch(look_ahead=1, batches_per_group=1)
        )
        served = epochs(loader, 4)
        assert loader.stats().stored > NUM_SAMPLES
    assert not copied
    assert torch.equal(served, expected)


def test_of_partial_images_any_that_is_of_another_width_or_type_is_refused() -> None:
    inputs: Any = SimpleNamespace(partial_size=(8, 12))
    runner: Any = None
    backend, good = PartialBackend(inputs, runner, Images.of, RECIPE.partial), np.zeros((8, 12, 3), np.uint8)
    for other in (good[:, :8], good.astype(np.float32), good[..., :1]):
        with pytest.raises(LoaderError, match=r"must leave uint8 images of shape \(8, 12, 3\), got"):
            backend._checked(Images([good, other]))
