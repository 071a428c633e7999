"""The loader: epochs, positions, the DALI iterator in front of it, and what happens when something is wrong."""

from __future__ import annotations

import gc
import threading
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from torch.utils.data import TensorDataset

from dalirefurb import (
    Arrays,
    Evaluate,
    FileList,
    ImageFolder,
    Loader,
    MemoryStore,
    Output,
    Recipe,
    Refurbish,
    Standard,
    evaluate,
    rand_augment,
    simple,
)
from dalirefurb.augment import Custom
from dalirefurb.engine.preparer import Preparer
from dalirefurb.errors import ConfigurationError, LoaderError, OutOfMemoryError, SampleError, StateMismatchError
from tests.loading import flat_loader
from tests.pictures import write_folder

pytestmark = pytest.mark.usefixtures("traced_once")
SIZE = 32
NUM_SAMPLES = 14
BATCH_SIZE = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    return ImageFolder(write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES))


def refurbish(**changes: Any) -> Refurbish:
    return Refurbish(NUM_SAMPLES, **{"batch_size": BATCH_SIZE, "reuse_factor": 2, **changes})


def make(folder: ImageFolder, **changes: Any) -> Loader:
    arguments: dict[str, Any] = {
        "recipe": simple(SIZE),
        "planner": refurbish(),
        "store": MemoryStore(),
        **changes,
    }
    return flat_loader(folder, arguments.pop("recipe"), arguments.pop("planner"), arguments.pop("store"), **arguments)


def planned_labels(folder: ImageFolder, epoch: int) -> list[list[int]]:
    return [folder.labels[plan.indices].tolist() for plan in refurbish().epoch(epoch)]


def of_package(module: str, name: str) -> Any:
    """Return an object of another package's class."""
    return type(name, (), {"__module__": module})()


def test_batches_are_the_planned_ones_in_the_planned_order(folder: ImageFolder) -> None:
    with make(folder) as loader:
        for epoch in range(3):
            assert [labels.tolist() for _, labels in loader] == planned_labels(folder, epoch)


def test_images_are_float_nchw_and_labels_int64(folder: ImageFolder) -> None:
    with make(folder, recipe=simple(SIZE, dtype="float16")) as loader:
        images, labels = next(iter(loader))
    assert images.shape == (BATCH_SIZE, 3, SIZE, SIZE)
    assert images.dtype == torch.float16
    assert labels.dtype == torch.int64
    assert labels.shape == (BATCH_SIZE,)


def test_a_pass_that_another_one_cuts_off_says_so(folder: ImageFolder) -> None:
    with make(folder) as loader:
        outer = iter(loader)
        next(outer)
        inner = iter(loader)
        next(inner)
        with pytest.raises(LoaderError, match="one pass at a time"):
            next(outer)
        assert len(list(inner)) == len(loader) - 1
        assert list(inner) == []
        with pytest.raises(LoaderError, match="one pass at a time"):
            list(zip(loader, loader, strict=True))


def test_a_pass_that_ended_stays_ended_whatever_begins_later(folder: ImageFolder) -> None:
    with make(folder) as loader:
        ended, jumped = iter(loader), None
        assert len(list(islice(ended, len(loader)))) == len(loader)
        jumped = iter(loader)
        next(jumped)
        assert list(ended) == []
        loader.set_epoch(0)
        assert list(ended) == []
        with pytest.raises(LoaderError, match=r"must end before .* batch 0 of epoch 0: iterate the loader again"):
            list(jumped)
        assert len(list(loader)) == len(loader)


def test_length_is_that_of_an_epoch_with_its_short_last_batch(folder: ImageFolder) -> None:
    with make(folder) as loader:
        lengths = [len(labels) for _, labels in loader]
        assert len(loader) == len(lengths) == 4
        assert lengths == [4, 4, 4, 2]


def test_served_images_stay_valid_after_the_loader_is_closed(folder: ImageFolder) -> None:
    with make(folder) as loader:
        kept = [images for _ in range(3) for images, _ in loader]
        copies = [images.clone() for images in kept]
    gc.collect()
    assert all(torch.equal(image, copy) for image, copy in zip(kept, copies, strict=True))


def test_leaving_an_epoch_early_begins_the_next_one(folder: ImageFolder) -> None:
    with make(folder) as loader:
        list(islice(loader, 2))
        assert [labels.tolist() for _, labels in loader] == planned_labels(folder, 1)


def test_an_iterator_that_was_never_asked_leaves_the_epoch_unserved(folder: ImageFolder) -> None:
    with make(folder) as loader:
        iter(loader)
        assert [labels.tolist() for _, labels in loader] == planned_labels(folder, 0)


def test_set_epoch_chooses_the_next_epoch(folder: ImageFolder) -> None:
    with make(folder) as loader:
        loader.set_epoch(5)
        assert [labels.tolist() for _, labels in loader] == planned_labels(folder, 5)
        list(islice(loader, 1))
        loader.set_epoch(1)
        assert [labels.tolist() for _, labels in loader] == planned_labels(folder, 1)
        assert loader.epoch == 2
        with pytest.raises(ConfigurationError, match="at least 0, got -1"):
            loader.set_epoch(-1)


def test_jumping_back_and_forth_serves_the_same_tensors_as_going_straight(folder: ImageFolder) -> None:
    recipe = rand_augment(SIZE)

    def epoch(loader: Loader, number: int) -> list[torch.Tensor]:
        loader.set_epoch(number)
        return [images.clone() for images, _ in loader]

    with make(folder, recipe=recipe, store=None) as loader:
        expected = {number: epoch(loader, number) for number in range(5)}
    with make(folder, recipe=recipe) as loader:
        for number in (3, 0, 1, 4, 2, 2, 3):
            for one, other in zip(expected[number], epoch(loader, number), strict=True):
                assert torch.equal(one, other)


def test_a_jump_leaves_room_for_what_the_new_epoch_stores(folder: ImageFolder) -> None:
    store = MemoryStore()
    with make(folder, store=store) as loader:
        for number in (0, 7, 2, 9):
            loader.set_epoch(number)
            for _ in loader:
                pass
        assert loader.stats().declined == 0


# ---- state


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"planner": refurbish(seed=1)}, "planner.seed"),
        ({"planner": refurbish(reuse_factor=3)}, "planner.reuse_factor"),
        ({"recipe": simple(SIZE, split=1)}, "recipe.split"),
        ({"recipe": simple(SIZE, mean=(0.5, 0.5, 0.5))}, r"recipe.output.mean\[0\]"),
    ],
)
def test_a_state_of_another_configuration_is_refused_by_the_names_of_what_differs(
    folder: ImageFolder, changes: dict[str, Any], key: str
) -> None:
    with make(folder) as loader, make(folder, **changes) as other:
        with pytest.raises(StateMismatchError, match=key) as caught:
            other.load_state_dict(loader.state_dict())
        assert len(caught.value.keys) >= 1


# ---- indices, labels and the images' layout


@pytest.mark.parametrize("batches_per_group", [1, 3])
def test_indices_say_which_sample_a_row_is(folder: ImageFolder, batches_per_group: int) -> None:
    labels_of = {folder.name(index): label for index, label in enumerate(folder.labels.tolist())}
    with make(folder, with_indices=True, batches_per_group=batches_per_group) as loader:
        for epoch in range(3):
            plans = list(refurbish().epoch(epoch))
            for plan, (images, labels, indices) in zip(plans, loader, strict=True):
                assert indices.dtype == torch.int64
                assert indices.device.type == "cpu"
                assert len(images) == len(indices)
                assert indices.tolist() == plan.indices.tolist()
                assert [labels_of[folder.name(index)] for index in indices.tolist()] == labels.tolist()


def test_an_index_names_the_image_that_is_served_beside_it() -> None:
    images = np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, SIZE, SIZE, 3), dtype=np.uint8)
    recipe = Recipe([], Output(SIZE, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255)), split=0)
    source = Arrays(images, np.arange(NUM_SAMPLES))
    with Loader(source, recipe, refurbish(), MemoryStore(), with_indices=True) as loader:
        for _ in range(3):
            for served, labels, indices in loader:
                assert np.array_equal(served.numpy().transpose(0, 2, 3, 1), images[indices.numpy()])
                assert torch.equal(labels, indices)


def test_indices_belong_to_the_caller(folder: ImageFolder) -> None:
    with make(folder, with_indices=True) as loader:
        for _ in range(3):
            for _, labels, indices in loader:
                wanted = folder.labels[indices.numpy()].tolist()
                indices.zero_()
                assert labels.tolist() == wanted
                labels.zero_()


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (np.arange(NUM_SAMPLES), torch.int64),
        (np.arange(NUM_SAMPLES, dtype=np.uint8), torch.int64),
        (np.arange(NUM_SAMPLES, dtype=np.uint64) + 2**63 - NUM_SAMPLES, torch.int64),
        (np.arange(NUM_SAMPLES, dtype=np.int16)[:, None] * np.array([1, -1], np.int16), torch.int64),
        (np.random.default_rng(0).integers(0, 2, (NUM_SAMPLES, 5)).astype(np.float32), torch.float32),
        (np.random.default_rng(0).random((NUM_SAMPLES, 2, 4)), torch.float64),
        (np.random.default_rng(0).random(NUM_SAMPLES).astype(np.float16), torch.float16),
        (np.random.default_rng(0).integers(0, 2, (NUM_SAMPLES, 5)).astype(bool), torch.bool),
        (np.arange(NUM_SAMPLES) % 2 == 0, torch.bool),
        (np.zeros((NUM_SAMPLES, 0), np.float32), torch.float32),
        (np.arange(NUM_SAMPLES, dtype=">f4"), torch.float32),
        (np.arange(NUM_SAMPLES, dtype=">i4"), torch.int64),
    ],
    ids=lambda value: f"{value.dtype.str}-{value.shape[1:]}" if isinstance(value, np.ndarray) else str(value)[6:],
)
def test_labels_of_any_fixed_shape_are_served_with_integers_as_int64(labels: Any, dtype: torch.dtype) -> None:
    images = np.zeros((NUM_SAMPLES, SIZE, SIZE, 3), np.uint8)
    recipe = simple(SIZE, raw=True)
    with Loader(Arrays(images, labels), recipe, refurbish(), MemoryStore(), with_indices=True) as loader:
        for _, served, indices in loader:
            assert served.dtype == dtype
            assert served.shape == (len(indices), *labels.shape[1:])
            assert np.array_equal(served.numpy(), labels[indices.numpy()])


@pytest.mark.parametrize("recipe", [simple(SIZE), rand_augment(SIZE, order="crop_last"), rand_augment(SIZE)])
def test_channels_last_and_float16_serve_the_same_values(folder: ImageFolder, recipe: Recipe) -> None:
    """float16 has 11 significant bits."""
    served = {}
    for dtype in ("float32", "float16"):
        for channels_last in (False, True):
            changed = recipe.with_output(dtype=dtype, channels_last=channels_last)
            with make(folder, recipe=changed, batches_per_group=2) as loader:
                batches = [images for _ in range(2) for images, _ in loader]
            memory_format = torch.channels_last if channels_last else torch.contiguous_format
            for images in batches:
                assert images.shape[1:] == (3, SIZE, SIZE)
                assert images.dtype == getattr(torch, dtype)
                assert images.is_contiguous(memory_format=memory_format)
            served[dtype, channels_last] = torch.cat(batches)
    full, half = served["float32", False], served["float16", False]
    assert torch.equal(full, served["float32", True])
    assert torch.equal(half, served["float16", True])
    torch.testing.assert_close(half.float(), full, rtol=2**-11, atol=2**-14)


def test_a_state_can_be_loaded_where_the_layout_of_the_images_differs(folder: ImageFolder) -> None:
    with make(folder) as loader, make(folder, recipe=simple(SIZE, channels_last=True)) as other:
        iterator = iter(loader)
        next(iterator)
        other.load_state_dict(loader.state_dict())
        for (images, labels), (other_images, other_labels) in zip(iterator, other, strict=True):
            assert torch.equal(images, other_images)
            assert torch.equal(labels, other_labels)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_pinned_memory_without_a_gpu_is_refused(folder: ImageFolder) -> None:
    message = r"pin_memory=True needs a CUDA device, and torch finds none; pass pin_memory=torch.cuda.is_available\(\)"
    with pytest.raises(ConfigurationError, match=message):
        make(folder, pin_memory=True)


# ---- DALI's iterator


def test_a_loop_written_for_dali_runs_unchanged_over_several_epochs(folder: ImageFolder) -> None:
    with make(folder) as loader:
        iterator = loader.dali_iterator()
        assert isinstance(iterator, DALIGenericIterator)
        assert len(iterator) == len(loader)
        for epoch in range(3):
            served = []
            for batch in iterator:
                assert batch[0]["data"].shape[1:] == (3, SIZE, SIZE)
                served.append(batch[0]["label"].tolist())
            assert served == planned_labels(folder, epoch)
            iterator.reset()


def test_dalis_iterator_has_indices_if_the_loader_has(folder: ImageFolder) -> None:
    with make(folder, with_indices=True) as loader:
        for plan, (batch,) in zip(refurbish().epoch(0), loader.dali_iterator(), strict=True):
            assert list(batch) == ["data", "label", "index"]
            assert batch["index"].tolist() == plan.indices.tolist()
            assert batch["label"].tolist() == folder.labels[plan.indices].tolist()
    with make(folder) as loader:
        assert list(next(loader.dali_iterator())[0]) == ["data", "label"]


def test_reset_between_epochs_is_optional(folder: ImageFolder) -> None:
    with make(folder) as loader:
        iterator = loader.dali_iterator()
        served = [[batch[0]["label"].tolist() for batch in iterator] for _ in range(2)]
    assert served == [planned_labels(folder, 0), planned_labels(folder, 1)]


def test_next_without_a_loop_works_as_in_dali(folder: ImageFolder) -> None:
    with make(folder) as loader:
        iterator = loader.dali_iterator()
        labels = [iterator.next()[0]["label"].tolist() for _ in range(len(iterator))]
        assert labels == planned_labels(folder, 0)
        with pytest.raises(StopIteration):
            next(iterator)
        iterator.reset()
        assert next(iterator)[0]["label"].tolist() == planned_labels(folder, 1)[0]


def test_what_is_read_is_submitted_before_more_is_read(folder: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    def note(name: str) -> None:
        method = getattr(Preparer, name)

        def noted(*arguments: Any) -> Any:
            steps.append(name)
            return method(*arguments)

        monkeypatch.setattr(Preparer, name, noted)

    for name in ("_admit", "_submit", "_collect"):
        note(name)
    with make(folder) as loader:
        for _ in range(4):
            list(loader)
    turns = " ".join(steps).split("_collect")[1:]  # The first ones find nothing that is read.
    assert any("_submit _admit" in turn for turn in turns)
    assert not any("_admit _submit" in turn for turn in turns)


# ---- what is wrong


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    root = write_folder(tmp_path, num_samples=8)
    (root / "class_1" / "zzz.jpg").write_text("this is not an image, sorry")
    source = ImageFolder(root)
    with (
        Loader(source, simple(SIZE), Standard(len(source), batch_size=4)) as loader,
        pytest.raises(SampleError, match=r"zzz\.jpg.*not an image"),
    ):
        list(loader)


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    root = write_folder(tmp_path, num_samples=8)
    victim = root / "class_2" / "005.jpg"
    victim.write_bytes(victim.read_bytes()[:-200])
    source = ImageFolder(root)
    for store in (None, MemoryStore()):
        with (
            Loader(source, simple(SIZE), Refurbish(8, batch_size=8, reuse_factor=2), store) as loader,
            pytest.raises(SampleError, match=r"005\.jpg.*failed \(OSError: image file is truncated") as caught,
        ):
            list(loader)
        assert source.name(caught.value.index).endswith("005.jpg")


def test_a_file_that_vanishes_is_named_and_the_loader_can_go_on(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=8))
    path = next(tmp_path.rglob("003.jpg"))
    content = path.read_bytes()
    path.unlink()
    with Loader(source, simple(SIZE), Standard(8, batch_size=4)) as loader:
        with pytest.raises(SampleError, match=r"003\.jpg"):
            list(loader)
        path.write_bytes(content)
        assert len(list(loader)) == 2


def test_an_error_in_a_users_stage_reaches_the_caller(folder: ImageFolder) -> None:
    def shrink(images: Any) -> Any:
        from nvidia.dali import fn

        return fn.resize(images, size=(SIZE // 2, SIZE // 2))

    stages = [*simple(SIZE).stages, Custom(shrink, "shrink", size=(SIZE, SIZE))]
    recipe = Recipe(stages, Output(SIZE), split=4)
    with (
        make(folder, recipe=recipe) as loader,
        pytest.raises(LoaderError, match=r"32, 32, 3.*\(16, 16, 3\).*shrink"),
    ):
        list(loader)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"planner": Standard(13, batch_size=4)}, "13 and 14"),
        ({"recipe": simple(SIZE, raw=True)}, "starts from arrays, but the source gives encoded images"),
        ({"replicas": 0}, "replicas must be an int in 1..65536, got 0: pass a positive number, or leave it out"),
        ({"reading_threads": 10**9}, "reading_threads must be an int in 1..65536, got 1000000000: pass a"),
        ({"look_ahead": 10**30}, "look_ahead must be an int in 1..65536, got 1000"),
        ({"reading_threads": None}, "reading_threads must be an int in 1..65536, got None: pass a positive number"),
        ({"num_threads": True}, "num_threads must be an int in 1..65536"),
        ({"look_ahead": -1}, "look_ahead must be an int in 1..65536"),
        ({"partial_device": "gpu"}, r"must be one of .*got \('gpu', 'cpu'\)"),
        ({"partial_device": "tpu"}, "must be one of"),
    ],
)
def test_parts_that_do_not_fit_are_refused(folder: ImageFolder, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(folder, **changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_reuse_without_a_store_is_warned_of_since_it_gains_nothing(folder: ImageFolder) -> None:
    with pytest.warns(UserWarning, match=r"Refurbish reuses .* but there is no store.*pass MemoryStore\(\)") as caught:
        make(folder, store=None).close()
    assert caught[0].filename.endswith("loading.py")
    for planner in (Standard(14, batch_size=4), Evaluate(14, batch_size=4)):
        with warnings.catch_warnings(action="error"):
            make(folder, planner=planner, recipe=evaluate(SIZE), store=None).close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folder": "photos/train"}, "source must be a source, got a str: pass ImageFolder"),
        ({"recipe": refurbish()}, "recipe must be a recipe, got a Refurbish: .*the order is Loader"),
        ({"planner": simple(SIZE)}, "planner must be a planner, got a Recipe"),
        ({"store": "/cache"}, "store must be a store, got a str: .*DiskStore"),
        ({"store": MemoryStore}, "store must be a store, got the class MemoryStore itself"),
        (
            {"recipe": None},
            "recipe must be a recipe, got none: pass rand_augment.224., or another preset; the",
        ),
        ({"folder": [1, 2]}, "source must be a source, got a list: .*TorchDataset.dataset. for a torch Dataset"),
        ({"folder": TensorDataset(torch.ones(2))}, "got a TensorDataset: .*TorchDataset.dataset. for a torch Dataset"),
        ({"prefetch": 4}, r"prefetch must be a Prefetch, got an int: pass Prefetch\(num_threads=4\)"),
        ({"store": "gpu:0"}, "store must be a store, got a str: partial_device= and final_device= say where images"),
        ({"recipe": of_package("monai.transforms.compose", "Compose")}, "must be a recipe, got monai's Compose: pass"),
        ({"recipe": of_package("timm.data.mixup", "Mixup")}, "must be a recipe, got timm's Mixup: pass"),
        ({"recipe": of_package("mine", "Mixup")}, "must be a recipe, got a Mixup: pass"),
        (
            {"bad_samples": "replace"},
            r"bad_samples must be a BadSamplePolicy, got a str: pass BadSamplePolicy\('replace'\)",
        ),
    ],
)
def test_what_is_of_another_kind_is_refused_with_the_remedy(
    folder: ImageFolder, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**{"folder": folder, **changes})


@pytest.mark.parametrize("epoch", [-1, 1.7, "1", None])
def test_an_epoch_that_is_no_number_of_one_is_refused(folder: ImageFolder, epoch: Any) -> None:
    with make(folder) as loader, pytest.raises(ConfigurationError, match="epoch must be an int"):
        loader.set_epoch(epoch)


def test_a_gpu_placement_without_a_gpu_is_refused(folder: ImageFolder) -> None:
    with pytest.raises(ConfigurationError, match="torch finds no CUDA device"):
        make(folder, final_device="gpu")


def test_a_store_that_would_not_fit_is_refused_with_both_numbers(
    folder: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dalirefurb.engine.memory.available_bytes", lambda: 10_000)
    with pytest.raises(OutOfMemoryError, match=r"memory must hold .* [KMG]B \(the store's slots .*10\.00 KB are free"):
        make(folder)


def test_a_closed_loader_says_so(folder: ImageFolder) -> None:
    loader = make(folder)
    list(islice(loader, 1))
    loader.close()
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(iter(loader))


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dalirefurb")]


def test_files_are_read_by_reading_threads_only(folder: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = set()
    read = ImageFolder.read

    def watched(self: ImageFolder, indices: Any) -> Any:
        readers.add(threading.current_thread().name)
        return read(self, indices)

    monkeypatch.setattr(ImageFolder, "read", watched)
    with make(folder, reading_threads=1) as loader:
        for _ in range(2):
            list(loader)
    assert len(readers) == 1
    assert all(name.startswith("dalirefurb-read") for name in readers)


def test_an_error_leaves_no_thread_once_the_loader_is_closed(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path, num_samples=8))
    next(tmp_path.rglob("003.jpg")).unlink()
    loader = Loader(source, simple(SIZE), Standard(8, batch_size=4))
    with pytest.raises(SampleError):
        list(loader)
    loader.close()
    assert not {"dalirefurb-prepare", "dalirefurb-finish"} & set(loader_threads())


def test_closing_leaves_no_thread(folder: ImageFolder) -> None:
    loader = make(folder)
    next(iter(loader))
    assert loader_threads()
    loader.close()
    assert not {"dalirefurb-prepare", "dalirefurb-finish"} & set(loader_threads())


def test_file_list_and_multi_label_targets_are_served(folder: ImageFolder, tmp_path: Path) -> None:
    root = write_folder(tmp_path, num_samples=6)
    paths = sorted(root.rglob("*.jpg"))
    labels = np.arange(12, dtype=np.float32).reshape(6, 2)
    with Loader(FileList(paths, labels), simple(SIZE), Standard(6, batch_size=6)) as loader:
        ((_, served),) = list(loader)
    assert served.dtype == torch.float32
    assert sorted(served[:, 0].tolist()) == [0, 2, 4, 6, 8, 10]


def test_gray_arrays_are_served_as_colour() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, SIZE, SIZE), dtype=np.uint8)
    recipe = Recipe([], Output(SIZE, mean=(0, 0, 0), std=(1, 1, 1)), split=0)
    with Loader(Arrays(images, np.arange(6)), recipe, Standard(6, batch_size=6)) as loader:
        ((served, labels),) = list(loader)
    expected = torch.from_numpy(images[labels.numpy()].astype(np.float32) / 255)
    for channel in range(3):
        torch.testing.assert_close(served[:, channel], expected)


class Stacked(Arrays):
    """Images as one array, or a list of too few of them."""

    def __init__(self, images: NDArray[np.uint8], missing: int = 0) -> None:
        super().__init__(images, np.arange(len(images)))
        self._missing = missing

    def read(self, indices: NDArray[np.int64]) -> Any:
        stacked = np.stack(list(super().read(indices)))
        return list(stacked)[self._missing :] if self._missing else stacked


@pytest.mark.parametrize("kernels", ["dali", None])
@pytest.mark.parametrize("reuse_factor", [1, 2])
def test_a_source_may_return_one_array(kernels: Any, reuse_factor: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, SIZE, SIZE, 3), dtype=np.uint8)

    def served(source: Arrays) -> list[torch.Tensor]:
        planner = Refurbish(12, batch_size=4, reuse_factor=reuse_factor)
        with Loader(source, simple(SIZE, raw=True), planner, MemoryStore(), kernels=kernels) as loader:
            return [tensor for _ in range(2) for batch in loader for tensor in batch]

    expected = served(Arrays(images, np.arange(12)))
    for ours, theirs in zip(served(Stacked(images)), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_source_that_returns_too_few_samples_is_told() -> None:
    images = np.zeros((12, SIZE, SIZE, 3), np.uint8)
    recipe = rand_augment(SIZE, raw=True)
    with (
        Loader(Stacked(images, missing=1), recipe, Standard(12, batch_size=4)) as loader,
        pytest.raises(LoaderError, match=r"Stacked returned 3 for 4 indices"),
    ):
        next(iter(loader))
