"""Counting: what a GPU is given to do for a batch of a recipe, launch by launch, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage, as_inputs, draw
from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import Images, Places, rounded
from dalirefurb.kernels.cuda.program import CudaProgram, Launch
from dalirefurb.kernels.cuda.source import needs
from dalirefurb.kernels.lower import steps_of

PHOTOGRAPH = (375, 500)
"""Height and width of images that enter, where they may have any: those of most of ImageNet's."""


@dataclass(frozen=True)
class PartLaunches:
    """What is launched for a batch by one part.

    Attributes:
        part: "partial" or "final".
        size: Height and width of the images that enter, in pixels.
        launches: What is launched, in this order.
    """

    part: str
    size: tuple[int, int]
    launches: tuple[Launch, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that all of it moves, where each image is read once."""
        return sum(launch.nbytes for launch in self.launches)


def launches_of(
    recipe: Recipe, batch_size: int, *, seed: int = 0, entering: tuple[int, int] = PHOTOGRAPH
) -> Iterator[PartLaunches]:
    """Count what is launched on a GPU for a batch whose partial images are made, and for one whose are there.

    Args:
        recipe: Recipe of the batch.
        batch_size: Number of images.
        seed: Seed by which parameters are drawn.
        entering: Height and width of the source's images in pixels.

    Raises:
        ConfigurationError: If a part has no kernels for a GPU.
    """
    if recipe.caches_encoded or recipe.partner_stage is not None:
        reason = "behind split 0, which caches encoded ones" if recipe.caches_encoded else "of several images"
        raise ConfigurationError(f"launches are of kernels for a GPU, which has none {reason}: pass another recipe")
    between = recipe.partial_size(entering) or entering
    for part, stages, size in (
        ("partial", recipe.partial[recipe.encoded :], entering),
        ("final", recipe.final, between),
    ):
        steps = steps_of(stages)
        if steps is None:
            names = [stage.name for stage in stages if steps_of((stage,)) is None]
            raise ConfigurationError(
                f"stages must have kernels for a GPU to count launches, but {names[0]!r} has none: pass another recipe"
            )
        final = part == "final"
        program = CudaProgram(steps, recipe.output if final else None, split=0 if final else len(steps))
        sizes = np.full((batch_size, 2), size)
        images, drawn = _somewhere(sizes), _drawn(stages, sizes, seed)
        given: dict[str, Any] = {"pinned": images, "final": drawn} if final else {"reserve": _somewhere}
        work = program.work({} if final else {"sample": images, **drawn}, **given)
        yield PartLaunches(part, size, program.launched(work).launches)


def row_bytes(stages: tuple[Stage, ...], entering: tuple[int, int]) -> int:
    """Return the bytes of memory that some stages' kernels work in on a GPU, at most, for an image that enters."""
    heights, widths = before = np.array(entering[:1]), np.array(entering[1:])
    images = rooms = 0
    for step in steps_of(stages) or ():
        after = step.output_sizes(heights, widths)
        needed = (needs(kernel).room_bytes for kernel in step.kernels if isinstance(kernel, str))
        rooms = max([rooms, *(int(np.max(room(before, after, step.largest(before).T))) for room in needed)])
        heights, widths = before = after
        images = max(images, int(heights[0] * widths[0]) * 3)
    return 2 * rounded(images) + rounded(rooms)


def _somewhere(sizes: NDArray[np.int64]) -> Images:
    return Images.at(Places(np.ones(len(sizes), np.int64), sizes))


def _drawn(stages: tuple[Stage, ...], sizes: NDArray[np.int64], seed: int) -> dict[str, Any]:
    """Draw for the first serving of as many samples as there are heights and widths, (n, 2)."""
    indices, first = np.arange(len(sizes)), np.zeros(len(sizes), np.int64)
    heights, widths = sizes.T
    drawn, _, _ = draw(
        stages, seed=seed, indices=indices, numbers=first, heights=heights, widths=widths, versions=first
    )
    return as_inputs(drawn)
