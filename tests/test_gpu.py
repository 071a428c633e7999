"""What holds on a GPU: the same promises, on each placement."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dalirefurb import ImageFolder, Loader, MemoryStore, Recipe, Refurbish, Stats, rand_augment
from dalirefurb.augment.geometry import Device
from tests.pictures import write_folder

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


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(
    ("order", "split"),
    [("paper", "random_resized_crop"), ("paper", "rand_augment_2"), ("crop_last", "random_crop")],
)
def test_tensors_are_the_same_with_and_without_a_store(
    folder: ImageFolder, placement: tuple[Device, Device], order: str, split: str
) -> None:
    recipe = rand_augment(SIZE, order="paper" if order == "paper" else "crop_last", split=split)
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
        folder, rand_augment(SIZE), planner, partial_device=partial_device, final_device=final_device
    ) as loader:
        images, labels = next(iter(loader))
    assert images.device.type == labels.device.type == "cuda"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_pixels_stay_close_to_those_of_the_cpu(folder: ImageFolder, placement: tuple[Device, Device]) -> None:
    """Most pixels agree; the rest differ by decoding, resampling and rounding on the device."""
    recipe = rand_augment(SIZE, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255))
    expected, _ = serve(folder, recipe, None, ("cpu", "cpu"))
    served, _ = serve(folder, recipe, None, placement)
    differences = torch.cat([(one - other.cpu()).abs().flatten() for one, other in zip(expected, served, strict=True)])
    assert differences.mean() < 2.0
    assert (differences <= 2).float().mean() > 0.9
