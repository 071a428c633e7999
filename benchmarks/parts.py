"""What is the least that each part of a recipe costs? Minimal pipelines, one part each, on inputs made beforehand.

    partial-only   files, read ahead on threads ─▶ partial part ─▶ uint8 partial images
    final-only     partial images in memory ─▶ final part ─▶ float images

They are made of the library's own parts, but there is no planner, no store, no hit to tell from a miss and nothing
to draw. Partial images enter the final part as one DALI list per batch, which no cache of single images could do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import Any

import numpy as np
from harness import Contender, Placement
from numpy.typing import NDArray
from nvidia.dali.pipeline import Pipeline, pipeline_def

from dalirefurb import rng
from dalirefurb.graph import Graph, Part, final_part, partial_part
from dalirefurb.reader import Reader
from dalirefurb.recipe import Recipe, draw
from dalirefurb.source import Source

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
    """

    def __init__(self, recipe: Recipe, source: Source, *, batch_size: int, label: str = "") -> None:
        self._recipe = recipe
        self._label = label
        self._source = source
        self._batch_size = batch_size
        self._indices = rng.permutation(len(source), 0, "parts").reshape(-1, batch_size)
        self._partial_feeds, self._final_feeds = self._draw()
        self._blobs: dict[str, bytes] = {}

    def partial_only(self, placement: Placement) -> Contender:
        """Read, decode and do the partial part for every sample."""
        batches = self._run(self._trace_partial, placement, self._read(cycle(range(len(self._indices)))))
        return _contender(f"partial-only{self._label}", placement, batches)

    def final_only(self, placement: Placement) -> Contender:
        """Do the final part for every sample; `make_partial_images` comes first."""
        batches = self._run(self._trace_final, placement, cycle(self._final_feeds))
        return _contender(f"final-only{self._label}", placement, batches)

    def make_partial_images(self, placement: Placement) -> None:
        """Do the partial part of the epoch once, and keep the images in memory for the final part."""
        outputs = self._run(self._trace_partial, placement, self._read(range(len(self._indices))))
        for feeds, output in zip(self._final_feeds, outputs, strict=True):
            feeds["partial"] = output

    def _draw(self) -> tuple[list[Feeds], list[Feeds]]:
        """Draw all parameters of both parts, one entry per batch."""
        reader = Reader(self._source, max_batch_size=self._batch_size, num_threads=1)
        heights, widths = reader.sizes(self._indices.ravel())
        reader.close()
        feeds: list[list[Feeds]] = []
        for stages in (self._recipe.partial, self._recipe.final):
            arrays, heights, widths = draw(
                stages,
                seed=0,
                indices=self._indices.ravel(),
                numbers=np.zeros(self._indices.size, np.int64),
                heights=heights,
                widths=widths,
            )
            named = {f"{stage}/{name}": rows for stage, each in arrays.items() for name, rows in each.items()}
            batches = range(len(self._indices))
            feeds.append([{name: self._rows(rows, batch) for name, rows in named.items()} for batch in batches])
        return feeds[0], feeds[1]

    def _rows(self, rows: NDArray[Any], batch: int) -> NDArray[Any]:
        return rows[batch * self._batch_size : (batch + 1) * self._batch_size]

    def _read(self, batches: Iterable[int]) -> Generator[Feeds, None, None]:
        """Read batches some time before they are asked for."""
        with ThreadPoolExecutor(_READING_THREADS) as pool:
            ahead: deque[tuple[int, Future[list[NDArray[np.uint8]]]]] = deque()
            for batch in batches:
                ahead.append((batch, pool.submit(self._source.read, self._indices[batch])))
                if len(ahead) > _READ_AHEAD:
                    yield self._with_samples(*ahead.popleft())
            while ahead:
                yield self._with_samples(*ahead.popleft())

    def _with_samples(self, batch: int, reading: Future[list[NDArray[np.uint8]]]) -> Feeds:
        return {"sample": reading.result(), **self._partial_feeds[batch]}

    def _trace_partial(self) -> Any:
        names = {"sample", *self._partial_feeds[0]}
        return partial_part(self._recipe, self._nodes(names), "cpu")

    def _trace_final(self) -> Any:
        nodes = self._nodes({"partial", *self._final_feeds[0]})
        return final_part(self._recipe, nodes["partial"], nodes)

    def _nodes(self, names: set[str]) -> dict[str, Any]:
        parts: tuple[Part, ...] = ("partial", "final")
        inputs = [each for part in parts for each in Graph(self._recipe, part).inputs]
        return {declared.name: declared.node() for declared in inputs if declared.name in names}

    def _run(
        self, trace: Callable[[], Any], placement: Placement, feeds: Iterable[Feeds]
    ) -> Generator[Any, None, None]:
        """Yield outputs in order; the next batch is scheduled before the oldest is waited for."""
        pipelines = self._pipelines(trace, placement)
        in_flight: deque[Pipeline] = deque()
        for turn, feed in enumerate(feeds):
            pipeline = pipelines[turn % len(pipelines)]
            for name, values in feed.items():
                pipeline.feed_input(name, values)
            pipeline.schedule_run()
            in_flight.append(pipeline)
            if len(in_flight) > _in_flight(placement):
                yield _collect(in_flight.popleft())
        while in_flight:
            yield _collect(in_flight.popleft())

    def _pipelines(self, trace: Callable[[], Any], placement: Placement) -> Sequence[Pipeline]:
        return [
            Pipeline.deserialize(
                self._serialized(trace),
                num_threads=placement.threads,
                device_id=None,
                prefetch_queue_depth=1,
                exec_pipelined=True,
                exec_async=True,
                exec_dynamic=True,
            )
            for _ in range(placement.replicas)
        ]

    def _serialized(self, trace: Callable[[], Any]) -> bytes:
        """Trace a part once; tracing takes a second."""
        if trace.__name__ not in self._blobs:
            self._blobs[trace.__name__] = pipeline_def(enable_conditionals=True)(trace)(
                batch_size=self._batch_size, num_threads=1, device_id=None, prefetch_queue_depth=1
            ).serialize()
        return self._blobs[trace.__name__]


def _in_flight(placement: Placement) -> int:
    """Batches under way while the consumer has one, as many as in a loader: more only take memory and time."""
    return placement.replicas


def _collect(pipeline: Pipeline) -> Any:
    (output,) = pipeline.share_outputs()
    pipeline.release_outputs()
    return output


def _contender(name: str, placement: Placement, outputs: Generator[Any, None, None]) -> Contender:
    def batches() -> Generator[int, None, None]:
        try:
            for output in outputs:
                yield len(output)
        finally:
            outputs.close()

    return Contender(name, placement, _in_flight(placement), batches())
