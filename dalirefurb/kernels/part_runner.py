"""One part without DALI's operators, but for decoding: threads take a batch's rows in turn.

samples ─▶ decoded by DALI ─▶ kernels ─▶ images            a part that begins with encoded samples
           images ─────────▶ kernels ─▶ images             any other
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from dalirefurb.augment.output import Output
from dalirefurb.dali import Feed
from dalirefurb.image_batch import Images, row_addresses
from dalirefurb.kernels.lower import KernelOp
from dalirefurb.kernels.output_buffers import OutputBuffers, Reserve
from dalirefurb.kernels.pipelines import DecodePipelines
from dalirefurb.kernels.program import KernelProgram


class KernelPart:
    """One part of a recipe. It has one owner thread; `submit` does not block, `collect` does.

    Args:
        steps: Kernel operations of the part's stages, decoding excepted.
        output: Output that the model receives, if the part ends with it; None: it does not.
        entering: Name of the input that holds images, or encoded samples: "sample" or "partial".
        pipelines: Pipelines in which the kernels run.
        encoded: Whether the pipelines decode what enters the part.
        window: Name of the stage whose window the pipelines cut when they decode; None: they cut none.
        most_results: Number of batches whose results are there at the same time, those that were handed on included.
        reserve: Function that gives room for partial images, see `Store.reserve`.
    """

    def __init__(
        self,
        steps: tuple[KernelOp, ...],
        output: Output | None,
        *,
        entering: str,
        pipelines: DecodePipelines,
        encoded: bool = False,
        window: str | None = None,
        most_results: int,
        reserve: Reserve | None = None,
    ) -> None:
        split = len(steps) if output is None else None
        self._program = KernelProgram(steps, output, split=split, entering=entering, encoded=encoded, window=window)
        self._output = output
        self._entering = entering
        self._pipelines = pipelines
        self._buffers = OutputBuffers(most_results, reserve)
        self._batches: deque[Images] = deque()

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Start one batch."""
        if self._output is None:
            work = self._program.work(feeds, reserve=self._buffers.partials)
            images = work.partials
        else:
            results = self._buffers.results(self._output, len(feeds[self._entering]))
            images = Images(results)
            work = self._program.work(feeds, results=results, targets=row_addresses(results))
        self._pipelines.submit(work, feeds)
        self._batches.append(images)

    def collect(self) -> Images:
        """Wait for the oldest batch.

        Raises:
            GraphError: If decoding failed; that batch is lost.
        """
        images = self._batches.popleft()
        self._pipelines.collect()
        return images

    def restart(self) -> None:
        """Forget all batches in flight, once nothing reads what they were given."""
        self._pipelines.restart()
        self._batches.clear()
