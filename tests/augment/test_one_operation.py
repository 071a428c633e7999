"""Do the stages of one operation do what Pillow does?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from dalirefurb.augment import (
    AdjustSharpness,
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    Solarize,
    SolarizeAdd,
    Stage,
)
from dalirefurb.errors import ConfigurationError
from dalirefurb.testing.stage import stage_pipeline
from tests.augment.test_operations import PHOTOS, PICTURES, Picture
from tests.stages import MAKERS, Maker, made

STAGES = (AdjustSharpness(2.0), AutoContrast(), Equalize(), Invert(), Posterize(3), Solarize(), SolarizeAdd(40))
EVERY_LEVEL = np.arange(768).reshape(16, 16, 3).astype(np.uint8)
KINDS = {**PICTURES, "every level": EVERY_LEVEL}

by_each = pytest.mark.parametrize("by", MAKERS)


def differences(stage: Stage, by: Maker, pillow: Any) -> dict[str, NDArray[np.int64]]:
    """How far each picture is from what Pillow makes of it."""
    served = made(stage, list(KINDS.values()), {}, by=by)
    pictures = zip(KINDS.items(), served, strict=True)
    return {
        kind: np.abs(ours.astype(np.int64) - np.asarray(pillow(Image.fromarray(picture))))
        for (kind, picture), ours in pictures
    }


@by_each
@pytest.mark.parametrize("threshold", [0, 1, 64, 127.5, 128, 200, 255, 256])
def test_solarize_inverts_the_levels_from_its_threshold_on(by: Maker, threshold: float) -> None:
    stage = Solarize(threshold)
    assert all(
        (each == 0).all() for each in differences(stage, by, lambda im: ImageOps.solarize(im, threshold)).values()
    )


@by_each
def test_invert_inverts_every_level(by: Maker) -> None:
    assert all((each == 0).all() for each in differences(Invert(), by, ImageOps.invert).values())


@by_each
@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_keeps_the_highest_bits(by: Maker, bits: int) -> None:
    found = differences(Posterize(bits), by, lambda image: ImageOps.posterize(image, bits))
    assert all((each == 0).all() for each in found.values())


@by_each
def test_without_a_bit_all_is_black(by: Maker) -> None:
    assert all((image == 0).all() for image in made(Posterize(0), list(KINDS.values()), {}, by=by))


@by_each
def test_auto_contrast_is_pillows_within_a_level(by: Maker) -> None:
    assert all(each.max() <= 1 for each in differences(AutoContrast(), by, ImageOps.autocontrast).values())


@by_each
@pytest.mark.parametrize("factor", [0, 0.1, 0.5, 1, 1.5, 2, 3])
def test_sharpness_is_pillows_within_a_level(by: Maker, factor: float) -> None:
    found = differences(AdjustSharpness(factor), by, lambda image: ImageEnhance.Sharpness(image).enhance(factor))
    # Pillow rounds the smooth picture first, which factors beyond 2 make more of.
    assert all(each.max() <= max(1, abs(factor - 1)) for each in found.values())


@by_each
@pytest.mark.parametrize("factor", [3.5, 5.5, 8.0, 10.0])
def test_strong_sharpness_is_as_far_off_as_pillow_rounds_what_is_smoothed(by: Maker, factor: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (128, 129, 3), np.uint8)
    (served,) = made(AdjustSharpness(factor), [noise], {}, by=by)
    furthest = np.abs(served.astype(int) - ImageEnhance.Sharpness(Image.fromarray(noise)).enhance(factor)).max()
    assert furthest <= abs(factor - 1) / 2 + 1.5
    assert furthest > 1 or factor < 5


def test_equalize_is_exactly_pillows_by_kernels() -> None:
    assert all((each == 0).all() for each in differences(Equalize(), "kernels", ImageOps.equalize).values())


def test_equalize_of_photographs_is_near_pillows_by_dali() -> None:
    found = differences(Equalize(), "dali", ImageOps.equalize)
    assert all(found[kind].mean() <= 5 for kind in PHOTOS)


@by_each
@pytest.mark.parametrize("threshold", [0, 1, 100, 128, 255, 256])
@pytest.mark.parametrize("addition", [-255, -40, 0, 1, 40, 110, 255])
def test_solarize_add_adds_to_the_levels_below_its_threshold(by: Maker, addition: int, threshold: int) -> None:
    pictures: list[Picture] = list(KINDS.values())
    for picture, served in zip(pictures, made(SolarizeAdd(addition, threshold), pictures, {}, by=by), strict=True):
        levels = picture.astype(int)
        expected = np.where(levels < threshold, np.minimum(np.maximum(levels + addition, 0), 255), levels)
        assert np.array_equal(served, expected)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_of_one_operation_draws_nothing(stage: Stage) -> None:
    assert not stage.random
    assert not stage.parameters
    assert stage.outcomes.tolist() == [1.0]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_its_graph_can_be_made_for_images_on_a_gpu(stage: Stage) -> None:
    assert len(stage_pipeline(stage, "gpu").serialize()) > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Solarize(-1), r"solarize: threshold must be a number in 0..256, got -1: levels are 0 .. 255"),
        (lambda: Solarize(257), r"solarize: threshold must be a number in 0..256, got 257"),
        (lambda: Solarize("half"), r"solarize: threshold must be a number in 0..256, got 'half'"),
        (lambda: Solarize(float("nan")), r"solarize: threshold must be a number in 0..256, got nan"),
        (lambda: Posterize(9), r"posterize: bits must be an int in 0..8, got 9: a level has 8 bits"),
        (lambda: Posterize(-1), r"posterize: bits must be an int in 0..8, got -1"),
        (
            lambda: SolarizeAdd(-256),
            r"solarize_add: addition must be an int in -255..255, got -256: levels are 0 .. 255",
        ),
        (lambda: SolarizeAdd(1, -1), r"solarize_add: threshold must be an int in 0..256, got -1"),
        (lambda: Posterize(2.5), r"posterize: bits must be an int in 0..8, got 2.5"),
        (lambda: AdjustSharpness(-0.1), r"adjust_sharpness: factor must be a number of at least 0, got -0.1"),
        (lambda: AdjustSharpness(float("inf")), r"adjust_sharpness: factor must be a number of at least 0, got inf"),
        (lambda: SolarizeAdd(256), r"solarize_add: addition must be an int in -255..255, got 256"),
        (lambda: SolarizeAdd(1, 257), r"solarize_add: threshold must be an int in 0..256, got 257"),
        (lambda: SolarizeAdd(True), r"solarize_add: addition must be an int in -255..255, got True"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
