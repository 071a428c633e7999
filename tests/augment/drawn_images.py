"""How many different images a split makes, counted: parameters are drawn as a loader draws them, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from dalirefurb import Recipe
from dalirefurb.augment.policies.layers import OperationLayer
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.stage import Stage, draw
from dalirefurb.augment.stages.choice import RandomApply, RandomChoice
from dalirefurb.augment.stages.erasing import PaintedWindows


def kept(recipe: Recipe, reuse_factor: int, *, samples: int, size: tuple[int, int] = (300, 400)) -> float:
    """Return the share of standard training's different images that so many samples keep.

    Args:
        recipe: A recipe, with its split.
        reuse_factor: Number of servings of each version.
        samples: Number of samples, each with one version.
        size: Height and width of their images.
    """
    heights, widths = (np.full(samples * reuse_factor, side) for side in size)
    samples_of_rows, servings = np.divmod(np.arange(samples * reuse_factor), reuse_factor)
    versions = np.zeros_like(servings)
    rows: dict[str, Any] = {"seed": 7, "indices": samples_of_rows, "heights": heights, "widths": widths}
    _, partial_heights, partial_widths = draw(recipe.partial, numbers=versions, **rows)
    of_final = {**rows, "heights": partial_heights, "widths": partial_widths, "versions": versions}
    reused, *_ = draw(recipe.final, numbers=servings, **of_final)
    return _different(recipe.final, reused, samples) / _of_standard(recipe.stages, reuse_factor, samples, size)


@cache
def _of_standard(stages: tuple[Stage, ...], epochs: int, samples: int, size: tuple[int, int]) -> int:
    """Count the different images that standard training makes in so many epochs."""
    indices, servings = np.divmod(np.arange(samples * epochs), epochs)
    heights, widths = (np.full(samples * epochs, side) for side in size)
    drawn, *_ = draw(stages, seed=7, indices=indices, numbers=servings, heights=heights, widths=widths)
    return _different(stages, drawn, samples)


def _different(stages: Sequence[Stage], arrays: Mapping[str, Any], samples: int) -> int:
    """Count the different images of each sample, whose rows are consecutive."""
    count = next((len(values) for drawn in arrays.values() for values in drawn.values()), samples)
    shown = [tuple(_shown(stage, arrays.get(stage.name, {}), row) for stage in stages) for row in range(count)]
    each = count // samples
    return sum(len({*shown[sample * each : (sample + 1) * each]}) for sample in range(samples))


def _shown(stage: Stage, drawn: Mapping[str, Any], row: int) -> Any:
    """Return what of a stage's parameters shows in an image."""
    if isinstance(stage, (RandomApply, RandomChoice)):
        branch = int(drawn[stage.CHOSEN][row])
        inner = {
            each.name: {name: drawn[f"{each.name}.{name}"] for name in each.parameters}
            for each in stage.branches[branch]
        }
        return branch, tuple(_shown(each, inner[each.name], row) for each in stage.branches[branch])
    if isinstance(stage, PaintedWindows):
        painted = drawn["window"][row][:, 2] > 0
        return tuple(values[row][painted].tobytes() for values in drawn.values())
    if isinstance(stage, OperationLayer) and drawn["group"][row].ndim == 0:
        group = int(drawn["group"][row])
        return group, b"" if group == Group.IDENTITY else drawn["matrix"][row].tobytes()
    return tuple(values[row].tobytes() for values in drawn.values())
