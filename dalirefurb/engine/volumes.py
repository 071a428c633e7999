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

from dalirefurb import rng
from dalirefurb.augment.output import VolumeOutput
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage
from dalirefurb.augment.stages.custom import HostStage
from dalirefurb.augment.volumes.stages import VolumeStage
from dalirefurb.augment.volumes.voxels import AFFINE, AXES, Function, Shape, Voxels
from dalirefurb.dali import Feed
from dalirefurb.engine.cache_client import CachePlan
from dalirefurb.engine.finals import Final
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.engine.partial_sizes import PartialSizes
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Arrays, Image, Images, unpack
from dalirefurb.kernels.buffers import Buffers
from dalirefurb.kernels.host import StageRaised
from dalirefurb.kernels.volumes import gather, resample, smooth
from dalirefurb.reading.reader import Reader
from dalirefurb.source.volumes import FOREGROUND, IMAGE, MASK, chosen, foreground_of, pack_volume, volume_of
from dalirefurb.system.threads import Background

_PROBES = 4
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


class Shown(Voxels):
    """What stages have made of a volume, so far.

    Args:
        volume: The volume, with the labels of its voxels if there are any.

    Attributes:
        volume: What was made last; the rest is said of this.
    """

    def __init__(self, volume: Arrays) -> None:
        self._take(volume)

    def _take(self, volume: Arrays) -> None:
        """Go on from a volume."""
        self.volume = volume
        _, depth, height, width = volume[IMAGE].shape
        self._begin((depth, height, width))

    def foreground(self) -> NDArray[np.int32]:
        if self.moved:
            self.make()
        if FOREGROUND not in self.volume:
            listed = foreground_of(self.volume[MASK]) if MASK in self.volume else np.empty((0, AXES), np.int32)
            self.volume = {**self.volume, FOREGROUND: listed}
        return self.volume[FOREGROUND]

    def made(self) -> dict[str, NDArray[Any]]:
        """Return what is shown, as a volume of its own; views, if nothing was changed."""
        given = {name: self.volume[name] for name in (IMAGE, MASK) if name in self.volume}
        if not self.moved and not self.single:
            return given
        whole = not self.padded or _holds(given[IMAGE].dtype, self.fill)
        dtype = given[IMAGE].dtype if whole and not self.single else np.dtype(np.float32)
        shape: tuple[int, ...] = tuple(self.shape)
        image = np.empty((len(given[IMAGE]), *shape), dtype)
        mask = np.empty(shape, given[MASK].dtype) if MASK in given else None
        self.write(image, mask)
        return {IMAGE: image} if mask is None else {IMAGE: image, MASK: mask}

    def write(
        self, image: NDArray[Any], mask: NDArray[Any] | None, last: Sequence[tuple[int, float, float]] = ()
    ) -> None:
        """Write what is shown, when further steps are done: its values, (C, D, H, W), and its labels."""
        steps = np.array([*self.steps, *last], np.float32).reshape(-1, 3)
        fill = np.float32(self.fill)
        for kind, one, other in steps[self.filled_after :]:
            fill = fill * one + other if kind == AFFINE else min(max(fill, one), other)
        for channel, made in zip(self.volume[IMAGE], image, strict=True):
            gather(channel, self, float(fill), steps, made)
        if mask is not None:
            gather(self.volume[MASK], self, 0.0, steps[:0], mask)

    def make(self) -> None:
        self._take(self.made())

    def smooth(self, sigma: float) -> None:
        self.single = True
        made = self.made()
        smooth(made[IMAGE], sigma)
        self._take(made)

    def compute(self, function: Function) -> None:
        self.single = True
        made = self.made()
        shape = made[IMAGE].shape
        made[IMAGE] = np.ascontiguousarray(function(made[IMAGE]), np.float32)
        if made[IMAGE].shape != shape:
            raise LoaderError(
                f"what a stage of volumes computes must have the shape of its image, {shape}, but has "
                f"{made[IMAGE].shape}: crop, or resample, to make another one"
            )
        self._take(made)

    def resample(self, matrix: NDArray[np.float64], shape: Shape, fill: float = 0.0) -> None:
        """Show what a map leads to; of what other stages have changed no more is made than that."""
        matrix, begin, made = np.asarray(matrix, np.float64), (0, 0, 0), self.volume
        full = tuple(self.shape)
        if self.moved or self.steps:
            corners = np.array(list(np.ndindex(2, 2, 2))) * (np.array(shape) - 1)
            reached = corners @ matrix[:, :AXES].T + matrix[:, AXES]
            first = np.clip(np.floor(reached.min(axis=0)).astype(np.int64) - 1, 0, np.array(full) - 1)
            stop = np.clip(np.floor(reached.max(axis=0)).astype(np.int64) + 3, first + 1, full)
            if not self.padded:  # Else there are two fills.
                begin = tuple(first.tolist())
                self.crop(begin, tuple((stop - first).tolist()))
            made = self.made()
        image = np.empty((len(made[IMAGE]), *shape), np.float32)
        for channel, result in zip(made[IMAGE], image, strict=True):
            resample(channel, begin, full, matrix, fill, result)
        volume = {IMAGE: image}
        if MASK in made:
            volume[MASK] = np.empty(shape, made[MASK].dtype)
            resample(made[MASK], begin, full, matrix, 0.0, volume[MASK])
        self._take(volume)


def _holds(dtype: np.dtype[Any], fill: float) -> bool:
    """Tell whether a type has a number."""
    return dtype.kind == "f" or (fill == np.rint(fill) and np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max)


def carried_through(stages: Sequence[Stage], volume: Arrays, drawn: Drawn, sample: int) -> Shown:
    """Carry stages out on a volume, with its random numbers of each.

    Raises:
        StageRaised: If a function of the user's raised an error, or makes no volume.
    """
    shown = Shown(volume)
    for stage in stages:
        uniforms = np.asarray(drawn.get(f"{stage.name}/uniforms", ()), np.float64)
        if isinstance(stage, HostStage):
            shown = Shown(_called(stage, shown.made(), uniforms, sample))
        else:
            assert isinstance(stage, VolumeStage)
            stage.change(shown, uniforms)
    return shown


def _called(stage: HostStage, volume: Arrays, uniforms: NDArray[np.float64], sample: int) -> Arrays:
    """Call a function of the user's with copies of a volume's arrays; return what it makes of them."""
    given: Any = {name: each.copy() for name, each in volume.items()}
    try:
        function: Callable[..., Any] = stage.function
        made = function(given, rng.generator(uniforms)) if stage.num_uniforms else function(given)
        return volume_of(*chosen(made, tuple(volume)))
    except Exception as error:
        raise StageRaised(stage, sample, error) from error


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
        rows = zip(Images.of(feeds["sample"]), np.asarray(feeds["index"]).tolist(), _rows(feeds), strict=True)
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
    return pack_volume(carried_through(stages, unpack(packed), drawn, sample).made()) if stages else packed


class FinalVolumes(Final):
    """Carries the final stages out.

    Args:
        recipe: The recipe.
        input_builder: Builder of the random numbers.
        pool: Threads that do it.
        masked: Whether there are labels of voxels.
        most_groups: Number of groups whose volumes are there at the same time.
    """

    def __init__(
        self, recipe: Recipe, input_builder: InputBuilder, pool: Background, *, masked: bool, most_groups: int
    ) -> None:
        assert isinstance(recipe.output, VolumeOutput)
        self._masked = masked
        self._stages, self._output = recipe.final, recipe.output
        self._input_builder = input_builder
        self._pool = pool
        self._images, self._masks = Buffers(most_groups), Buffers(most_groups)
        self._begun: deque[tuple[VolumeBatch, list[Future[None]]]] = deque()

    def submit(self, cache_plan: CachePlan, feeds: dict[str, Feed] | None = None) -> None:
        assert feeds is None
        packed, output = cache_plan.partial_images(), self._output
        final = self._input_builder.final_parameters(cache_plan.plan, cache_plan.shown, packed.places.sizes)
        images = self._images.take((len(packed), output.channels, *output.size), output.dtype)
        masks = self._masks.take((len(packed), *output.size), output.mask_dtype) if self._masked else None
        batch = VolumeBatch(images, masks)
        rows = zip(packed, cache_plan.shown.tolist(), _rows(final), strict=True)
        self._begun.append((batch, [self._pool.submit(partial(self._finish, batch, *row)) for row in enumerate(rows)]))

    def collect(self) -> VolumeBatch:
        batch, jobs = self._begun.popleft()
        _results(jobs)
        return batch

    def restart(self) -> None:
        while self._begun:
            for each in self._begun.popleft()[1]:
                each.cancel()

    def _finish(self, batch: VolumeBatch, row: int, given: tuple[Image, int, Drawn]) -> None:
        """Make a row of a batch."""
        packed, sample, drawn = given
        shown, output = carried_through(self._stages, unpack(packed), drawn, sample), self._output
        there = len(shown.volume[IMAGE]), *shown.shape
        if there != (output.channels, *output.size):
            raise LoaderError(
                f"the last stage must leave volumes of the output's {output.channels} channel(s) of "
                f"{output.sides_text}, but of sample {sample} it leaves {there[0]} of "
                f"{' x '.join(map(str, there[1:]))}: end with a crop of that size, or pass channels= to VolumeOutput"
            )
        made, mask = batch.images[row], None if batch.masks is None else batch.masks[row]
        labels = shown.volume.get(MASK)
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
) -> tuple[int, PartialSizes]:
    """Find out how large volumes are, as they are read and as partial ones, by making some.

    Args:
        indices: Samples in random order, of which the first are made.
        reader: Reader of the samples.
        builder: Builder of the random numbers.
        stages: The partial stages.

    Returns:
        The mean bytes of those that were read, and the sizes of the partial ones.

    Raises:
        SampleError: A sample cannot be used, and the reader does not replace bad ones.
        LoaderError: A function of the user's raised an error.
    """
    read, made = [], []
    probes = [np.array([index]) for index in indices[:_PROBES]]
    version = np.zeros(1, np.int64)
    reading = [reader.read(index, version) for index in probes]  # side by side
    for index, each in zip(probes, reading, strict=True):
        feeds, _ = builder.partial(index, version, reader.waited_for(each))
        (packed,), (drawn,) = feeds["sample"], _rows(feeds)
        read.append(packed.nbytes)
        try:
            made.append(partially(stages, packed, int(index[0]), drawn).nbytes)
        except StageRaised as raised:
            raise LoaderError(raised.reason) from raised.__cause__
    return round(np.mean(read)), PartialSizes.seen(np.array(made, np.float64), len(indices))
