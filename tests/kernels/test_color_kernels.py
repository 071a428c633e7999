"""Do recipes with colour, blur and erasing stages serve what DALI's operators make, wherever they are split?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from dalirefurb import Output, Recipe
from dalirefurb.augment import (
    AdjustSharpness,
    AutoContrast,
    CenterCrop,
    ColorJitter,
    Cutout,
    GaussianBlur,
    HorizontalFlip,
    Invert,
    Posterize,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    Solarize,
    SolarizeAdd,
    Stage,
)
from dalirefurb.augment.kernel_call import Code
from dalirefurb.kernels.kernel import compile_kernel
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
from dalirefurb.kernels.record import DONE, WIDTH
from tests.in_turn import in_turn
from tests.kernels.test_kernels import noise, served
from tests.one_batch import serve

EXACT = (
    RandomGrayscale(0.5),
    Solarize(100),
    Cutout(20, 0.7),
    Posterize(5),
    RandomErasing(value="pixel", count=2),
    AutoContrast(),
    SolarizeAdd(30),
    Invert(),
    RandomErasing(1.0, value="channel", name="again"),
)


@pytest.fixture(scope="module")
def pipelines() -> Iterator[DecodePipelines]:
    lane = DecodePipeline(None, max_rows=1, num_threads=2)
    yield DecodePipelines([], lane)
    lane.pool.close()


@pytest.mark.parametrize(("dtype", "channels"), in_turn(["float32", "float16"], [1, 3]))
def test_a_recipe_of_stages_that_are_exact_serves_the_same(pipelines: Any, dtype: Any, channels: Any) -> None:
    stages = [RandomCrop(48, margin=8), *EXACT[:5], HorizontalFlip(), *EXACT[5:]]
    recipe = Recipe(stages, Output(48, dtype, channels=channels), 0)
    pictures = noise(*[(56, 56)] * 60)
    assert np.array_equal(served(recipe, pictures, pipelines), serve(recipe, pictures))


@pytest.mark.parametrize("last", [HorizontalFlip(), CenterCrop(40)], ids=lambda stage: stage.name)
def test_crops_and_flips_that_follow_are_done_to_what_was_painted(pipelines: Any, last: Stage) -> None:
    size = 40 if isinstance(last, CenterCrop) else 48
    recipe = Recipe([RandomErasing(0.5), Cutout(9, holes=2), last], Output(size), 0)
    pictures = noise(*[(48, 48)] * 40)
    assert np.array_equal(served(recipe, pictures, pipelines), serve(recipe, pictures))


@pytest.mark.parametrize("stage", [ColorJitter(0.4, 0.4, 0.4, 0.1), GaussianBlur(9), AdjustSharpness(1.7)], ids=str)
def test_a_recipe_of_the_others_serves_nearly_the_same(pipelines: Any, stage: Stage) -> None:
    recipe = Recipe([stage, HorizontalFlip()], Output(48, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255)), 0)
    pictures = noise(*[(48, 48)] * 40)
    difference = np.abs(served(recipe, pictures, pipelines) - serve(recipe, pictures))
    assert (difference > 0.5).mean() < 0.02
    assert np.quantile(difference, 0.9999) < 2.5


def test_stages_that_some_samples_get_leave_the_others_alone(pipelines: Any) -> None:
    some = (Invert(), Cutout(12, holes=2), RandomErasing(value="pixel"))
    stages = [RandomApply(stage, 0.5, name=f"some_{stage.name}") for stage in some]
    recipe = Recipe(stages, Output(48), 0)
    pictures = noise(*[(48, 48)] * 60)
    assert np.array_equal(served(recipe, pictures, pipelines), serve(recipe, pictures))


def test_simclrs_recipe_is_served_nearly_the_same(pipelines: Any) -> None:
    stages = [
        RandomCrop(48, margin=8),
        HorizontalFlip(),
        RandomApply(ColorJitter(0.8, 0.8, 0.8, 0.2), 0.8, name="jitter"),
        RandomGrayscale(0.2),
        RandomApply(GaussianBlur(5), 0.5, name="blur"),
    ]
    recipe = Recipe(stages, Output(48, mean=(0, 0, 0), std=(1 / 255, 1 / 255, 1 / 255)), 1)
    pictures = noise(*[(56, 56)] * 60)
    difference = np.abs(served(recipe, pictures, pipelines) - serve(recipe, pictures))
    assert (difference > 0.5).mean() < 0.02


def test_a_jitter_has_a_step_for_each_operation_and_erasing_one_for_each_window() -> None:
    steps = steps_of((ColorJitter(0.4, hue=0.1), RandomErasing(count=(1, 3)), ColorJitter(name="nothing")))
    assert steps is not None
    assert [step.kernels for step in steps] == [("levels.brightness", "color.hue")] * 2 + [("erasing.paint",)] * 3
    assert {step.code for step in steps} == {Code.OTHER}


def test_a_users_variant_of_a_stage_has_no_kernel() -> None:
    class Stronger(ColorJitter):
        def apply(self, images: Any, parameters: Any) -> Any:
            return images

    class Darker(Solarize):
        def apply(self, images: Any, parameters: Any) -> Any:
            return images

    class Other(RandomErasing):
        def apply(self, images: Any, parameters: Any) -> Any:
            return images

    class Elsewhere(RandomErasing):
        """One whose windows are drawn otherwise: kernels paint these."""

        def draw(self, uniforms: Any, heights: Any, widths: Any) -> Any:
            return {**super().draw(uniforms, heights, widths), "window": np.zeros((len(uniforms), 1, 4), np.int32)}

    assert [steps_of((stage,)) for stage in (Stronger(), Darker(), Other())] == [None] * 3
    (step,) = steps_of((Elsewhere(),)) or ()
    assert step.kernels == ("erasing.paint",)


def test_a_grey_level_is_the_weighed_sum_of_every_colour() -> None:
    levels = np.arange(256, dtype=np.int32)
    red, green, blue = levels[:, None, None], levels[None, :, None], levels[None, None, :]
    expected = (9798 * red + 19235 * green + 3735 * blue + (1 << 14)) >> 15
    colours = np.stack(np.broadcast_arrays(red, green, blue), axis=-1).astype(np.uint8).reshape(-1, 3)
    numbers, shown = np.zeros(WIDTH), np.empty_like(colours)
    address = colours.ctypes.data, *(256, 1 << 16) * 2, numbers.ctypes.data, 0, 0, shown.ctypes.data
    assert compile_kernel("color.grayscale").ctypes(*address) == DONE
    assert (shown == expected.reshape(-1, 1)).all()
