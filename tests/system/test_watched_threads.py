"""How the threads of a process get on: what they compute, whichever they are, and how long they wait for a core."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dalirefurb.system import threads
from dalirefurb.system.threads import others_at_work, watch_threads


def compute(cpu_s: float = 0.2) -> None:
    """Compute in this thread, for so long however many others want its core."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


class Worker:
    """A thread that computes when it is told to, and lives on."""

    def __init__(self, name: str) -> None:
        self._told, self._done, self._left = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=name)

    def _work(self) -> None:
        self._told.wait()
        compute()
        self._done.set()
        self._left.wait()

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def compute(self) -> None:
        self._told.set()
        self._done.wait()

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()


def test_what_the_calling_thread_computes_counts_and_what_it_sleeps_does_not() -> None:
    watched = watch_threads("left out")
    time.sleep(0.4)
    slept, _ = watched()
    assert slept < 0.2
    compute()
    assert watched()[0] - slept >= 0.19


@pytest.mark.parametrize(("name", "counts"), [("of a model", True), ("left out_0", False)])
def test_what_another_thread_computes_counts_unless_its_name_begins_like_one_that_is_left_out(
    name: str, counts: bool
) -> None:
    with Worker(name) as worker:
        watched = watch_threads("nobody", "left out")
        worker.compute()
        assert (watched()[0] >= 0.19) is counts


def test_a_thread_that_has_begun_meanwhile_counts_and_one_that_has_ended_takes_nothing_away() -> None:
    with Worker("of a model") as ended:
        ended.compute()
        watched = watch_threads("nobody")
    assert watched()[0] >= 0
    with Worker("of a model") as begun:
        begun.compute()
        assert watched()[0] >= 0.19


def test_a_name_that_only_the_system_has_counts_too() -> None:
    with Worker("of a model") as worker:
        Path(f"/proc/self/task/{worker._thread.native_id}/comm").write_text("[other] thread")
        watched = watch_threads("[other]")
        worker.compute()
        assert watched()[0] < 0.19


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux counts it only if it is told to")
def test_threads_that_share_a_core_wait_for_it() -> None:
    core = min(os.sched_getaffinity(0))
    with Worker("of a model") as one, Worker("of a model") as other:
        for worker in (one, other):
            os.sched_setaffinity(worker._thread.native_id or 0, {core})
        watched = watch_threads("nobody")
        one._told.set()
        other.compute()
        one.compute()
        computed, waited = watched()
    assert computed >= 0.38
    assert waited > 0.05


def test_linux_tells_what_a_thread_waited_for_a_core_after_what_it_ran(monkeypatch):
    """Of its schedule statistics the second number, in nanoseconds."""
    monkeypatch.setattr(threads, "_told", lambda thread, file: {"schedstat": "7000000000 2500000000 9\n"}[file])
    assert threads._times_of(threading.get_native_id())[1] == 2.5


@pytest.mark.parametrize(("state", "works"), [("R", True), ("D", True), ("S", False)])
def test_others_are_at_work_where_one_works_or_waits_for_a_disk_and_the_calling_thread_is_none(
    state: str, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = threading.get_native_id()
    monkeypatch.setattr(threads, "_threads", lambda: [caller, caller + 1])
    told = {caller: f"{caller} (python) R 1", caller + 1: f"{caller + 1} (a) R) {state} 1"}
    monkeypatch.setattr(threads, "_told", lambda thread, file: told[thread])
    assert others_at_work() is works


@pytest.mark.parametrize(
    ("computed_s", "idle", "slept"),
    [([0.06, 0.006, 0.004, 0.0], True, 3), ([0.004], True, 1), ([0.006] * 9, False, 6), ([], False, 0)],
)
def test_a_process_is_idle_once_its_threads_compute_for_less_than_a_tenth_of_the_time(
    computed_s: list[float], idle: bool, slept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at every twentieth of a second, here for 0.3 s at most."""
    clock = SimpleNamespace(now=100.0, computed=7.0, slept=0)

    def sleep(seconds: float) -> None:
        assert seconds == 0.05
        clock.now += seconds + 1e-9
        clock.computed += computed_s[clock.slept]
        clock.slept += 1

    stand_in = SimpleNamespace(perf_counter=lambda: clock.now, process_time=lambda: clock.computed, sleep=sleep)
    monkeypatch.setattr(threads, "time", stand_in)
    assert threads.wait_until_idle(0.3 if computed_s else 0.0) is idle
    assert clock.slept == slept


@pytest.mark.parametrize("is_glibcs", [True, False])
def test_malloc_is_told_to_keep_what_is_let_go_of(is_glibcs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the numbers of glibc's `malloc.h`: one arena, nothing by mmap, nothing given back."""
    told: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *given: told.append(given)) if is_glibcs else SimpleNamespace()
    monkeypatch.setattr(threads.ctypes, "CDLL", lambda name: library)
    threads.keep_memory()
    assert sorted(told) == ([(-8, 1), (-4, 0), (-1, -1)] if is_glibcs else [])
