"""Who works for the loader without keeping the process alive? A few daemon threads, for files and for kernels.

The threads of `concurrent.futures` are joined when the interpreter ends, so that one read that never returns would keep
an interrupted process from ending.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_END_S = 1.0
_NICE = 5
"""By how much some threads give way: where two want one core, the other gets three quarters of it."""

Result = TypeVar("Result")


class Background:
    """Does jobs on daemon threads, which are started by the first job.

    Args:
        num_threads: At work at a time.
        name: What the threads' names begin with.
        patient: Whether they give way to others.
    """

    def __init__(self, num_threads: int, *, name: str, patient: bool = False) -> None:
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._jobs, patient), name=f"{name}_{number}", daemon=True)
            for number in range(num_threads)
        ]
        self._starting = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called; what is submitted then is cancelled."""
        return self._closed

    def submit(self, work: Callable[[], Result], hands: int = 1) -> Job[Result]:
        """Have a job done; it has the result, or what was raised.

        Args:
            work: What to do.
            hands: Threads that do it side by side, sharing it out among themselves: as soon as one comes back from it
                nobody else needs to begin. The job has what the last one to come back has, or what one raised.
        """
        with self._starting:
            for thread in self._threads:
                if thread.ident is None:
                    thread.start()
        job = Job(work)
        for _ in range(hands):
            self._jobs.put(job)
        if self._closed:
            self._cancel()
        return job

    def close(self) -> None:
        """Cancel what is not begun, and have the threads end after their present jobs. Never waits."""
        self._closed = True
        self._cancel()

    def join(self) -> None:
        """Wait until the threads have ended, but not for long: a job that hangs is left alone with its thread."""
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _cancel(self) -> None:
        try:
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job.cancel()
        except Empty:
            for _ in self._threads:
                self._jobs.put(None)


class Job(Future[Result]):
    """What to do, who does it, and what comes of it."""

    def __init__(self, work: Callable[[], Result]) -> None:
        super().__init__()
        self._work: Callable[[], Result] | None = work
        self._at_work = 0
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def lend_a_hand(self) -> None:
        """Do it, unless it is done or cancelled; whoever waits for it can."""
        with self._lock:
            if not self._at_work and self._work is not None and not self.set_running_or_notify_cancel():
                self._work = None
            if (work := self._work) is None:
                return
            self._at_work += 1
        try:
            result = work()
        except BaseException as error:  # It belongs to whoever asks for the result.
            self._come_back(error=error)
        else:
            self._come_back(result)

    def _come_back(self, result: Any = None, error: BaseException | None = None) -> None:
        """Let nobody else begin; the last one says that it is done."""
        with self._lock:
            self._work = None
            self._at_work -= 1
            self._error = self._error or error
            if self._at_work:
                return
            error, self._error = self._error, None
        if error is None:
            self.set_result(result)
        else:
            self.set_exception(error)


def finish(jobs: Sequence[Job[Any]]) -> None:
    """Take part in jobs until all are done; raise what one of them raised.

    Where the cores are busy, a thread that only waits would be woken late, and so would those it wakes.
    """
    for job in jobs:
        job.lend_a_hand()
    for job in jobs:
        job.result()


def forget(jobs: Iterable[Job[Any]]) -> None:
    """Cancel jobs, and wait for those that were begun."""
    wait([job for job in jobs if not job.cancel()])


def give_way() -> None:
    """Have the calling thread give way to others; on Linux, those that it makes do, too."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)


def _work(jobs: SimpleQueue[Job[Any] | None], patient: bool) -> None:
    """Do jobs until one is None."""
    if patient:
        give_way()
    while (job := jobs.get()) is not None:
        job.lend_a_hand()
        del job  # Else its result would live until the next one.
