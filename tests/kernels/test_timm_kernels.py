"""Do kernels make of timm's policies what DALI's operators do, as nearly as `kernels.lower` states?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("numba")

from dalirefurb.augment.operations import Group
from dalirefurb.augment.recipe import Recipe, draw
from dalirefurb.augment.timm_strings import timm_auto_augment
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
from tests.augment.test_operations import PICTURES
from tests.kernels.runners import runner_of
from tests.one_batch import levels, serve

SIDE = 64
COUNT = 256


@pytest.fixture(scope="module")
def pipelines() -> Iterator[DecodePipelines]:
    lane = DecodePipeline(None, max_rows=1, num_threads=2)
    yield DecodePipelines([], lane)
    lane.pool.close()


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    "config", ["rand-m9-n1-mstd101-inc1-p1", "rand-n1-mstd101-p1", "rand-m9-n1-mstd3-t3aw-p1", "3a", "v0-mstd2"]
)
def test_kernels_serve_what_dali_serves(pipelines: DecodePipelines, config: str, interpolation: str) -> None:
    stages = tuple(timm_auto_augment(config, interpolation=interpolation))  # type: ignore[arg-type]
    if len(stages) > 1:
        stages = stages[:1]
    rng = np.random.default_rng(0)
    photo = PICTURES["photo"]
    corners = rng.integers(0, [photo.shape[0] - SIDE, photo.shape[1] - SIDE], (COUNT, 2)).tolist()
    pictures = [np.ascontiguousarray(photo[y : y + SIDE, x : x + SIDE]) for y, x in corners]
    recipe = Recipe(stages, levels(SIDE), 0)
    indices, sides = np.arange(COUNT), np.full(COUNT, SIDE)
    drawn, _, _ = draw(stages, seed=0, indices=indices, numbers=np.zeros_like(indices), heights=sides, widths=sides)
    kernels = runner_of(steps_of(stages), recipe.output, pipelines)
    feeds = {f"{stage}/{name}": rows for stage, named in drawn.items() for name, rows in named.items()}
    kernels.submit({"sample": pictures, **feeds})
    difference = np.abs(kernels.collect().as_tensor() - serve(recipe, pictures))  # (n, 3, side, side)
    groups = drawn[stages[0].name]["group"]
    for group in np.unique(groups):
        nearly = {Group.COLOR, Group.BLUR} | ({Group.WARP} if interpolation == "bilinear" else set())
        if group != Group.EQUALIZE:  # See `test_kernels`: DALI's is another one in small pictures.
            assert difference[groups == group].max() <= (1 if group in nearly else 0), Group(group)
    assert set(np.unique(groups)) >= set(stages[0].groups) - {Group.IDENTITY}  # type: ignore[attr-defined]
