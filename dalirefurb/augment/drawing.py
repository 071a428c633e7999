"""Drawing of every parameter of consecutive stages, by a run's seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.augment.stage import Arrays, Stage


def draw(
    stages: tuple[Stage, ...],
    *,
    seed: int,
    indices: NDArray[np.int64],
    numbers: NDArray[np.int64],
    heights: NDArray[np.int64],
    widths: NDArray[np.int64],
    versions: NDArray[np.int64] | None = None,
    mix: rng.Mix | None = None,
) -> tuple[dict[str, Arrays], NDArray[np.int64], NDArray[np.int64]]:
    """Draw every parameter of consecutive stages.

    Args:
        stages: The partial stages or the final ones.
        seed: The run's seed.
        indices: Sample indices, shape (n,).
        numbers: The samples' versions for partial stages, their servings for final ones, shape (n,).
        heights: Heights of the images that enter the first stage, in pixels, shape (n,).
        widths: Widths of the images that enter the first stage, in pixels, shape (n,).
        versions: Versions of the partial images, shape (n,): for final stages that follow a partial one.
        mix: See `rng.uniforms_for`.

    Returns:
        Each stage's arrays by its name, and the heights and widths that leave the last stage.
    """
    arrays = {}
    counts = {stage.name: stage.num_uniforms for stage in stages if stage.parameters}
    uniforms = rng.uniforms_for(seed, counts, indices, numbers, mix) if counts else {}
    followed = [stage.follows for stage in stages if stage.follows is not None]
    earlier = {stage.name: stage.num_uniforms for stage in followed if stage.name not in counts}
    if earlier:
        assert versions is not None
        uniforms |= rng.uniforms_for(seed, earlier, indices, versions, mix)
    for stage in stages:
        if stage.name in counts:
            given = uniforms[stage.name]
            if stage.follows is not None:
                given = np.concatenate([uniforms[stage.follows.name], given], axis=1)
            arrays[stage.name] = stage.draw(given, heights, widths)
        heights, widths = stage.output_sizes(heights, widths)
    return arrays, heights, widths
