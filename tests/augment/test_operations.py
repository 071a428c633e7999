"""Are the operations of every policy's table Pillow's, at every magnitude and sign?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import skimage.data
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from dalirefurb.augment.policies.layers import RandAugmentLayer
from dalirefurb.augment.policies.operations import (
    AUTO_AUGMENT_OPERATIONS,
    OPERATIONS,
    WIDE_OPERATIONS,
    BinnedTable,
    Chosen,
)
from dalirefurb.rng import uniforms
from tests.one_batch import operate, operation_pipeline

Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class Published:
    """What torchvision publishes for a policy: the strongest magnitudes; those between are spaced evenly from none.

    Attributes:
        num_bins: Magnitudes, the one without effect among them.
        shear: Pixels per pixel.
        degrees: Of rotations.
        factor: Of blends, more or less than 1.
        bits: That posterising clears.
        pixels: Of translations; None: 150/331 of the side.
        plain: Operations without magnitudes.
    """

    num_bins: int
    shear: float
    degrees: float
    factor: float
    bits: int
    pixels: int | None
    plain: tuple[str, ...]


WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")
CURVES = ("Posterize", "Solarize")
PLAIN = ("Identity", "AutoContrast", "Equalize")
WIDE_PIXELS = (*range(16), *range(17, 31), 32)
"""Of TrivialAugment's 31 magnitudes: torchvision's single precision has 15.999999 for the 16 of the middle."""
PUBLISHED = {
    "rand_augment": Published(31, 0.3, 30, 0.9, 4, None, PLAIN),
    "auto_augment": Published(10, 0.3, 30, 0.9, 4, None, (*PLAIN, "Invert")),
    "trivial_augment": Published(31, 0.99, 135, 0.99, 6, 32, PLAIN),
}
OURS = {"rand_augment": OPERATIONS, "auto_augment": AUTO_AUGMENT_OPERATIONS, "trivial_augment": WIDE_OPERATIONS}
TABLES = {policy: BinnedTable(rows, PUBLISHED[policy].num_bins) for policy, rows in OURS.items()}

LEVELS_FROM_PILLOW = {
    "Identity": 0,
    "TranslateX": 0,
    "TranslateY": 0,
    "Contrast": 1,
    "Brightness": 1,
    "Color": 2,
    "Sharpness": 1,
    "Posterize": 0,
    "Solarize": 0,
    "AutoContrast": 1,
    "Invert": 0,
}


class Case(NamedTuple):
    """One operation of one policy at one magnitude and sign."""

    policy: str
    name: str
    bin: int = 0
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.policy}-{self.name}-{'minus ' * self.negated}{self.bin}"

    @property
    def strength(self) -> float:
        """Of the strongest magnitude, with its sign."""
        return (-1 if self.negated else 1) * self.bin / (PUBLISHED[self.policy].num_bins - 1)


def _magnitudes() -> Iterator[list[Case]]:
    """Yield the magnitudes of each operation, which one batch takes: a run of the graph costs more than its pixels."""
    for policy, published in PUBLISHED.items():
        bins = range(published.num_bins)
        yield from ([Case(policy, name)] for name in published.plain)
        yield from ([Case(policy, name, each) for each in bins] for name in CURVES)
        for name in (*WARPS, *BLENDS):
            yield from ([Case(policy, name, each, negated) for each in bins] for negated in (False, True))


MAGNITUDES = list(_magnitudes())
CASES = [case for cases in MAGNITUDES for case in cases]


def of(*names: str) -> pytest.MarkDecorator:
    """Run a test for each of these operations, policies and signs, with every magnitude."""
    chosen = [cases for cases in MAGNITUDES if cases[0].name in names]
    return pytest.mark.parametrize("cases", chosen, ids=lambda cases: f"{cases[0]} to {cases[-1].bin}")


def _pictures() -> dict[str, Picture]:
    rng = np.random.default_rng(0)
    photo = Image.fromarray(skimage.data.astronaut())
    cat = Image.fromarray(skimage.data.chelsea())
    return {
        "photo": np.asarray(photo.resize((130, 97))),
        "cat": np.asarray(cat.resize((166, 60))),
        "noise": rng.integers(0, 256, (64, 61, 3), np.uint8),
        "flat noise": (rng.random((50, 40, 3)) ** 3 * 100 + 60).astype(np.uint8),
        "one pixel": np.full((1, 1, 3), 77, np.uint8),
        "one row": rng.integers(0, 256, (1, 9, 3), np.uint8),
        "one column": rng.integers(0, 256, (9, 1, 3), np.uint8),
        "two rows": rng.integers(0, 256, (2, 3, 3), np.uint8),
        "nine pixels": rng.integers(0, 256, (3, 3, 3), np.uint8),
        "constant": np.full((20, 30, 3), (200, 0, 255), np.uint8),
    }


PICTURES = _pictures()
PHOTOS = ("photo", "cat")


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return operation_pipeline(RandAugmentLayer())


@pytest.fixture(scope="module")
def bilinear_pipeline() -> Any:
    return operation_pipeline(RandAugmentLayer(interpolation="bilinear", fill=(10, 20, 30)))


def _served(
    pipeline: Any, cases: Sequence[Case], pictures: dict[str, Picture] = PICTURES
) -> Iterator[tuple[Case, Picture, Picture, str]]:
    """Yield what the graph makes of each picture in each case of a policy's: case, picture, that, and both in words."""
    (policy,) = {case.policy for case in cases}
    names = [operation.name for operation in OURS[policy]]
    rows = [(case, kind) for case in cases for kind in pictures]
    given = [pictures[kind] for _, kind in rows]
    heights, widths, _ = np.array([picture.shape for picture in given]).T
    drawn = [(names.index(case.name), case.bin, case.negated) for case, _ in rows]
    chosen, bins, negated = (np.array(values) for values in zip(*drawn, strict=True))
    parameters = TABLES[policy].parameters(Chosen(chosen, bins, negated), heights=heights, widths=widths)
    made = operate(pipeline, given, parameters)
    for (case, kind), picture, served in zip(rows, given, made, strict=True):
        yield case, picture, served, f"{case}, {kind}"


def _source(case: Case, width: int, height: int) -> NDArray[np.float64]:
    """The affine map from destination to source, shape (2, 3)."""
    published = PUBLISHED[case.policy]
    if case.name == "ShearX":
        return np.array([[1, published.shear * case.strength, 0], [0, 1, 0]])
    if case.name == "ShearY":
        return np.array([[1, 0, 0], [published.shear * case.strength, 1, 0]])
    if case.name in ("TranslateX", "TranslateY"):
        side = width if case.name == "TranslateX" else height
        of_side = 150 * side * case.bin // (331 * (published.num_bins - 1))
        pixels = (of_side if published.pixels is None else WIDE_PIXELS[case.bin]) * (-1 if case.negated else 1)
        return np.array([[1, 0, -pixels * (case.name == "TranslateX")], [0, 1, -pixels * (case.name == "TranslateY")]])
    angle = np.deg2rad(published.degrees * case.strength)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = np.array([width / 2, height / 2])
    return np.column_stack([turn, centre - turn @ centre])


def _pillow(case: Case, picture: Picture, **warp: Any) -> Picture:
    image = Image.fromarray(picture)
    published = PUBLISHED[case.policy]
    if case.name in WARPS:
        if case.name == "Rotate" and not warp:
            return np.asarray(image.rotate(published.degrees * case.strength, fillcolor=(0, 0, 0)))
        matrix = _source(case, image.width, image.height)
        mode, fill = warp.get("mode", Image.Resampling.NEAREST), warp.get("fill", (0, 0, 0))
        return np.asarray(image.transform(image.size, Image.Transform.AFFINE, tuple(matrix.flat), mode, fillcolor=fill))
    if case.name in BLENDS:
        return np.asarray(getattr(ImageEnhance, case.name)(image).enhance(1 + published.factor * case.strength))
    if case.name == "Posterize":
        return np.asarray(ImageOps.posterize(image, 8 - round(case.bin / ((published.num_bins - 1) / published.bits))))
    if case.name == "Solarize":
        # Levels from 255 - 255 * bin / last on, rounded up in whole numbers.
        last = published.num_bins - 1
        return np.asarray(ImageOps.solarize(image, 255 - 255 * case.bin // last))
    plain = {
        "Identity": lambda image: image,
        "AutoContrast": ImageOps.autocontrast,
        "Equalize": ImageOps.equalize,
        "Invert": ImageOps.invert,
    }
    return np.asarray(plain[case.name](image))


def _difference(one: Picture, other: Picture) -> NDArray[np.int64]:
    difference: NDArray[np.int64] = np.abs(one.astype(np.int64) - other)
    return difference


@pytest.mark.parametrize("policy", OURS)
def test_a_table_has_the_published_operations(policy: str) -> None:
    assert {operation.name for operation in OURS[policy]} == {case.name for case in CASES if case.policy == policy}


@of(*LEVELS_FROM_PILLOW)
def test_an_operation_is_pillows_to_the_stated_levels(pipeline: Any, cases: list[Case]) -> None:
    for case, picture, served, which in _served(pipeline, cases):
        difference = _difference(served, _pillow(case, picture))
        assert difference.max() <= LEVELS_FROM_PILLOW[case.name], which
        if case.name in ("Brightness", "Contrast", "AutoContrast") and which.endswith(PHOTOS):
            assert (difference > 0).mean() < 0.05, which
        if case.name == "Color":
            assert (difference > 1).mean() < 0.001, which


def _sources(case: Case, picture: Picture, nudge: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the nearest sources if coordinates were off by -+ nudge, (2, H, W); at most 1 outside."""
    height, width = picture.shape[:2]
    rows, columns = np.mgrid[:height, :width] + 0.5
    matrix = _source(case, width, height)
    x = matrix[0, 0] * columns + matrix[0, 1] * rows + matrix[0, 2]
    y = matrix[1, 0] * columns + matrix[1, 1] * rows + matrix[1, 2]
    nearest_rows = np.floor([y - nudge, y + nudge]).clip(-1, height).astype(np.int64)
    nearest_columns = np.floor([x - nudge, x + nudge]).clip(-1, width).astype(np.int64)
    return nearest_rows, nearest_columns


def _colours(picture: Picture) -> NDArray[np.int64]:
    """One number for each pixel; black is 0."""
    colours: NDArray[np.int64] = picture @ np.array([1, 256, 65536])
    return colours


@of(*WARPS)
def test_a_warp_shows_at_every_pixel_the_nearest_source_or_one_that_is_as_near(
    pipeline: Any, cases: list[Case]
) -> None:
    for case, picture, served, which in _served(pipeline, cases):
        colours, padded = _colours(served), np.pad(_colours(picture), 1)
        rows, columns = _sources(case, picture, 1e-3)
        shown = [colours == padded[row + 1, column + 1] for row in rows for column in columns]
        assert np.any(shown, axis=0).all(), which


@of(*WARPS)
def test_a_warp_is_pillows_but_where_the_source_lies_between_two_pixels(pipeline: Any, cases: list[Case]) -> None:
    """Pillow's coordinates are multiples of 2**-16, whose errors add up along a row."""
    photos = {kind: PICTURES[kind] for kind in PHOTOS}
    for case, picture, served, which in _served(pipeline, cases, photos):
        rows, columns = _sources(case, picture, 5e-3)
        between = (rows[0] != rows[1]) | (columns[0] != columns[1])
        assert np.array_equal(served[~between], _pillow(case, picture)[~between]), which


@of(*WARPS)
def test_a_bilinear_warp_is_near_pillows_away_from_the_borders(bilinear_pipeline: Any, cases: list[Case]) -> None:
    warp = {"mode": Image.Resampling.BILINEAR, "fill": (10, 20, 30)}
    for case, photo, served, which in _served(bilinear_pipeline, cases, {"photo": PICTURES["photo"]}):
        difference = _difference(served, _pillow(case, photo, **warp)).max(axis=2)
        assert (difference > 4).mean() < 0.02, which
        if case.bin == 0:
            assert difference.max() == 0, which


def _below(picture: Picture) -> NDArray[np.int64]:
    """How many pixels of the same channel have a lower level, shape (H, W, 3)."""
    channels = [np.searchsorted(np.sort(channel), channel) for channel in picture.reshape(-1, 3).T]
    return np.stack(channels, axis=1).reshape(picture.shape)


@of("Equalize")
def test_equalize_spreads_the_levels_by_how_many_pixels_are_below_them(pipeline: Any, cases: list[Case]) -> None:
    for _, picture, served, which in _served(pipeline, cases):
        below = _below(picture)
        highest = below.max(axis=(0, 1))
        spread = np.where(highest > 0, 255 * below / np.maximum(highest, 1), picture)
        assert np.abs(served - spread).max() <= 0.5, which


@of("Equalize")
def test_equalize_differs_from_pillows_by_what_pillow_cuts_off_the_pixels_per_level(
    pipeline: Any, cases: list[Case]
) -> None:
    """Pillow takes `highest // 255` pixels for a level, not `highest / 255`; where that is 0 it changes nothing."""
    for case, picture, served, which in _served(pipeline, cases):
        pillow = _pillow(case, picture)
        highest = _below(picture).max(axis=(0, 1))
        for channel in np.flatnonzero(highest < 255):
            assert np.array_equal(pillow[..., channel], picture[..., channel]), which
        for channel in np.flatnonzero(highest >= 255):
            difference = _difference(served[..., channel], pillow[..., channel])
            assert difference.max() <= 1 + 255 / (highest[channel] // 255), which


@of("Equalize")
def test_equalize_is_within_two_levels_of_pillows_from_224_pixels_on(pipeline: Any, cases: list[Case]) -> None:
    photos = {name: getattr(skimage.data, name)() for name in ("astronaut", "chelsea", "coffee")}
    photos = {name: np.asarray(Image.fromarray(photo).resize((224, 224))) for name, photo in photos.items()}
    for case, photo, served, which in _served(pipeline, cases, photos):
        assert _difference(served, _pillow(case, photo)).max() <= 2, which


def test_pixels_do_not_depend_on_the_other_samples_of_the_batch(pipeline: Any) -> None:
    layer = RandAugmentLayer()
    pictures = list(PICTURES.values()) * 8
    indices = np.arange(len(pictures))
    heights, widths, _ = np.array([picture.shape for picture in pictures]).T
    numbers = uniforms(0, layer.name, indices, indices, 2)
    together = operate(pipeline, pictures, layer.draw(numbers, heights, widths))
    for row in range(0, len(pictures), 7):
        only = slice(row, row + 1)
        (alone,) = operate(pipeline, pictures[only], layer.draw(numbers[only], heights[only], widths[only]))
        assert alone.dtype == np.uint8
        assert np.array_equal(alone, together[row])


def test_a_warp_fills_what_has_no_source_with_the_given_levels(bilinear_pipeline: Any) -> None:
    picture = np.full((40, 40, 3), 255, np.uint8)
    cases = [Case("rand_augment", "TranslateX", 30)]
    ((_, _, shifted, _),) = _served(bilinear_pipeline, cases, {"white": picture})
    assert (shifted[:, :18] == (10, 20, 30)).all()
    assert (shifted[:, 18:] == 255).all()


def test_the_graph_can_be_made_for_images_on_a_gpu() -> None:
    assert len(operation_pipeline(RandAugmentLayer(), "gpu").serialize()) > 0
