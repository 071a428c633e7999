"""How does a part run without DALI, but for decoding? On threads that take a batch's rows in turn.

samples ─▶ decoded by DALI ─▶ kernels ─▶ images            a part that begins with encoded samples
           images ─────────▶ kernels ─▶ images             any other
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from dalirefurb.background import Background, Job, finish, forget
from dalirefurb.graph import Feed
from dalirefurb.images import Images, row_addresses
from dalirefurb.kernels.decoding import Decoding
from dalirefurb.kernels.program import Program
from dalirefurb.kernels.rooms import Reserve, Rooms
from dalirefurb.kernels.steps import Step
from dalirefurb.recipe import Output


@dataclass
class _Batch:
    """A batch on its way.

    Attributes:
        feeds: What it was given.
        jobs: What was begun, done by several threads, which take its rows: one job, unless there are no rows.
        images: The results, once that is done.
    """

    feeds: Mapping[str, Feed]
    jobs: list[Job[None]] = field(default_factory=list)
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
        self._program = Program(steps, output, split=len(steps) if output is None else None, cut=cut)
        self._output = output
        self._entering = entering
        self._decoding = decoding
        self._workers = workers
        self._num_workers = num_workers
        self._rooms = Rooms(most_results, reserve)
        self._batches: deque[_Batch] = deque()

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
        finish(batch.jobs)
        assert batch.images is not None
        return batch.images

    def restart(self) -> None:
        """Forget all batches in flight, once nothing reads what they were given."""
        if self._decoding is not None:
            self._decoding.restart()
        for batch in self._batches:
            forget(batch.jobs)
        self._batches.clear()

    def _start(self, batch: _Batch, images: Images) -> None:
        """Let the workers carry out all steps for some images."""
        count = len(images)
        if self._output is None:
            work, batch.images = self._program.work(images, batch.feeds, reserve=self._rooms.partials)
        else:
            results = self._rooms.results(self._output, count)
            batch.images = Images(results)
            work, _ = self._program.work(images, batch.feeds, results=results, targets=row_addresses(results))
        if count:
            batch.jobs.append(self._workers.submit(work, min(self._num_workers, count)))
