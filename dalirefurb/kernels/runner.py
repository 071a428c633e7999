"""KernelRunner: kernels of one part of a recipe, or of both at once; only decoding is left to DALI.

samples ─▶ decoded by DALI, if encoded ─┬─▶ kernels ─▶ partial images ─┬─▶ results
                                 pinned ┘                       shared ┘

An image goes all its way at once, so that its partial image is still in the processor's cache when it is finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.dali import Feed
from dalirefurb.image_batch import Images, Rows, row_addresses
from dalirefurb.kernels.buffers import OutputBuffers
from dalirefurb.kernels.pipelines import DecodePipelines
from dalirefurb.kernels.program import KernelProgram, Work
from dalirefurb.kernels.rows import KernelThreadPool

_LET_PASS_S = 0.001
"""How long those who hand a batch over have Python's lock to themselves; whoever has it could keep it for 5 ms."""

_NO_ROWS = Rows(np.empty(0, np.int64), Images(()))


class _Batch(NamedTuple):
    """A batch on its way.

    Attributes:
        final: Parameters of the final part, for all rows of the batch.
        results: Array of what the model receives, for all rows of the batch; None if it receives nothing of it.
        targets: Addresses of the rows of `results`, int64 of shape (n,).
        work: Work that was begun for the batch.
    """

    final: Mapping[str, Feed]
    results: NDArray[Any] | None
    targets: NDArray[np.int64]
    work: Work


class KernelRunner:
    """Runs a program batch after batch. It has one owner thread; `submit` does not block, collecting does.

    Without pinned and shared rows it is a `PipelineRunner`: `collect` returns what the program ends with. Else
    `collect_partial` and then `finish` take its place.

    Args:
        program: Program of the steps.
        pipelines: Pipelines in which the kernels run.
        pool: Threads that help the owner to finish shared images.
        buffers: Buffers for partial images and results.
    """

    def __init__(
        self, program: KernelProgram, pipelines: DecodePipelines, pool: KernelThreadPool, buffers: OutputBuffers
    ) -> None:
        self._program = program
        self._pipelines = pipelines
        self._pool = pool
        self._buffers = buffers
        self._batches: deque[_Batch] = deque()
        self._collected: _Batch | None = None

    def submit(
        self,
        feeds: Mapping[str, Feed],
        final: Mapping[str, Feed] | None = None,
        *,
        rows: NDArray[np.int64] | None = None,
        count: int | None = None,
        pinned: Rows = _NO_ROWS,
    ) -> None:
        """Start one batch.

        Args:
            feeds: Samples of the rows to compute, and their parameters up to the split, or of all steps without one.
            final: Parameters behind the split, for all rows of the batch; None: there are none.
            rows: Rows of the batch that are to be computed, int64 of shape (n,); by default all.
            count: Number of rows of the batch; by default that of the samples.
            pinned: Rows of the batch whose partial images are there already, with these images.
        """
        final, output = final or {}, self._program.output
        count = len(feeds["sample"]) if count is None else count
        begun = np.concatenate([np.arange(count) if rows is None else rows, pinned.rows])
        results = None if output is None else self._buffers.results(output, count)
        targets = np.empty(0, np.int64) if results is None else row_addresses(results)
        work = self._program.work(
            feeds,
            pinned=pinned.images,
            final=_some(final, begun),
            reserve=self._buffers.partials,
            results=results,
            targets=targets if results is None else targets[begun],
        )
        self._pipelines.submit(work, feeds)
        self._batches.append(_Batch(final, results, targets, work))

    def collect_partial(self) -> Images:
        """Wait for the oldest batch; return the partial images of its computed rows, in their order.

        Raises:
            GraphError: If decoding failed; that batch is lost.
        """
        self._collected = batch = self._batches.popleft()
        self._pipelines.collect()
        return batch.work.partials

    def finish(self, shared: Iterable[Rows]) -> Images:
        """Finish the batch collected last, given its remaining rows with their partial images; return its results."""
        batch, self._collected = self._collected, None
        assert batch is not None
        for rows, images in shared:
            if len(rows):
                work = self._program.work(
                    {},
                    pinned=images,
                    final=_some(batch.final, rows),
                    results=batch.results,
                    targets=batch.targets[rows],
                )
                self._pool.share(work.part(np.arange(work.count)))
        return Images(batch.results)

    def collect(self) -> Images:
        """Wait for the oldest batch, all of whose rows are computed; return what the program ends with.

        Raises:
            GraphError: If decoding failed; that batch is lost.
        """
        partial = self.collect_partial()
        if self._program.output is not None:
            return self.finish(())
        self._collected = None
        return partial

    def handed_over(self) -> None:
        """Leave Python's lock to those who pass the batch on that was collected last.

        On few cores a batch takes so long to decode that there is time for it: then batches come at more regular times.
        """
        if self._pipelines.in_turn and self._batches:
            time.sleep(_LET_PASS_S)

    def restart(self) -> None:
        """Forget all batches in flight, once nothing reads what they were given."""
        self._pipelines.restart()
        self._batches.clear()
        self._collected = None


def _some(feeds: Mapping[str, Feed], rows: NDArray[np.int64]) -> dict[str, Feed]:
    """Return the parameters of some rows."""
    return {name: np.asarray(values)[rows] for name, values in feeds.items()}
