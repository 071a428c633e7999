"""Rotations, affine maps and changes of perspective: drawn as torchvision does, warped as Pillow and SciPy do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import map_coordinates
from scipy.stats import chisquare, kstest

from dalirefurb import Output, Recipe
from dalirefurb.augment import (
    Decode,
    HorizontalFlip,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Stage,
    VerticalFlip,
)
from dalirefurb.augment.stage import MOST_PIXELS, Device
from dalirefurb.dali import Graph
from dalirefurb.errors import ConfigurationError
from tests.in_turn import EACH_CHANGE, in_turn
from tests.pictures import picture
from tests.stages import MAKERS, Maker, Picture, drawn, drawn_for_size, made

UNLIKELY = 1e-4
FILL = (10, 20, 30)
SIZES = [(97, 130), (64, 64), (31, 200), (5, 4), (3, 3), (1, 50), (50, 1), (1, 1), (2, 2)]
STAGES: list[Stage] = [
    RandomRotation(180, "nearest", FILL),
    RandomRotation(30, "bilinear", FILL),
    RandomAffine(40, (0.3, 0.2), (0.5, 1.6), 20, "nearest", FILL),
    RandomAffine((-10, 90), (0.3, 0.2), (0.5, 1.6), (-30, 10, -5, 25), "bilinear", FILL),
    RandomPerspective(0.9, 1.0, "nearest", FILL),
    RandomPerspective(0.5, 0.8, "bilinear", FILL),
]

BY_BOTH = pytest.mark.parametrize("by", MAKERS)
ALL = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"{stage.name}, {stage.interpolation}")


def noise(*shapes: tuple[int, int]) -> list[Picture]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in shapes]


def sources(matrix: NDArray[Any], height: int, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows and columns of the sources, from the centre of the first pixel, in double precision."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        u, v, w = np.tensordot(matrix.astype(np.float64), np.stack([x, y, np.ones_like(x)]), 1)
        return v / w - 0.5, u / w - 0.5


# Pixels


@BY_BOTH
@ALL
def test_pixels_are_those_of_the_sources_that_a_matrix_names(stage: Any, by: Maker) -> None:
    """SciPy's interpolation in double precision: bilinear within 1 level; nearest, but between two pixels, exactly."""
    pictures = noise(*SIZES * 6)
    parameters = drawn(stage, pictures)
    for number, (before, after) in enumerate(zip(pictures, made(stage, pictures, parameters, by=by), strict=True)):
        matrix = parameters["matrix"][number]
        if not parameters.get("warped", np.ones(number + 1))[number]:
            assert np.array_equal(after, before)
            continue
        rows, columns = sources(matrix, *before.shape[:2])
        finite = np.isfinite(rows) & np.isfinite(columns) & (np.abs(rows) < 1e4) & (np.abs(columns) < 1e4)
        if stage.interpolation == "nearest":
            # Where single precision may find another pixel.
            finite &= np.all([np.abs(np.mod(place, 1) - 0.5) > 1e-2 for place in (rows, columns)], axis=0)
        order = {"nearest": 0, "bilinear": 1}[stage.interpolation]
        places = [np.where(finite, rows, 0), np.where(finite, columns, 0)]
        for channel, fill in enumerate(FILL):
            levels = before[..., channel].astype(np.float64)
            expected = map_coordinates(levels, places, order=order, mode="grid-constant", cval=fill)
            difference = np.abs(after[..., channel] - expected)[finite]
            assert difference.max(initial=0) <= (0 if order == 0 else 1)


@ALL
def test_kernels_warp_as_dalis_operator(stage: Any) -> None:
    """Bilinear within 1 level. Nearest, but where a source lies between two pixels, which OpenCV rounds otherwise."""
    pictures = noise(*SIZES * 6, (224, 224), (129, 257))
    different = count = 0
    for ours, theirs in zip(made(stage, pictures, by="kernels"), made(stage, pictures, by="dali"), strict=True):
        if stage.interpolation == "bilinear":
            assert np.abs(ours.astype(int) - theirs).max() <= 1
        different += (ours != theirs).any(axis=2).sum()
        count += ours.size // 3
    assert different / count < (1e-3 if stage.interpolation == "nearest" else 0.02)


def inside(matrix: NDArray[Any], height: int, width: int) -> NDArray[np.bool_]:
    """Where all neighbours of a source are inside: beyond Pillow repeats the border, and here is `fill`."""
    rows, columns = sources(matrix, height, width)
    within: NDArray[np.bool_] = (rows > 0) & (rows < height - 1) & (columns > 0) & (columns < width - 1)
    return within


@BY_BOTH
@pytest.mark.parametrize("degrees", [-170, -90, -20.5, 0, 7, 45, 90, 133])
def test_a_rotation_is_pillows(degrees: float, by: Maker) -> None:
    stage = RandomRotation((degrees, degrees), "bilinear")
    image = picture(3, height=90, width=120)
    (after,) = made(stage, [np.asarray(image)], by=by)
    expected = np.asarray(image.rotate(degrees, Image.Resampling.BILINEAR))
    within = inside(drawn(stage, [after])["matrix"][0], 90, 120)
    assert within.mean() > 0.4
    assert np.abs(after.astype(int) - expected)[within].max() <= 1


# What is drawn


def published_affine(
    angle: float, translate: Sequence[float], scale: float, shear: Sequence[float], centre: Sequence[float]
) -> list[float]:
    """torchvision's `_get_inverse_affine_matrix`: what Pillow is given, six numbers."""
    rot, sx, sy = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    (cx, cy), (tx, ty) = centre, translate
    a = math.cos(rot - sy) / math.cos(sy)
    b = -math.cos(rot - sy) * math.tan(sx) / math.cos(sy) - math.sin(rot)
    c = math.sin(rot - sy) / math.cos(sy)
    d = -math.sin(rot - sy) * math.tan(sx) / math.cos(sy) + math.cos(rot)
    matrix = [each / scale for each in (d, -b, 0.0, -c, a, 0.0)]
    matrix[2] += matrix[0] * (-cx - tx) + matrix[1] * (-cy - ty) + cx
    matrix[5] += matrix[3] * (-cx - tx) + matrix[4] * (-cy - ty) + cy
    return matrix


def test_affine_maps_are_those_of_the_published_procedure() -> None:
    degrees, translate, scale, shear = (-20, 60), (0.25, 0.1), (0.7, 1.4), (-15, 5, -30, 20)
    stage = RandomAffine(degrees, translate, scale, shear)
    uniforms, arrays = drawn_for_size(stage, height=90, width=121, rows=400)
    for row, matrix in zip(uniforms.tolist(), arrays["matrix"], strict=True):

        def between(low: float, high: float, given: float) -> float:
            return low + (high - low) * given

        angle = between(*degrees, row[0])
        # torchvision draws these in this order, and rounds shifts to whole pixels.
        shifts = [
            round(between(-most, most, each)) for most, each in zip((0.25 * 121, 0.1 * 90), row[1:3], strict=True)
        ]
        shears = between(*shear[:2], row[4]), between(*shear[2:], row[5])
        expected = published_affine(angle, shifts, between(*scale, row[3]), shears, (121 / 2, 90 / 2))
        assert np.allclose(matrix.ravel()[:6], expected, rtol=1e-5, atol=1e-4)
        assert matrix[2].tolist() == [0, 0, 1]


@BY_BOTH
def test_an_affine_map_is_pillows(by: Maker) -> None:
    stage = RandomAffine((25, 25), (0.2, 0.3), (1.3, 1.3), (10, 10, -5, -5), "bilinear")
    image = picture(3, height=90, width=120)
    parameters = drawn(stage, [np.asarray(image)])
    (after,) = made(stage, [np.asarray(image)], parameters, by=by)
    coefficients = parameters["matrix"][0].ravel()[:6].tolist()
    expected = image.transform((120, 90), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    within = inside(parameters["matrix"][0], 90, 120)
    assert within.mean() > 0.2
    assert np.abs(after.astype(int) - np.asarray(expected))[within].max() <= 1


def published_ends(uniforms: Sequence[float], height: int, width: int, scale: float) -> list[list[int]]:
    """torchvision's `RandomPerspective.get_params`: two numbers for each corner, in the order in which it draws."""
    half_height, half_width = height // 2, width // 2
    numbers = iter(uniforms)

    def randint(low: int, high: int) -> int:
        return low + math.floor(next(numbers) * (high - low))

    def left() -> int:
        return randint(0, int(scale * half_width) + 1)

    def right() -> int:
        return randint(width - int(scale * half_width) - 1, width)

    def upper() -> int:
        return randint(0, int(scale * half_height) + 1)

    def lower() -> int:
        return randint(height - int(scale * half_height) - 1, height)

    return [[left(), upper()], [right(), upper()], [right(), lower()], [left(), lower()]]


def published_perspective(ends: Sequence[Sequence[int]], height: int, width: int) -> NDArray[np.float64]:
    """torchvision's `_get_perspective_coeffs`: what Pillow is given, eight numbers."""
    starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    equations = np.zeros((8, 8))
    for number, (end, start) in enumerate(zip(ends, starts, strict=True)):
        equations[2 * number] = [end[0], end[1], 1, 0, 0, 0, -start[0] * end[0], -start[0] * end[1]]
        equations[2 * number + 1] = [0, 0, 0, end[0], end[1], 1, -start[1] * end[0], -start[1] * end[1]]
    solution, *_ = np.linalg.lstsq(equations, np.array(starts, np.float64).ravel(), rcond=None)
    return solution


@pytest.mark.parametrize(("size", "scale"), in_turn([(90, 120), (224, 224), (31, 200), (7, 5)], [0.1, 0.5, 0.9]))
def test_changes_of_perspective_are_those_of_the_published_procedure(scale: float, size: tuple[int, int]) -> None:
    stage = RandomPerspective(scale, probability=1.0)
    uniforms, arrays = drawn_for_size(stage, height=size[0], width=size[1], rows=200)
    assert arrays["warped"].mean() > 0.95
    for row, matrix, warped in zip(uniforms.tolist(), arrays["matrix"], arrays["warped"], strict=True):
        if warped:
            ends = published_ends(row[1:], *size, scale)
            expected = np.append(published_perspective(ends, *size), 1.0)
            assert np.allclose(matrix.ravel(), expected, rtol=2e-4, atol=1e-4)
            # Each end is taken back to its corner.
            x, y, w = matrix.astype(np.float64) @ np.append(np.transpose(ends), np.ones((1, 4)), axis=0)
            corners = np.array([[0, size[1] - 1, size[1] - 1, 0], [0, 0, size[0] - 1, size[0] - 1]])
            assert np.abs(np.stack([x / w, y / w]) - corners).max() < 0.05


@BY_BOTH
def test_a_change_of_perspective_is_pillows(by: Maker) -> None:
    stage = RandomPerspective(0.6, 1.0)
    image = picture(3, height=90, width=120)
    for _ in range(3):
        parameters = drawn(stage, [np.asarray(image)])
        (after,) = made(stage, [np.asarray(image)], parameters, by=by)
        coefficients = parameters["matrix"][0].ravel()[:8].tolist()
        expected = image.transform((120, 90), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR)
        within = inside(parameters["matrix"][0], 90, 120)
        assert within.mean() > 0.2
        assert np.abs(after.astype(int) - np.asarray(expected))[within].max() <= 1


def test_every_end_of_a_corner_is_equally_likely() -> None:
    uniforms, _ = drawn_for_size(RandomPerspective(0.5, 1.0), height=12, width=20)
    ends = np.array([published_ends(row[1:], 12, 20, 0.5) for row in uniforms.tolist()])
    for corner in range(4):
        for axis, count in ((0, 6), (1, 4)):
            found = ends[:, corner, axis]
            assert chisquare(np.bincount(found - found.min(), minlength=count)).pvalue > UNLIKELY


def test_angles_are_uniform_and_shifts_lie_in_their_limits() -> None:
    _, arrays = drawn_for_size(RandomRotation((-30, 70)), height=40, width=60)
    angles = np.degrees(np.arctan2(arrays["matrix"][:, 1, 0], arrays["matrix"][:, 0, 0]))
    assert kstest(angles, "uniform", (-30, 100)).pvalue > UNLIKELY
    _, arrays = drawn_for_size(RandomAffine(0, (0.1, 0.5)), height=40, width=60)
    shifts = -arrays["matrix"][:, :2, 2]
    assert np.array_equal(shifts, np.rint(shifts))
    for axis, most in ((0, 6), (1, 20)):
        assert np.abs(shifts[:, axis]).max() == most
        # The outermost have half the room of the others.
        counts = np.bincount(shifts[:, axis].astype(int) + most)
        expected = np.full(2 * most + 1, 1.0)
        expected[[0, -1]] = 0.5
        assert chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > UNLIKELY


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_perspective_changes_with_its_probability(probability: float) -> None:
    stage = RandomPerspective(probability=probability)
    _, arrays = drawn_for_size(stage, height=64, width=64)
    deviation = 4 * math.sqrt(probability * (1 - probability) / 20_000)
    assert abs(arrays["warped"].mean() - probability) <= deviation
    assert stage.outcomes.tolist() == ([1 - probability] if probability < 1 else [])


# Small images, and those that nothing can be done to


@BY_BOTH
@pytest.mark.parametrize("size", [(1, 1), (1, 30), (30, 1)])
def test_an_image_of_one_row_or_column_keeps_its_perspective(size: tuple[int, int], by: Maker) -> None:
    stage = RandomPerspective(1.0, 1.0)
    pictures = noise(*[size] * 20)
    assert all(np.array_equal(*pair) for pair in zip(made(stage, pictures, by=by), pictures, strict=True))


def test_corners_on_a_line_are_not_made_a_perspective_of() -> None:
    """At the greatest distortion small images have corners that meet: of two such all numbers would be infinite."""
    for size in ((2, 2), (3, 2), (4, 4), (5, 9)):
        rows = 600 if EACH_CHANGE else 3000
        uniforms, arrays = drawn_for_size(RandomPerspective(1.0, 1.0), height=size[0], width=size[1], rows=rows)
        assert np.isfinite(arrays["matrix"]).all()
        for row, warped in zip(uniforms.tolist(), arrays["warped"], strict=True):
            ends = np.array(published_ends(row[1:], *size, 1.0))
            sides = np.roll(ends, -1, axis=0) - ends
            areas = [np.linalg.det(np.stack([sides[place], sides[place - 1]])) for place in range(4)]
            if np.abs(areas).min() < 0.5:
                assert not warped


@BY_BOTH
@pytest.mark.parametrize(
    "stage",
    [RandomRotation(0), RandomAffine(0), RandomPerspective(0.0, 1.0), RandomAffine(0, (0, 0), (1, 1), (0, 0, 0, 0))],
    ids=lambda stage: stage.name,
)
def test_what_moves_nothing_changes_nothing_and_has_one_outcome(stage: Stage, by: Maker) -> None:
    pictures = noise(*SIZES)
    assert all(np.array_equal(*pair) for pair in zip(made(stage, pictures, by=by), pictures, strict=True))
    assert stage.outcomes.tolist() == [1.0]


def test_unless_it_is_said_what_is_outside_is_black_and_pixels_are_torchvisions() -> None:
    stages = RandomRotation(9), RandomAffine(9), RandomPerspective()
    assert [(stage.fill, stage.interpolation) for stage in stages] == [(0, "nearest"), (0, "nearest"), (0, "bilinear")]


def test_what_moves_has_outcomes_without_number() -> None:
    moving = [RandomRotation(1), RandomAffine(0, scale=(1, 2)), RandomAffine(0, (0, 0.1)), RandomAffine(0, shear=1)]
    assert [len(stage.outcomes) for stage in moving] == [0] * 4


@BY_BOTH
def test_a_warp_can_be_applied_at_random(by: Maker) -> None:
    stage = RandomApply([RandomRotation(45), HorizontalFlip()], 0.5)
    pictures = noise(*[(40, 50)] * 60)
    parameters = drawn(stage, pictures)
    changed = [not np.array_equal(*pair) for pair in zip(made(stage, pictures, by=by), pictures, strict=True)]
    assert changed == (parameters["skipped"] == 0).tolist()
    assert 10 < sum(changed) < 50


def test_an_image_of_too_many_pixels_is_refused() -> None:
    heights, widths = np.array([10, 30_000]), np.array([10, 30_000])
    row, reason = RandomRotation(10).refusal(heights, widths) or (0, "")
    assert row == 1
    assert reason == (
        f"random_rotation: images must have {MOST_PIXELS:,} pixels at most, got 30000 x 30000; put a resize before it"
    )


@pytest.mark.parametrize("partial_device", ["cpu", "gpu"])
@pytest.mark.parametrize("part", ["partial", "final", "whole"])
def test_geometric_stages_can_be_placed_on_a_gpu(part: Any, partial_device: Device) -> None:
    crop = RandomCrop(32, padding=4, padding_mode="reflect")
    stages = [Decode(), RandomResizedCrop(40, interpolation="random"), *STAGES[:1], crop, *STAGES[-1:], VerticalFlip()]
    graph = Graph(Recipe(stages, Output(32), 3), part, partial_device, "gpu")
    assert len(graph.serialize(max_batch_size=4, num_threads=1)) > 100


# Arguments


def test_arguments_are_written_down_as_ranges() -> None:
    assert RandomRotation(30).degrees == (-30, 30)
    assert RandomRotation([10, 20]).degrees == (10, 20)  # type: ignore[arg-type]
    assert RandomAffine(0, shear=10).shear == (-10, 10, 0, 0)
    assert RandomAffine(0, shear=(5, 10)).shear == (5, 10, 0, 0)
    assert RandomRotation(30) == RandomRotation((-30, 30))
    assert RandomRotation(30, fill=[1, 2, 3]).fill == (1, 2, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (
            RandomRotation,
            {"degrees": -1},
            "random_rotation: degrees must be a number of at least 0, or two, got -1: pass",
        ),
        (
            RandomRotation,
            {"degrees": "30"},
            "degrees must be a number of at least 0, or two, got '30': pass such as 15",
        ),
        (RandomRotation, {"degrees": (30, 10)}, r"degrees must be two finite numbers with low <= high, got \(30, 10\)"),
        (
            RandomRotation,
            {"degrees": (1, 2, 3)},
            r"degrees must be two finite numbers .*, got \(1, 2, 3\): pass such as",
        ),
        (RandomRotation, {"degrees": (0, math.inf)}, "degrees must be two finite numbers with low <= high, got"),
        (RandomRotation, {"degrees": math.inf}, "degrees must be a number of at least 0, or two, got inf"),
        (RandomRotation, {"degrees": 1, "fill": 256}, "fill must be a level in 0 .. 255, or 3 of them, got 256"),
        (
            RandomRotation,
            {"degrees": 1, "fill": (1, 2)},
            r"fill must be a level in 0 .. 255, or 3 of them, got \(1, 2\)",
        ),
        (
            RandomRotation,
            {"degrees": 1, "interpolation": "bicubic"},
            'interpolation must be "nearest" or "bilinear", got',
        ),
        (RandomRotation, {"degrees": (-math.inf, 0)}, "degrees must be two finite numbers with low <= high, got"),
        (RandomAffine, {"degrees": -1}, "random_affine: degrees must be a number of at least 0, or two, got -1: pass"),
        (RandomAffine, {"degrees": 1, "translate": (2, 0.1)}, "translate must be two shares in 0..1, of width and"),
        (RandomAffine, {"degrees": 1, "translate": (-0.1, 0)}, "translate must be two shares in 0..1, of width and"),
        (RandomAffine, {"degrees": 1, "translate": (0, -0.1)}, "translate must be two shares in 0..1, of width and"),
        (RandomAffine, {"degrees": 1, "scale": (1, math.inf)}, "scale must be two finite numbers with 0 < low <= high"),
        (RandomAffine, {"degrees": 1, "shear": -1}, "shear must be a number in 0..90, less than 90, or two or four"),
        (RandomAffine, {"degrees": 1, "shear": (-90, 0)}, "shear must be two or four angles, between -90 and 90, with"),
        (RandomAffine, {"degrees": 1, "shear": (0, 90)}, "shear must be two or four angles, between -90 and 90, with"),
        (RandomAffine, {"degrees": 1, "shear": (0, 1, 0, 90)}, "shear must be two or four angles, between -90 and 90"),
        (RandomAffine, {"degrees": 1, "shear": (0, 1, 3, 2)}, "shear must be two or four angles, .* low <= high, got"),
        (RandomAffine, {"degrees": 1, "translate": (0.1, 2)}, r"translate must be two shares in 0..1, of width and"),
        (
            RandomAffine,
            {"degrees": 1, "translate": 0.1},
            "translate must be two shares in 0..1, .*, got 0.1: pass such",
        ),
        (
            RandomAffine,
            {"degrees": 1, "scale": (0, 1)},
            r"scale must be two finite numbers with 0 < low <= high, got \(",
        ),
        (
            RandomAffine,
            {"degrees": 1, "scale": 2},
            "scale must be two finite numbers with 0 < low <= high, got 2: pass",
        ),
        (
            RandomAffine,
            {"degrees": 1, "shear": 90},
            "shear must be a number in 0..90, less than 90, or two or four, got 90",
        ),
        (
            RandomAffine,
            {"degrees": 1, "shear": (1, 2, 3)},
            r"shear must be two or four angles, .*, got \(1, 2, 3\): pass",
        ),
        (
            RandomAffine,
            {"degrees": 1, "shear": (9, 2)},
            r"shear must be two or four angles, .* low <= high, got \(9, 2\)",
        ),
        (RandomPerspective, {"distortion_scale": 1.5}, "random_perspective: distortion_scale must be a number in 0..1"),
        (RandomPerspective, {"probability": -0.1}, "probability must be a number in 0..1, got -0.1: 0.5 is usual"),
    ],
)
def test_an_impossible_argument_is_refused(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**arguments)
