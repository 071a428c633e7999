"""What holds on a GPU: the same promises, on each placement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dalirefurb import (
    ImageFolder,
    Loader,
    MemoryStore,
    Recipe,
    Refurbish,
    Stats,
    auto_augment,
    evaluate,
    rand_augment,
    trivial_augment,
)
from dalirefurb.augment.geometry import Device
from dalirefurb.augment.operations import (
    AUTO_AUGMENT_OPERATIONS,
    OPERATIONS,
    WIDE_OPERATIONS,
    Choice,
    Group,
    Operation,
    OperationTable,
)
from dalirefurb.augment.rand_augment import RandAugmentLayer
from tests.one_batch import operate, operation_pipeline
from tests.pictures import picture, write_folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = 64
NUM_SAMPLES = 23
PLACEMENTS: list[tuple[Device, Device]] = [("cpu", "gpu"), ("gpu", "gpu")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    root: Path = write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES)
    return ImageFolder(root)


def serve(
    folder: ImageFolder,
    recipe: Recipe,
    store: MemoryStore | None,
    placement: tuple[Device, Device],
    *,
    replicas: int = 2,
) -> tuple[list[torch.Tensor], Stats]:
    planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3, seed=7)
    partial_device, final_device = placement
    with Loader(
        folder, recipe, planner, store, partial_device=partial_device, final_device=final_device, replicas=replicas
    ) as loader:
        served = [images.clone() for _ in range(5) for images, _ in loader]
        return served, loader.stats()


RECIPES = {
    "paper, split after decoding": rand_augment(SIZE, split="random_resized_crop"),
    "paper, split in the middle": rand_augment(SIZE, split="rand_augment_2"),
    "crop_last": rand_augment(SIZE, order="crop_last"),
    "auto_augment, split in the middle": auto_augment(SIZE, split="auto_augment_2"),
    "trivial_augment": trivial_augment(SIZE),
    "evaluate": evaluate(SIZE),
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", RECIPES)
def test_tensors_are_the_same_with_and_without_a_store(
    folder: ImageFolder, placement: tuple[Device, Device], name: str
) -> None:
    recipe = RECIPES[name]
    expected, _ = serve(folder, recipe, None, placement, replicas=1)
    served, stats = serve(folder, recipe, MemoryStore(), placement)
    assert stats.hits > 0
    assert stats.recomputed == 0
    for number, (one, other) in enumerate(zip(expected, served, strict=True)):
        assert torch.equal(one, other), f"batch {number}"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_images_and_labels_are_on_the_gpu(folder: ImageFolder, placement: tuple[Device, Device]) -> None:
    planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3)
    partial_device, final_device = placement
    with Loader(
        folder,
        rand_augment(SIZE),
        planner,
        partial_device=partial_device,
        final_device=final_device,
        with_indices=True,
        pin_memory=True,
    ) as loader:
        images, labels, indices = next(iter(loader))
    assert images.device.type == "cuda"
    assert images.device == labels.device
    assert indices.device.type == "cpu"


def test_pinned_images_and_labels_are_those_of_ordinary_memory(folder: ImageFolder) -> None:
    planner = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3)
    recipe = rand_augment(SIZE, channels_last=True)
    with (
        Loader(folder, recipe, planner, MemoryStore(), pin_memory=True) as pinned,
        Loader(folder, recipe, planner, MemoryStore()) as ordinary,
    ):
        for _ in range(3):
            for (images, labels), (other_images, other_labels) in zip(pinned, ordinary, strict=True):
                assert images.is_pinned()
                assert labels.is_pinned()
                assert images.is_contiguous(memory_format=torch.channels_last)
                assert torch.equal(images, other_images)
                assert torch.equal(labels, other_labels)
                assert torch.equal(images.to("cuda", non_blocking=True).cpu(), other_images)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_layout_of_the_images_changes_no_value(folder: ImageFolder, placement: tuple[Device, Device]) -> None:
    recipe = rand_augment(SIZE, dtype="float16", order="crop_last")
    expected, _ = serve(folder, recipe, None, placement)
    served, _ = serve(folder, recipe.with_output(channels_last=True), None, placement)
    for one, other in zip(expected, served, strict=True):
        assert other.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(one, other)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_pixels_stay_close_to_those_of_the_cpu(folder: ImageFolder, placement: tuple[Device, Device]) -> None:
    """Most pixels agree; the rest differ by decoding, resampling and rounding on the device."""
    recipe = rand_augment(SIZE, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))
    expected, _ = serve(folder, recipe, None, ("cpu", "cpu"))
    served, _ = serve(folder, recipe, None, placement)
    differences = torch.cat([(one - other.cpu()).abs().flatten() for one, other in zip(expected, served, strict=True)])
    assert differences.mean() < 2.0
    assert (differences <= 2).float().mean() > 0.9


TABLES = {
    "rand_augment": (OPERATIONS, 31),
    "auto_augment": (AUTO_AUGMENT_OPERATIONS, 10),
    "trivial_augment": (WIDE_OPERATIONS, 31),
}
EXACT = (Group.IDENTITY, Group.POSTERIZE, Group.SOLARIZE)


@pytest.fixture(scope="module")
def pipelines() -> tuple[Any, Any]:
    """Operations on the CPU, and on the GPU."""
    layer = RandAugmentLayer()
    return operation_pipeline(layer), operation_pipeline(layer, "gpu", device_id=torch.cuda.current_device())


@pytest.mark.parametrize(
    ("policy", "row"), [(policy, row) for policy, (rows, _) in TABLES.items() for row in range(len(rows))]
)
def test_an_operation_is_on_the_gpu_what_it_is_on_the_cpu(pipelines: tuple[Any, Any], policy: str, row: int) -> None:
    """At every magnitude and sign: within 2 levels, as both are near Pillow's.

    Warps are exact, but where a source lies between two pixels; rotations by a right angle put all of them there.
    """
    operations, num_bins = TABLES[policy]
    operation: Operation = operations[row]
    image = np.asarray(picture(3, height=224, width=230))
    bins = np.arange(num_bins).repeat(2)
    sizes = np.full(2 * num_bins, 224), np.full(2 * num_bins, 230)
    parameters = OperationTable(operations, num_bins).parameters(
        Choice(np.full(2 * num_bins, row), bins, np.tile([False, True], num_bins)), heights=sizes[0], widths=sizes[1]
    )
    on_cpu, on_gpu = (np.stack(operate(each, [image] * (2 * num_bins), parameters)) for each in pipelines)
    difference = np.abs(on_cpu.astype(int) - on_gpu).max(axis=3)
    if operation.group is Group.WARP:
        differing = (difference > 0).mean(axis=(1, 2))
        assert np.median(differing) < 0.01
        assert (differing > 0.25).sum() <= 2
    else:
        assert difference.max() <= (0 if operation.group in EXACT else 2)
