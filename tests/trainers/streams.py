"""Loaders over made images, and what a plain loop is served by them, for the trainers' tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import nn

from dalirefurb import Arrays, AutoAssist, Evaluate, Loader, MemoryStore, Prefetch, Refurbish, evaluate, simple
from dalirefurb.planning.planner import Planner

NUM_SAMPLES = 18
BATCH_SIZE = 4
CLASSES = 3
EPOCHS = 3

Step = tuple[tuple[int, ...], float]
"""Labels and sum of the pixels of a batch; labels are the samples' own numbers, so they tell which these are."""


def source(num_samples: int = NUM_SAMPLES) -> Arrays:
    pixels = np.random.default_rng(0).integers(0, 256, (num_samples, 32, 32, 3), dtype=np.uint8)
    return Arrays(pixels, np.arange(num_samples))


def refurbish(*, shards: int = 1, seed: int = 0) -> Refurbish:
    return Refurbish(NUM_SAMPLES, batch_size=BATCH_SIZE, reuse_factor=2, shards=shards, seed=seed)


def training_loader(planner: Planner | None = None, *, shards: int = 1, seed: int = 0) -> Loader:
    """Make a loader whose batches, but the last of an epoch where there is one shard, have BATCH_SIZE rows."""
    planner = planner or refurbish(shards=shards, seed=seed)
    return Loader(source(), simple(32, raw=True), planner, MemoryStore(), kernels="dali", prefetch=Prefetch(1))


def assisted_loader() -> Loader:
    return training_loader(AutoAssist(refurbish(), lag=8))


def evaluating_loader(num_samples: int = NUM_SAMPLES, *, pad: bool = False, batch_size: int = BATCH_SIZE) -> Loader:
    planner = Evaluate(num_samples, batch_size=batch_size, pad=pad)
    recipe = evaluate(32, raw=True)
    store = MemoryStore()
    return Loader(source(num_samples), recipe, planner, store, kernels="dali", prefetch=Prefetch(1), with_indices=pad)


def step_of(images: torch.Tensor, labels: torch.Tensor) -> Step:
    return tuple(labels.tolist()), float(images.double().sum())


def losses_of(images: torch.Tensor) -> torch.Tensor:
    """Losses of a model that does not learn: bright images are hard."""
    return images.mean(dim=(1, 2, 3)) + 3


def plain_loop(loader: Loader, epochs: int = EPOCHS, batches: int | None = None) -> list[Step]:
    """Serve epochs, each as far as so many batches."""
    return [step for _ in range(epochs) for step in _epoch(loader, batches)]


def _epoch(loader: Loader, batches: int | None) -> Iterator[Step]:
    served: Iterable[tuple[torch.Tensor, ...]] = loader
    for number, (images, labels, *_) in enumerate(served):
        if isinstance(loader.planner, AutoAssist):
            loader.observe(losses_of(images))
        yield step_of(images, labels)
        if number + 1 == batches:
            return


def network() -> nn.Module:
    """A model of as many classes as there are samples, since labels are their numbers."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, NUM_SAMPLES))
