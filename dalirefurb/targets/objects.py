"""Objects of a batch: boxes, keypoints and polygons, taken from source images to served ones, and pasted there.

All objects of a batch are in one array, and `rows` says which image each of them is of: `rows_of` makes it of counts.
`geometry` says where each image comes from, see `augment.geometry`; its maps are inverted here, once an image.
Coordinates are pixels, (0, 0) is the outer corner: a box around the first pixel alone is (0, 0, 1, 1).

A change of perspective has a horizon, and what is behind it in the source is nowhere in the served image. Of a box the
part before it counts; a keypoint behind it is not seen, and a polygon that reaches behind it is not whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.augment.geometry import Geometry
from dalirefurb.augment.maps import Maps, inverted
from dalirefurb.source.contract import Numbers
from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.kinds import Boxes, Keypoints, ObjectTarget, Polygons, Target
from dalirefurb.targets.ragged import Ragged, ranges

Draw = Callable[[int, NDArray[np.int64], NDArray[np.uint8]], None]
"""Draws objects of a row, given as `InstanceMasks.rows` has them, (k, 3), into (k, H, W): 1 where each is."""


def shapes_of(targets: Mapping[str, Target]) -> InstanceMasks | None:
    """Return the shapes of objects by the first target that says them; None if none does."""
    found = next((each for each in targets.values() if isinstance(each, (InstanceMasks, Polygons))), None)
    return InstanceMasks.of_polygons(found) if isinstance(found, Polygons) else found


@dataclass(frozen=True)
class Pasted:
    """What becomes of the objects of images, into each of which some of another one's are pasted.

    Attributes:
        objects: Objects of rows in pairs, an image and the other one, as `InstanceMasks.rows` has them, m in all.
        here: Which are pasted, or are own ones that are not dropped, (m,).
        left: Boxes of what is left of those that are covered in part, xyxy in pixels of the partial image, (m, 4); NaN
            elsewhere.
        places: Where everything in served images comes from in partial ones.
    """

    objects: Ragged
    here: NDArray[np.bool_]
    left: NDArray[np.float64]
    places: Geometry

    @classmethod
    def of(cls, objects: Ragged, places: Geometry) -> Pasted:
        """Begin with all of them, none of which is covered."""
        count = len(objects.values)
        return cls(objects, np.ones(count, np.bool_), np.full((count, 4), np.nan), places)

    def paste(
        self, pair: int, chosen: NDArray[np.bool_], min_visible: float, draw: Draw, out: NDArray[np.uint8]
    ) -> None:
        """Find out what becomes of the objects of a pair, and write 1 where something is pasted, else 0.

        Args:
            pair: Number of the pair.
            chosen: Which objects of the other image are pasted, if they have a pixel there.
            min_visible: Share of an object's pixels that are left, below which it is dropped.
            draw: Draws objects of a row in its partial image.
            out: Pixels of the partial image, (H, W), to be written.
        """
        first, second, end = self.objects.offsets[2 * pair : 2 * pair + 3].tolist()
        self.here[second:end] = chosen
        self.here[second:end] = self._unite(pair, draw, out)
        mask, beside = np.empty((1, *out.shape), np.uint8), 1 - out
        for number in range(first, second if out.any() else first):
            draw(2 * pair, self.objects.values[number : number + 1], mask)
            whole = np.count_nonzero(mask.view(np.bool_))
            mask &= beside
            left = np.count_nonzero(mask.view(np.bool_))
            self.here[number] = left == whole or left >= max(1, min_visible * whole)
            if 0 < left < whole:
                rows, columns = (np.flatnonzero(mask[0].any(axis=axis)) for axis in (1, 0))
                self.left[number] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1

    def uncover(self, draw: Draw, pair: int, masks: NDArray[np.uint8]) -> None:
        """Take what is pasted from masks of a pair's own objects, (k, H, W), in the image that `draw` draws in."""
        cover = np.empty(masks.shape[1:], np.uint8)
        if len(masks) and self._unite(pair, draw, cover).any():
            masks &= 1 - cover

    def _unite(self, pair: int, draw: Draw, out: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Draw what is pasted into one mask, (H, W); tell which of the other's objects are, and have a pixel, (n,)."""
        own = slice(*self.objects.offsets[2 * pair + 1 : 2 * pair + 3])
        out[...], mask, seen = 0, np.empty((1, *out.shape), np.uint8), self.here[own].copy()
        for number in np.flatnonzero(seen).tolist():
            draw(2 * pair + 1, self.objects.values[own][number : number + 1], mask)
            seen[number] = mask.any()
            out |= mask[0]
        return seen


Size = tuple[int, int]
"""Height and width in pixels."""

Points = NDArray[np.float64]
"""Coordinates in the last axis: x and y, and perhaps a third one."""

_HORIZON = 1e-6
"""Share of the greatest third coordinate of a box's corners from which on a point is before the horizon."""

_NOTHING = 1e-300
"""Beyond the horizon by as little as there is."""

_ROUNDING = 1e-6
"""Share by which an area may be less than the least one: coordinates are rounded."""


def rows_of(counts: ArrayLike) -> Numbers:
    """Return the row of each object, given how many each row has, (n,).

    >>> rows_of([2, 0, 1]).tolist()
    [0, 0, 2]
    """
    counts = np.asarray(counts, np.int64)
    return np.repeat(np.arange(len(counts)), counts)


def moved_objects(
    targets: Mapping[str, Target],
    shown: Numbers,
    sizes: Numbers,
    places: Geometry,
    size: Size,
    *,
    there: NDArray[np.bool_] | None = None,
    pasted: Pasted | None = None,
) -> tuple[dict[str, Any], int]:
    """Map all objects of some samples, and drop those of which too little is left.

    Args:
        targets: Targets by name, of which those of objects are mapped.
        shown: Indices of the samples, shape (n,).
        sizes: Heights and widths of their images in the source, in pixels, shape (n, 2).
        places: Where everything in the images comes from.
        size: Height and width of the images in pixels.
        there: Which samples there is something of, (n,); None: all.
        pasted: Which objects there are in place of that, and what is left of them; None: all of them.

    Returns:
        By name `Ragged`, for polygons a list of outlines for each object, see `BatchTargets`; and how many are dropped.
    """
    objects = {name: each for name, each in targets.items() if isinstance(each, ObjectTarget)}
    taken = {name: each.rows.take(shown) for name, each in objects.items()}
    if not taken:
        return {}, 0
    rows = rows_of(next(iter(taken.values())).counts)
    here = pasted.here if pasted is not None else None if there is None else there[rows]
    if here is not None and not here.all():
        rows, taken = rows[here], {name: each.kept(here) for name, each in taken.items()}
    stay = np.ones(len(rows), np.bool_)
    for name, target in objects.items():
        values = target.in_pixels(taken[name].values, sizes[rows])
        if isinstance(target, Boxes):
            limits = {"min_area": target.min_area, "min_visible": target.min_visible}
            boxes, kept = map_boxes(values, rows, places, size, **limits)
            if pasted is not None:
                left = pasted.left[pasted.here]
                some = np.flatnonzero(left[:, 0] >= 0)  # Elsewhere it is NaN.
                boxes[some], seen = map_boxes(left[some], rows[some], pasted.places, size, **limits)
                kept[some] &= seen
            taken[name] = Ragged(boxes, taken[name].offsets)
            stay &= kept
        elif isinstance(target, Keypoints):
            taken[name] = Ragged(_points(target, values, rows, places, size), taken[name].offsets)
    kept_rows = rows[stay]
    made: dict[str, Any] = {name: each if stay.all() else each.kept(stay) for name, each in taken.items()}
    for name, target in objects.items():
        if isinstance(target, Polygons):
            made[name] = _outlines(target, made[name], kept_rows, sizes, places.maps)
    return made, int(np.count_nonzero(~stay))


def _points(target: Keypoints, values: Points, rows: Numbers, places: Geometry, size: Size) -> NDArray[np.float32]:
    """Map keypoints, which count from centres of pixels or from corners."""
    centre = np.zeros(values.shape[2])
    centre[:2] = target.centre
    points, seen = map_keypoints(values + centre, rows, places, size, swapped=target.swapped)
    told = seen[..., None] if values.shape[2] > 2 else True
    moved: NDArray[np.float32] = np.where(told, points - centre, points).astype(np.float32)
    return moved


def _outlines(
    target: Polygons, found: Ragged, rows: Numbers, sizes: Numbers, maps: Maps
) -> list[list[list[NDArray[np.float32]]]]:
    """Map the outlines of a batch's objects, which `rows` says the images of; one behind a horizon is left out."""
    firsts, ends = found.values[:, 0], found.values[:, 1]
    outlines = target.outlines.take(ranges(firsts, ends - firsts))
    of_images, points = np.repeat(rows, ends - firsts), outlines.values
    if target.normalized:
        points = points * sizes[np.repeat(of_images, outlines.counts), ::-1]
    vertices, whole = map_polygons(points, outlines.counts, of_images, maps)
    parts = Ragged(vertices, outlines.offsets).parts() if len(outlines) else []
    of_objects = iter(zip(parts, whole.tolist(), strict=True))
    counts = iter((ends - firsts).tolist())
    return [
        [[part for part, seen in (next(of_objects) for _ in range(next(counts))) if seen] for _ in range(objects)]
        for objects in found.counts.tolist()
    ]


def map_boxes(
    boxes: ArrayLike, rows: Numbers, geometry: Geometry, size: Size, *, min_area: float = 1.0, min_visible: float = 0.0
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Map boxes: each becomes the hull of its four mapped corners, as of torchvision, cut off where the image ends.

    What of it is beyond a border between two stages is cut off before.

    Args:
        boxes: x and y of the first corner and of the last one, in pixels of the source image, shape (m, 4).
        rows: Row of each box, shape (m,).
        geometry: Where the images of the rows come from.
        size: Height and width of served images in pixels.
        min_area: Least area in pixels of a box that stays, once it is cut off.
        min_visible: Least share 0 .. 1 of the hull that is in the image, of a box that stays.

    Returns:
        Boxes in pixels of the served images, shape (m, 4), and which of them stay, (m,); the others, and those of no
        area in the source, may be anything.
    """
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    corners = _mapped(boxes[:, [[0, 1], [2, 1], [2, 3], [0, 3]]], rows, geometry.maps)  # (m, corners, x, y and third)
    least = _HORIZON * corners[..., 2].max(axis=1, keepdims=True, initial=0)
    before = corners[..., 2] - least
    corners, there = _cut(corners, np.ones(corners.shape[:2], np.bool_), np.where(before == 0, -_NOTHING, before))
    corners[..., 2] = np.where(there, np.maximum(corners[..., 2], least), 1)  # far away roundings are large
    whole = _hull(corners, there)
    for line in geometry.lines.transpose(1, 0, 2):
        corners, there = _cut(corners, there, np.einsum("mvi,mi->mv", corners, line[rows]))
    low, high = _hull(corners, there)
    most = np.array(size[::-1], np.float64)
    first, last = np.clip(low, 0, most), np.clip(high, 0, most)
    sides = np.maximum(last - first, 0)
    # Where nothing is left the hull is empty: it begins at inf and ends at -inf.
    stay = np.logical_and((boxes[:, :2] < boxes[:, 2:]).all(axis=1), (sides > 0).all(axis=1))
    area = sides.prod(axis=1) * (1 + _ROUNDING)
    hull = (whole[1][stay] - whole[0][stay]).prod(axis=1)
    stay[stay] = (area[stay] >= min_area) & (area[stay] >= min_visible * hull)
    return np.concatenate([first, last], axis=1).astype(np.float32), stay


def map_keypoints(
    keypoints: NDArray[Any], rows: Numbers, geometry: Geometry, size: Size, *, swapped: Sequence[int] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Map keypoints, and swap those of the left and the right where an image is mirrored.

    Args:
        keypoints: x and y in pixels of the source image, and perhaps visibility as of COCO (0: not labelled, 1: hidden,
            2: visible), shape (m, k, 2) or (m, k, 3), k keypoints of each object.
        rows: Row of each object, shape (m,).
        geometry: Where the images of the rows come from.
        size: Height and width of served images in pixels.
        swapped: For each keypoint the one whose place it takes in a mirrored image, such as (0, 2, 1) where the second
            is on the left and the third on the right; None: each stays what it is.

    Returns:
        Keypoints in pixels of the served images, of the same shape, and which are labelled and in the image, (m, k).
        With visibility all others are (0, 0, 0), as COCO has it; without it they are where they would be, outside, and
        NaN behind a horizon.
    """
    keypoints = np.asarray(keypoints, np.float64)
    mapped = _mapped(keypoints[..., :2], rows, geometry.maps)
    points, before = _divided(mapped)
    # A point at the image's width is in no pixel.
    seen = before & (points >= 0).all(axis=2) & (points < np.array(size[::-1])).all(axis=2)
    for line in geometry.lines.transpose(1, 0, 2):
        seen &= np.einsum("mki,mi->mk", mapped, line[rows]) >= 0
    if keypoints.shape[2] > 2:
        seen &= keypoints[..., 2] > 0
        points = np.where(seen[..., None], np.concatenate([points, keypoints[..., 2:]], axis=2), 0)
    if swapped is not None:
        mirrored = np.linalg.det(geometry.maps)[rows] < 0
        order = np.where(mirrored[:, None], swapped, np.arange(keypoints.shape[1]))  # (m, k)
        points = np.take_along_axis(points, order[..., None], axis=1)
        seen = np.take_along_axis(seen, order, axis=1)
    return points.astype(np.float32), seen


def map_polygons(
    vertices: ArrayLike, lengths: ArrayLike, rows: Numbers, maps: Maps
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Map polygons; they are not cut off where the image ends.

    Args:
        vertices: x and y in pixels of the source image, of one polygon's vertices after the other, shape (v, 2).
        lengths: Number of vertices of each polygon, shape (p,).
        rows: Row of each polygon, shape (p,).
        maps: Maps of the rows, shape (n, 3, 3).

    Returns:
        Vertices in pixels of the served images, (v, 2), NaN behind a horizon, and which polygons have none there, (p,).
    """
    of_polygons = rows_of(lengths)
    vertices = np.asarray(vertices, np.float64).reshape(-1, 2)
    points, before = _divided(_mapped(vertices, rows[of_polygons], maps))
    behind = np.bincount(of_polygons[~before], minlength=len(rows))
    return points.astype(np.float32), behind == 0


def _mapped(points: Points, rows: Numbers, maps: Maps) -> Points:
    """Return where points of source images, (m, ..., 2), are in served ones, not divided yet, (m, ..., 3)."""
    inverses = inverted(maps)[rows]
    inverses = inverses.reshape(len(rows), *(1,) * (points.ndim - 2), 3, 3)
    return points[..., :1] * inverses[..., 0] + points[..., 1:] * inverses[..., 1] + inverses[..., 2]


def _divided(points: Points) -> tuple[Points, NDArray[np.bool_]]:
    """Divide by the third coordinate; return points, NaN behind the horizon, and which are before it."""
    before = points[..., 2] > 0
    thirds = np.where(before, points[..., 2], np.nan)
    return points[..., :2] / thirds[..., None], before


def _hull(points: Points, there: NDArray[np.bool_]) -> tuple[Points, Points]:
    """Return the least and the greatest x and y, (m, 2), of those points, not divided, (m, v, 3), that are there."""
    divided = points[..., :2] / np.where(there, points[..., 2], 1)[..., None]
    low = np.where(there[..., None], divided, np.inf).min(axis=1, initial=np.inf)
    high = np.where(there[..., None], divided, -np.inf).max(axis=1, initial=-np.inf)
    return low, high


def _cut(points: Points, there: NDArray[np.bool_], sides: NDArray[np.float64]) -> tuple[Points, NDArray[np.bool_]]:
    """Cut polygons off along a line, as Sutherland and Hodgman do.

    Args:
        points: Vertices in order, not divided, shape (m, v, 3).
        there: Which there are, the first ones of each polygon, shape (m, v).
        sides: On which side of the line each vertex is: below 0 it is cut off, shape (m, v).

    Returns:
        Vertices, and which there are, likewise.
    """
    inside = there & (sides >= 0)
    if (inside == there).all():
        return points, there
    counts, places = there.sum(axis=1, keepdims=True), np.arange(there.shape[1]) + 1
    following = np.where(places < counts, places, 0)  # the last one's is the first one
    beside = np.take_along_axis(sides, following, axis=1)
    crossing = there & (inside != np.take_along_axis(inside, following, axis=1))
    shares = sides / np.where(crossing, sides - beside, 1)
    cuts = points + shares[..., None] * (np.take_along_axis(points, following[..., None], axis=1) - points)
    points = np.stack([points, cuts], axis=2).reshape(len(points), -1, 3)
    there = np.stack([inside, crossing], axis=2).reshape(len(there), -1)
    first = np.argsort(~there, axis=1, kind="stable")[:, : max(there.sum(axis=1).max(initial=0), 1)]
    return np.take_along_axis(points, first[..., None], axis=1), np.take_along_axis(there, first, axis=1)
