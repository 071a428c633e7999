"""The share of standard training's different images that a split keeps.

A version of a partial image is served `reuse_factor` times, each time with a final part of its own. Two of these images
are the same if their final parts turn out the same; so of r servings, sum over outcomes of 1 - (1 - p)^r are different
ones, with p the probabilities of the final part's outcomes. Standard training draws all stages anew each time, so its
different images in as many epochs are the same sum over the outcomes of the whole recipe: r, where these are many.

Outcomes that look alike count as different: the figure compares splits, and accuracy is to be measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Stage


def diversity(stages: Sequence[Stage], split: int, reuse_factor: int) -> float:
    """Return the share of standard training's different images, 1 / reuse_factor .. 1.

    Args:
        stages: All stages, partial and final, in order.
        split: Number of stages that are partial, the first ones.
        reuse_factor: Number of servings of each version.
    """
    return different(stages, split, reuse_factor) / different(stages, 0, reuse_factor)


def different(stages: Sequence[Stage], split: int, reuse_factor: int) -> float:
    """Return the share of a version's servings that are images of their own, 1 / reuse_factor .. 1; see `diversity`."""
    total = 0.0
    for weight, probabilities, counts in _mixture(stages[split:]):
        # 1 - (1 - p)^r as the sum of p * (1 - p)^k, k < r, in which a tiny p is not lost beside 1.
        unseen = np.sum([(1 - probabilities) ** serving for serving in range(reuse_factor)], axis=0)
        alone = max(1 - float(counts @ probabilities), 0.0)  # of outcomes that do not come twice
        total += float(weight * ((counts * probabilities) @ unseen + alone * reuse_factor))
    return total / reuse_factor


def what_differs(name: str, stages: Sequence[Stage], split: int, reuse_factor: int) -> str:
    """Say in two lines what is drawn anew, and which share of the images served differs from each other."""
    drawn = [stage.name for stage in stages[split if reuse_factor > 1 else 0 :] if stage.random]
    fresh = f"drawn anew at every use: {', '.join(drawn) or 'nothing'}"
    if not any(stage.random for stage in stages):
        return f"{fresh}\n{name} draws nothing: every use serves the same image"
    kept, served = diversity(stages, split, reuse_factor), 100 * different(stages, split, reuse_factor)
    share = f"of 100 images served, {served:.0f} are different"
    return f"{fresh}\n{name} keeps {kept:.2f} at reuse factor {reuse_factor}: {share}"


def joint(stages: Sequence[Stage]) -> NDArray[np.float64]:
    """Return the probabilities of the joint outcomes of independent stages, as `Stage.outcomes`."""
    probabilities = np.ones(1)
    for stage in stages:
        probabilities = np.outer(probabilities, stage.outcomes).ravel()
    return probabilities


def _mixture(final: Sequence[Stage]) -> list[tuple[float, NDArray[np.float64], NDArray[np.float64]]]:
    """Return the distributions of the final stages' joint outcomes, one for each that a partial stage may cause.

    Returns:
        The weight of each, its different probabilities, and how many outcomes have each of these.
    """
    mixture = [(1.0, np.ones(1), np.ones(1))]
    names = {stage.name for stage in final}
    followed = {stage.follows.name for stage in final if stage.follows is not None}
    for stage in final:
        if stage.name in followed:
            continue  # Its outcomes are among those of the stage that follows it.
        pairs = stage.joint_outcomes
        given = stage.follows is not None and stage.follows.name not in names
        rows = [(row.sum(), row / row.sum()) for row in pairs if row.any()] if given else [(1.0, pairs.ravel())]
        mixture = [
            (weight * share, *_product(probabilities, counts, row))
            for weight, probabilities, counts in mixture
            for share, row in rows
        ]
    return mixture


def _product(
    probabilities: NDArray[np.float64], counts: NDArray[np.float64], outcomes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Combine a distribution with independent outcomes."""
    possible = outcomes[outcomes > 0]
    each, repeats = _distinct(possible, np.ones_like(possible))
    return _distinct(np.outer(probabilities, each).ravel(), np.outer(counts, repeats).ravel())


def _distinct(
    probabilities: NDArray[np.float64], counts: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Count probabilities that are equal but for rounding, in place of repeating them; their sum stays."""
    _, places = np.unique(np.log(probabilities).round(9), return_inverse=True)
    merged = np.bincount(places, weights=counts).astype(np.float64)
    return np.bincount(places, weights=counts * probabilities) / merged, merged
