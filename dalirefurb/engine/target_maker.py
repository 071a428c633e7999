"""Target maker: what belongs to the images of a group, moved as its recipe has moved these.

plans ─▶ maps of all rows ─▶ objects, mapped at once ──────────────────────────┐
                 └─▶ masks, on threads of their own, while images are made ─────┴─▶ targets of each batch
                     those of objects that are left, too
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.geometry import Geometry, geometry
from dalirefurb.augment.maps import inverted
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Arrays, draw
from dalirefurb.augment.stages.partners import CopyPaste, partner_rows
from dalirefurb.engine.batch_group import GroupFailed
from dalirefurb.engine.cache_client import CachePlan
from dalirefurb.engine.closable_queue import Stopped
from dalirefurb.errors import SampleError
from dalirefurb.kernels.buffers import Buffers
from dalirefurb.planning.batch_plan import BatchPlan
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source
from dalirefurb.system.threads import Background
from dalirefurb.targets.instance_masks import InstanceMasks, filler
from dalirefurb.targets.kinds import Target, Values
from dalirefurb.targets.mask_images import MaskError, Masks
from dalirefurb.targets.masks import runs_of, warp_of
from dalirefurb.targets.objects import Draw, Pasted, moved_objects, shapes_of
from dalirefurb.targets.ragged import Ragged

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
        dropped: Number of objects of which too little is left, as `Boxes` says.
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
            GroupFailed: If a mask cannot be used, and its sample is replaced from now on.
            SampleError: If a mask cannot be used.
            ReadError: If storage fails for too long.
        """
        while wait(self._jobs, timeout=_POLL_S).not_done:
            if stopping():
                raise Stopped
            self._reader.patience.look()
        try:
            for job in self._jobs:
                job.result()
        except SampleError as error:
            if self._reader.bad(np.array([error.index])).any():
                raise GroupFailed from error
            raise
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

    Attributes:
        pool: The threads; the engine closes them.
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
        stage = recipe.partner_stage
        # Images that are in one: each has objects and masks there.
        self._parts = 1 if stage is None else 1 + stage.partners
        self._pasting: tuple[CopyPaste, InstanceMasks, tuple[int, int]] | None = None
        if isinstance(stage, CopyPaste):
            shapes, shape = shapes_of(self._targets), source.image_shape
            partial_size = recipe.partial_size(None if shape is None else shape[:2])
            assert shapes is not None
            assert partial_size is not None
            self._pasting = stage, shapes, partial_size
        masked = [name for name, each in self._targets.items() if isinstance(each, (Masks, InstanceMasks))]
        self._buffers = {name: Buffers(most_batches) for name in masked}
        self._pasted = Buffers(most_batches)
        self.pool = Background(num_threads, name="dalirefurb-targets")
        for target in self._targets.values():
            if isinstance(target, Masks):
                target.look_anew()
                warp_of("uint8", str(target.dtype))  # which is compiled for the first time
                runs_of("uint8", str(target.dtype))
            elif isinstance(target, InstanceMasks) or self._pasting is not None:
                filler()
                warp_of("uint8", "uint8")

    def begin(self, cache_plan: CachePlan) -> GroupTargets:
        """Begin with those of a group.

        Raises:
            SampleError: If a sample cannot be read again whose size is not known, or its masks cannot be used.
            Stopped: If nobody wants them any more.
        """
        batches, jobs, start = list[BatchTargets](), list[Future[None]](), 0
        pasted, begun = list[NDArray[np.uint8]](), GroupTargets(batches, jobs, self._reader)
        try:
            for plan in cache_plan.group.plans:
                shown = cache_plan.shown[start : start + len(plan.indices)]
                batches.append(self._batch(plan, shown, pasted, jobs))
                start += len(plan.indices)
        except BaseException as error:
            begun.cancel()
            if isinstance(error, CancelledError):
                raise Stopped from error
            raise
        cache_plan.pasted.set_result(pasted)
        return begun

    def _partners(
        self, plan: BatchPlan, shown: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], Arrays]:
        """Return the rows whose partial images are in each row's, (B, k), its own first.

        Beside them whether something of each is there, (B, k), and what was drawn for the rows.
        """
        own, stage = np.arange(len(shown))[:, None], self._recipe.partner_stage
        if stage is None:
            return own, np.ones(own.shape, np.bool_), {}
        drawn, _, _ = draw(
            (stage,),
            seed=self._seed,
            indices=plan.indices,
            numbers=plan.serving,
            heights=np.zeros_like(shown),  # for which it does not ask
            widths=np.zeros_like(shown),
            versions=plan.version,
            shown=shown,
        )
        parameters = drawn[stage.name]
        others = partner_rows(parameters["partners"], [len(shown)], self._slice_rows)
        there = np.concatenate([np.ones(own.shape, np.bool_), stage.present(parameters, others)], axis=1)
        return np.concatenate([own, others], axis=1), there, parameters

    def _batch(
        self, plan: BatchPlan, shown: NDArray[np.int64], pasted: list[NDArray[np.uint8]], jobs: list[Future[None]]
    ) -> BatchTargets:
        """Begin with those of a batch; add what `CopyPaste` pastes to `pasted`, and what writes masks to `jobs`."""
        own, parts = shown, self._parts
        rows, there, drawn = self._partners(plan, shown)
        rows = rows.reshape(-1)
        shown = shown[rows]
        heights, widths = self._reader.known_sizes(shown)
        locate = partial(
            geometry,
            self._recipe,
            seed=self._seed,
            indices=plan.indices[rows],
            shown=shown,
            versions=plan.version[rows],
            servings=plan.serving[rows],
            heights=heights,
            widths=widths,
        )
        places = locate(parts=parts)
        sizes = np.stack([heights, widths], axis=1)
        values: dict[str, Any] = dict.fromkeys(self._targets)
        for name, target in self._targets.items():
            if isinstance(target, Masks):
                values[name], begun = self._masks(name, target, shown, sizes, places)
                jobs += begun
            elif isinstance(target, Values):
                values[name] = target.values[own]
        uncover: Callable[[int, NDArray[np.uint8]], None] | None = None
        made: Pasted | None = None
        if self._pasting is not None:
            _, shapes, size = self._pasting
            at = locate(partial=size)
            onward = Geometry(inverted(at.maps) @ places.maps, places.lines)
            made = Pasted.of(shapes.rows.take(shown), onward)
            draw_partial = self._drawing(shapes, shown, sizes, at)
            pasted.append(self._paste(drawn["objects"], there[:, 1], made, draw_partial))
            uncover = partial(made.uncover, self._drawing(shapes, shown, sizes, places))
        size, any_of = self._recipe.output.sides, there.reshape(-1)
        objects, dropped = moved_objects(self._targets, shown, sizes, places, size, there=any_of, pasted=made)
        values |= objects
        for name, target in self._targets.items():
            if isinstance(target, InstanceMasks):
                draw_one = self._drawing(target, shown, sizes, places)
                values[name], begun = self._instance_masks(name, values[name], draw_one, uncover)
                jobs += begun
        if parts > 1:
            values = {name: _together(value, parts, len(own)) for name, value in values.items()}
        return BatchTargets(values, places.maps[::parts], sizes[::parts], dropped)

    def _paste(
        self, numbers: NDArray[np.float64], done: NDArray[np.bool_], made: Pasted, draw: Draw
    ) -> NDArray[np.uint8]:
        """Paste objects chosen by numbers, (B, 2), where it is done, (B,); return which pixels are, (B, H, W)."""
        assert self._pasting is not None
        stage, _, size = self._pasting
        out = self._pasted.take((len(done), *size), "uint8")

        def paste(pair: int) -> None:
            chosen = stage.chosen(numbers[pair], int(made.objects.counts[2 * pair + 1])) & done[pair]
            made.paste(pair, chosen, stage.min_visible, draw, out[pair])

        for job in [self.pool.submit(partial(paste, pair)) for pair in range(len(done))]:
            job.result()
        return out

    def _drawing(self, target: InstanceMasks, shown: NDArray[np.int64], sizes: NDArray[np.int64], at: Geometry) -> Draw:
        """Return what draws objects of rows in images that come from there."""

        def draw(row: int, objects: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
            index, (height, width) = int(shown[row]), sizes[row].tolist()
            if (misfit := target.misfit(index, (height, width))) is not None:
                raise SampleError(index, self._name(index), misfit, lasting=True)
            target.draw(objects, at.maps[row], at.lines[row], (height, width), out)

        return draw

    def _instance_masks(
        self,
        name: str,
        objects: Ragged,
        draw: Draw,
        uncover: Callable[[int, NDArray[np.uint8]], None] | None,
    ) -> tuple[Ragged, list[Future[None]]]:
        """Begin to draw the masks of a batch's objects; return what they are drawn into, and when all are."""
        shape = len(objects.values), *self._recipe.output.sides
        made = Ragged(self._buffers[name].take(shape, "uint8"), objects.offsets)

        def draw_some(start: int) -> None:
            for row in range(start, min(start + _ROWS, len(made))):
                own = slice(*made.offsets[row : row + 2])
                draw(row, objects.values[own], made.values[own])
                if uncover is not None and row % 2 == 0:
                    uncover(row // 2, made.values[own])

        return made, [self.pool.submit(partial(draw_some, start)) for start in range(0, len(made), _ROWS)]

    def _masks(
        self, name: str, target: Masks, shown: NDArray[np.int64], sizes: NDArray[np.int64], places: Geometry
    ) -> tuple[NDArray[Any], list[Future[None]]]:
        """Begin to read and warp the masks of a batch; return what they are written into, and when all are."""
        count, parts = len(shown) // self._parts, self._parts
        made = self._buffers[name].take((count, *self._recipe.output.sides), str(target.dtype))
        rows = [slice(start * parts, (start + _ROWS) * parts) for start in range(0, count, _ROWS)]
        return made, [
            self.pool.submit(partial(self._warp, target, shown[some], sizes[some], places, some, made)) for some in rows
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
                bad = SampleError(index, self._name(index), f"{named}: {error}")
                if self._reader.substitutes is not None:
                    self._reader.substitutes.add(bad)
                raise bad from error


def _together(value: Any, parts: int, count: int) -> Any:
    """Put the objects of the images that are in one together: so many each, of `count`."""
    if isinstance(value, Ragged):
        return Ragged(value.values, value.offsets[::parts])
    if isinstance(value, list):
        return [[each for its in value[row * parts : (row + 1) * parts] for each in its] for row in range(count)]
    return value
