"""Moved objects: all that is known of the objects of some samples, where their images have gone, and which are left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.geometry import Geometry
from dalirefurb.targets.kinds import Boxes, Keypoints, ObjectTarget, Polygons, Target
from dalirefurb.targets.objects import map_boxes, map_keypoints, map_polygons, rows_of
from dalirefurb.targets.pasting import Pasted
from dalirefurb.targets.ragged import Ragged, ranges


def moved_objects(
    targets: Mapping[str, Target],
    shown: NDArray[np.int64],
    sizes: NDArray[np.int64],
    places: Geometry,
    size: tuple[int, int],
    *,
    there: NDArray[np.bool_] | None = None,
    pasted: Pasted | None = None,
    onward: Geometry | None = None,
) -> tuple[dict[str, Any], int]:
    """Map all objects of some samples, and drop those of which too little is left.

    Args:
        targets: Targets by name, of which those of objects are mapped.
        shown: Indices of the samples, shape (n,).
        sizes: Heights and widths of their images in the source, in pixels, shape (n, 2).
        places: Where everything in the images comes from.
        size: Height and width of the images in pixels.
        there: Which samples there is something of, (n,); None: all.
        pasted: Which objects there are, and what is left of them, in place of that; None: all of them.
        onward: Maps from the images to partial ones, where `pasted` has boxes.

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
        values = taken[name].values
        if isinstance(target, Boxes):
            if target.normalized:
                values = values * np.tile(sizes[rows, ::-1], 2)
            limits = {"min_area": target.min_area, "min_visible": target.min_visible}
            boxes, kept = map_boxes(values, rows, places, size, **limits)
            if pasted is not None and onward is not None:
                some = pasted.covered
                boxes[some], left = map_boxes(pasted.boxes, rows[some], onward, size, **limits)
                kept[some] &= left
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


def _points(
    target: Keypoints,
    values: NDArray[np.float64],
    rows: NDArray[np.int64],
    places: Geometry,
    size: tuple[int, int],
) -> NDArray[np.float32]:
    """Map keypoints, which count from centres of pixels or from corners."""
    centre = np.zeros(values.shape[2])
    centre[:2] = target.centre
    points, seen = map_keypoints(values + centre, rows, places, size, swapped=target.swapped)
    told = seen[..., None] if values.shape[2] > 2 else True
    moved: NDArray[np.float32] = np.where(told, points - centre, points).astype(np.float32)
    return moved


def _outlines(
    target: Polygons,
    found: Ragged,
    rows: NDArray[np.int64],
    sizes: NDArray[np.int64],
    maps: NDArray[np.float64],
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
