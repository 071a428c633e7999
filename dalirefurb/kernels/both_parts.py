"""Kernels of both parts at once: what is pinned is finished together with what was decoded.

samples ─▶ decoded by DALI, if encoded ─┬─▶ kernels ─▶ partial images ─┬─▶ results
                                   lent ┘                     borrowed ┘

An image goes all its way at once, so that its partial image is still in the processor's cache when it is finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.dali import Feed
from dalirefurb.image_batch import Images, Rows, row_addresses
from dalirefurb.kernels.lower import KernelOp
from dalirefurb.kernels.output_buffers import OutputBuffers, Reserve
from dalirefurb.kernels.pipelines import DecodePipelines
from dalirefurb.kernels.program import KernelProgram, Work
from dalirefurb.kernels.thread_pool import KernelThreadPool

_LET_PASS_S = 0.001
"""How long those who hand a batch over have Python's lock to themselves; whoever has it could keep it for 5 ms."""


class _Batch(NamedTuple):
    """A batch on its way.

    Attributes:
        final: Parameters of the final part, for all rows of the batch.
        results: Array of what the model receives, for all rows of the batch.
        targets: Addresses of the rows of `results`, int64 of shape (n,).
        work: Work that was begun for the batch.
    """

    final: Mapping[str, Feed]
    results: NDArray[Any]
    targets: NDArray[np.int64]
    work: Work


class BothParts:
    """Both parts of a recipe. It has one owner thread; `submit` does not block, `collect` does.

    Args:
        partial: Kernel operations of the stages of the partial part, decoding excepted.
        final: Kernel operations of the stages of the final part.
        output: Output that the model receives.
        pipelines: Pipelines in which the kernels run.
        pool: Threads that help the owner to finish partial images that are borrowed.
        encoded: Whether samples are decoded by the pipelines.
        window: Name of the stage whose window the pipelines cut when they decode; None: they cut none.
        most_results: Number of batches whose results are there at the same time, those that were handed on included.
        reserve: Function that gives room for partial images, see `Store.reserve`.
    """

    def __init__(
        self,
        partial: tuple[KernelOp, ...],
        final: tuple[KernelOp, ...],
        output: Output,
        *,
        pipelines: DecodePipelines,
        pool: KernelThreadPool,
        encoded: bool = False,
        window: str | None = None,
        most_results: int,
        reserve: Reserve | None = None,
    ) -> None:
        self._program = KernelProgram((*partial, *final), output, split=len(partial), encoded=encoded, window=window)
        self._output = output
        self._pipelines = pipelines
        self._pool = pool
        self._buffers = OutputBuffers(most_results, reserve)
        self._batches: deque[_Batch] = deque()

    def submit(
        self, rows: NDArray[np.int64], partial: Mapping[str, Feed], final: Mapping[str, Feed], count: int, lent: Rows
    ) -> None:
        """Start one batch.

        Args:
            rows: Rows of the batch that are to be computed, int64 of shape (n,).
            partial: Samples of the rows that are to be computed, and their parameters of the partial part.
            final: Parameters of the final part, for all rows of the batch.
            count: Number of rows of the batch.
            lent: Rows of the batch whose partial images are there already, with these images.
        """
        results = self._buffers.results(self._output, count)
        targets = row_addresses(results)
        begun = np.concatenate([rows, lent.rows])
        work = self._program.work(
            partial,
            lent=lent.images,
            final=_some(final, begun),
            reserve=self._buffers.partials,
            results=results,
            targets=targets[begun],
        )
        self._pipelines.submit(work, partial)
        self._batches.append(_Batch(final, results, targets, work))

    def collect(self, borrowed: Callable[[Images], Iterable[Rows]]) -> Images:
        """Wait for the oldest batch, and finish what is left of it.

        Args:
            borrowed: Function that takes the partial images of the rows that were computed, in the order of these rows,
                and returns the remaining rows with their partial images.

        Returns:
            What the model receives.

        Raises:
            GraphError: If decoding failed; that batch is lost.
        """
        batch = self._batches.popleft()
        self._pipelines.collect()
        for rows in borrowed(batch.work.partials):
            if len(rows.rows):
                work = self._program.work(
                    {},
                    lent=rows.images,
                    final=_some(batch.final, rows.rows),
                    results=batch.results,
                    targets=batch.targets[rows.rows],
                )
                self._pool.share(work.part(np.arange(work.count)))
        return Images(batch.results)

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


def _some(feeds: Mapping[str, Feed], rows: NDArray[np.int64]) -> dict[str, Feed]:
    """Return the parameters of some rows."""
    return {name: np.asarray(values)[rows] for name, values in feeds.items()}
