"""Do colour stages do what torchvision publishes, in every order, at every factor?"""

from __future__ import annotations

import colorsys
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from scipy.stats import chisquare, kstest

from dalirefurb import Output, Recipe
from dalirefurb.augment import ColorJitter, HorizontalFlip, RandomGrayscale
from dalirefurb.augment.stages.color import JITTERS
from dalirefurb.errors import ConfigurationError
from dalirefurb.testing.stage import stage_pipeline
from tests.augment.test_operations import PICTURES, Picture
from tests.in_turn import in_turn
from tests.stages import MAKERS, Maker, drawn, drawn_for_size, made, repeated

UNLIKELY = 1e-4
FACTORS = (0.0, 0.1, 0.2, 0.5, 0.8, 1.0, 1.1, 1.4, 1.8, 2.0)
HUES = (-0.5, -0.3, -0.1, -0.01, 0.0, 0.02, 0.1, 1 / 3, 0.5)
COLOURS = np.random.default_rng(1).integers(0, 256, (40, 41, 3), np.uint8)
KINDS = {**{kind: picture for kind, picture in PICTURES.items() if kind != "cat"}, "colours": COLOURS}

by_each = pytest.mark.parametrize("by", MAKERS)


def only(name: str, factor: float) -> ColorJitter:
    """A jitter of one operation with a fixed factor."""
    return ColorJitter(**{name: (factor, factor)})


def turned(picture: Picture, hue: float) -> NDArray[np.float64]:
    """Turn the hue of each pixel with Python's own module; levels are not rounded."""
    pixels = []
    for red, green, blue in (picture.reshape(-1, 3) / 255).tolist():
        h, s, v = colorsys.rgb_to_hsv(red, green, blue)
        pixels.append(colorsys.hsv_to_rgb((h + hue) % 1.0, s, v))
    return 255 * np.array(pixels).reshape(picture.shape)


def blended(picture: Picture, name: str, factor: float) -> NDArray[np.uint8]:
    """torchvision's operation of a uint8 tensor, in plain NumPy."""
    levels = picture.astype(np.float64)
    grey = np.floor(levels @ [0.2989, 0.587, 0.114])[..., None]
    other = {"brightness": 0 * grey, "contrast": grey.mean(), "saturation": grey}[name]
    mixed: NDArray[np.uint8] = (factor * levels + (1 - factor) * other).clip(0, 255).astype(np.uint8)
    return mixed


@by_each
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(("name", "most"), [("brightness", 1), ("contrast", 1), ("saturation", 2)])
def test_an_operation_is_pillows_to_the_stated_levels(by: Maker, name: str, most: int, factor: float) -> None:
    enhance = getattr(ImageEnhance, {"saturation": "Color"}.get(name, name.capitalize()))
    stage = only(name, factor)
    for (kind, picture), served in zip(KINDS.items(), made(stage, list(KINDS.values()), by=by), strict=True):
        difference = np.abs(served.astype(int) - np.asarray(enhance(Image.fromarray(picture)).enhance(factor)))
        assert difference.max() <= most, kind
        assert (difference > 1).mean() < 0.002, kind


@by_each
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(("name", "most"), [("brightness", 1), ("contrast", 2), ("saturation", 2)])
def test_an_operation_is_that_of_torchvisions_tensors_to_the_stated_levels(
    by: Maker, name: str, most: int, factor: float
) -> None:
    stage = only(name, factor)
    for (kind, picture), served in zip(KINDS.items(), made(stage, list(KINDS.values()), by=by), strict=True):
        assert np.abs(served.astype(int) - blended(picture, name, factor)).max() <= most, kind


@by_each
@pytest.mark.parametrize("factor", [0.3, 2.4, 2.9, 4.0, 5.5, 8.0])
def test_a_strong_change_is_as_far_off_as_grey_levels_and_the_mean_are(by: Maker, factor: float) -> None:
    """These are rounded otherwise, by a level at most, which the factor stretches."""
    noise = np.random.default_rng(0).integers(0, 256, (128, 129, 3), np.uint8)
    stretched = abs(factor - 1)
    (served,) = made(only("saturation", factor), [noise], by=by)
    pillow = np.asarray(ImageEnhance.Color(Image.fromarray(noise)).enhance(factor))
    furthest = np.abs(served.astype(int) - pillow).max()
    assert furthest <= stretched + 1.5
    assert furthest > 2 or factor != 2.9
    assert np.abs(served.astype(int) - blended(noise, "saturation", factor)).max() <= stretched + 1.5
    (served,) = made(only("contrast", factor), [noise], by=by)
    assert np.abs(served.astype(int) - ImageEnhance.Contrast(Image.fromarray(noise)).enhance(factor)).max() <= 1
    assert np.abs(served.astype(int) - blended(noise, "contrast", factor)).max() <= stretched + 1


@pytest.mark.parametrize(("hue", "by"), in_turn(HUES, MAKERS))
def test_a_hue_is_turned_by_a_share_of_the_circle(by: Maker, hue: float) -> None:
    stage = only("hue", hue) if hue else ColorJitter(hue=(0.0, 1e-9))
    parameters = {**drawn(stage, list(KINDS.values()))}
    parameters["factor"][:, 0, 0, 0] = hue
    for (kind, picture), served in zip(
        KINDS.items(), made(stage, list(KINDS.values()), parameters, by=by), strict=True
    ):
        exact = turned(picture, hue)
        assert np.abs(served - exact).max() <= 0.501, kind
        # torchvision makes levels of shares by cutting 255.999 times these.
        assert np.abs(served - np.floor(exact / 255 * 255.999)).max() <= 1, kind


@by_each
def test_every_order_of_operations_is_what_each_does_to_what_the_one_before_left(by: Maker) -> None:
    stage = ColorJitter(0.4, 0.4, 0.4, 0.1)
    pictures = [KINDS["photo"], KINDS["nine pixels"]] * 40
    parameters = drawn(stage, pictures)
    assert len({tuple(order) for order in parameters["operation"].tolist()}) > 18
    images = pictures
    for slot in range(4):
        following = list(images)
        for number, name in enumerate(JITTERS):
            rows = np.flatnonzero(parameters["operation"][:, slot] == number)
            alone = ColorJitter(**{name: 0.4 if name != "hue" else 0.1})
            some = {"factor": parameters["factor"][rows, slot : slot + 1]}
            for row, image in zip(rows, made(alone, [images[row] for row in rows], some, by=by), strict=True):
                following[row] = image
        images = following
    for ours, expected in zip(made(stage, pictures, parameters, by=by), images, strict=True):
        assert np.array_equal(ours, expected)


def test_kernels_jitter_as_dali_does_within_a_level_an_operation() -> None:
    stage = ColorJitter(0.8, 0.8, 0.8, 0.2)
    pictures = list(KINDS.values()) * 20
    for ours, theirs in zip(made(stage, pictures, by="kernels"), made(stage, pictures, by="dali"), strict=True):
        difference = np.abs(ours.astype(int) - theirs)
        assert (difference > 0).mean() <= 0.05
        assert np.quantile(difference, 0.99) <= 1


def test_factors_are_uniform_and_orders_equally_likely() -> None:
    stage = ColorJitter(0.4, (0.5, 0.7), (1.0, 3.0), 0.1)
    _, arrays = drawn_for_size(stage, height=8, width=8)
    orders = arrays["operation"] @ [64, 16, 4, 1]
    _, counts = np.unique(orders, return_counts=True)
    assert len(counts) == 24
    assert chisquare(counts).pvalue > UNLIKELY
    assert (np.sort(arrays["operation"], axis=1) == np.arange(4)).all()
    for number, (low, high) in enumerate([(0.6, 1.4), (0.5, 0.7), (1.0, 3.0), (-0.1, 0.1)]):
        factors = arrays["factor"][arrays["operation"] == number]
        assert kstest(factors[:, 0, 0], "uniform", (low, high - low)).pvalue > UNLIKELY
        assert np.allclose(factors.sum(axis=1), 1)


def test_what_can_change_nothing_is_left_out() -> None:
    assert ColorJitter(0.4, hue=0.1).changing == (0, 3)
    assert ColorJitter(saturation=(1, 1)).changing == ()
    assert not ColorJitter().random
    assert ColorJitter().outcomes.tolist() == [1.0]
    assert ColorJitter().parameters == {}
    _, arrays = drawn_for_size(ColorJitter(0.4, hue=0.1), height=8, width=8, rows=50)
    assert arrays["operation"].shape == (50, 2)


@by_each
def test_a_jitter_of_nothing_leaves_images_alone(by: Maker) -> None:
    pictures = list(KINDS.values())
    assert all(map(np.array_equal, made(ColorJitter(), pictures, by=by), pictures))


def test_fixed_factors_have_their_orders_as_outcomes() -> None:
    fixed = ColorJitter((0.5, 0.5), (2, 2), (0.3, 0.3))
    assert fixed.random
    assert fixed.outcomes.tolist() == [1 / 6] * 6
    assert only("hue", 0.2).outcomes.tolist() == [1.0]
    assert not only("hue", 0.2).random
    assert len(ColorJitter(0.4).outcomes) == 0
    assert ColorJitter(0.4).random


def test_a_number_is_the_range_that_torchvision_makes_of_it() -> None:
    stage = ColorJitter(0.4, 1.5, 0, 0.1)
    assert stage.brightness == (0.6, 1.4)
    assert stage.contrast == (0.0, 2.5)
    assert stage.saturation == (1.0, 1.0)
    assert stage.hue == (-0.1, 0.1)
    assert stage == ColorJitter([0.6, 1.4], (0, 2.5), (1, 1), (-0.1, 0.1))


# RandomGrayscale


@by_each
def test_a_grey_image_is_pillows_within_a_level(by: Maker) -> None:
    every = np.stack(np.meshgrid(*[np.arange(0, 256, 5)] * 3), axis=-1).reshape(52 * 52, 52, 3).astype(np.uint8)
    pictures = [*PICTURES.values(), every]
    for grey, kept, picture in zip(
        made(RandomGrayscale(), pictures, repeated(len(pictures), grey=np.int32(1)), by=by),
        made(RandomGrayscale(), pictures, repeated(len(pictures), grey=np.int32(0)), by=by),
        pictures,
        strict=True,
    ):
        expected = np.asarray(Image.fromarray(picture).convert("L")).astype(int)
        assert np.abs(grey - expected[..., None]).max() <= 1
        assert (grey != expected[..., None]).mean() <= 0.01
        assert np.array_equal(kept, picture)


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_grey_comes_with_its_probability(probability: float) -> None:
    stage = RandomGrayscale(probability)
    _, arrays = drawn_for_size(stage, height=8, width=8)
    assert abs(arrays["grey"].mean() - probability) <= 4 * math.sqrt(probability * (1 - probability) / 20_000)
    assert stage.outcomes.tolist() == [probability, 1 - probability]


# Both


@pytest.mark.parametrize(
    "stage", [ColorJitter(0.4, 0.4, 0.4, 0.1), ColorJitter(hue=0.1), RandomGrayscale()], ids=lambda stage: stage.name
)
def test_a_graph_can_be_made_for_images_on_a_gpu(stage: Any) -> None:
    assert len(stage_pipeline(stage, "gpu").serialize()) > 0


def test_a_recipe_tells_what_reuse_keeps_of_colours() -> None:
    recipe = Recipe([HorizontalFlip(), ColorJitter((0.5, 0.5), (2, 2))], Output(32), split=1)
    standard = 1 - (1 - 1 / 4) ** 2
    assert recipe.diversity(2) == pytest.approx((1 - (1 - 1 / 2) ** 2) * 2 / (4 * standard))


@pytest.mark.parametrize("name", JITTERS[:3])
@pytest.mark.parametrize("value", [-0.1, (1.2, 0.8), (-0.1, 1), (1, 2, 3), "much", True, float("nan"), (0, math.inf)])
def test_an_impossible_factor_is_refused_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=f"color_jitter: {name} must be a number of at least 0.*: 0.4 is usual"
    ):
        ColorJitter(**{name: value})


@pytest.mark.parametrize("value", [-0.1, 0.6, (0.2, 0.1), (-0.6, 0), (0, 0.51), "much", True])
def test_an_impossible_hue_is_refused_in_one_line(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"color_jitter: hue must be a number in 0..0.5.*: 0.1 is usual"):
        ColorJitter(hue=value)


@pytest.mark.parametrize("value", [-0.1, 1.1, "often", True])
def test_an_impossible_probability_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"random_grayscale: probability must be a number in 0..1, got"):
        RandomGrayscale(value)
