"""Both parts of a recipe for volumes: threads carry its stages out, volume by volume.

    as the source gives it ─▶ partial stages ─▶ packed, cached ─▶ final stages ─▶ the model's volumes, and their labels

Stages one after the other are one copy of what is shown at their end, see `Voxels`; what a function of the user's takes
is made before it is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage
from dalirefurb.augment.stages.custom import HostStage
from dalirefurb.augment.volumes.output import VolumeOutput
from dalirefurb.augment.volumes.stages import VolumeStage
from dalirefurb.augment.volumes.voxels import AFFINE, Resampling, Smoothing, Voxels
from dalirefurb.dali import Feed
from dalirefurb.engine.cache_plan import CachePlan
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Image, Images
from dalirefurb.kernels.buffers import Buffers
from dalirefurb.kernels.host import StageRaised, generator
from dalirefurb.kernels.volumes import resample, show, smooth
from dalirefurb.packed import Arrays, VolumeError, foreground_of, pack_volume, unpack, volume_of
from dalirefurb.reading.partial_sizes import PartialSizes
from dalirefurb.reading.reader import Reader
from dalirefurb.system.threads import Background

_PROBES = 8
"""Volumes that are read to tell how large partial ones are."""

Drawn = Mapping[str, Any]
"""Random numbers of some volumes, as "<stage>/uniforms", (n, k)."""


@dataclass(frozen=True)
class VolumeBatch:
    """Volumes as the training loop gets them.

    Attributes:
        images: Volumes, (B, C, D, H, W).
        masks: Labels of their voxels, (B, D, H, W); None: there are none.
    """

    images: NDArray[Any]
    masks: NDArray[Any] | None

    def __getitem__(self, rows: slice) -> VolumeBatch:
        """Return some rows."""
        return VolumeBatch(self.images[rows], None if self.masks is None else self.masks[rows])


class _Shown:
    """What stages have made of a volume: the volume, and what is shown of it."""

    def __init__(self, volume: Arrays) -> None:
        self.volume = volume
        _, depth, height, width = volume["image"].shape
        self.voxels = Voxels((depth, height, width), self._foreground)

    def _foreground(self) -> NDArray[np.int32]:
        if "foreground" in self.volume:
            return self.volume["foreground"]
        return foreground_of(self.volume["mask"]) if "mask" in self.volume else np.empty((0, 3), np.int32)

    def made(self) -> dict[str, NDArray[Any]]:
        """Return what is shown, as a volume of its own; views, if nothing was changed."""
        voxels, given = self.voxels, {name: self.volume[name] for name in ("image", "mask") if name in self.volume}
        if not voxels.moved and not voxels.single:
            return given
        dtype = np.dtype(np.float32) if voxels.single else given["image"].dtype
        made = {name: np.empty((*each.shape[:-3], *voxels.shape), each.dtype) for name, each in given.items()}
        made["image"] = made["image"].astype(dtype, copy=False)
        self.write(made["image"], made.get("mask"))
        return made

    def carried_on(self) -> dict[str, NDArray[Any]]:
        """Do what is to be done with all that is shown; return the result as a volume of its own."""
        then = self.voxels.then
        if isinstance(then, Resampling):
            return self._resampled(then)
        made = self.made()
        if isinstance(then, Smoothing):
            smooth(made["image"], then.sigma)
        elif then is not None:
            shape = made["image"].shape
            made["image"] = np.ascontiguousarray(then(made["image"]), np.float32)
            if made["image"].shape != shape:
                raise LoaderError(
                    f"what a stage of volumes computes must have the shape of its image, {shape}, but has "
                    f"{made['image'].shape}: resample, or crop, to make another one"
                )
        return made

    def _resampled(self, to: Resampling) -> dict[str, NDArray[Any]]:
        """Return what a map leads to; of what other stages have changed no more is made than that."""
        voxels, begin, made = self.voxels, (0, 0, 0), self.volume
        full = tuple(voxels.shape)
        if voxels.moved or voxels.steps:
            corners = np.array(list(np.ndindex(2, 2, 2))) * (np.array(to.shape) - 1)
            reached = corners @ to.matrix[:, :3].T + to.matrix[:, 3]
            first = np.clip(np.floor(reached.min(axis=0)).astype(np.int64) - 1, 0, np.array(full) - 1)
            stop = np.clip(np.floor(reached.max(axis=0)).astype(np.int64) + 3, first + 1, full)
            if not voxels.padded:  # Else there are two fills.
                begin = tuple(first.tolist())
                voxels.crop(begin, tuple((stop - first).tolist()))
            made = self.made()
        image = np.empty((len(made["image"]), *to.shape), np.float32)
        for channel, result in zip(made["image"], image, strict=True):
            resample(channel, begin, full, to, result)
        if "mask" not in made:
            return {"image": image}
        mask = np.empty(to.shape, made["mask"].dtype)
        resample(made["mask"], begin, full, to, mask)
        return {"image": image, "mask": mask}

    def write(
        self, image: NDArray[Any], mask: NDArray[Any] | None, last: Sequence[tuple[int, float, float]] = ()
    ) -> None:
        """Write what is shown, when further steps are done: its values, (C, D, H, W), and its labels."""
        steps = np.array([*self.voxels.steps, *last], np.float32).reshape(-1, 3)
        fill = np.float32(self.voxels.fill)
        for kind, one, other in steps[self.voxels.filled_after :]:
            fill = fill * one + other if kind == AFFINE else min(max(fill, one), other)
        if image.dtype.kind in "iu" and self.voxels.padded:
            limits = np.iinfo(image.dtype)
            if fill != np.rint(fill) or not limits.min <= fill <= limits.max:
                raise LoaderError(
                    f"a crop's fill must be a value of the volumes, which are {image.dtype}, got {fill}: pass such as "
                    f"fill={limits.min}"
                )
        for channel, made in zip(self.volume["image"], image, strict=True):
            show(channel, self.voxels, float(fill), steps, made)
        if mask is not None:
            show(self.volume["mask"], self.voxels, 0.0, steps[:0], mask)


def _through(stages: Sequence[Stage], volume: Arrays, drawn: Drawn, sample: int) -> _Shown:
    """Carry stages out on a volume, with its random numbers of each.

    Raises:
        StageRaised: If a function of the user's raised an error, or makes no volume.
    """
    shown = _Shown(volume)
    for stage in stages:
        uniforms = np.asarray(drawn.get(f"{stage.name}/uniforms", ()), np.float64)
        if isinstance(stage, HostStage):
            shown = _Shown(_called(stage, shown.made(), uniforms, sample))
            continue
        assert isinstance(stage, VolumeStage)
        if stage.begins_anew(shown.voxels):
            shown = _Shown(shown.made())
        stage.change(shown.voxels, uniforms)
        if shown.voxels.then is not None:
            shown = _Shown(shown.carried_on())
    return shown


def _called(stage: HostStage, volume: Arrays, uniforms: NDArray[np.float64], sample: int) -> Arrays:
    """Call a function of the user's with copies of a volume's arrays; return what it makes of them."""
    given: Any = {name: each.copy() for name, each in volume.items()}
    try:
        function: Callable[..., Any] = stage.function
        made = volume_of(function(given, generator(uniforms)) if stage.num_uniforms else function(given))
        if made.keys() != volume.keys():
            raise VolumeError(f"it must return {' and '.join(volume)}, but returns {' and '.join(made)}")
    except Exception as error:
        raise StageRaised(stage, sample, error) from error
    return made


class VolumeRunner:
    """Carries the partial stages out: a `PipelineRunner`, of packed volumes.

    Args:
        stages: The partial stages.
        pool: Threads that do it.
    """

    def __init__(self, stages: Sequence[Stage], pool: Background) -> None:
        self._stages, self._pool = stages, pool
        self._running: deque[list[Future[Image]]] = deque()

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Begin with some volumes."""
        rows = zip(Images.of(feeds["sample"]), np.asarray(feeds["index"]).tolist(), _rows(feeds), strict=False)
        self._running.append([self._pool.submit(partial(partially, self._stages, *row)) for row in rows])

    def collect(self) -> Images:
        """Wait for the oldest ones.

        Raises:
            StageRaised: If a function of the user's raised an error; all of them are lost.
        """
        return Images(_results(self._running.popleft()))

    def restart(self) -> None:
        """Forget all that were begun."""
        while self._running:
            for each in self._running.popleft():
                each.cancel()


def partially(stages: Sequence[Stage], packed: Image, sample: int, drawn: Drawn) -> Image:
    """Return what partial stages make of a packed volume, packed anew if there are any."""
    return pack_volume(_through(stages, unpack(packed), drawn, sample).made()) if stages else packed


class FinalVolumes:
    """Carries the final stages out, in the place of `FinalGraph`. It has one owner thread.

    Args:
        recipe: The recipe.
        input_builder: Builder of the random numbers.
        pool: Threads that do it.
        most_groups: Number of groups whose volumes are there at the same time.
    """

    goes_on = False

    def __init__(self, recipe: Recipe, input_builder: InputBuilder, pool: Background, *, most_groups: int) -> None:
        assert isinstance(recipe.output, VolumeOutput)
        self._stages, self._output = recipe.final, recipe.output
        self._input_builder = input_builder
        self._pool = pool
        self._images, self._masks = Buffers(most_groups), Buffers(most_groups)
        self._begun: deque[tuple[VolumeBatch, list[Future[None]]]] = deque()

    def submit(self, cache_plan: CachePlan, _: object = None) -> None:
        """Begin with a group whose partial volumes are known."""
        packed, output = cache_plan.partial_images(), self._output
        final = self._input_builder.final_parameters(cache_plan.plan, cache_plan.shown, packed.places.sizes)
        images = self._images.take((len(packed), output.channels, *output.size), output.dtype)
        masks = None
        if len(packed) and "mask" in unpack(packed[0]):
            masks = self._masks.take((len(packed), *output.size), output.mask_dtype)
        batch = VolumeBatch(images, masks)
        rows = zip(packed, cache_plan.shown.tolist(), _rows(final), strict=True)
        self._begun.append((batch, [self._pool.submit(partial(self._finish, batch, *row)) for row in enumerate(rows)]))

    def collect(self) -> VolumeBatch:
        """Wait for the oldest group.

        Raises:
            StageRaised: If a function of the user's raised an error; that group is lost.
        """
        batch, jobs = self._begun.popleft()
        _results(jobs)
        return batch

    def restart(self) -> None:
        """Forget all groups."""
        while self._begun:
            for each in self._begun.popleft()[1]:
                each.cancel()

    def _finish(self, batch: VolumeBatch, row: int, given: tuple[Image, int, Drawn]) -> None:
        """Make a row of a batch."""
        packed, sample, drawn = given
        shown, output = _through(self._stages, unpack(packed), drawn, sample), self._output
        there = len(shown.volume["image"]), *shown.voxels.shape
        if there != (output.channels, *output.size):
            raise LoaderError(
                f"the last stage must leave volumes of the output's {output.channels} channel(s) of "
                f"{output.sides_text}, but of sample {sample} it leaves {there[0]} of "
                f"{' x '.join(map(str, there[1:]))}: end with a crop of that size, or pass channels= to VolumeOutput"
            )
        made, mask = batch.images[row], None if batch.masks is None else batch.masks[row]
        labels = shown.volume.get("mask")
        if (labels is None) != (mask is None):
            raise LoaderError(f"all volumes of a batch must have labels of voxels, or none, but not so sample {sample}")
        if labels is not None and not np.can_cast(labels.dtype, output.mask_dtype):
            raise LoaderError(
                f"labels must fit into {output.mask_dtype}, but those of sample {sample} are {labels.dtype}: pass "
                f"VolumeOutput(..., mask_dtype='int64')"
            )
        (mean,), (std,) = output.means, output.stds
        last = [] if (mean, std) == (0.0, 1.0) else [(AFFINE, 1 / std, -mean / std)]
        if output.dtype == "float32":
            shown.write(made, mask, last)
        else:
            image = np.empty(made.shape, np.float32)
            shown.write(image, mask, last)
            made[...] = image


def _results(jobs: Sequence[Future[Any]]) -> list[Any]:
    """Wait for all jobs, since they read what is pinned; return their results, or raise the first one's error."""
    for each in jobs:
        with suppress(Exception):
            each.result()
    return [each.result() for each in jobs]


def _rows(feeds: Mapping[str, Feed]) -> Iterator[Drawn]:
    """Yield the random numbers of one volume after the other."""
    drawn = {name: np.asarray(values) for name, values in feeds.items() if name.endswith("/uniforms")}
    count = len(np.asarray(feeds["index"]))
    return ({name: values[row] for name, values in drawn.items()} for row in range(count))


def probed_sizes(
    indices: NDArray[np.int64], reader: Reader, builder: InputBuilder, stages: Sequence[Stage]
) -> PartialSizes:
    """Find out how large partial volumes are, by making some.

    Args:
        indices: Samples in random order, of which the first are made.
        reader: Reader of the samples.
        builder: Builder of the random numbers.
        stages: The partial stages.

    Raises:
        SampleError: A sample cannot be used, and the reader does not replace bad ones.
    """
    probes = indices[:_PROBES]
    reading = [reader.read(probes[row : row + 1], np.zeros(1, np.int64)) for row in range(len(probes))]
    found = []
    for each, index in zip(reading, probes, strict=True):
        feeds, _ = builder.partial(np.array([index]), np.zeros(1, np.int64), each.result())
        (packed,), (drawn,) = feeds["sample"], _rows(feeds)
        try:
            found.append(partially(stages, packed, int(index), drawn).nbytes)
        except StageRaised as raised:
            raise LoaderError(raised.reason) from raised.__cause__
    sizes = np.array(found, np.float64)
    error = float(sizes.std()) / len(sizes) ** 0.5 if len(sizes) < len(indices) else 0.0
    return PartialSizes(None, float(sizes.mean()), float(sizes.std()), float(sizes.max()), error)
