"""Photographs and CIFAR-10, where they are at hand: what users run, end to end."""

import numpy as np
import pytest
import torch
from PIL import Image

from dalirefurb import Arrays, FileList, ImageFolder, Loader, MemoryStore, Refurbish, rand_augment
from dalirefurb.cli import main

pytestmark = pytest.mark.usefixtures("traced_once")


@pytest.mark.parametrize("reuse_factor", [pytest.param(1, marks=pytest.mark.weekly), 3])
def test_train_works_on_photographs(shared_data, capsys, reuse_factor):
    folder = str(shared_data / "photos")
    assert main(["train", folder, "--reuse-factor", str(reuse_factor), "--epochs", "2", "--size", "64"]) == 0
    assert "364" in capsys.readouterr().out


def test_photographs_are_served_alike_with_and_without_a_store(shared_data):
    photographs = ImageFolder(shared_data / "photos")
    source = FileList([photographs.name(index) for index in range(0, 364, 4)], [*range(91)])
    planner = Refurbish(len(source), batch_size=16, reuse_factor=3)
    recipe = rand_augment(96)
    with Loader(source, recipe, planner) as plain, Loader(source, recipe, planner, MemoryStore()) as cached:
        for _ in range(2):
            for (images, labels), (other_images, other_labels) in zip(plain, cached, strict=True):
                assert torch.equal(labels, other_labels)
                assert torch.equal(images, other_images)
        assert cached.stats().hits > 0


def test_cifar10_is_served_from_arrays_alike_with_and_without_a_store(shared_data):
    images, labels = [], []
    for label in range(10):
        (path,) = (shared_data / "cifar10").glob(f"test_{label}_*.webp")
        mosaic = np.asarray(Image.open(path).convert("RGB"))
        images.append(mosaic[:128].reshape(-1, 32, 50, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3))
        labels.append(np.full(len(images[-1]), label))
    source = Arrays(np.concatenate(images), np.concatenate(labels))
    assert len(source) == 2_000
    planner = Refurbish(len(source), batch_size=500, reuse_factor=2, drop_last=True)
    recipe = rand_augment(32, raw=True, mean=(0.491, 0.482, 0.447), std=(0.247, 0.244, 0.262))
    with Loader(source, recipe, planner) as plain, Loader(source, recipe, planner, MemoryStore()) as cached:
        for _ in range(2):
            for (one, classes), (other, other_classes) in zip(plain, cached, strict=True):
                assert one.shape == (500, 3, 32, 32)
                assert torch.equal(classes, other_classes)
                assert torch.equal(one, other)
        stats = cached.stats()
        assert stats.hits == 1_000
