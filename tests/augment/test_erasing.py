"""Do erasing stages paint the windows that were published, and nothing else?"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from dalirefurb import Output, Recipe
from dalirefurb.augment import Cutout, HorizontalFlip, RandomErasing, Stage
from dalirefurb.augment.stages.erasing import LONGEST_SIDE, Noise, byte_sums
from dalirefurb.errors import ConfigurationError
from dalirefurb.testing.stage import stage_pipeline
from tests.augment.test_operations import PICTURES, Picture
from tests.in_turn import in_turn
from tests.stages import MAKERS, Maker, drawn, drawn_for_size, made

UNLIKELY = 1e-4
LONG = np.random.default_rng(3).integers(0, 256, (1200, 1300, 3), np.uint8)
KINDS = [*PICTURES.values(), LONG, LONG[:, :40].copy(), LONG[:50].copy()]
STAGES = (
    RandomErasing(),
    RandomErasing(1.0, value=(1, 2, 3), count=(1, 4)),
    RandomErasing(1.0, value="channel", count=2),
    RandomErasing(1.0, value="pixel"),
    RandomErasing(0.7, (0.3, 0.9), value="pixel", count=(1, 3)),
    RandomErasing(1.0, value="pixel", mean=(0.5, 0.1, 0.9), std=(0.5, 0, 1)),
    Cutout(16),
    Cutout((3, 20), 0.5, (9, 8, 7), 3),
)

by_each = pytest.mark.parametrize("by", MAKERS)
of_each = pytest.mark.parametrize("stage", STAGES, ids=str)


def published_windows(uniforms: list[float], height: int, width: int, stage: RandomErasing) -> list[list[int]]:
    """timm's RandomErasing in plain Python, which for one window is torchvision's: rows, columns, heights, widths."""
    least, most = stage.counts
    count = least + math.floor(uniforms[1] * (most - least + 1)) if uniforms[0] < stage.probability else 0
    windows = [[0, 0, 0, 0] for _ in range(most)]
    log_ratio = [math.log(limit) for limit in stage.ratio]
    for window in range(count):
        of_window = uniforms[2 + 23 * window : 25 + 23 * window]
        for attempt in range(10):
            share = stage.scale[0] + (stage.scale[1] - stage.scale[0]) * of_window[2 * attempt]
            target_area = height * width * share / count
            ratio = math.exp(log_ratio[0] + (log_ratio[1] - log_ratio[0]) * of_window[2 * attempt + 1])
            h = round(math.sqrt(target_area * ratio))
            w = round(math.sqrt(target_area / ratio))
            if w < width and h < height:
                top, left = math.floor(of_window[20] * (height - h + 1)), math.floor(of_window[21] * (width - w + 1))
                windows[window] = [top, left, h, w]
                break
    return windows


def painted(stage: Any, picture: Picture, window: list[int], row: dict[str, Any]) -> Picture:
    """Paint over one window, by NumPy's slices."""
    top, left, height, width = window
    image = picture.copy()
    if "levels" in row:
        image[top : top + height, left : left + width] = row["levels"]
    else:
        noise = Noise.of(stage.mean, stage.std)
        for y in range(height):
            sums = byte_sums(row["key"][None], y, 3 * width).reshape(width, 3)
            image[top + y, left : left + width] = noise.levels(sums)
    return image


@pytest.mark.parametrize(("stage", "by"), in_turn(STAGES, MAKERS), ids=str)
def test_windows_are_painted_over_and_nothing_else_is(by: Maker, stage: Any) -> None:
    pictures = KINDS * 2
    parameters = drawn(stage, pictures)
    for number, (picture, served) in enumerate(zip(pictures, made(stage, pictures, parameters, by=by), strict=True)):
        expected = picture
        for place, window in enumerate(parameters["window"][number].tolist()):
            row = {name: values[number, place] for name, values in parameters.items()}
            expected = painted(stage, expected, window, row)
        assert np.array_equal(served, expected)


@of_each
def test_a_graph_can_be_made_for_images_on_a_gpu(stage: Stage) -> None:
    assert len(stage_pipeline(stage, "gpu").serialize()) > 0


@of_each
def test_windows_lie_within_their_images(stage: Stage) -> None:
    sizes = np.random.default_rng(0).integers(1, 300, (2, 5000))
    uniforms = np.random.default_rng(1).random((5000, stage.num_uniforms))
    window = stage.draw(uniforms, *sizes)["window"]
    assert (window >= 0).all()
    assert (window[..., 0] + window[..., 2] <= sizes[0][:, None]).all()
    assert (window[..., 1] + window[..., 3] <= sizes[1][:, None]).all()


@of_each
def test_outcomes_are_nothing_painted_or_many(stage: Any) -> None:
    assert stage.random
    assert stage.outcomes.tolist() == ([] if stage.probability == 1 else [1 - stage.probability])


def test_two_servings_of_a_version_agree_where_neither_is_painted_over() -> None:
    recipe = Recipe([HorizontalFlip(), RandomErasing(0.25)], Output(32), split=1)
    standard = 2 - 0.5 * 0.75**2
    assert recipe.diversity(2) == pytest.approx((2 - 0.75**2) / standard, abs=1e-3)
    (line,) = (line.split() for line in str(recipe).splitlines() if line.startswith("random_erasing"))
    assert line == ["random_erasing", "final", "yes", "many", "0.84", "0.77"]


# RandomErasing


sides = st.integers(1, 600)
scales = st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted).map(tuple)
ratios = st.tuples(st.floats(0.05, 20), st.floats(0.05, 20)).map(sorted).map(tuple)
counts = st.integers(1, 3) | st.just((1, 3)) | st.just((2, 2))


@given(height=sides, width=sides, scale=scales, ratio=ratios, count=counts, seed=st.integers(0, 99))
@example(height=200, width=300, scale=(0.1, 0.4), ratio=(0.5, 2.0), count=(1, 3), seed=0)
def test_windows_are_those_of_the_published_procedure(
    height: int, width: int, scale: Any, ratio: Any, count: Any, seed: int
) -> None:
    stage = RandomErasing(0.8, scale, ratio, count=count)
    uniforms, arrays = drawn_for_size(stage, height=height, width=width, rows=20, seed=seed)
    expected = [published_windows(row, height, width, stage) for row in uniforms.tolist()]
    assert arrays["window"].tolist() == expected


def test_it_happens_with_its_probability_and_counts_are_uniform() -> None:
    _, arrays = drawn_for_size(RandomErasing(0.3, count=(2, 4)), height=100, width=100)
    windows = (arrays["window"][..., 2] > 0).sum(axis=1)
    assert abs((windows > 0).mean() - 0.3) <= 4 * math.sqrt(0.3 * 0.7 / 20_000)
    assert chisquare(np.bincount(windows)[2:]).pvalue > UNLIKELY
    assert np.bincount(windows)[1] == 0


def test_the_area_is_uniform_and_the_ratio_uniform_in_its_logarithm() -> None:
    stage = RandomErasing(1.0, (0.02, 0.2))
    _, arrays = drawn_for_size(stage, height=4000, width=4000)
    height, width = arrays["window"][:, 0, 2:].T.astype(float)
    assert kstest(height * width / 4000**2, "uniform", (0.02, 0.18)).pvalue > UNLIKELY
    low, high = np.log(stage.ratio)
    assert kstest(np.log(height / width), "uniform", (low, high - low)).pvalue > UNLIKELY


def test_every_place_of_a_window_is_equally_likely() -> None:
    _, arrays = drawn_for_size(RandomErasing(1.0, (0.25, 0.25), (1, 1)), height=20, width=20)
    window = arrays["window"][:, 0]
    assert (window[:, 2:] == 10).all()
    assert chisquare(np.bincount(window[:, :2] @ [11, 1], minlength=121)).pvalue > UNLIKELY


def test_the_mean_colour_is_painted_by_default() -> None:
    (image,) = made(RandomErasing(1.0, (0.5, 0.5), (1, 1)), [np.zeros((32, 32, 3), np.uint8)], by="dali")
    assert {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()} == {(0, 0, 0), (124, 116, 104)}


def test_random_colours_have_the_mean_and_the_deviation() -> None:
    stage = RandomErasing(1.0, value="channel", mean=(0.5, 0.4, 0.6), std=(0.05, 0.1, 0.02))
    _, arrays = drawn_for_size(stage, height=32, width=32)
    levels = arrays["levels"][:, 0] / 255
    assert np.allclose(levels.mean(axis=0), stage.mean, atol=4e-3)
    assert np.allclose(levels.std(axis=0), stage.std, rtol=3e-2)
    assert np.abs(np.corrcoef(levels.T) - np.eye(3)).max() <= 4 / math.sqrt(20_000)


def test_keys_are_uniform() -> None:
    _, arrays = drawn_for_size(RandomErasing(1.0, value="pixel"), height=32, width=32)
    assert kstest(arrays["key"][:, 0], "uniform", (0, 2**31)).pvalue > UNLIKELY


def test_an_image_with_too_long_a_side_for_noise_is_refused() -> None:
    heights, widths = np.array([10, LONGEST_SIDE + 1]), np.array([10, 10])
    assert RandomErasing().refusal(heights, widths) is None
    stage = RandomErasing(value="pixel")
    assert stage.refusal(heights - 1, widths) is None
    refusal = "random_erasing: images must have at most 65,536 pixels a side, got 65537 x 10; put a resize before it"
    assert stage.refusal(heights, widths) == (1, refusal)
    assert stage.refusal(widths, heights) == (1, refusal.replace("65537 x 10", "10 x 65537"))


# Cutout


@pytest.mark.parametrize("size", [1, 4, 7, (2, 9), 50])
def test_a_square_is_about_its_centre_as_far_as_it_is_inside(size: Any) -> None:
    uniforms, arrays = drawn_for_size(Cutout(size), height=12, width=15, rows=300)
    height, width = size if isinstance(size, tuple) else (size, size)
    for row, (window,) in zip(uniforms.tolist(), arrays["window"].tolist(), strict=True):
        top = math.floor(row[1] * 12) - height // 2
        left = math.floor(row[2] * 15) - width // 2
        inside = np.zeros((12 + 100, 15 + 100), bool)
        inside[50 + top : 50 + top + height, 50 + left : 50 + left + width] = True
        rows, columns = np.nonzero(inside[50:62, 50:65])
        assert window == [rows.min(), columns.min(), np.ptp(rows) + 1, np.ptp(columns) + 1]


def test_every_centre_is_equally_likely() -> None:
    _, arrays = drawn_for_size(Cutout(1, holes=2), height=9, width=11)
    for place in range(2):
        assert chisquare(np.bincount(arrays["window"][:, place, :2] @ [11, 1], minlength=99)).pvalue > UNLIKELY


def test_cutout_happens_with_its_probability() -> None:
    _, arrays = drawn_for_size(Cutout(4, 0.3), height=9, width=11)
    assert abs((arrays["window"][:, 0, 2] > 0).mean() - 0.3) <= 4 * math.sqrt(0.3 * 0.7 / 20_000)


# Wrong arguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probability": 1.1}, r"random_erasing: probability must be a number in 0..1, got 1.1: 0.5 is usual"),
        ({"scale": (0, 0.3)}, r"random_erasing: scale must be two numbers with 0 < low <= high <= 1, got \(0, 0.3\)"),
        ({"scale": (0.5, 1.5)}, r"random_erasing: scale must be two numbers .* <= 1, got"),
        ({"scale": 0.3}, r"random_erasing: scale must be two numbers .*, got 0.3: leave it out"),
        ({"ratio": (2, 1)}, r"random_erasing: ratio must be two numbers with 0 < low <= high < inf, got \(2, 1\)"),
        ({"ratio": (1, math.inf)}, r"random_erasing: ratio must be .* < inf, got \(1, inf\)"),
        (
            {"value": "random"},
            r"value must be a level in 0 .. 255, 3 of them, or \"mean\", .* got 'random': torch",
        ),
        ({"value": 256}, r"random_erasing: value must be a level in 0 .. 255, .*, got 256"),
        ({"value": (1, 2)}, r"random_erasing: value must be a level in 0 .. 255, 3 of them, .*, got \(1, 2\)"),
        ({"value": True}, r"random_erasing: value must be a level in 0 .. 255, .*, got True"),
        ({"value": 0.5}, r"random_erasing: value must be a level in 0 .. 255, .*, got 0.5"),
        ({"count": 0}, r"random_erasing: count must be an int of at least 1, got 0: 1 is usual"),
        ({"count": (3, 2)}, r"random_erasing: count must be an int .*, or two with 1 <= low <= high, got \(3, 2\)"),
        ({"count": (1, 2, 3)}, r"random_erasing: count must be an int .*, got \(1, 2, 3\)"),
        ({"mean": 0.5}, r"random_erasing: mean must be a number in 0..1, for each of 3 channels, got None"),
        ({"mean": (0.5, 0.5)}, r"random_erasing: mean must be a number in 0..1, for each of 3 channels, got None"),
        ({"std": (0.5,) * 4}, r"random_erasing: std must be a number in 0..1, for each of 3 channels, got None"),
        ({"mean": (124, 116, 104)}, r"random_erasing: mean must be .* got 124: pass the output's, of pixels in 0..1"),
        ({"std": (0.1, -0.1, 0.1)}, r"random_erasing: std must be .* got -0.1"),
    ],
)
def test_a_wrong_argument_of_random_erasing_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        replace(RandomErasing(), **changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 0}, r"cutout: size must be a positive integer, .*, got 0"),
        ({"probability": -1}, r"cutout: probability must be a number in 0..1, got -1"),
        ({"fill": -1}, r"cutout: fill must be a level in 0 .. 255, or 3 of them, got -1: use 0 for black"),
        ({"holes": 0}, r"cutout: holes must be an int of at least 1, got 0: 1 is usual"),
    ],
)
def test_a_wrong_argument_of_cutout_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace(Cutout(16), **changes)
