"""The stream of a plain loop over small raw arrays, which training inside any framework must serve, too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from dalirefurb import Arrays, Evaluate, Loader, MemoryStore, Prefetch, Refurbish, evaluate, simple

NUM_SAMPLES, BATCH, BATCHES, SIZE = 14, 4, 4, 32
"""An epoch is of 3 full batches and one of 2 rows."""

SOURCE = Arrays(
    np.random.default_rng(0).integers(0, 256, (NUM_SAMPLES, SIZE, SIZE, 3), np.uint8), np.arange(NUM_SAMPLES)
)
RECIPE = simple(SIZE, raw=True)

Batch = tuple[torch.Tensor, torch.Tensor]


def train_loader(**arguments: Any) -> Loader:
    """Make a loader of the stream; `shards` and `batch_size` are the planner's."""
    planner = {"batch_size": BATCH, "reuse_factor": 2, "seed": 3}
    planner |= {name: arguments.pop(name) for name in ("shards", "batch_size") if name in arguments}
    return Loader(
        SOURCE, RECIPE, Refurbish(NUM_SAMPLES, **planner), MemoryStore(), prefetch=Prefetch(num_threads=1), **arguments
    )


def val_loader() -> Loader:
    """Make a loader that serves each sample once, in the source's order."""
    return Loader(SOURCE, evaluate(SIZE, raw=True), Evaluate(NUM_SAMPLES, batch_size=BATCH), MemoryStore())


def endless(loader: Any) -> Iterator[Any]:
    """Iterate a loader epoch after epoch."""
    while True:
        yield from loader


def plain_stream(batches: int, **arguments: Any) -> list[Batch]:
    """Serve so many batches in a plain loop."""
    with train_loader(**arguments) as loader:
        return [(images.clone(), labels.clone()) for images, labels in islice(endless(loader), batches)]


def network() -> torch.nn.Module:
    """Make a model that needs next to no time: as many outputs as samples, since each is a class of its own."""
    return torch.nn.Sequential(torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(48, NUM_SAMPLES))


def assert_stream(expected: list[Batch], served: list[Any]) -> None:
    """Hold that the same batches were served, in the same order, none twice and none lost."""
    assert [labels.tolist() for _, labels in served] == [labels.tolist() for _, labels in expected]
    for (images, _), (others, _) in zip(expected, served, strict=True):
        assert torch.equal(images, others)
