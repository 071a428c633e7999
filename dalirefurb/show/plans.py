"""Misses over epochs and batches, counted in plans, beside what the two shufflers replace.

And what does any planner do with each sample?

Balanced eviction against reference counts is figure 7 of Revamper (Lee et al., USENIX ATC 2021), the cache-aware batch
shuffler against a plain shuffle figure 8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import ReferenceCount, Refurbish
from dalirefurb.planning.shuffle import PlainShuffler

Misses = NDArray[np.int64]
"""Misses of each batch, shape (epochs, batches)."""


@dataclass(frozen=True)
class Comparison:
    """Misses of refurbishing, and of what it would be without one of its shufflers.

    Attributes:
        planner: The planner of `refurbish`.
        refurbish: Misses with balanced eviction and cache-aware batches, shape (epochs, batches).
        reference_count: Misses if versions that began together end together, with cache-aware batches, shape (epochs,
            batches).
        plain_shuffle: Misses with balanced eviction and batches that ignore the cache, shape (epochs, batches).
    """

    planner: Refurbish
    refurbish: Misses
    reference_count: Misses
    plain_shuffle: Misses


@dataclass(frozen=True)
class History:
    """What a planner does to samples and batches, epoch by epoch.

    Attributes:
        planner: The planner whose plans are counted.
        served: How often each sample is served, shape (epochs, num_samples).
        computed: How often each sample's partial augmentation runs for that, shape (epochs, num_samples).
        misses: Share of each batch's rows that are misses, 0..1, shape (epochs, batches).
    """

    planner: Planner
    served: NDArray[np.int64]
    computed: NDArray[np.int64]
    misses: NDArray[np.float64]


def history(planner: Planner, epochs: int) -> History:
    """Count what a planner plans, from epoch 0 on."""
    served, computed = np.zeros((2, epochs, planner.num_samples), np.int64)
    misses = np.empty((epochs, len(planner)))
    for epoch in range(epochs):
        for batch, plan in enumerate(planner.epoch(epoch)):
            np.add.at(served[epoch], plan.indices, 1)
            np.add.at(computed[epoch], plan.indices[plan.miss], 1)
            misses[epoch, batch] = plan.miss.mean()
    return History(planner, served, computed, misses)


def compare_plans(planner: Refurbish, epochs: int) -> Comparison:
    """Plan the same epochs in three ways, from epoch 0 on."""
    return Comparison(
        planner,
        _planned_misses(planner, epochs),
        _planned_misses(replace(planner, evict_shuffler=ReferenceCount()), epochs),
        _planned_misses(replace(planner, batch_shuffler=PlainShuffler()), epochs),
    )


def _planned_misses(planner: Planner, epochs: int) -> Misses:
    return np.array([[plan.miss.sum() for plan in planner.epoch(epoch)] for epoch in range(epochs)])
