"""Daemon threads that work for a loader without keeping the process alive, and a wait until those of others rest.

The threads of `concurrent.futures` are joined when the interpreter ends, so that one read that never returns would keep
an interrupted process from ending.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_END_S = 1.0
_TASKS = "/proc/self/task"

_AT_WORK = "RD"
"""How Linux calls threads that run or could run, and those that wait for a disk."""

Times = tuple[float, float]  # Seconds that threads have computed, and waited for a core where Linux counts it.
Result = TypeVar("Result")

_ALIVE: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Does jobs on daemon threads, each of which does one at a time, and whose names begin with its own.

    They are started by the first job, and end with it even if nobody closes it.
    """

    def __init__(self, num_threads: int, *, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(self._jobs,), name=f"{name}_{number}", daemon=True)
            for number in range(num_threads)
        ]
        self._starting = threading.Lock()
        self._closed = False
        # How many threads are at what `join` waits for.
        self._unbroken = 0
        self._changed = threading.Condition()
        self._owner_pid = os.getpid()
        _ALIVE.add(self)
        weakref.finalize(self, _end, self._jobs, num_threads).atexit = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called; what is submitted then is cancelled."""
        return self._closed

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Have a job done; the future has its result, or what it raised."""
        with self._starting:
            for thread in self._threads:
                if thread.ident is None:
                    thread.start()
        job: Future[Result] = Future()
        self._jobs.put((job, work))
        if self._closed:
            self._cancel()
        return job

    def close(self) -> None:
        """Cancel what is not begun, and have the threads end after their present jobs. Never waits."""
        self._closed = True
        self._cancel()

    @contextmanager
    def unbroken(self) -> Iterator[None]:
        """Have `join` wait for what a job does meanwhile, however late it is: it must not wait for anybody else.

        The interpreter ends threads where they are; inside another language's code that would abort the process.

        Raises:
            CancelledError: It is closed already.
        """
        with self._changed:
            self._unbroken += 1
        try:
            if self._closed:
                raise CancelledError
            yield
        finally:
            with self._changed:
                self._unbroken -= 1
                self._changed.notify_all()

    def join(self) -> None:
        """Wait until the threads have ended, but not for long: a job that hangs is left alone with its thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unbroken)
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _cancel(self) -> None:
        try:
            while True:
                entry = self._jobs.get_nowait()
                if entry is not None:
                    entry[0].cancel()
        except Empty:
            _end(self._jobs, len(self._threads))


def close_all() -> None:
    """Close what is still there when the interpreter ends, and wait for what must not be broken off."""
    for background in list(_ALIVE):
        if background._owner_pid == os.getpid():  # A forked child has no threads.
            background.close()
            background.join()


def others_at_work() -> bool:
    """Tell whether a thread of this process, other than the calling one, works, or waits for a core or for a disk."""
    caller = threading.get_native_id()
    for thread in _threads():
        with suppress(OSError, IndexError):  # It may have ended.
            state = _told(thread, "stat").rpartition(")")[2].split()[0]
            if state in _AT_WORK and thread != caller:
                return True
    return False


def watch_threads(*others: str) -> Callable[[], Times]:
    """Watch the threads of this process, but those whose names, Python's or the system's, begin like `others`.

    Returns:
        Function that tells what has become of them since.
    """
    caller = threading.get_native_id()
    before = {**_times(others), caller: _times_of(caller)}  # Looking at the others is no time of the caller's.

    def watched() -> Times:
        own = {caller: _times_of(caller)}
        pairs = [(now, before.get(thread, (0.0, 0.0))) for thread, now in {**_times(others), **own}.items()]
        return sum(now[0] - then[0] for now, then in pairs), sum(now[1] - then[1] for now, then in pairs)

    return watched


def _times(others: tuple[str, ...]) -> dict[int, Times]:
    names, found = {thread.native_id: thread.name for thread in threading.enumerate()}, {}
    for thread in _threads():
        with suppress(OSError):  # It may have ended.
            if not (names.get(thread, "").startswith(others) or _told(thread, "comm").startswith(others)):
                found[thread] = _times_of(thread)
    return found


def _times_of(thread: int) -> Times:
    waited_s = 0.0
    with suppress(FileNotFoundError):
        waited_s = int(_told(thread, "schedstat").split()[1]) / 1e9
    return time.clock_gettime(~thread << 3 | 6), waited_s  # the thread's own clock, as Linux numbers it


def _threads() -> list[int]:
    """List the threads of this process; there may be hundreds, and training waits."""
    return [int(name) for name in os.listdir(_TASKS)]  # noqa: PTH208


def _told(thread: int, file: str) -> str:
    """Return what Linux tells of a thread in a file of one line."""
    with open(f"{_TASKS}/{thread}/{file}", "rb", buffering=0) as told:  # noqa: PTH123 - for the reason above
        return told.read(256).decode(errors="replace")


def _end(jobs: SimpleQueue[Any], num_threads: int) -> None:
    """Have threads end after what they were given."""
    for _ in range(num_threads):
        jobs.put(None)


def _work(jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    """Do jobs until one is None."""
    while (entry := jobs.get()) is not None:
        job, work = entry
        if job.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:  # It belongs to whoever asks for the result.
                job.set_exception(error)
            else:
                job.set_result(result)
                del result
        del entry, job, work  # Else its result would live until the next one.


_CHECK_S = 0.05
_SHARE = 0.1


def wait_until_idle(limit_s: float) -> bool:
    """Wait until no thread of this process works; return whether that was within `limit_s` seconds."""
    began = time.perf_counter()
    while time.perf_counter() - began < limit_s:
        before = time.process_time()
        time.sleep(_CHECK_S)
        if time.process_time() - before < _SHARE * _CHECK_S:
            return True
    return False


_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_memory() -> None:
    """Have the process keep what is let go of, for the next loader, where malloc is glibc's.

    Else, on a virtual machine, its host is told of it two seconds later (Linux's free page reporting), and what the
    host then does takes time from some batches of whoever has the next turn.
    """
    if hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, -1)
