"""Geometry: where everything in the images of a batch comes from, one map a row, for boxes, keypoints and masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.maps import Maps, unmoved
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage, draw
from dalirefurb.augment.stages.partners import Mosaic
from dalirefurb.errors import ConfigurationError


@dataclass(frozen=True)
class Geometry:
    """Where everything in the served images of a batch comes from.

    A stage that turns an image after it was cropped shows nothing of what was cut off, though it is in the source:
    where an image ended between two stages, no pixel is seen. Each of its sides is a line in the served image.

    Attributes:
        maps: Maps from coordinates in served images to those in the source's images, (n, 3, 3), see `maps`.
        lines: Lines (a, b, c) of each row, beyond which nothing is seen: a x + b y + c is at least 0 where something
            is, float64 of shape (n, k, 3). Those that an image does not have within its borders are (0, 0, 1).
    """

    maps: Maps
    lines: NDArray[np.float64]


def unmapped(recipe: Recipe) -> list[str]:
    """Return the names of the stages that do not say where things go, see `Stage.matrices`."""
    none, names = np.empty(0, np.int64), []
    for stage in recipe.stages:
        of_no_rows = {name: np.empty((0, *each.shape), each.dtype) for name, each in stage.parameters.items()}
        if stage.steps(of_no_rows, none, none) is None:
            names.append(stage.name)
    return names


def geometry(
    recipe: Recipe,
    *,
    seed: int,
    indices: NDArray[np.int64],
    shown: NDArray[np.int64],
    versions: NDArray[np.int64],
    servings: NDArray[np.int64],
    heights: NDArray[np.int64],
    widths: NDArray[np.int64],
    partial: tuple[int, int] | None = None,
    parts: int = 1,
) -> Geometry:
    """Return where everything in the images of some rows comes from.

    That is of what is drawn for the rows, wherever the recipe is split: what a resize and a crop become together in an
    engine is no other place. The source's images are as decoded: EXIF's orientation is applied.

    Args:
        recipe: The recipe.
        seed: The planner's seed.
        indices: The plan's samples, shape (n,).
        shown: Samples that the images show, shape (n,): the plan's, or what replaces them.
        versions: Versions of the partial images, shape (n,).
        servings: Servings of the rows, shape (n,).
        heights: Heights of the source's images in pixels, shape (n,).
        widths: Widths of the source's images in pixels, shape (n,).
        partial: Height and width of the partial images, which are asked about then; None: served ones are.
        parts: With a `PartnerStage`: how many rows, one after the other, have their partial images in one served image,
            that of the first of them.

    Raises:
        ConfigurationError: If a stage does not say where things go.
    """
    steps: list[Maps] = []
    entered: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    every = np.arange(len(indices))
    owners = every // parts * parts
    final = () if partial else recipe.final
    for part, numbers, rows in ((recipe.partial, versions, every), (final, servings, owners)):
        stages = tuple(filter(_matters, part))
        drawn, _, _ = draw(
            stages,
            seed=seed,
            indices=indices[rows],
            numbers=numbers[rows],
            heights=heights,
            widths=widths,
            versions=versions[rows],
            shown=shown[rows],
        )
        for stage in stages:
            parameters = drawn.get(stage.name, {})
            own = stage.steps(parameters, heights, widths)
            if isinstance(stage, Mosaic):
                own = [stage.part_matrices(parts, parameters, heights, widths)]
            if own is None:
                names = ", ".join(map(repr, unmapped(recipe)))
                raise ConfigurationError(
                    f"every stage must say where it puts things, but {names} does not: leave it out, or define "
                    f"matrices() in its class, or keeps_place = True if nothing moves, see Stage.matrices"
                )
            for maps in own:
                if np.shape(maps) != (len(indices), 3, 3) or not np.isfinite(maps).all():
                    raise ConfigurationError(
                        f"{stage.name}: matrices must return finite maps of shape ({len(indices)}, 3, 3), one for each "
                        f"image, got {np.shape(maps)}"
                    )
            steps += own
            entered += [(heights, widths)] * len(own)
            heights, widths = stage.output_sizes(heights, widths)
    # From the last step to the first: `maps` leads to what has entered the one that was looked at last.
    maps, found = unmoved(len(indices)), list[NDArray[np.float64]]()
    for place in range(len(steps))[::-1]:
        maps = steps[place] @ maps
        # Where the source itself ends is known without lines, unless another one begins there.
        beside = recipe.partner_stage is not None and not recipe.partner_stage.keeps_place
        found.append(_borders(maps, *entered[place]) if place or beside else maps[:, 2:])
    lines = np.concatenate(found, axis=1) if found else np.empty((len(indices), 0, 3))
    return Geometry(maps, _within(lines, partial or recipe.output.sides))


def _matters(stage: Stage) -> bool:
    """Tell whether a stage moves something, or cuts something off."""
    return not stage.keeps_place or stage.fixed_size is not None


def _borders(maps: Maps, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the lines where images of these sizes end, and where their horizon is, (n, 5, 3)."""
    x, y, third = maps.transpose(1, 0, 2)
    return np.stack([x, y, widths[:, None] * third - x, heights[:, None] * third - y, third], axis=1)


def _within(lines: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float64]:
    """Return the lines, of (n, k, 3), that images of this size have the centre of a pixel beyond.

    Each image's are its own, whatever others are beside it.
    """
    height, width = size
    x, y = np.meshgrid([0.5, width - 0.5], [0.5, height - 0.5])
    corners = np.stack([x.ravel(), y.ravel(), np.ones(4)])
    matter = (lines @ corners < 0).any(axis=2)
    kept: NDArray[np.float64] = np.where(matter[..., None], lines, (0.0, 0.0, 1.0))[:, matter.any(axis=0)]
    return kept
