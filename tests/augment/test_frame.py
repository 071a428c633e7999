"""Letterbox and ScaleJitter: where an image is in its frame, beside Pillow and beside the published procedures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dalirefurb.augment import Letterbox, ScaleJitter
from dalirefurb.augment.stages.frame import FrameInterpolation
from dalirefurb.errors import ConfigurationError
from tests import pictures as drawings
from tests.stages import MAKERS, Maker, drawn, drawn_for_size, made


def picture(height: int, width: int) -> NDArray[np.uint8]:
    return np.asarray(drawings.picture(height + width, height=height, width=width))


SIDES = [(48, 64), (64, 48), (33, 90), (200, 31), (7, 5), (64, 64), (1, 130)]
PILLOW: dict[FrameInterpolation, Any] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def framed(image: NDArray[np.uint8], size: tuple[int, int], start: tuple[int, int], resample: Any) -> NDArray[np.uint8]:
    """What Pillow makes of an image that is resized and pasted into a frame of 64 x 64, of level 114."""
    frame = Image.new("RGB", (64, 64), (114,) * 3)
    resized = Image.fromarray(image).resize(size[::-1], resample)
    frame.paste(resized, (-start[1], -start[0]))
    return np.asarray(frame)


@pytest.mark.parametrize("by", MAKERS)
@pytest.mark.parametrize("interpolation", PILLOW)
def test_a_letterbox_is_what_pillow_resizes_and_pastes(interpolation: FrameInterpolation, by: Maker) -> None:
    stage = Letterbox(64, interpolation=interpolation)
    pictures = [picture(height, width) for height, width in SIDES]
    parameters = drawn(stage, pictures)
    for image, size, start, served in zip(
        pictures, parameters["size"], parameters["start"], made(stage, pictures, parameters, by=by), strict=True
    ):
        expected = framed(image, tuple(size.astype(int)), tuple(start), PILLOW[interpolation])
        apart = np.abs(served.astype(int) - expected)
        # Pillow's triangular filter rounds twice, DALI's cubic one once; the nearest is found in single precision.
        most = {"bilinear": 2, "nearest": 0, "bicubic": 0 if by == "kernels" else 1}[interpolation]
        assert np.mean(apart > most) < (0.02 if interpolation != "bilinear" else 1e-9), (image.shape, apart.max())


@pytest.mark.parametrize(
    ("frame", "sides", "size", "start", "covered"),
    [
        ((32, 64), (48, 48), (32, 32), (0, -16), (64, 64)),
        ((64, 32), (48, 48), (32, 32), (-16, 0), (64, 64)),
        ((32, 64), (10, 80), (8, 64), (-12, 0), (32, 256)),
        ((32, 64), (80, 10), (32, 4), (0, -30), (512, 64)),
    ],
)
def test_an_image_fits_into_a_frame_of_two_sides_or_covers_it(
    frame: Any, sides: tuple[int, int], size: Any, start: Any, covered: Any
) -> None:
    pictures = [picture(*sides)]
    parameters = drawn(Letterbox(frame), pictures)
    assert (parameters["size"].tolist(), parameters["start"].tolist()) == ([[*size]], [[*start]])
    jitter = drawn(ScaleJitter(frame, (1.0, 1.0), place="center"), pictures)
    assert (jitter["size"].tolist(), jitter["start"].tolist()) == ([[*size]], [[*start]])
    assert drawn(ScaleJitter(frame, (1.0, 1.0), cover=True), pictures)["size"].tolist() == [[*covered]]
    assert drawn(ScaleJitter(frame, (1.0, 1.0)), pictures)["start"].tolist() == [[0, 0]]
    assert drawn(ScaleJitter(frame, (1e-3, 1e-3)), pictures)["size"].tolist() == [[1, 1]]  # never less than a pixel


@pytest.mark.parametrize("stage", [Letterbox(64, place="random"), ScaleJitter(64, (1.0, 1.0), place="random")])
def test_rows_and_columns_of_a_random_place_are_drawn_apart(stage: Any) -> None:
    uniforms = np.array([[0.5] * (stage.num_uniforms - 2) + [0.0, 0.99]])
    sides = np.array([32]), np.array([64])
    assert stage.draw(uniforms, *sides)["start"].tolist() == [[0, 0]]
    assert stage.draw(uniforms, *sides[::-1])["start"].tolist() == [[0, -32]]
    assert stage.draw(1 - uniforms - 1e-9, *sides)["start"].tolist() == [[-32, 0]]


@pytest.mark.parametrize(
    ("sides", "options", "size", "start"),
    [
        ((48, 64), {}, (48, 64), (-8, 0)),
        ((480, 640), {}, (48, 64), (-8, 0)),
        ((33, 90), {}, (23, 64), (-20, 0)),  # 41 rows of fill: 20 above, 21 below
        ((24, 32), {}, (48, 64), (-8, 0)),
        ((24, 32), {"enlarge": False}, (24, 32), (-20, -16)),
        ((24, 32), {"enlarge": False, "place": "corner"}, (24, 32), (0, 0)),
        ((1, 1000), {}, (1, 64), (-31, 0)),  # never less than a pixel
    ],
)
def test_where_a_letterbox_puts_an_image(
    sides: tuple[int, int], options: dict[str, Any], size: tuple[int, int], start: tuple[int, int]
) -> None:
    parameters = drawn(Letterbox(64, **options), [picture(*sides)])
    assert parameters["size"].tolist() == [[*size]]
    assert parameters["start"].tolist() == [[*start]]


def test_a_random_letterbox_is_anywhere_equally_often() -> None:
    _, parameters = drawn_for_size(Letterbox(64, place="random"), height=60, width=30)
    assert (parameters["size"] == (64, 32)).all()
    assert (parameters["start"][:, 0] == 0).all()
    counts = np.bincount(-parameters["start"][:, 1])
    assert len(counts) == 33
    assert np.abs(counts / counts.mean() - 1).max() < 0.2


def test_scale_jitter_is_torchvisions_procedure() -> None:
    """Of torchvision's documentation: a factor on the size that fits; what is larger is cropped anywhere, or padded."""
    uniforms, parameters = drawn_for_size(ScaleJitter(100), height=300, width=200)
    factors = (0.1 + 1.9 * uniforms[:, 0]) * min(100 / 300, 100 / 200)
    sides = np.stack([np.floor(300 * factors), np.floor(200 * factors)], axis=1)
    assert np.array_equal(parameters["size"], sides)
    margins, start = sides - 100, parameters["start"]
    assert (start[margins <= 0] == 0).all()
    assert np.array_equal(start[margins > 0], np.floor(uniforms[:, 1:] * (margins + 1))[margins > 0])
    assert (start >= 0).all()
    assert (start <= np.maximum(margins, 0)).all()
    assert (margins > 0).mean(axis=0) == pytest.approx([1 / 1.9, 0.5 / 1.9], abs=0.02)


def test_scale_jitter_that_covers_is_of_the_shorter_side() -> None:
    uniforms, parameters = drawn_for_size(ScaleJitter(48, (0.5, 2.0), cover=True), height=300, width=200)
    shorter = 48 * (0.5 + 1.5 * uniforms[:, 0])
    assert np.array_equal(parameters["size"][:, 1], np.floor(shorter))
    assert np.array_equal(parameters["size"][:, 0], np.floor(1.5 * shorter))


def test_whole_sides_stay_whole() -> None:
    """300 x (49 / 300) is less than 49 in floating point."""
    stage = ScaleJitter(49, (1.0, 1.0))
    heights = np.arange(1, 3000)
    parameters = stage.draw(np.zeros((len(heights), 3)), heights, np.ones_like(heights))
    assert (parameters["size"][:, 0] == 49).all()


@pytest.mark.parametrize("by", MAKERS)
def test_what_is_cropped_and_what_is_filled_in_one_batch(by: Maker) -> None:
    """An image may be larger than its frame in one direction alone."""
    stage = ScaleJitter(64, fill=114, interpolation="nearest")
    image = picture(64, 64)
    given = [
        ((64, 64), (0, 0)),
        ((128, 32), (30, -9)),
        ((32, 128), (-32, 64)),
        ((1, 1), (-63, -63)),
        ((192, 320), (77, 256)),
    ]
    parameters = {
        name: np.array([each[place] for each in given], dtype)
        for place, (name, dtype) in enumerate((("size", np.float32), ("start", np.int32)))
    }
    for served, (size, start) in zip(made(stage, [image] * 5, parameters, by=by), given, strict=True):
        assert np.array_equal(served, framed(image, size, start, PILLOW["nearest"]))


@pytest.mark.parametrize("by", MAKERS)
def test_the_fill_has_its_colour(by: Maker) -> None:
    stage = Letterbox(8, fill=(1, 2, 3), enlarge=False)
    (served,) = made(stage, [np.full((4, 8, 3), 200, np.uint8)], by=by)
    assert (served[[0, 1, 6, 7]] == (1, 2, 3)).all()
    assert (served[2:6] == 200).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Letterbox(0), "letterbox: size"),
        (lambda: Letterbox(8, fill=256), "letterbox: fill"),
        (lambda: Letterbox(8, enlarge=1), "letterbox: enlarge"),
        (lambda: Letterbox(8, place="middle"), "letterbox: place"),
        (
            lambda: ScaleJitter(8, (0.5, 0.4)),
            "scale_jitter: scale must be two finite numbers with 0 < low <= high, got",
        ),
        (lambda: ScaleJitter(8, fill=(1, 2)), "scale_jitter: fill"),
        (lambda: ScaleJitter(8, place="middle"), "scale_jitter: place"),
        (lambda: Letterbox(8, interpolation="random"), "letterbox: interpolation"),
        (lambda: ScaleJitter(8, (0, 1)), "scale_jitter: scale"),
        (lambda: ScaleJitter(8, (1, float("inf"))), "scale_jitter: scale"),
        (lambda: ScaleJitter(8, cover="yes"), "scale_jitter: cover"),
    ],
)
def test_what_it_cannot_be_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make()


def test_an_image_that_would_become_too_large_is_refused() -> None:
    stage = ScaleJitter(480, (0.5, 2.0), cover=True)
    refusal = stage.refusal(np.array([480, 2]), np.array([640, 9000]))
    assert refusal is not None
    row, said = refusal
    assert row == 1
    assert "268,435,456 pixels at most, got 2 x 9000" in said
    assert stage.refusal(np.array([480]), np.array([640])) is None
    limit = ScaleJitter(2**14, (1.0, 1.0), cover=True)
    assert limit.refusal(np.array([100]), np.array([100])) is None
    assert limit.refusal(np.array([100]), np.array([101])) is not None
