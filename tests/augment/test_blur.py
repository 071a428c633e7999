"""Is a blur the sum that its definition says, up to rounding?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import correlate1d
from scipy.stats import kstest

from dalirefurb.augment import GaussianBlur
from dalirefurb.errors import ConfigurationError
from dalirefurb.testing.stage import stage_pipeline
from tests.augment.test_operations import PICTURES, Picture
from tests.in_turn import in_turn
from tests.stages import MAKERS, Maker, drawn_for_size, made, repeated

UNLIKELY = 1e-4

by_each = pytest.mark.parametrize("by", MAKERS)


def blurred(picture: Picture, kernel_size: int, sigma: float) -> NDArray[np.float64]:
    """Weigh rows, then columns, in double precision; the border is mirrored. Levels are not rounded."""
    distance = np.linspace(-(kernel_size - 1) / 2, (kernel_size - 1) / 2, kernel_size)
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    weights /= weights.sum()
    down = correlate1d(picture.astype(np.float64), weights, axis=0, mode="mirror")
    across: NDArray[np.float64] = correlate1d(down, weights, axis=1, mode="mirror")
    return across


@pytest.mark.parametrize(
    ("sigma", "kernel_size", "by"),
    in_turn([0.001, 0.1, 0.3, 0.5, 1.0, 1.7, 2.0, 10.0, 1e30], [1, 3, 5, 23, 51], MAKERS),
)
def test_a_blur_is_a_weighted_sum_of_neighbours(by: Maker, kernel_size: int, sigma: float) -> None:
    pictures = list(PICTURES.values())
    parameters = repeated(len(pictures), sigma=np.float32(sigma))
    served = made(GaussianBlur(kernel_size), pictures, parameters, by=by)
    for (kind, picture), image in zip(PICTURES.items(), served, strict=True):
        assert np.abs(image - blurred(picture, kernel_size, float(np.float32(sigma)))).max() <= 0.52, kind


@by_each
def test_the_longest_kernel_blurs_small_images_and_large_ones(by: Maker) -> None:
    pictures = [PICTURES["cat"], PICTURES["one pixel"], PICTURES["one row"], PICTURES["two rows"]]
    served = made(GaussianBlur(255), pictures, repeated(4, sigma=np.float32(60)), by=by)
    for picture, image in zip(pictures, served, strict=True):
        assert np.abs(image - blurred(picture, 255, 60)).max() <= 0.52


def test_kernels_blur_as_dali_does_within_a_level() -> None:
    stage, pictures = GaussianBlur(23), list(PICTURES.values()) * 10
    for ours, theirs in zip(made(stage, pictures, by="kernels"), made(stage, pictures, by="dali"), strict=True):
        difference = np.abs(ours.astype(int) - theirs)
        assert difference.max() <= 1
        assert (difference > 0).mean() <= 0.01


@by_each
def test_each_image_has_a_deviation_of_its_own(by: Maker) -> None:
    sigmas = np.array([0.2, 1.0, 2.0], np.float32)
    for sigma, image in zip(
        sigmas, made(GaussianBlur(9), [PICTURES["photo"]] * 3, {"sigma": sigmas}, by=by), strict=True
    ):
        assert np.abs(image - blurred(PICTURES["photo"], 9, float(sigma))).max() <= 0.52


def test_deviations_are_uniform() -> None:
    _, arrays = drawn_for_size(GaussianBlur(23, (0.5, 3.0)), height=8, width=8)
    assert kstest(arrays["sigma"], "uniform", (0.5, 2.5)).pvalue > UNLIKELY


def test_one_deviation_is_one_outcome() -> None:
    stage = GaussianBlur(23, 1.5)
    assert stage == GaussianBlur(23, (1.5, 1.5))
    assert not stage.random
    assert stage.outcomes.tolist() == [1.0]
    _, arrays = drawn_for_size(stage, height=8, width=8, rows=5)
    assert arrays["sigma"].tolist() == [1.5] * 5
    assert GaussianBlur(23).random
    assert len(GaussianBlur(23).outcomes) == 0


def test_a_graph_can_be_made_for_images_on_a_gpu() -> None:
    assert len(stage_pipeline(GaussianBlur(23), "gpu").serialize()) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((22,), "gaussian_blur: kernel_size must be odd, got 22: pass 21 or 23"),
        ((0,), r"gaussian_blur: kernel_size must be an int in 1..255, got 0: pass an odd number, such as 23"),
        ((257,), r"gaussian_blur: kernel_size must be an int in 1..255, got 257"),
        ((2.5,), r"gaussian_blur: kernel_size must be an int in 1..255, got 2.5"),
        (((3, 3),), r"gaussian_blur: kernel_size must be an int in 1..255, got \(3, 3\)"),
        ((3, 0), r"gaussian_blur: sigma must be a number of at least 0.001, got 0: \(0.1, 2.0\) is usual"),
        (
            (3, (0, 1)),
            r"sigma must be a number of at least 0.001, or two with 0.001 <= low <= high, got \(0, 1\)",
        ),
        ((3, 1e-30), r"gaussian_blur: sigma must be a number of at least 0.001, got 1e-30"),
        (
            (3, (2, 1)),
            r"sigma must be a number of at least 0.001, or two with 0.001 <= low <= high, got \(2, 1\)",
        ),
        ((3, "soft"), r"gaussian_blur: sigma must be a number of at least 0.001, got 'soft'"),
        ((3, (1, float("inf"))), r"gaussian_blur: sigma must be .*, got \(1, inf\)"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        GaussianBlur(*arguments)
