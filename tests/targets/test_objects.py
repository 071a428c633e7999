"""Boxes, keypoints and polygons: beside what is computed one object at a time, and beside masks of the same objects."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dalirefurb.augment import RandomPerspective
from dalirefurb.augment.geometry import Geometry
from dalirefurb.augment.maps import placed
from dalirefurb.targets import Boxes, Keypoints, Objects, Polygons, masks, objects
from dalirefurb.targets.objects import Pasted, map_polygons, rows_of
from dalirefurb.targets.ragged import Ragged

HEIGHT, WIDTH = SIZE = (48, 64)
IDENTITY = np.eye(3)[None]
MIRROR = np.array([[[-1.0, 0, WIDTH], [0, 1, 0], [0, 0, 1]]])
HORIZON = np.array([[[1.0, 0, 0], [0, 1, 0], [1 / 80, 0, 1]]])
"""What it maps to the source's column 80 is at infinity."""

Map = NDArray[np.float64]

numbers = st.floats(-3, 3, allow_subnormal=False)
shifts = st.floats(-40, 80)


def whole(maps: Map) -> Geometry:
    """Where images come from that were nowhere cut off on the way."""
    return Geometry(maps, np.empty((len(maps), 0, 3)))


def map_boxes(boxes: Any, rows: Any, maps: Map, size: tuple[int, int], **limits: float) -> tuple[Any, Any]:
    return objects.map_boxes(boxes, rows, whole(maps), size, **limits)


def map_keypoints(points: Any, rows: Any, maps: Map, size: tuple[int, int], **swapped: Any) -> tuple[Any, Any]:
    return objects.map_keypoints(points, rows, whole(maps), size, **swapped)


def warp_labels(labels: NDArray[Any], source_map: Map, size: tuple[int, int], fill: int) -> NDArray[Any]:
    made = np.empty(size, labels.dtype)
    masks.warp_labels(labels, source_map, np.empty((0, 3)), fill, False, made)
    return made


@st.composite
def affine_maps(draw: Any) -> Map:
    (xx, xy, yx, yy), (x0, y0) = draw(st.tuples(*[numbers] * 4)), draw(st.tuples(shifts, shifts))
    if abs(xx * yy - xy * yx) < 0.1:
        xx, xy, yx, yy = 1.0, 0.0, 0.0, -1.0
    return np.array([[xx, xy, x0], [yx, yy, y0], [0, 0, 1]])


@st.composite
def batches(draw: Any) -> tuple[NDArray[np.int64], Map, np.random.Generator]:
    """How many objects each row has, its map, and random numbers for objects."""
    counts = draw(st.lists(st.integers(0, 4), max_size=4))
    maps = np.array([draw(affine_maps()) for _ in counts]).reshape(-1, 3, 3)
    return np.array(counts, np.int64), maps, np.random.default_rng(draw(st.integers(0, 999)))


def random_boxes(rng: np.random.Generator, count: int) -> Map:
    """Boxes of whole and of broken coordinates, some at borders of the image, some beyond."""
    first = rng.uniform(-20, 60, (count, 2))
    boxes = np.concatenate([first, first + rng.uniform(0.5, 50, (count, 2))], axis=1)
    return np.where(rng.random((count, 1)) < 0.5, np.rint(boxes + np.array([0, 0, 1, 1])), boxes)


def one_point(x: float, y: float, source_map: Map) -> tuple[float, float]:
    u, v, w = np.linalg.solve(source_map, [x, y, 1]).tolist()
    return u / w, v / w


def one_box(box: list[float], source_map: Map) -> tuple[list[float], float, float]:
    """Return a box that is cut off, its area, and its hull's."""
    left, top, right, bottom = box
    ends = [one_point(x, y, source_map) for x in (left, right) for y in (top, bottom)]
    x, y = zip(*ends, strict=True)
    hull = [min(x), min(y), max(x), max(y)]
    cut = [min(max(each, 0), most) for each, most in zip(hull, (WIDTH, HEIGHT) * 2, strict=True)]
    return cut, (cut[2] - cut[0]) * (cut[3] - cut[1]), (hull[2] - hull[0]) * (hull[3] - hull[1])


# Boxes


@given(batches())
def test_boxes_are_the_hulls_of_their_corners_cut_off(batch: tuple[NDArray[np.int64], Map, Any]) -> None:
    counts, maps, rng = batch
    rows, boxes = rows_of(counts), random_boxes(rng, int(counts.sum()))
    mapped, stay = map_boxes(boxes, rows, maps, SIZE, min_area=4, min_visible=0.25)
    assert mapped.dtype == np.float32
    assert mapped.shape == boxes.shape
    assert len(stay) == len(boxes)
    for box, row, found, kept in zip(boxes.tolist(), rows, mapped, stay, strict=True):
        cut, area, hull = one_box(box, maps[row])
        if not (math.isclose(area, 4, abs_tol=1e-3) or math.isclose(area, 0.25 * hull, rel_tol=1e-3, abs_tol=1e-3)):
            assert kept == (area >= 4 and area >= 0.25 * hull)
        if kept:
            assert np.allclose(found, cut, atol=1e-3)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_batch_without_objects_stays_one(rows: int) -> None:
    maps, none = np.repeat(IDENTITY, rows, axis=0), rows_of([0] * rows)
    boxes, stay = map_boxes(np.empty((0, 4)), none, maps, SIZE)
    assert (boxes.shape, stay.shape) == ((0, 4), (0,))
    points, seen = map_keypoints(np.empty((0, 17, 3)), none, maps, SIZE, swapped=range(17))
    assert (points.shape, seen.shape) == ((0, 17, 3), (0, 17))
    vertices, whole = map_polygons(np.empty((0, 2)), [], none, maps)
    assert (vertices.shape, whole.shape) == ((0, 2), (0,))


def test_rows_without_objects_take_nothing_from_others() -> None:
    maps = placed(np.array([[0, 0], [1, 0], [2, 0], [3, 0]]))
    rows = rows_of([0, 2, 0, 1])
    boxes, stay = map_boxes([[10, 10, 20, 20]] * 3, rows, maps, SIZE)
    assert boxes.tolist() == [[9, 10, 19, 20], [9, 10, 19, 20], [7, 10, 17, 20]]
    assert stay.all()


@pytest.mark.parametrize(
    ("box", "cut", "stays"),
    [
        ([0, 0, 64, 48], [0, 0, 64, 48], True),  # all of it
        ([-5, -5, 70, 50], [0, 0, 64, 48], True),
        ([0, 0, 1, 1], [0, 0, 1, 1], True),  # the first pixel
        ([63, 47, 64, 48], [63, 47, 64, 48], True),  # the last one
        ([-0.5, 0, 0.5, 1], [0, 0, 0.5, 1], False),  # half of a pixel
        ([63.5, 10, 70, 12], [63.5, 10, 64, 12], True),
        ([64, 0, 70, 10], [64, 0, 64, 10], False),  # beside the image
        ([-9, -9, 0, 0], [0, 0, 0, 0], False),
        ([100, 100, 110, 110], [64, 48, 64, 48], False),
        ([10, 10, 10, 20], [10, 10, 10, 20], False),  # a line
        ([10, 10, 10, 10], [10, 10, 10, 10], False),
    ],
)
def test_boxes_at_the_border(box: list[float], cut: list[float], stays: bool) -> None:
    mapped, stay = map_boxes([box], rows_of([1]), IDENTITY, SIZE)
    assert mapped.tolist() == [cut]
    assert stay.tolist() == [stays]


def test_a_box_that_is_no_box_does_not_stay_however_it_is_mapped() -> None:
    boxes = [[20, 10, 10, 20], [10, 20, 20, 10], [math.nan, 1, 2, 3]]
    _, stay = map_boxes(boxes, rows_of([3]), MIRROR, SIZE, min_area=0)
    assert not stay.any()


def test_the_least_area_and_the_least_share_are_met_by_what_has_just_as_much() -> None:
    third = np.diag([3.0, 3.0, 1.0])[None]
    boxes = [[0, 0, 3, 3], [-3, 0, 6, 9], [30.9, 30, 33.7, 33]]
    assert map_boxes(boxes, rows_of([3]), third, SIZE)[1].tolist() == [True, True, False]
    visible = map_boxes(boxes, rows_of([3]), third, SIZE, min_area=0, min_visible=2 / 3)[1]
    assert visible.tolist() == [True, True, True]
    visible = map_boxes(boxes, rows_of([3]), third, SIZE, min_area=0, min_visible=0.67)[1]
    assert visible.tolist() == [True, False, True]


def test_a_box_of_the_least_area_stays_however_its_coordinates_are_rounded() -> None:
    scales = np.linspace(0.3, 5, 500)
    maps = placed(np.zeros((500, 2)), scales[:, None])
    boxes = 3.3 + np.stack([0 * scales, 0 * scales, scales, scales], axis=1)
    areas = (boxes[:, 2:] / scales[:, None] - boxes[:, :2] / scales[:, None]).prod(axis=1)
    assert (areas < 1).any()
    assert map_boxes(boxes, np.arange(500), maps, SIZE)[1].all()


def test_three_hundred_instances_of_one_image_are_mirrored() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 40, (300, 2))
    boxes = np.concatenate([first, first + rng.integers(1, 8, (300, 2))], axis=1)
    mapped, stay = map_boxes(boxes, rows_of([300]), MIRROR, SIZE)
    assert stay.all()
    assert np.array_equal(mapped, np.stack([64 - boxes[:, 2], boxes[:, 1], 64 - boxes[:, 0], boxes[:, 3]], axis=1))


# The horizon


@pytest.mark.parametrize(
    ("box", "cut"),
    [
        ([10, 10, 40, 30], [80 / 7, 80 / 7, 64, 48]),
        ([10, 5, 75, 6], [80 / 7, 40 / 7, 64, 48]),  # the right end is at column 1200
        ([10, 5, 90, 6], [80 / 7, 40 / 7, 64, 48]),  # and this one behind the horizon
        ([10, 5, 80, 6], [80 / 7, 40 / 7, 64, 48]),
        ([10, 5, 1e15, 6], [80 / 7, 40 / 7, 64, 48]),
    ],
)
def test_of_a_box_that_reaches_behind_the_horizon_the_part_before_it_counts(box: list[float], cut: list[float]) -> None:
    mapped, stay = map_boxes([box], rows_of([1]), HORIZON, SIZE)
    assert stay.all()
    assert np.allclose(mapped, [cut], atol=1e-3)


def test_what_is_behind_the_horizon_is_nowhere() -> None:
    rows = rows_of([1])
    assert not map_boxes([[81, 1, 99, 20]], rows, HORIZON, SIZE)[1].any()
    points = np.array([[[90.0, 20, 2], [8, 18, 2], [80, 1, 2]]])
    mapped, seen = map_keypoints(points, rows, HORIZON, SIZE)
    assert seen.tolist() == [[False, True, False]]
    assert np.allclose(mapped, [[[0, 0, 0], [80 / 9, 20, 2], [0, 0, 0]]])
    mapped, seen = map_keypoints(points[..., :2], rows, HORIZON, SIZE)
    assert np.isnan(mapped).any(axis=2).tolist() == [[True, False, True]]
    vertices, whole = map_polygons([[1, 1], [8, 18], [90, 1], [1, 1], [2, 1], [2, 2]], [3, 3], rows_of([2]), HORIZON)
    assert whole.tolist() == [False, True]
    assert np.isnan(vertices).any(axis=1).tolist() == [False, False, True, False, False, False]


def test_a_map_without_inverse_leaves_nothing() -> None:
    singular = np.array([[[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]])
    assert not map_boxes([[1, 1, 9, 9]], rows_of([1]), singular, SIZE)[1].any()
    assert not map_keypoints(np.array([[[1.0, 1, 2]]]), rows_of([1]), singular, SIZE)[1].any()


@pytest.mark.parametrize(("distortion", "apart"), [(0.3, 0.6), (0.6, 1.1), (0.9, 4.6)])
def test_boxes_are_around_what_masks_show_of_the_same_objects(distortion: float, apart: float) -> None:
    """Through changes of perspective, strong ones too: the hull of a mask's pixels is in the box, and nearly as large.

    Corners that move by most of what they can leave horizons in the image, behind which masks show something, and thin
    corners that no pixel's centre is in.
    """
    stage, rng, count = RandomPerspective(distortion, 1.0), np.random.default_rng(1), 300
    heights, widths = np.full(count, HEIGHT), np.full(count, WIDTH)
    parameters = stage.draw(rng.random((count, stage.num_uniforms)), heights, widths)
    maps = stage.matrices(parameters, heights, widths)
    first = rng.integers(0, 30, (count, 2))
    boxes = np.concatenate([first, first + rng.integers(8, 18, (count, 2))], axis=1)
    mapped, stay = map_boxes(boxes, np.arange(count), maps, SIZE, min_area=0)
    compared = 0
    for box, found, kept, source_map in zip(boxes, mapped, stay, maps, strict=True):
        labels = np.zeros(SIZE, np.uint8)
        labels[box[1] : box[3], box[0] : box[2]] = 1
        rows, columns = np.nonzero(warp_labels(labels, source_map, SIZE, 0))
        thirds = source_map[2] @ np.stack([columns + 0.5, rows + 0.5, np.ones(len(rows))])
        rows, columns = rows[thirds > 0], columns[thirds > 0]
        if len(rows):
            assert kept
            hull = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (hull[:2] >= found[:2] - 0.51).all()
            assert (hull[2:] <= found[2:] + 0.51).all()
            assert np.abs(hull - found).max() <= apart
            compared += 1
    assert compared > 250


# Keypoints

LEFT_RIGHT = (0, 2, 1, 4, 3)


@given(batches())
def test_keypoints_are_mapped_one_by_one(batch: tuple[NDArray[np.int64], Map, Any]) -> None:
    counts, maps, rng = batch
    rows, shape = rows_of(counts), (int(counts.sum()), len(LEFT_RIGHT))
    places, visibility = rng.uniform(0, 60, (*shape, 2)), rng.integers(0, 3, shape)
    keypoints = np.concatenate([places, visibility[..., None]], axis=2)
    mapped, seen = map_keypoints(keypoints, rows, maps, SIZE, swapped=LEFT_RIGHT)
    bare, inside = map_keypoints(places, rows, maps, SIZE, swapped=LEFT_RIGHT)
    assert (mapped.shape, bare.shape, mapped.dtype) == (keypoints.shape, places.shape, np.float32)
    assert np.array_equal(seen, mapped[..., 2] > 0)
    for of_object, row, found, found_bare, found_inside in zip(keypoints, rows, mapped, bare, inside, strict=True):
        turned = np.linalg.det(maps[row][:2, :2]) < 0
        for place, (x, y, visible) in enumerate(of_object.tolist()):
            at = LEFT_RIGHT[place] if turned else place
            expected = one_point(x, y, maps[row])
            assert np.allclose(found_bare[at], expected, rtol=1e-5, atol=1e-3)
            near = [min(abs(each), abs(each - most)) for each, most in zip(expected, (WIDTH, HEIGHT), strict=True)]
            if min(near) > 1e-3:
                within = 0 < expected[0] < WIDTH and 0 < expected[1] < HEIGHT
                assert found_inside[at] == within
                assert np.allclose(found[at], (*expected, visible) if within and visible else (0, 0, 0), atol=1e-3)


def test_a_mirrored_keypoint_is_that_of_the_other_side() -> None:
    keypoints = np.array([[[5.0, 5, 2], [10, 20, 1], [30, 20, 2], [0, 0, 0], [64, 3, 2]]])
    mapped, seen = map_keypoints(keypoints, rows_of([1]), MIRROR, SIZE, swapped=LEFT_RIGHT)
    assert mapped.tolist() == [[[59, 5, 2], [34, 20, 2], [54, 20, 1], [0, 3, 2], [0, 0, 0]]]
    assert seen.tolist() == [[True, True, True, True, False]]
    mapped, seen = map_keypoints(keypoints, rows_of([1]), IDENTITY, SIZE, swapped=LEFT_RIGHT)
    assert mapped.tolist() == [[[5, 5, 2], [10, 20, 1], [30, 20, 2], [0, 0, 0], [0, 0, 0]]]
    assert seen.tolist() == [[True, True, True, False, False]]
    assert map_keypoints(keypoints, rows_of([1]), MIRROR, SIZE)[0][0, 1].tolist() == [54, 20, 1]


def test_a_turn_swaps_nothing() -> None:
    half = np.array([[[-1.0, 0, WIDTH], [0, -1, HEIGHT], [0, 0, 1]]])
    keypoints = np.array([[[5.0, 5], [10, 20], [30, 20], [1, 1], [2, 2]]])
    mapped, _ = map_keypoints(keypoints, rows_of([1]), half, SIZE, swapped=LEFT_RIGHT)
    assert np.array_equal(mapped, [WIDTH, HEIGHT] - keypoints)


def test_a_covered_box_of_which_too_little_is_in_the_image_is_dropped_though_all_that_is_left_of_it_is() -> None:
    boxes, left = Boxes([[[0, 0, 10, 10]]], min_visible=0.8), np.array([[0.0, 0, 5, 10]])
    covered = Pasted(boxes.rows, np.ones(1, np.bool_), left, whole(IDENTITY))
    for width, dropped in ((5, 1), (8, 0)):
        shown, sizes = np.zeros(1, np.int64), np.array([[10, 10]])
        moved = objects.moved_objects({"boxes": boxes}, shown, sizes, whole(IDENTITY), (10, width), pasted=covered)
        assert (moved[0]["boxes"].values.tolist(), moved[1]) == ([] if dropped else left.tolist(), dropped)


@pytest.mark.parametrize(("min_area", "dropped"), [(50.0, 0), (51.0, 1)])
def test_a_covered_box_of_which_too_few_pixels_are_left_is_dropped(min_area: float, dropped: int) -> None:
    boxes, left = Boxes([[[0, 0, 10, 10]]], min_area=min_area), np.array([[0.0, 0, 5, 10]])
    covered = Pasted(boxes.rows, np.ones(1, np.bool_), left, whole(IDENTITY))
    shown, sizes = np.zeros(1, np.int64), np.array([[10, 10]])
    moved = objects.moved_objects({"boxes": boxes}, shown, sizes, whole(IDENTITY), (10, 10), pasted=covered)
    assert (moved[0]["boxes"].values.tolist(), moved[1]) == ([] if dropped else left.tolist(), dropped)


@pytest.mark.parametrize(("covered", "min_visible", "here"), [(4, 0.0, False), (3, 0.0, True), (3, 0.3, False)])
def test_an_object_of_which_no_pixel_is_left_is_dropped(covered: int, min_visible: float, here: bool) -> None:
    rows = Ragged(np.zeros((2, 3), np.int64), np.arange(3))
    made, out = Pasted.of(rows, whole(IDENTITY)), np.empty((2, 4), np.uint8)

    def draw(row: int, _: Any, mask: NDArray[np.uint8]) -> None:
        mask[...] = 0
        mask[0, 0, : 4 if row == 0 else covered] = 1

    made.paste(0, np.ones(1, np.bool_), min_visible, draw, out)
    assert out.tolist() == [[1] * covered + [0] * (4 - covered), [0] * 4]
    assert made.here.tolist() == [here, True]
    assert np.nan_to_num(made.left[0]).tolist() == ([3, 0, 4, 1] if covered < 4 else [0] * 4)


def test_shares_are_of_the_sides_of_their_own_image() -> None:
    targets = {
        "boxes": Boxes([[[0, 0, 0.5, 0.25]]] * 2, normalized=True),
        "points": Keypoints([[[[0.5, 0.25]]]] * 2, normalized=True),
        "outlines": Polygons([[[[0, 0, 0.5, 0, 0.5, 0.25]]]] * 2, normalized=True),
    }
    sizes, places = np.array([[40, 20], [8, 80]]), whole(np.repeat(IDENTITY, 2, axis=0))
    moved, _ = objects.moved_objects(targets, np.array([1, 0]), sizes, places, SIZE)
    assert moved["boxes"].values.tolist() == [[0, 0, 10, 10], [0, 0, 40, 2]]
    assert moved["points"].values.tolist() == [[[10, 10]], [[40, 2]]]
    outlines = [[[part.tolist() for part in each] for each in its] for its in moved["outlines"]]
    assert outlines == [[[[[0, 0], [10, 0], [10, 10]]]], [[[[0, 0], [40, 0], [40, 2]]]]]


def test_an_object_of_two_boxes_is_dropped_with_either_of_them() -> None:
    inside, outside = [0, 0, 9, 9], [20, 0, 29, 9]
    targets = {
        "whole": Boxes([[inside, outside, inside]]),
        "head": Boxes([[outside, inside, inside]]),
        "number": Objects([[1, 2, 3]]),
    }
    shown, sizes = np.zeros(1, np.int64), np.array([[10, 30]])
    moved, dropped = objects.moved_objects(targets, shown, sizes, whole(IDENTITY), (10, 10))
    assert (moved["number"].values.tolist(), dropped) == ([3], 2)
    assert moved["whole"].values.tolist() == moved["head"].values.tolist() == [inside]


# Polygons


@given(batches())
def test_polygons_are_mapped_vertex_by_vertex_and_not_cut_off(batch: tuple[NDArray[np.int64], Map, Any]) -> None:
    counts, maps, rng = batch
    rows, lengths = rows_of(counts), rng.integers(0, 9, counts.sum())
    vertices = rng.uniform(-10, 90, (int(lengths.sum()), 2))
    mapped, whole = map_polygons(vertices, lengths, rows, maps)
    assert mapped.dtype == np.float32
    assert whole.all()
    assert len(whole) == len(rows)
    of_vertices = np.repeat(rows, lengths)
    for (x, y), row, found in zip(vertices.tolist(), of_vertices, mapped, strict=True):
        assert np.allclose(found, one_point(x, y, maps[row]), rtol=1e-5, atol=1e-3)


def test_what_is_beyond_a_border_on_the_way_is_cut_off_a_box_and_no_keypoint_is_seen_there() -> None:
    """Lines leave the triangle left of and above the diagonal from (40, 0) to (0, 40), and right of the column 4."""
    lines = np.array([[[-1.0, -1, 40], [1, 0, -4]]])
    places = Geometry(IDENTITY, lines)
    boxes = [[0, 0, 10, 10], [20, 2, 60, 12], [10, 10, 30, 30], [30, 30, 40, 40], [0, 0, 3, 9], [0, 0, 64, 48]]
    mapped, stay = objects.map_boxes(boxes, rows_of([6]), places, SIZE)
    assert stay.tolist() == [True, True, True, False, False, True]
    expected = [[4, 0, 10, 10], [20, 2, 38, 12], [10, 10, 30, 30], [4, 0, 40, 36]]
    assert np.allclose(mapped[stay], expected)
    # Of the second one 18 x 10 of 40 x 10 are left, and of the third one, whose hull stays whole, all.
    assert objects.map_boxes(boxes, rows_of([6]), places, SIZE, min_visible=0.46)[1].tolist()[:3] == [True, False, True]
    points = np.array([[[5.0, 5, 2], [3, 5, 2], [30, 20, 2], [19, 20, 1], [4, 5, 2], [20, 20, 1]]])
    found, seen = objects.map_keypoints(points, rows_of([1]), places, SIZE)
    assert seen.tolist() == [[True, False, False, True, True, True]]
    assert found[0].tolist() == [[5, 5, 2], [0, 0, 0], [0, 0, 0], [19, 20, 1], [4, 5, 2], [20, 20, 1]]


@given(batches(), st.lists(st.tuples(*[st.floats(-2, 2, allow_subnormal=False)] * 2, st.floats(-60, 60)), max_size=4))
def test_a_box_is_cut_along_any_lines_as_one_polygon_after_the_other_is(batch: Any, lines: list[Any]) -> None:
    counts, maps, rng = batch
    rows, boxes = rows_of(counts), random_boxes(rng, int(counts.sum()))
    borders = np.tile(np.array(lines).reshape(-1, 3), (len(maps), 1, 1))
    mapped, stay = objects.map_boxes(boxes, rows, Geometry(maps, borders), SIZE, min_area=0)
    for box, row, found, kept in zip(boxes.tolist(), rows.tolist(), mapped, stay, strict=True):
        corners = [
            one_point(x, y, maps[row])
            for x, y in ((box[0], box[1]), (box[2], box[1]), (box[2], box[3]), (box[0], box[3]))
        ]
        for a, b, c in lines:
            corners = clipped(corners, a, b, c)
        if kept:
            xs, ys = zip(*corners, strict=True)
            hull = [min(xs), min(ys), max(xs), max(ys)]
            assert np.allclose(np.clip(hull, 0, [WIDTH, HEIGHT, WIDTH, HEIGHT]), found, atol=1e-3)


def clipped(corners: list[tuple[float, float]], a: float, b: float, c: float) -> list[tuple[float, float]]:
    """Cut one polygon off along one line."""
    left = []
    for (x, y), (next_x, next_y) in zip(corners, [*corners[1:], *corners[:1]], strict=True):
        side, next_side = a * x + b * y + c, a * next_x + b * next_y + c
        if side >= 0:
            left.append((x, y))
        if (side >= 0) != (next_side >= 0):
            share = side / (side - next_side)
            left.append((x + share * (next_x - x), y + share * (next_y - y)))
    return left
