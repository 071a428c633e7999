"""Do kernels make of timm's policies and of AugMix what DALI's operators do, as nearly as `docs/kernels.md` says?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from dalirefurb.augment.policies.aug_mix import AugMix
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.policies.timm_layers import TimmWeightedLayers
from dalirefurb.augment.policies.timm_strings import timm_auto_augment
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Arrays, Stage, draw
from dalirefurb.kernels.kernel import kernel_named
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
from dalirefurb.kernels.pixels.mixing import ahead_bytes
from dalirefurb.kernels.record import WIDTH
from tests.augment.test_operations import PICTURES
from tests.in_turn import in_turn
from tests.kernels.runners import runner_of
from tests.one_batch import levels, serve

SIDE = 64
COUNT = 256


@pytest.fixture(scope="module")
def pipelines() -> Iterator[DecodePipelines]:
    lane = DecodePipeline(None, max_rows=1, num_threads=2)
    yield DecodePipelines([], lane)
    lane.pool.close()


def _difference(stage: Stage, pipelines: DecodePipelines) -> tuple[NDArray[np.float32], Arrays]:
    """Serve parts of a photograph by kernels and by DALI: how far they are from each other, and what was drawn."""
    rng = np.random.default_rng(0)
    photo = PICTURES["photo"]
    corners = rng.integers(0, [photo.shape[0] - SIDE, photo.shape[1] - SIDE], (COUNT, 2)).tolist()
    pictures = [np.ascontiguousarray(photo[y : y + SIDE, x : x + SIDE]) for y, x in corners]
    recipe = Recipe([stage], levels(SIDE), 0)
    indices, sides = np.arange(COUNT), np.full(COUNT, SIDE)
    drawn, _, _ = draw((stage,), seed=0, indices=indices, numbers=np.zeros_like(indices), heights=sides, widths=sides)
    kernels = runner_of(steps_of((stage,)), recipe.output, pipelines)
    kernels.submit({"sample": pictures, **{f"{stage.name}/{name}": rows for name, rows in drawn[stage.name].items()}})
    return np.abs(kernels.collect().as_tensor() - serve(recipe, pictures)), drawn[stage.name]


@pytest.mark.parametrize(
    ("config", "interpolation"),
    in_turn(
        ["rand-m9-n1-mstd101-inc1-p1", "rand-n1-mstd101-p1", "rand-m9-n1-mstd3-t3aw-p1", "3a", "v0-mstd2"],
        ["nearest", "bilinear"],
    ),
)
def test_kernels_serve_what_dali_serves(
    pipelines: DecodePipelines, config: str, interpolation: Literal["nearest", "bilinear"]
) -> None:
    stage = timm_auto_augment(config, interpolation=interpolation)[0]
    difference, drawn = _difference(stage, pipelines)  # (n, 3, side, side)
    groups = drawn["group"]
    for group in np.unique(groups):
        nearly = {Group.COLOR, Group.BLUR} | ({Group.WARP} if interpolation == "bilinear" else set())
        if group != Group.EQUALIZE:  # See `test_kernels`: DALI's is another one in small pictures.
            assert difference[groups == group].max() <= (1 if group in nearly else 0), Group(group)
    assert set(np.unique(groups)) >= set(stage.groups) - {Group.IDENTITY}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "stage",
    [
        TimmWeightedLayers(operations="3aw"),
        AugMix(),
        pytest.param(AugMix("mix", "nearest", (9, 99, 200), 9, 2, 4, 0.5), marks=pytest.mark.weekly),
    ],
)
def test_operations_one_after_the_other_are_dalis_within_some_levels(stage: Stage, pipelines: DecodePipelines) -> None:
    """Two operations may each be one level off, and a later one stretch that; almost everywhere all is the same."""
    difference, drawn = _difference(stage, pipelines)
    alike = (drawn["group"].reshape(COUNT, -1) != Group.EQUALIZE).all(axis=1)
    assert alike.sum() > 100
    assert difference[alike].max() <= 2
    assert (difference[alike] > 0).mean() < 1e-4


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (64, 64), (3, 1000)])
def test_what_mixing_keeps_lies_behind_what_operations_work_in(shape: tuple[int, int]) -> None:
    steps = steps_of((AugMix(), AugMix("nearest", "nearest")))
    assert steps is not None
    names = {name for step in steps for name in step.kernels if name is not None}
    numbers = np.zeros(WIDTH)
    needed = [kernel_named(name).room_bytes(*shape, *shape, numbers) for name in names if not name.startswith("mixing")]
    assert len(needed) > 9
    assert max(needed) <= ahead_bytes(shape[1])
