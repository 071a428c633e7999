"""How do both parts run at once? What the store lends is finished while what it does not hold is being decoded.

lent ───────────────────────────────▶ kernels ──────────────────────────▶ results
samples ─▶ decoded by DALI, if encoded ─▶ kernels ─▶ partial images ─▶ ─▶ results
                                                     borrowed ─▶ kernels ─▶ results

An image goes all its way at once, so that its partial image is still in the processor's cache when it is finished; and
of the work that a batch needs, little is left when the last of it is decoded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.background import Background, Job, finish, forget
from dalirefurb.graph import Feed
from dalirefurb.images import Images, Rows, row_addresses
from dalirefurb.kernels.decoding import Decoding
from dalirefurb.kernels.program import Program
from dalirefurb.kernels.rooms import Reserve, Rooms
from dalirefurb.kernels.steps import Step
from dalirefurb.recipe import Output

_LET_PASS_S = 0.001
"""How long those who hand a batch over have Python's lock to themselves; whoever has it could keep it for 5 ms."""


@dataclass
class _Batch:
    """A batch on its way.

    Attributes:
        final: The final part's parameters, of all rows.
        results: What the model receives, of all rows.
        targets: Their addresses.
        rows: Those that are computed.
        feeds: Their samples and parameters, of both parts.
        partials: Their partial images, once they are computed.
        jobs: What was begun, each done by several threads, which take its rows.
    """

    final: Mapping[str, Feed]
    results: NDArray[Any]
    targets: NDArray[np.int64]
    rows: NDArray[np.int64]
    feeds: Mapping[str, Feed]
    partials: Images = field(default_factory=lambda: Images(()))
    jobs: list[Job[None]] = field(default_factory=list)


class BothParts:
    """Both parts of a recipe. It has one owner thread; `submit` does not block, `collect` does.

    Args:
        partial: Steps of the stages of the partial part, decoding excepted.
        final: Of the final part's.
        output: What the model receives.
        decoding: Decodes, if samples are encoded.
        cut: Whether decoding already cut the window of the first stage.
        workers: Threads for what is decoded.
        patient: Threads that give way to others, for what is lent where there is something to decode, too.
        num_threads: How many of either there are, at most.
        most_results: Batches whose results are there at a time, those that were handed on included.
        reserve: Gives room for partial images, see `Store.reserve`.
    """

    def __init__(
        self,
        partial: tuple[Step, ...],
        final: tuple[Step, ...],
        output: Output,
        *,
        decoding: Decoding | None,
        cut: bool,
        workers: Background,
        patient: Background,
        num_threads: int,
        most_results: int,
        reserve: Reserve | None = None,
    ) -> None:
        self._both = Program((*partial, *final), output, split=len(partial), cut=cut)
        self._final = Program(final, output)
        self._output = output
        self._decoding = decoding
        self._workers = workers
        self._patient = patient
        self._num_threads = num_threads
        self._rooms = Rooms(most_results, reserve)
        self._batches: deque[_Batch] = deque()

    def submit(
        self, rows: NDArray[np.int64], partial: Mapping[str, Feed], final: Mapping[str, Feed], count: int, lent: Rows
    ) -> None:
        """Start one batch.

        Args:
            rows: Those to compute, shape (n,).
            partial: Their samples, and the partial part's parameters.
            final: The final part's parameters, of all rows.
            count: How many rows there are.
            lent: Rows whose partial images are there.
        """
        results = self._rooms.results(self._output, count)
        feeds = {**partial, **_some(final, rows)}
        batch = _Batch(final, results, row_addresses(results), rows, feeds)
        self._finish(batch, lent, self._patient if len(rows) else self._workers)
        if len(rows):
            if self._decoding is None:
                self._compute(batch, Images.of(partial["sample"]))
            else:
                self._decoding.submit(partial)
        self._batches.append(batch)

    def collect(self, borrowed: Callable[[Images], Iterable[Rows]]) -> Images:
        """Take part in the oldest batch, and wait for it.

        Args:
            borrowed: Given the partial images of the rows that were computed, in their order, returns the rest.

        Returns:
            What the model receives.

        Raises:
            GraphError: If decoding failed; that batch is lost.
        """
        batch = self._batches.popleft()
        try:
            if self._decoding is not None and len(batch.rows):
                self._compute(batch, self._decoding.collect())
            finish(batch.jobs)
            for rows in borrowed(batch.partials):
                self._finish(batch, rows, self._workers)
            finish(batch.jobs)
        except BaseException:
            wait(batch.jobs)
            raise
        return Images(batch.results)

    def handed_over(self) -> None:
        """Leave Python's lock to those who pass the batch on that was collected last.

        On few cores a batch takes so long to decode that there is time for it: then batches come at more regular times.
        """
        if self._decoding is not None and self._decoding.shares == 1 and self._batches:
            time.sleep(_LET_PASS_S)

    def restart(self) -> None:
        """Forget all batches in flight, once nothing reads what they were given."""
        if self._decoding is not None:
            self._decoding.restart()
        for batch in self._batches:
            forget(batch.jobs)
        self._batches.clear()

    def _compute(self, batch: _Batch, images: Images) -> None:
        """Begin with both parts of what is not there, given what enters."""
        work, batch.partials = self._both.work(
            images,
            batch.feeds,
            reserve=self._rooms.partials,
            results=batch.results,
            targets=batch.targets[batch.rows],
        )
        batch.jobs.append(self._workers.submit(work, min(self._num_threads, len(images))))

    def _finish(self, batch: _Batch, rows: Rows, workers: Background) -> None:
        """Begin with the final part of some rows."""
        if len(rows.rows):
            work, _ = self._final.work(
                rows.images,
                _some(batch.final, rows.rows),
                results=batch.results,
                targets=batch.targets[rows.rows],
            )
            batch.jobs.append(workers.submit(work, min(self._num_threads, len(rows.rows))))


def _some(feeds: Mapping[str, Feed], rows: NDArray[np.int64]) -> dict[str, Feed]:
    """Return the parameters of some rows."""
    return {name: np.asarray(values)[rows] for name, values in feeds.items()}
