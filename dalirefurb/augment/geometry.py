"""Geometry: where everything in the images of a batch comes from, one map a row, for boxes, keypoints and masks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.maps import Maps, chained
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Arrays, Stage, draw
from dalirefurb.errors import ConfigurationError


def unmapped(recipe: Recipe) -> list[str]:
    """Return the names of the stages that do not say where things go, see `Stage.matrices`."""
    none = np.empty(0, np.int64)

    def of_no_rows(stage: Stage) -> Arrays:
        return {name: np.empty((0, *each.shape), each.dtype) for name, each in stage.parameters.items()}

    return [stage.name for stage in recipe.stages if stage.matrices(of_no_rows(stage), none, none) is None]


def source_maps(
    recipe: Recipe,
    *,
    seed: int,
    indices: NDArray[np.int64],
    shown: NDArray[np.int64],
    versions: NDArray[np.int64],
    servings: NDArray[np.int64],
    heights: NDArray[np.int64],
    widths: NDArray[np.int64],
) -> Maps:
    """Return the maps from coordinates in served images to those in the source's images, (n, 3, 3), see `maps`.

    They are of what is drawn for the rows, wherever the recipe is split: what a resize and a crop become together in
    an engine is no other place. The source's images are as decoded: EXIF's orientation is applied.

    Args:
        recipe: The recipe.
        seed: The planner's seed.
        indices: The plan's samples, shape (n,).
        shown: Samples that the images show, shape (n,): the plan's, or what replaces them.
        versions: Versions of the partial images, shape (n,).
        servings: Servings of the rows, shape (n,).
        heights: Heights of the source's images in pixels, shape (n,).
        widths: Widths of the source's images in pixels, shape (n,).

    Raises:
        ConfigurationError: If a stage does not say where things go.
    """
    parts: list[Maps | None] = []
    for stages, numbers in ((recipe.partial, versions), (recipe.final, servings)):
        drawn, _, _ = draw(
            stages,
            seed=seed,
            indices=indices,
            numbers=numbers,
            heights=heights,
            widths=widths,
            versions=versions,
            shown=shown,
        )
        for stage in stages:
            parts.append(stage.matrices(drawn.get(stage.name, {}), heights, widths))
            heights, widths = stage.output_sizes(heights, widths)
    maps = chained(parts, len(indices))
    if maps is None:
        names = ", ".join(map(repr, unmapped(recipe)))
        raise ConfigurationError(
            f"every stage must say where it puts things, but {names} does not: leave it out, or define matrices() in "
            f"its class, or keeps_place = True if nothing moves, see Stage.matrices"
        )
    return maps
