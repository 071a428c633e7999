"""Prepare thread: plans, pins hits, reads misses, and has runs computed.

    plans ─▶ look up ──────────▶ submit ─────────▶ collect ─────────▶ the finish thread
             pin hits,           draw, begin to    images, partial
             read misses         compute           or final ones

Runs pass every step in plan order. What computes them, and which images are there then, see `backends`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait

from dalirefurb.dali import GraphError
from dalirefurb.engine.backends import ComputeBackend
from dalirefurb.engine.batch_group import Run
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.engine.closable_queue import ClosableQueue, Stopped
from dalirefurb.engine.stats import Tally
from dalirefurb.engine.ticket import Ticket
from dalirefurb.errors import LoaderError
from dalirefurb.reading.reader import Reader
from dalirefurb.reading.samples import Samples

_POLL_S = 1.0
_READ_AHEAD = 2

Watch = Callable[[Ticket], None]
"""Looks at a run whose partial images were computed."""


class _ReadAgain(Exception):  # noqa: N818 - it is no error
    """Bad samples were found, so that runs begun are to be carried out again."""


class PrepareThread:
    """Turns runs into tickets whose partial images are there.

    Args:
        reader: Reader of the samples, which finds out which of them a graph cannot decode.
        cache: Cache client, which says what is to be computed.
        backend: Backend that computes the images.
        in_flight: Largest number of runs that the backend has at a time.
        admitted: Largest number of runs that are planned, so that their files are read, and that the backend does not
            have yet.
        watch: Function that is shown each run whose partial images were computed; None: nobody is.
        tally: Counter of what the thread does, see `Stats`.
    """

    def __init__(
        self,
        *,
        reader: Reader,
        cache: CacheClient,
        backend: ComputeBackend,
        in_flight: int,
        admitted: int,
        watch: Watch | None,
        tally: Tally,
    ) -> None:
        self._reader = reader
        self._cache = cache
        self._backend = backend
        self._in_flight = in_flight
        self._admitted = admitted
        self._watch = watch
        self._tally = tally

    def work(self, runs: Iterator[Run], tickets: ClosableQueue[Ticket]) -> None:
        """Make tickets until stopped, or until one cannot be made: that one's error follows those before it.

        Where bad samples are replaced, runs are made again without those that were found. For a run of several batches
        see `Run.fail`.
        """
        upcoming = _Upcoming(runs)
        try:
            while True:
                self._carry_out(upcoming, tickets)
        except Stopped:
            pass
        except BaseException as error:  # Whatever happened belongs to the training loop.
            tickets.fail(error)

    def _carry_out(self, runs: _Upcoming, tickets: ClosableQueue[Ticket]) -> None:
        """Make tickets until bad samples are found."""
        admitted: deque[Ticket] = deque()
        running: deque[Ticket] = deque()
        try:
            while True:
                self._fill(runs, admitted, running, tickets)
                self._pass_on(running, tickets)
        except Stopped:
            raise
        except _ReadAgain:
            runs.again([ticket.run for ticket in (*running, *admitted)])
        except Exception as error:
            if unfinished := (*running, *admitted):
                unfinished[0].run.fail(error)
            raise
        finally:
            try:
                self._backend.restart()
            finally:
                self._cache.abandon((*running, *admitted))

    def _fill(
        self, runs: _Upcoming, admitted: deque[Ticket], running: deque[Ticket], tickets: ClosableQueue[Ticket]
    ) -> None:
        """Submit and admit as much as may be ahead. An error waits until the runs before it are through.

        What is read is submitted first: files read meanwhile would ask for Python's lock at each step.
        """
        self._submit_some(admitted, running, tickets)
        try:
            while len(admitted) < self._admitted and _reads(admitted) < _READ_AHEAD + self._in_flight - len(running):
                admitted.append(self._admit(runs))
        except Stopped:
            raise
        except Exception:
            while admitted or running:
                self._submit_some(admitted, running, tickets)
                self._pass_on(running, tickets)
            raise
        if not running:
            self._submit_some(admitted, running, tickets)

    def _submit_some(self, admitted: deque[Ticket], running: deque[Ticket], tickets: ClosableQueue[Ticket]) -> None:
        """Submit at least one run, if none is running, and those whose files are read."""
        try:
            while admitted and len(running) < self._in_flight and (not running or admitted[0].reading.done()):
                self._submit(admitted[0], tickets)
                running.append(admitted.popleft())
        except Stopped:
            raise
        except Exception:
            while running:
                self._pass_on(running, tickets)
            raise

    def _admit(self, runs: _Upcoming) -> Ticket:
        """Plan a run, and lease or read what it needs; one that cannot be admitted is not lost."""
        began = time.perf_counter()
        run = next(runs)
        planned = time.perf_counter()
        try:
            ticket = self._cache.lookup(run)
        except Exception:
            runs.again([run])
            raise
        self._tally.add(planning_s=planned - began, storing_s=time.perf_counter() - planned)
        return ticket

    def _submit(self, ticket: Ticket, tickets: ClosableQueue[Ticket]) -> None:
        """Have a run computed."""
        samples = self._samples(ticket, tickets)
        began = time.perf_counter()
        self._backend.submit(ticket, ticket.begin(samples))
        self._tally.add(preparing_s=time.perf_counter() - began)

    def _samples(self, ticket: Ticket, tickets: ClosableQueue[Ticket]) -> Samples:
        """Wait for the files of a run."""
        began = time.perf_counter()
        while not ticket.reading.done():
            wait([ticket.reading], timeout=_POLL_S)
            if tickets.stopping:
                raise Stopped
        self._tally.add(reading_wait_s=time.perf_counter() - began)
        return ticket.reading.result()

    def _pass_on(self, running: deque[Ticket], tickets: ClosableQueue[Ticket]) -> None:
        """Let the oldest run go on, once it is computed; until somebody has it, it is among those to be abandoned."""
        self._collect(running[0])
        tickets.put([running[0]])
        running.popleft()
        self._backend.handed_over()

    def _collect(self, ticket: Ticket) -> None:
        """Wait until what a run needs is computed."""
        began = time.perf_counter()
        try:
            self._backend.collect(ticket)
        except GraphError as error:
            assert ticket.samples is not None
            if self._reader.reconsider(ticket.samples, error):
                raise _ReadAgain from error
            raise failed_in_graph(ticket, error.reason) from error
        self._tally.add(graph_wait_s=time.perf_counter() - began)
        if self._watch is not None and len(ticket.rows):
            self._watch(ticket)


class _Upcoming(Iterator[Run]):
    """Runs in order; those to be made again come first, and what planning raised comes after them, again."""

    def __init__(self, runs: Iterator[Run]) -> None:
        self._runs = runs
        self._again: deque[Run] = deque()
        self._error: Exception | None = None

    def again(self, runs: list[Run]) -> None:
        """Put back what was taken."""
        self._again.extendleft(reversed(runs))

    def __next__(self) -> Run:
        if self._again:
            return self._again.popleft()
        if self._error is not None:
            raise self._error
        try:
            return next(self._runs)
        except Exception as error:
            self._error = error
            raise


def failed_in_graph(ticket: Ticket, reason: str) -> LoaderError:
    """Say which batch failed."""
    epoch, batch = ticket.position
    return LoaderError(f"batch {batch} of epoch {epoch} failed in the graph: {reason}")


def _reads(admitted: Iterable[Ticket]) -> int:
    """Count the runs for which something is read."""
    return sum(len(ticket.rows) > 0 for ticket in admitted)
