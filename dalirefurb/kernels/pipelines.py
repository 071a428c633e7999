"""DecodePipelines: DALI's, with kernels right after decoding, and one without where nothing is decoded.

    batch ─┬─▶ pipeline: half of the bytes ─▶ decoded ─▶ kernels: these images, half of those that are pinned
           └─▶ pipeline: the others ────────▶ decoded ─▶ kernels: these images, the others that are pinned

Each pipeline takes one batch after the other: what a batch needs is done on all threads before the next one is decoded,
so that batches come at regular times. Where there are threads enough two pipelines decode: between two batches the
threads of a pipeline have nothing to do, since they wait for the last sample, and then while DALI prepares the next
batch. Those of the other one work meanwhile. Most of the time goes by bytes, so that halves of these are done at about
the same time.

Kernels are an operator of the pipeline: they begin when the last image is there, and the next batch is decoded when
they are through, whatever Python does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import types as dali_types
from nvidia.dali.pipeline import Pipeline

from dalirefurb.dali import REPLICA_OPTIONS, Feed, Graph, GraphError, Input, Replica
from dalirefurb.dali.insides import operator_of_addresses, run_signature, setup_signature
from dalirefurb.image_batch import decoded_rows
from dalirefurb.kernels.llvm import c_function, memory
from dalirefurb.kernels.program import Work
from dalirefurb.kernels.record import WORK
from dalirefurb.kernels.rows import KernelThreadPool, share

TASK = np.dtype([("work", np.int64), ("rows", np.int64), ("pool", np.int64), ("wrong", np.int64)])
"""What the operator is given: the address of a `WORK`, and of which of its batch's rows were decoded, int64; the
address of a `POOL`; and where it says how many rows are of the size that is expected, before one that is not."""

_NO_ROWS = np.empty(0, np.int64)

TASKS = Input("task", "int64", 1)
"""The pipeline's input: the address of a task."""


def build_pipeline(graph: Graph | None, *, max_rows: int, num_threads: int) -> Pipeline:
    """Build a pipeline that does the task of its first row once a graph has made its images; it returns nothing of use.

    Args:
        graph: Graph that makes the images; None: there are none.
        max_rows: Largest number of rows that enter the graph at a time.
        num_threads: Number of CPU threads of the graph.
    """
    threads = num_threads if graph else 1
    pipeline = Pipeline(batch_size=max_rows, num_threads=threads, device_id=None, **REPLICA_OPTIONS)
    with pipeline:
        inputs = [TASKS.node(), *([graph.trace()] if graph else [])]
        operator = operator_of_addresses()(
            _compile_operate().address,
            [dali_types.UINT8],
            [dali_types.INT64, dali_types.UINT8][: len(inputs)],
            [1],
            [1, 3][: len(inputs)],
            setup_fn=_compile_setup().address,
            batch_processing=True,
        )
        pipeline.set_outputs(operator(*inputs))
    pipeline.build()
    return pipeline


def compile_operator() -> tuple[Any, Any]:
    """Compile what DALI's operator calls: for the sizes of its outputs, and to carry out a batch."""
    return _compile_setup(), _compile_operate()


@cache
def _compile_setup() -> Any:
    """Compile what says how large outputs are: a byte each."""

    def setup(shapes: Any, _: Any, outputs: Any, __: Any, ___: Any, inputs: Any, rows: Any) -> None:
        for shape in memory(np.int64(shapes), (rows,), np.int64):
            memory(shape, (1,), np.int64)[0] = 1

    return c_function(setup, setup_signature())


@cache
def _compile_operate() -> Any:
    def carry_out(
        _: Any, __: Any, ___: Any, outputs: Any, samples: Any, shapes: Any, ____: Any, inputs: Any, rows: Any
    ) -> None:
        places = memory(np.int64(samples), (inputs, rows), np.int64)
        given = memory(memory(places[0, 0], (1,), np.int64)[0], (1,), TASK)[0]
        work = memory(given.work, (1,), WORK)[0]
        if inputs > 1:
            sides = memory(np.int64(shapes), (inputs, rows), np.int64)
            expected = memory(work.sizes, (work.count, 2), np.int64)
            origins = memory(work.origins, (work.count,), np.int64)
            decoded = memory(given.rows, (rows,), np.int64)
            for i in range(rows):
                height_and_width, row = memory(sides[1, i], (2,), np.int64), decoded[i]
                if height_and_width[0] != expected[row, 0] or height_and_width[1] != expected[row, 1]:
                    given.wrong = i
                    return
                origins[row] = places[1, i]
        share(given.pool, given.work)

    return c_function(carry_out, run_signature())


_SHARES = 2
_LEAST_THREADS = 2

LAST = 16
"""Rows with little to do at the end of a batch, so that all threads are through at about the same time."""


def shared_out(num_threads: int) -> tuple[int, int]:
    """Return how many pipelines decode, and the threads of each.

    More would add work to each batch, and no work to do meanwhile; one with a single thread takes more of its core for
    the same images.
    """
    shares = _SHARES if num_threads >= _SHARES * _LEAST_THREADS else 1
    return shares, -(-num_threads // shares)


class DecodePipeline:
    """A pipeline that has kernels as an operator. It has one owner thread; `submit` does not block, `collect` does.

    Args:
        graph: Graph that is carried out before the kernels; None: there is none.
        max_rows: Largest number of rows that enter the graph at a time.
        num_threads: Number of CPU threads of the graph, and of the kernels.
    """

    def __init__(self, graph: Graph | None, *, max_rows: int, num_threads: int) -> None:
        # The pipeline's own thread takes rows, too. Where it decodes, one more sees to it that no core is without one
        # if the system puts two on the same, and that beside two busy processes on two cores a loader keeps 1.06 times
        # the share that stock DALI keeps, not 0.96.
        self.pool = KernelThreadPool(num_threads if graph else num_threads - 1)
        build = partial(build_pipeline, graph, max_rows=max_rows, num_threads=num_threads)
        self._replica = Replica((TASKS, *(graph.inputs if graph else ())), build)
        self._tasks: deque[tuple[NDArray[Any], Work]] = deque()

    def submit(self, work: Work, feeds: Mapping[str, Feed], rows: NDArray[np.int64] = _NO_ROWS) -> None:
        """Start some work.

        Args:
            work: Work to do once the rows that enter the graph are decoded.
            feeds: Inputs of the graph, by name.
            rows: Rows of the batch that enter the graph, int64 of shape (n,), as many as each of its inputs has.

        Raises:
            LoaderError: If there is no memory for it.
        """
        self.pool.start()
        work = self.pool.provided(work)
        given = np.array([(work.record.ctypes.data, rows.ctypes.data, self.pool.address, -1)], TASK)
        addresses = np.full((max(1, len(rows)), 1), given.ctypes.data, np.int64)
        self._replica.submit({TASKS.name: addresses, **feeds}, kept=(given, rows, work, self.pool))
        self._tasks.append((given, work))

    def collect(self) -> None:
        """Wait for the oldest work.

        Raises:
            GraphError: If something failed; that work is lost.
        """
        given, work = self._tasks.popleft()
        self._replica.collect()
        if (row := int(given["wrong"][0])) >= 0:
            raise GraphError("the decoded image is of another size than its header says", row)
        work.check()

    def restart(self) -> None:
        """Forget all work in flight, once nobody does it."""
        self._replica.restart()
        self._tasks.clear()


class DecodePipelines:
    """Deals work out. It has one owner thread; `submit` does not block, `collect` does.

    Args:
        decoding: Pipelines that decode the samples of the rows that are computed, if these samples are encoded.
        direct: Pipeline that runs the kernels without decoding.
    """

    def __init__(self, decoding: Sequence[DecodePipeline], direct: DecodePipeline) -> None:
        self._decoding = tuple(decoding)
        self._direct = direct
        self._running: deque[list[tuple[DecodePipeline, NDArray[np.int64]]]] = deque()

    @property
    def in_turn(self) -> bool:
        """Whether one batch is decoded after the other."""
        return len(self._decoding) == 1

    def submit(self, work: Work, feeds: Mapping[str, Feed]) -> None:
        """Start a batch's work.

        Args:
            work: Work of the whole batch.
            feeds: Inputs of the graph that decodes, by name.
        """
        rows, encoded = np.arange(work.count), _NO_ROWS
        if self._decoding and work.computed:
            encoded = np.delete(rows[: work.computed], decoded_rows(feeds["sample"]))
        if not len(encoded):
            self._direct.submit(work.part(_mixed(rows[: work.computed], rows[work.computed :])), {})
            self._running.append([(self._direct, _NO_ROWS)])
            return
        shares = [encoded[start:stop] for start, stop in pairwise(self._bounds(_some(feeds["sample"], encoded)))]
        pipelines = [(pipeline, own) for pipeline, own in zip(self._decoding, shares, strict=True) if len(own)]
        at_hand = np.array_split(np.delete(rows, encoded), len(pipelines))
        for (pipeline, own), others in zip(pipelines, at_hand, strict=True):
            some = {name: _some(feed, own) for name, feed in feeds.items()}
            pipeline.submit(work.part(_mixed(own, others)), some, own)
        self._running.append(pipelines)

    def _bounds(self, samples: Feed) -> list[int]:
        """Return where the share of each pipeline that decodes begins among samples, and where the last one ends."""
        if self.in_turn:
            return [0, len(samples)]
        sizes = np.array([sample.nbytes for sample in samples])
        middles = np.cumsum(sizes) - sizes / 2
        shares = sizes.sum() * np.arange(1, len(self._decoding)) / len(self._decoding)
        return [0, *np.searchsorted(middles, shares).tolist(), len(sizes)]

    def collect(self) -> None:
        """Wait for the oldest batch's work.

        Raises:
            GraphError: If decoding failed; that batch is lost.
        """
        errors = [_collected(pipeline, rows) for pipeline, rows in self._running.popleft()]
        for error in filter(None, errors):
            raise error

    def restart(self) -> None:
        """Forget all batches in flight, once nobody works on them."""
        self._running.clear()
        for pipeline in (*self._decoding, self._direct):
            pipeline.restart()

    def pools(self) -> list[KernelThreadPool]:
        """Return the threads of all."""
        return [pipeline.pool for pipeline in (*self._decoding, self._direct)]


def _mixed(computed: NDArray[np.int64], pinned: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return in which order rows are begun: those that are pinned between those that are computed, the `LAST` behind.

    Of what is pinned often little is left to do but to write results to memory, for which cores that all do so wait.
    """
    between, last = pinned[:-LAST], pinned[-LAST:]
    places = np.arange(len(computed)) * len(between) // max(len(computed), 1)
    return np.concatenate([np.insert(between, places, computed), last])


def _some(feed: Feed, rows: NDArray[np.int64]) -> Feed:
    """Return some of an input's rows, shape (n,), ascending."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return feed[rows[0] : rows[-1] + 1]
    return feed[rows] if isinstance(feed, np.ndarray) else [feed[row] for row in rows.tolist()]


def _collected(pipeline: DecodePipeline, rows: NDArray[np.int64]) -> GraphError | None:
    """Wait for a pipeline's oldest work, of which these rows were decoded; return what failed."""
    try:
        pipeline.collect()
    except GraphError as error:
        if error.row is not None:
            error.row = int(rows[error.row])
        return error
    return None
