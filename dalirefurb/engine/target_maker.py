"""Target maker: what belongs to the images of a group, moved as its recipe has moved these.

plans ─▶ maps of all rows ─▶ objects, mapped at once ──────────────────────────┐
                 └─▶ masks, on threads of their own, while images are made ─────┴─▶ targets of each batch
                     those of objects that are left, too
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.geometry import Geometry, geometry
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import draw
from dalirefurb.augment.stages.mosaic import partner_rows
from dalirefurb.engine.cache_plan import CachePlan
from dalirefurb.engine.closable_queue import Stopped
from dalirefurb.errors import SampleError
from dalirefurb.kernels.buffers import Buffers
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source
from dalirefurb.system.threads import Background
from dalirefurb.targets.fill import filler
from dalirefurb.targets.instance_masks import InstanceMasks
from dalirefurb.targets.kinds import Boxes, Keypoints, ObjectTarget, Polygons, Target, Values
from dalirefurb.targets.mask_images import MaskError, Masks
from dalirefurb.targets.masks import runs_of, warp_of
from dalirefurb.targets.objects import map_boxes, map_keypoints, map_polygons, rows_of
from dalirefurb.targets.ragged import Ragged, ranges

_POLL_S = 0.1

_ROWS = 8
"""Masks that a thread does at a time."""


@dataclass(frozen=True)
class BatchTargets:
    """What belongs to the images of a batch, as NumPy has it.

    Attributes:
        values: By name: `Ragged` of objects, for polygons a list of outlines for each object; masks (B, H, W); values
            (B, ...).
        maps: Maps from pixels of the served images to those of the source's, float64 of shape (B, 3, 3).
        sizes: Heights and widths of the source's images in pixels, int64 of shape (B, 2).
        dropped: Number of objects of which too little is left.
    """

    values: Mapping[str, Any]
    maps: NDArray[np.float64]
    sizes: NDArray[np.int64]
    dropped: int


class GroupTargets:
    """Targets of a group, of which masks may not be there yet.

    Args:
        batches: Targets of each batch.
        jobs: What writes the masks.
        reader: Reader of the source, which names reads that hang.
    """

    def __init__(self, batches: list[BatchTargets], jobs: list[Future[None]], reader: Reader) -> None:
        self._batches = batches
        self._jobs = jobs
        self._reader = reader

    def result(self, stopping: Callable[[], bool]) -> list[BatchTargets]:
        """Wait for all of them.

        Raises:
            Stopped: If nobody wants them any more.
            SampleError: If a mask cannot be used.
            ReadError: If storage fails for too long.
        """
        while wait(self._jobs, timeout=_POLL_S).not_done:
            if stopping():
                raise Stopped
            self._reader.patience.look()
        for job in self._jobs:
            job.result()
        return self._batches

    def cancel(self) -> None:
        """Leave out what is not begun."""
        for job in self._jobs:
            job.cancel()


class TargetMaker:
    """Makes the targets of batches.

    Args:
        source: Source with targets.
        recipe: Recipe, all of whose stages say where things go.
        seed: Seed of the planner.
        reader: Reader of the source, which knows sizes.
        num_threads: Number of threads that read and warp masks.
        most_batches: Number of batches that are there at the same time, whose masks' memory is used again.
        slice_rows: Number of rows of a batch whose samples are of one shard.
    """

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        *,
        seed: int,
        reader: Reader,
        num_threads: int,
        most_batches: int,
        slice_rows: int,
    ) -> None:
        assert source.annotations is not None
        self._targets: Mapping[str, Target] = source.annotations
        self._name = source.name
        self._recipe = recipe
        self._seed = seed
        self._reader = reader
        self._slice_rows = slice_rows
        # Images that are in one: each has objects and masks there.
        self._parts = 1 if recipe.mosaic is None else 1 + recipe.mosaic.partners
        masked = [name for name, each in self._targets.items() if isinstance(each, (Masks, InstanceMasks))]
        self._buffers = {name: Buffers(most_batches) for name in masked}
        self._pool = Background(num_threads, name="dalirefurb-targets")
        for target in self._targets.values():
            if isinstance(target, Masks):
                warp_of("uint8", str(target.dtype))  # which is compiled for the first time
                runs_of("uint8", str(target.dtype))
            elif isinstance(target, InstanceMasks):
                filler()
                warp_of("uint8", "uint8")

    def begin(self, cache_plan: CachePlan) -> GroupTargets:
        """Begin with those of a group.

        Raises:
            SampleError: If a sample cannot be read again whose size is not known.
        """
        batches, jobs, start = list[BatchTargets](), list[Future[None]](), 0
        for plan in cache_plan.group.plans:
            batch, own = self._batch(plan, cache_plan.shown[start : start + len(plan.indices)])
            batches.append(batch)
            jobs += own
            start += len(plan.indices)
        return GroupTargets(batches, jobs, self._reader)

    def close(self) -> None:
        """Have the threads end. Never waits."""
        self._pool.close()

    def join(self) -> None:
        """Wait until the threads have ended; one whose reading hangs is left alone after a second."""
        self._pool.join()

    def _rows(self, plan: BatchPlan, shown: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows whose partial images are in each row's, (B, k), its own first."""
        own, mosaic = np.arange(len(shown))[:, None], self._recipe.mosaic
        if mosaic is None:
            return own
        drawn, _, _ = draw(
            (mosaic,),
            seed=self._seed,
            indices=plan.indices,
            numbers=plan.serving,
            heights=np.zeros_like(shown),  # for which it does not ask
            widths=np.zeros_like(shown),
            versions=plan.version,
            shown=shown,
        )
        others = partner_rows(drawn[mosaic.name]["partners"], [len(shown)], self._slice_rows)
        return np.concatenate([own, others], axis=1)

    def _batch(self, plan: BatchPlan, shown: NDArray[np.int64]) -> tuple[BatchTargets, list[Future[None]]]:
        own, parts = shown, self._parts
        rows = self._rows(plan, shown).reshape(-1)
        shown = shown[rows]
        heights, widths = self._reader.known_sizes(shown)
        places = geometry(
            self._recipe,
            seed=self._seed,
            indices=plan.indices[rows],
            shown=shown,
            versions=plan.version[rows],
            servings=plan.serving[rows],
            heights=heights,
            widths=widths,
            owners=np.arange(len(rows)) // parts * parts,
        )
        sizes = np.stack([heights, widths], axis=1)
        values: dict[str, Any] = dict.fromkeys(self._targets)
        jobs: list[Future[None]] = []
        for name, target in self._targets.items():
            if isinstance(target, Masks):
                values[name], begun = self._masks(name, target, shown, sizes, places)
                jobs += begun
            elif isinstance(target, Values):
                values[name] = target.values[own]
        objects, dropped = moved_objects(self._targets, shown, sizes, places, self._recipe.output.sides)
        values |= objects
        for name, target in self._targets.items():
            if isinstance(target, InstanceMasks):
                values[name], begun = self._instance_masks(name, target, values[name], shown, sizes, places)
                jobs += begun
        if parts > 1:
            values = {name: _together(value, parts, len(own)) for name, value in values.items()}
        return BatchTargets(values, places.maps[::parts], sizes[::parts], dropped), jobs

    def _instance_masks(
        self,
        name: str,
        target: InstanceMasks,
        objects: Ragged,
        shown: NDArray[np.int64],
        sizes: NDArray[np.int64],
        at: Geometry,
    ) -> tuple[Ragged, list[Future[None]]]:
        """Begin to draw the masks of a batch's objects; return what they are drawn into, and when all are."""
        shape = len(objects.values), *self._recipe.output.sides
        made = Ragged(self._buffers[name].take(shape, "uint8"), objects.offsets)

        def draw(start: int) -> None:
            for row in range(start, min(start + _ROWS, len(shown))):
                index, (height, width), own = int(shown[row]), sizes[row].tolist(), slice(*made.offsets[row : row + 2])
                if (misfit := target.misfit(index, (height, width))) is not None:
                    raise SampleError(index, self._name(index), misfit, lasting=True)
                target.draw(objects.values[own], at.maps[row], at.lines[row], (height, width), made.values[own])

        return made, [self._pool.submit(partial(draw, start)) for start in range(0, len(shown), _ROWS)]

    def _masks(
        self, name: str, target: Masks, shown: NDArray[np.int64], sizes: NDArray[np.int64], places: Geometry
    ) -> tuple[NDArray[Any], list[Future[None]]]:
        """Begin to read and warp the masks of a batch; return what they are written into, and when all are."""
        count, parts = len(shown) // self._parts, self._parts
        made = self._buffers[name].take((count, *self._recipe.output.sides), str(target.dtype))
        rows = [slice(start * parts, (start + _ROWS) * parts) for start in range(0, count, _ROWS)]
        return made, [
            self._pool.submit(partial(self._warp, target, shown[some], sizes[some], places, some, made))
            for some in rows
        ]

    def _warp(
        self,
        target: Masks,
        shown: NDArray[np.int64],
        sizes: NDArray[np.int64],
        places: Geometry,
        some: slice,
        made: NDArray[Any],
    ) -> None:
        rows = zip(shown.tolist(), sizes.tolist(), places.maps[some], places.lines[some], strict=True)
        for place, (index, (height, width), source_map, lines) in enumerate(rows, some.start):
            (row, part), named = divmod(place, self._parts), f"the mask {target.name(index)}"
            show = partial(target.warp, index, (height, width), source_map, lines, made[row], over=part > 0)
            try:
                self._reader.patience.of(show, named)
            except MaskError as error:
                raise SampleError(index, self._name(index), f"{named}: {error}", lasting=True) from error


def _together(value: Any, parts: int, count: int) -> Any:
    """Put the objects of the images that are in one together: so many each, of `count`."""
    if isinstance(value, Ragged):
        return Ragged(value.values, value.offsets[::parts])
    if isinstance(value, list):
        return [[each for its in value[row * parts : (row + 1) * parts] for each in its] for row in range(count)]
    return value


def moved_objects(
    targets: Mapping[str, Target],
    shown: NDArray[np.int64],
    sizes: NDArray[np.int64],
    places: Geometry,
    size: tuple[int, int],
) -> tuple[dict[str, Any], int]:
    """Map all objects of some samples, and drop those of which too little is left.

    Args:
        targets: Targets by name, of which those of objects are mapped.
        shown: Indices of the samples, shape (n,).
        sizes: Heights and widths of their images in the source, in pixels, shape (n, 2).
        places: Where everything in the images comes from.
        size: Height and width of the images in pixels.

    Returns:
        By name `Ragged`, for polygons a list of outlines for each object, see `BatchTargets`; and how many are dropped.
    """
    objects = {name: each for name, each in targets.items() if isinstance(each, ObjectTarget)}
    taken = {name: each.rows.take(shown) for name, each in objects.items()}
    if not taken:
        return {}, 0
    rows = rows_of(next(iter(taken.values())).counts)
    stay = np.ones(len(rows), np.bool_)
    for name, target in objects.items():
        values = taken[name].values
        if isinstance(target, Boxes):
            if target.normalized:
                values = values * np.tile(sizes[rows, ::-1], 2)
            boxes, kept = map_boxes(
                values, rows, places, size, min_area=target.min_area, min_visible=target.min_visible
            )
            taken[name] = Ragged(boxes, taken[name].offsets)
            stay &= kept
        elif isinstance(target, Keypoints):
            taken[name] = Ragged(
                _points(target, target.in_pixels(values, sizes[rows]), rows, places, size), taken[name].offsets
            )
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
