"""The least that each part of a recipe costs: one part at a time, on inputs made beforehand.

    partial-only   files, read ahead on threads ─▶ partial part ─▶ uint8 partial images
    final-only     partial images in memory ─▶ final part ─▶ float images

Each is run by what runs it in a loader, but there is no planner, no store, no hit to tell from a miss and nothing to
draw. Partial images enter the final part as one array per batch, which no cache of single images could do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from typing import Any

import harness
import numpy as np
from harness import Contender, Placement, Slice
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import draw
from dalirefurb.dali import Part
from dalirefurb.engine.backend_factory import BackendFactory
from dalirefurb.engine.kernel_choice import Devices, Kernels, choose_kernels
from dalirefurb.engine.prefetch import Depths
from dalirefurb.image_batch import Images, Rows
from dalirefurb.kernels.runner import KernelRunner
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source

PARTIAL_ONLY = "partial-only"
FINAL_ONLY = "final-only"

_READING_THREADS = 4
_READ_AHEAD = 4

Feeds = dict[str, Any]
"""Inputs of a pipeline for one batch, by name."""


class Parts:
    """The two parts of one recipe, each alone, on one epoch of a source's samples, endlessly repeated.

    Args:
        recipe: Where it splits.
        source: What the partial part reads.
        batch_size: Of both parts; a divisor of the number of samples.
        label: Added to the contenders' names, for those of several recipes to differ.
        kernels: As a loader's.
    """

    def __init__(
        self, recipe: Recipe, source: Source, *, batch_size: int, label: str = "", kernels: Kernels | None = None
    ) -> None:
        self._recipe = recipe
        self._kernels = choose_kernels(kernels, recipe, Devices())
        self._label = label
        self._source = source
        self._batch_size = batch_size
        self._indices = rng.permutation(len(source), 0, "parts").reshape(-1, batch_size)
        self._partial_feeds, self._final_feeds = self._draw()

    def calibrate(
        self, *, rounds: int, timed_batches: int, timed_s: float = 0.0
    ) -> tuple[Placement, Placement, list[Slice]]:
        """Make partial images; return the best placement of each part, and the slices of all that were tried."""
        sizes: dict[str, Any] = {"rounds": rounds, "timed_batches": timed_batches, "timed_s": timed_s}
        partial, partial_slices = harness.calibrate(self.partial_only, **sizes)
        self.make_partial_images(partial)
        final, final_slices = harness.calibrate(self.final_only, **sizes)
        return partial, final, [*partial_slices, *final_slices]

    def partial_only(self, placement: Placement) -> Contender:
        """Read, decode and do the partial part for every sample."""
        batches = self._run("partial", placement, self._read(cycle(range(len(self._indices)))))
        return _contender(f"{PARTIAL_ONLY}{self._label}", placement, batches)

    def final_only(self, placement: Placement) -> Contender:
        """Do the final part for every sample; `make_partial_images` comes first."""
        batches = self._run("final", placement, cycle(self._final_feeds))
        return _contender(f"{FINAL_ONLY}{self._label}", placement, batches)

    def alone(self, stack: ExitStack, partial: Placement, final: Placement) -> list[Contender]:
        """Return both parts, each at its placement; the stack ends them."""
        alone = [self.partial_only(partial), self.final_only(final)]
        for each in alone:
            stack.callback(each.batches.close)
        return alone

    def make_partial_images(self, placement: Placement) -> None:
        """Do the partial part of the epoch once, and keep copies of the images in memory for the final part."""
        outputs = self._run("partial", placement, self._read(range(len(self._indices))))
        for feeds, output in zip(self._final_feeds, outputs, strict=True):
            dense = output.is_dense_tensor()
            feeds["partial"] = np.array(output.as_tensor()) if dense else [np.array(image) for image in output]

    def _draw(self) -> tuple[list[Feeds], list[Feeds]]:
        """Draw all parameters of both parts, one entry per batch."""
        reader = Reader(self._source, max_batch_size=self._batch_size, num_threads=1)
        heights, widths = reader.sizes(self._indices.ravel())
        reader.close()
        sizes = np.stack((heights, widths), axis=1)
        feeds: list[list[Feeds]] = []
        for stages in (self._recipe.partial, self._recipe.final):
            arrays, heights, widths = draw(
                stages,
                seed=0,
                indices=self._indices.ravel(),
                numbers=np.zeros(self._indices.size, np.int64),
                versions=np.zeros(self._indices.size, np.int64),
                heights=heights,
                widths=widths,
            )
            named = {f"{stage}/{name}": rows for stage, each in arrays.items() for name, rows in each.items()}
            named["sizes"] = sizes
            starts = range(0, self._indices.size, self._batch_size)
            feeds.append(
                [{name: rows[start : start + self._batch_size] for name, rows in named.items()} for start in starts]
            )
        return feeds[0], feeds[1]

    def _read(self, batches: Iterable[int]) -> Generator[Feeds, None, None]:
        """Read batches some time before they are asked for."""

        def with_samples(batch: int, reading: Future[list[NDArray[np.uint8]]]) -> Feeds:
            return {"sample": reading.result(), **self._partial_feeds[batch]}

        with ThreadPoolExecutor(_READING_THREADS) as pool:
            ahead: deque[tuple[int, Future[list[NDArray[np.uint8]]]]] = deque()
            for batch in batches:
                ahead.append((batch, pool.submit(self._source.read, self._indices[batch])))
                if len(ahead) > _READ_AHEAD:
                    yield with_samples(*ahead.popleft())
            while ahead:
                yield with_samples(*ahead.popleft())

    def _run(self, part: Part, placement: Placement, feeds: Iterable[Feeds]) -> Generator[Any, None, None]:
        """Yield outputs in order; the next batch is started before the oldest is waited for.

        As many as in a loader are under way while the consumer has one: more only take memory and time.
        """
        factory = self._factory(placement)
        try:
            by_kernels = part == "final" and self._kernels == "numba"
            runner = _FinalKernels(factory.build_both()) if by_kernels else factory.build(part)
            submitted = 0
            for submitted, feed in enumerate(feeds, 1):
                runner.submit(feed)
                if submitted > placement.replicas:
                    yield runner.collect()
            for _ in range(min(submitted, placement.replicas)):
                yield runner.collect()
        finally:
            factory.close()

    def _factory(self, placement: Placement) -> BackendFactory:
        depths = Depths(
            replicas=placement.replicas,
            final_replicas=placement.replicas,
            threads_each=placement.threads,
            batches_per_group=1,
            hits_per_group=1,
            look_ahead=placement.replicas,
            admitted=0,
            announced=0,
        )
        return BackendFactory(self._recipe, self._kernels, Devices(), max_rows=self._batch_size, depths=depths)


class _FinalKernels:
    """Kernels of both parts, given batches whose partial images are all there."""

    def __init__(self, runner: KernelRunner) -> None:
        self._runner = runner

    def submit(self, feeds: Feeds) -> None:
        """Start one batch, of images named "partial"."""
        images = Images.of(feeds["partial"])
        rows = Rows(np.arange(len(images)), images)
        final = {name: values for name, values in feeds.items() if "/" in name}
        self._runner.submit({}, final, rows=np.empty(0, np.int64), count=len(images), pinned=rows)

    def collect(self) -> Any:
        """Wait for the oldest batch."""
        return self._runner.collect()


def both(partial: Iterable[float], final: Iterable[float]) -> list[float]:
    """Return the images/s of each round at which one part after the other is done."""
    return [1 / (1 / p + 1 / f) for p, f in zip(partial, final, strict=True)]


def fastest(*ways: Sequence[float]) -> list[float]:
    """Return the images/s of each round of whoever was fastest in it."""
    return [max(each) for each in zip(*ways, strict=True)]


def bound(whole: Iterable[float], final: Iterable[float], computed: float) -> list[float]:
    """Return the images/s of each round that the costs of the parts allow.

    A part costs what the fastest way of doing it took that was seen in the round: what is bounded cannot do it faster,
    for it is among those who did it, or does the same.

    Args:
        whole: Images/s of both parts, one figure per round.
        final: Images/s of the final part, likewise.
        computed: Partial images that are computed for each image that is served.
    """
    return [1 / (computed * (1 / w - 1 / f) + 1 / f) for w, f in zip(whole, final, strict=True)]


def _contender(name: str, placement: Placement, outputs: Generator[Any, None, None]) -> Contender:
    def batches() -> Generator[int, None, None]:
        try:
            for output in outputs:
                yield len(output)
        finally:
            outputs.close()

    return Contender(name, placement, placement.replicas, batches(), rotation=placement.replicas)
