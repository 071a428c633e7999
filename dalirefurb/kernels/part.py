"""How does a part run without DALI, but for decoding? On threads that take a batch's rows in turn.

samples ─▶ decoded by DALI ─▶ kernels ─▶ images            a part that begins with encoded samples
           images ─────────▶ kernels ─▶ images             any other
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.background import Background, Job
from dalirefurb.errors import LoaderError
from dalirefurb.graph import Feed
from dalirefurb.images import Images, row_addresses
from dalirefurb.kernels.buffers import Buffers
from dalirefurb.kernels.decoding import Decoding
from dalirefurb.kernels.output import LANES
from dalirefurb.kernels.rows import FLOATS, HALVES, LEVELS, compile_run
from dalirefurb.kernels.steps import MIRROR, WIDTH, Step
from dalirefurb.recipe import Output

STREAMED_BYTES = 16 << 20
"""Results of a batch from which on they are streamed."""

Reserve = Callable[[int], Images | None]
"""Gives room for a number of images, or has none."""

_KINDS = {"float32": FLOATS, "float16": HALVES}


@dataclass
class _Batch:
    """A batch on its way.

    Attributes:
        feeds: What it was given.
        job: Done by several threads, which take its rows; None until it is begun, and where there are no rows.
        images: The results, once that is done.
    """

    feeds: Mapping[str, Feed]
    job: Job[None] | None = None
    images: Images | None = None


class KernelPart:
    """One part of a recipe. It has one owner thread; `submit` does not block, `collect` does.

    Args:
        steps: Of its stages, decoding excepted.
        output: What the model receives, if the part ends with it.
        entering: The input that holds images, or encoded samples: "sample" or "partial".
        decoding: Decodes, if they are encoded.
        cut: Whether decoding already cut the window of the first stage.
        workers: Threads for the kernels.
        num_workers: How many there are.
        most_results: Batches whose results are there at a time, those that were handed on included.
        reserve: Gives room for partial images, see `Store.reserve`.
    """

    def __init__(
        self,
        steps: tuple[Step, ...],
        output: Output | None,
        *,
        entering: str,
        decoding: Decoding | None,
        cut: bool,
        workers: Background,
        num_workers: int,
        most_results: int,
        reserve: Reserve | None = None,
    ) -> None:
        self._steps = steps
        self._output = output
        self._entering = entering
        self._decoding = decoding
        self._cut = cut
        self._workers = workers
        self._num_workers = num_workers
        self._reserve = reserve
        self._run = compile_run()
        self._buffers = Buffers(most_results)
        self._batches: deque[_Batch] = deque()
        self._inputs = [{name: f"{step.stage.name}/{name}" for name in step.stage.parameters} for step in steps]
        self._sizes = np.empty((len(steps) + 1, 0, 2), np.int64)
        self._codes = np.array([step.code for step in steps], np.int64)
        self._bilinear = np.array([step.bilinear for step in steps], np.bool_)
        self._fills = np.array([step.fill for step in steps], np.uint8).reshape(-1, 3)
        # As DALI computes them: in single precision, from numbers for levels 0 .. 255.
        self._means = np.array([255 * mean for mean in (output.mean if output else (0, 0, 0))], np.float32)
        self._scales = 1 / np.array([255 * std for std in (output.std if output else (1, 1, 1))], np.float32)
        levels = np.arange(256, dtype=np.float32)
        halves = ((levels - self._means[:, None]) * self._scales[:, None]).astype(np.float16)
        self._halves = halves.view(np.uint16)

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Start one batch."""
        batch = _Batch(feeds)
        if self._decoding is not None:
            self._decoding.submit(feeds)
        else:
            self._start(batch, Images.of(feeds[self._entering]))
        self._batches.append(batch)

    def collect(self) -> Images:
        """Take part in the oldest batch, and wait for it.

        Raises:
            GraphError: If decoding failed; that batch is lost.
        """
        batch = self._batches.popleft()
        if self._decoding is not None:
            self._start(batch, self._decoding.collect())
        if batch.job is not None:
            # Where the cores are busy, the thread that waits would be woken late, and so would those it wakes.
            batch.job.lend_a_hand()
            batch.job.result()
        assert batch.images is not None
        return batch.images

    def restart(self) -> None:
        """Forget all batches in flight, once nothing reads what they were given."""
        if self._decoding is not None:
            self._decoding.restart()
        for batch in self._batches:
            if batch.job is not None and not batch.job.cancel():
                wait([batch.job])
        self._batches.clear()

    def _start(self, batch: _Batch, images: Images) -> None:
        """Let the workers carry out all steps for some images."""
        count = len(images)
        origins, entering = images.places
        sizes = self._sizes_of(entering)
        numbers = self._numbers(batch.feeds, sizes)
        batch.images, targets = self._results(sizes[-1])
        output = self._output
        job = partial(
            _carry_out,
            (images, batch.images),
            self._run,
            self._codes,
            self._bilinear,
            self._fills,
            numbers,
            sizes,
            origins,
            targets,
            np.zeros(1, np.int64),
            _KINDS[output.dtype] if output else LEVELS,
            output.channels_last if output else True,
            output is not None and streamed(output, count),
            self._means,
            self._scales,
            self._halves,
        )
        if count:
            batch.job = self._workers.submit(job, min(self._num_workers, count))

    def _sizes_of(self, entering: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes of images before, between and after the steps, (s + 1, n, 2), given the first ones, (n, 2).

        Often they are those of the batch before.
        """
        if entering.tobytes() != self._sizes[0].tobytes():
            sizes = np.empty((len(self._steps) + 1, len(entering), 2), np.int64)
            sizes[0] = entering
            for place, step in enumerate(self._steps):
                heights, widths = step.stage.output_sizes(*sizes[place].T)
                sizes[place + 1, :, 0], sizes[place + 1, :, 1] = heights, widths
            self._check(sizes[-1])
            self._sizes = sizes
        return self._sizes

    def _check(self, sizes: NDArray[np.int64]) -> None:
        """Refuse results of sizes, (n, 2), that are not the output's."""
        if self._output is None:
            return
        size = self._output.size
        other = (sizes != size).any(axis=1)
        if other.any():
            height, width = sizes[other.argmax()]
            raise LoaderError(
                f"the last stage must leave images of the output's size {size} x {size}, got {height} x {width}; "
                f"end with a crop or a resize to that size"
            )

    def _numbers(self, feeds: Mapping[str, Feed], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Lay a batch's parameters out, given the sizes on the way, (s + 1, n, 2): (s, n, WIDTH)."""
        numbers = np.zeros((len(self._steps), sizes.shape[1], WIDTH))
        for step, inputs, rows, before in zip(self._steps, self._inputs, numbers, sizes, strict=False):
            step.write({name: np.asarray(feeds[place]) for name, place in inputs.items()}, tuple(before.T), rows)
            if step.mirror is not None:
                rows[:, MIRROR] = feeds[f"{step.mirror.name}/mirror"]
        if self._cut:
            numbers[0, :, :2] = 0
        return numbers

    def _results(self, sizes: NDArray[np.int64]) -> tuple[Images, NDArray[np.int64]]:
        """Make room for images of these sizes, (n, 2); return it, and the addresses, (n,)."""
        output, count = self._output, len(sizes)
        if output is None:
            if (sizes != sizes[0]).any():
                each = Images([np.empty((*size, 3), np.uint8) for size in sizes.tolist()])
                return each, each.places.addresses
            shape = *sizes[0].tolist(), 3
            room = None if self._reserve is None else self._reserve(count)
            if room is not None and room.kinds == {(np.dtype(np.uint8), shape)}:
                return room, room.places.addresses
            levels = self._buffers.take((count, *shape), "uint8")
            return Images(levels), row_addresses(levels)
        size = output.size
        shape = (size, size, 3) if output.channels_last else (3, size, size)
        results = self._buffers.take((count, *shape), output.dtype)
        return Images(results), row_addresses(results)


def streamed(output: Output, count: int) -> bool:
    """Tell whether results go past the caches, see `normalise`: of a batch that these would not hold for the model."""
    return output.dtype == "float32" and output.size % LANES == 0 and 12 * count * output.size**2 >= STREAMED_BYTES


def _carry_out(_: object, run: Callable[..., None], *arguments: Any) -> None:
    """Take rows until none is left; what addresses point to is kept meanwhile, whatever becomes of the part."""
    run(*arguments)
