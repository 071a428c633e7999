"""Engine: the two threads that carry out plans.

    groups ─▶ Preparer ───────▶ Finisher ─────▶ take
    of plans  partial images,   final images,   by the training loop
              or final ones     the store

Each alone touches its own pipelines. Between them, and before the training loop, a few batch groups wait. An exception
in either ends it, and is raised by `take` after the batches before it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any

from dalirefurb.checks import require
from dalirefurb.dali.insides import THREADS
from dalirefurb.engine.backend_factory import BackendFactory
from dalirefurb.engine.batch_group import GroupFailed, Position, UpcomingGroups, first_one_by_one, grouped, planned
from dalirefurb.engine.cache_client import CacheClient
from dalirefurb.engine.closable_queue import ClosableQueue, Stopped
from dalirefurb.engine.diagnosis import Diagnosis, Facts, diagnose, least_steps
from dalirefurb.engine.finisher import Finisher, Served
from dalirefurb.engine.preparer import Prepared, Preparer
from dalirefurb.engine.stats import Course, Stats
from dalirefurb.errors import LoaderError
from dalirefurb.planning.assistant import Assistant
from dalirefurb.planning.planner import Planner
from dalirefurb.system.processes import local_processes
from dalirefurb.system.resources import promise_to, watch_others
from dalirefurb.system.threads import close_all, others_at_work, watch_threads

_END_S = 60.0
"""How long a thread that should end is waited for while nobody in the process works: a store may hang."""

_LOOK_S = 0.1

_INTERRUPTED = 130
"""What a process ends with that is interrupted while it waits for its threads."""

_ALIVE: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """Turns plans into batches, a bounded number of them ahead.

    Args:
        planner: Planner of this rank's batches.
        assistant: Assistant that makes the plans, if they depend on losses; otherwise None.
        preparer: Work of the prepare thread, which makes partial images, or final ones where one step makes both
            parts. Its reader and its maker of targets are closed with the engine, its cache client is told what will
            be asked for.
        finisher: Work of the finish thread, which makes final images, if they are not there, and hands batches
            over.
        factory: Builder of what computes; it is closed with the engine.
        facts: What decides the engine's work, for a diagnosis of it.
        nbytes: What all of it takes of this machine's memory beside the store, at most.

    Attributes:
        num_batches: Batches of an epoch.
    """

    def __init__(
        self,
        planner: Planner,
        assistant: Assistant | None,
        preparer: Preparer,
        finisher: Finisher,
        *,
        factory: BackendFactory,
        facts: Facts,
        nbytes: int,
    ) -> None:
        self.planner = planner
        self.assistant = assistant
        self.depths = depths = preparer.depths
        self.num_batches = len(planner)
        self._preparer: Preparer | None = preparer
        self._finisher: Finisher | None = finisher
        self._factory = factory
        targets = preparer.targets
        self._reader = preparer.reader
        self._workers: list[Any] = [self._reader, factory, *([] if targets is None else [targets.pool])]
        self._facts = facts
        self._nbytes = nbytes
        self._tally = tally = preparer.tally
        self._course = Course(tally, partial(watch_threads, "dalirefurb", THREADS))
        self._others = watch_others()
        self._threads: list[threading.Thread] = []
        # Whoever begins or ends threads holds it; `halt` and `shutdown` never wait for it.
        self._changing = threading.RLock()
        self._closed = False
        # Each part is carried out by one thread at a time, however late one that was interrupted gets to run.
        self._turns = threading.Lock(), threading.Lock()
        self._prepared: ClosableQueue[Prepared] = ClosableQueue(depths.ready)
        self._batches: ClosableQueue[Served] = ClosableQueue(1)
        self._expected: Position | None = None
        self._owner_pid = os.getpid()
        _ALIVE.add(self)
        promise_to(self)

    @property
    def untouched_bytes(self) -> int:
        """Bytes that it may take yet, beside the store; from when all that can be made ahead has been, the rest."""
        return 0 if self._closed or self._tally.batches > self.depths.batches_made else self._nbytes

    def seek(self, position: Position) -> None:
        """Make `position` the next batch to be taken; free where it is already.

        Raises:
            LoaderError: A thread that worked for another place hangs.
        """
        if self._expected != position:
            self._begin(position)

    def _begin(self, position: Position, *, one_by_one: bool = False) -> None:
        """Have the threads begin at a position, perhaps with single batches where a group failed."""
        with self._changing:
            self.stop()
            self._check_open()
            assert self._preparer is not None
            assert self._finisher is not None
            prepared: ClosableQueue[Prepared] = ClosableQueue(self.depths.ready)
            batches: ClosableQueue[Served] = ClosableQueue(1)
            self._prepared, self._batches = prepared, batches
            groups = self._groups(self._preparer.cache, position, one_by_one=one_by_one)
            self._threads = [
                self._thread("dalirefurb-prepare", self._turns[0], self._preparer.work, groups, prepared),
                self._thread("dalirefurb-finish", self._turns[1], self._finisher.work, prepared, batches),
            ]
            for thread in self._threads:
                thread.start()
            self._expected = position
            if self._closed:  # In that moment, by another thread.
                self.halt()
                self._check_open()

    def _groups(self, cache: CacheClient, position: Position, *, one_by_one: bool) -> UpcomingGroups:
        """Have the store keep what is asked for from a position on; return the groups from there on, without end."""
        planner, assistant, depths = self.planner, self.assistant, self.depths
        if assistant is None:
            cache.retain(planner, position)
            plans = planned(planner, position)
        else:
            assistant.rewind()
            (epoch, row), candidates, plan = assistant.upcoming, assistant.chooses_from, assistant.plan
            cache.retain(candidates, Position(epoch, row // candidates.batch_size))
            plans = planned(planner, position, lambda *_: plan())
        groups = grouped(plans, depths.batches_per_group, depths.hits_per_group)
        if one_by_one:
            groups = first_one_by_one(groups)
        return UpcomingGroups(groups, cache.announce, depths.announced)

    def _thread(
        self,
        name: str,
        turn: threading.Lock,
        work: Callable[[Any, ClosableQueue[Any]], None],
        coming: object,
        leaving: ClosableQueue[Any],
    ) -> threading.Thread:
        """Make a thread; the engine lives as long as it does, so that it is waited for when the interpreter ends."""

        def run(_: Engine) -> None:
            if leaving.stopping:
                return
            with turn:
                if leaving.stopping:
                    return
                try:
                    work(coming, leaving)
                except Stopped:
                    pass
                except BaseException as error:  # Whatever happened belongs to the training loop.
                    leaving.fail(error)

        return threading.Thread(target=run, args=(self,), name=name, daemon=True)

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderError("the loader is closed; make a new one")

    def take(self) -> Served:
        """Wait for the next batch.

        Raises:
            DalirefurbError: Whatever stopped the threads.
        """
        self._course.ask(self._expected)
        position, self._expected = self._expected, None  # one that is interrupted from here on is made again
        try:
            served = self._taken(position)
        except Stopped:
            raise LoaderError("the loader was stopped while a batch was waited for; iterate again") from None
        except StopIteration as error:  # To the training loop it would be the epoch's end.
            self.halt()
            raise LoaderError("StopIteration was raised where a batch is made; see above where") from error
        except BaseException as error:
            self.halt()
            if isinstance(error, Exception):
                self._check_open()  # Whatever closing it in another thread has led to.
            raise
        samples, following = len(served.shown), served.position.after(self.num_batches)
        self._course.hand(
            served.position,
            following,
            samples=samples,
            hits=samples - served.misses,
            misses=served.misses,
            recomputed=served.recomputed,
            replaced=served.replaced,
            dropped_objects=0 if served.targets is None else served.targets.dropped,
        )
        self._expected = following
        return served

    def _taken(self, position: Position | None) -> Served:
        """Take what is made; where several batches failed together, or one is of other samples now, make them anew."""
        while True:
            with suppress(GroupFailed):
                return self._batches.take()
            assert position is not None
            self._begin(position, one_by_one=True)
            self._expected = None

    def stats(self) -> Stats:
        """Return a snapshot of the counts."""
        return self._tally.stats()

    def diagnose(self, since: Stats | None) -> Diagnosis:
        """Say whether training waits; see `Loader.diagnose`.

        Raises:
            ConfigurationError: If `since` is no snapshot.
        """
        remedy = "pass what loader.stats() returned earlier, or leave it out"
        require(isinstance(since, (Stats, NoneType)), "since", "Stats", since, remedy)
        stats, parts, first_epoch, computes = self._course.steady(since)
        if since is None and first_epoch is not None and stats.steps < least_steps(self._facts):
            stats, parts, first_epoch = first_epoch + stats, (), None  # better than nothing
        # Of several trainings on one machine each is another one's.
        others = self._others() if local_processes() == 1 else 0.0
        facts = replace(self._facts, shared=self._facts.shared and computes, others=others)
        return diagnose(stats, facts, parts, first_epoch=first_epoch)

    def halt(self) -> None:
        """Have the threads end, and with them what was made ahead. Never waits."""
        self._expected = None
        self._prepared.stop()
        self._batches.stop()

    def stop(self) -> None:
        """End the threads, however late they are where other processes have the cores.

        Raises:
            LoaderError: One hangs.
        """
        with self._changing:
            self.halt()
            # One whose start was interrupted may never run, or finds that it is to end.
            for thread, turn in zip(self._threads, self._turns, strict=False):
                if thread is not threading.current_thread():
                    _wait_for(thread, turn)
            self._threads = []
            if self._finisher is not None:
                self._finisher.abandon(self._prepared.close())

    def shutdown(self) -> None:
        """Have all threads end, and the graphs go with them. Never waits, so that a garbage collector may call it."""
        if os.getpid() == self._owner_pid:
            self._closed = True
            self.halt()
            for each in self._workers:
                each.close()

    def close(self) -> None:
        """End all threads, and let the graphs go.

        Raises:
            LoaderError: One hangs; it is left alone.
        """
        if os.getpid() != self._owner_pid:
            return
        self.shutdown()
        with self._changing:
            try:
                self.stop()
            finally:
                for each in self._workers:
                    each.join()
                # Whoever keeps a closed loader keeps no images, no graph and no store.
                self._preparer = self._finisher = None
                self._batches.close()
                self._factory.give_back()


def _wait_for(thread: threading.Thread, turn: threading.Lock) -> None:
    """Wait until a thread has ended, as long as anybody in the process works, or waits for a core or a disk.

    Raises:
        LoaderError: Nobody does, and it does not end.
    """
    idle_s = 0.0
    while not _has_ended(thread, turn):
        idle_s = 0.0 if others_at_work() else idle_s + _LOOK_S
        if idle_s > _END_S:
            raise LoaderError(
                f"each of the loader's threads must end when it is told to, but {thread.name} is still "
                f"{_place(thread)}, and for {_END_S:.0f} s nothing in this process has worked: see what hangs there, "
                f"and make a new loader"
            )


def _has_ended(thread: threading.Thread, turn: threading.Lock) -> bool:
    """Wait a while for a thread; return whether it has ended, as Python says too soon where `join` was interrupted."""
    if thread.is_alive():
        thread.join(_LOOK_S)
    elif turn.locked():
        time.sleep(_LOOK_S)
    return not (thread.is_alive() or turn.locked())


def _place(thread: threading.Thread) -> str:
    """Say where a thread is."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "there" if frame is None else f"in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"


@atexit.register
def _close_all() -> None:
    """Close what is still open when the interpreter ends; registered after DALI's own clean-up, so called before it."""
    try:
        for engine in list(_ALIVE):
            with suppress(LoaderError):
                engine.close()
        close_all()
    except KeyboardInterrupt:
        # Threads that the interpreter ends inside DALI's code would abort the process.
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(_INTERRUPTED)
