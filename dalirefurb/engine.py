"""Who carries out the plans? Two threads, one for each part of the augmentation.

    plans ─▶ Upstream ─────────────▶ Downstream ─────▶ take
             partial images           final images     by the training loop

Each alone touches its own pipelines. Between them, and before the training loop, a few runs wait. An exception in
either ends it, and is raised by `take` after the batches before it.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from dalirefurb.downstream import Downstream, Served
from dalirefurb.errors import LoaderError
from dalirefurb.exchange import Ticket
from dalirefurb.handover import Handover, Stopped
from dalirefurb.pace import READY, Pace
from dalirefurb.plan import BatchPlan
from dalirefurb.reader import Reader
from dalirefurb.runners import Runners
from dalirefurb.runs import Position, Run, announced, runs
from dalirefurb.stats import Stats, Tally
from dalirefurb.upstream import Upstream

_ALIVE: weakref.WeakSet[Engine] = weakref.WeakSet()

Plans = Callable[[Position], Iterator[tuple[Position, BatchPlan]]]
"""Plans from a position on, without end."""


class Engine:
    """Turns plans into batches, a bounded number of them ahead.

    Args:
        plans: What to serve.
        announce: Is told of each run some time before it begins.
        upstream: Makes partial images.
        downstream: Makes final ones.
        reader: Is closed with the engine.
        runners: Likewise.
        num_batches: Batches of an epoch.
        pace: How many batches run together, and how far ahead.
        tally: Counts what both do.
    """

    def __init__(
        self,
        *,
        plans: Plans,
        announce: Callable[[Run], None],
        upstream: Upstream,
        downstream: Downstream,
        reader: Reader,
        runners: Runners,
        num_batches: int,
        pace: Pace,
        tally: Tally,
    ) -> None:
        self._plans = plans
        self._announce = announce
        self._upstream: Upstream | None = upstream
        self._downstream: Downstream | None = downstream
        self._reader = reader
        self._runners = runners
        self._num_batches = num_batches
        self._pace = pace
        self._tally = tally
        self._threads: list[threading.Thread] = []
        self._tickets: Handover[Ticket] = Handover(READY)
        self._batches: Handover[Served] = Handover(1)
        self._expected: Position | None = None
        _ALIVE.add(self)

    def seek(self, position: Position) -> None:
        """Make `position` the next batch to be taken; free where it is already."""
        if self._expected == position and self._threads:
            return
        self.stop()
        assert self._upstream is not None
        assert self._downstream is not None
        self._expected = position
        self._tickets, self._batches = Handover(READY), Handover(1)
        work = runs(self._plans(position), self._pace.batches_per_run)
        work = announced(work, self._announce, self._pace.announced)
        self._threads = [
            threading.Thread(target=self._upstream.work, args=(work, self._tickets), name="dalirefurb-partial"),
            threading.Thread(
                target=self._downstream.work, args=(self._tickets, self._batches), name="dalirefurb-final"
            ),
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def take(self) -> Served:
        """Wait for the next batch.

        Raises:
            DalirefurbError: Whatever stopped the threads.
        """
        began = time.perf_counter()
        try:
            served = self._batches.take()
        except Stopped:
            raise LoaderError("the loader was stopped while a batch was waited for; iterate again") from None
        except BaseException:
            self.stop()
            raise
        samples = len(served.indices)
        self._tally.add(
            batches=1,
            samples=samples,
            hits=samples - served.misses,
            misses=served.misses,
            recomputed=served.recomputed,
            replaced=served.replaced,
            consumer_wait_s=time.perf_counter() - began,
        )
        self._expected = self.after(served.position)
        return served

    def after(self, position: Position) -> Position:
        """Return the place of the following batch."""
        epoch, batch = position
        return Position(epoch, batch + 1) if batch + 1 < self._num_batches else Position(epoch + 1, 0)

    def stats(self) -> Stats:
        """Return a snapshot of the counts."""
        return self._tally.stats()

    def stop(self) -> None:
        """End the threads and forget what was made ahead."""
        threads, self._threads = self._threads, []
        self._tickets.stop()
        self._batches.stop()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        if self._upstream is not None:
            for ticket in self._tickets.rest():
                self._upstream.abandon(ticket)
        self._expected = None

    def close(self) -> None:
        """Stop, and let the graphs and their threads go, and those that read."""
        self.stop()
        self._reader.close()
        self._runners.close()
        self._upstream = self._downstream = None


@atexit.register
def _close_all() -> None:
    """Close what is still open when the interpreter ends; registered after DALI's own clean-up, so called before it."""
    for engine in list(_ALIVE):
        engine.close()
