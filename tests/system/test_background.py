"""Threads that do jobs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from dalirefurb.system.threads import Background

HANDS = 3


@pytest.fixture
def background() -> Iterator[Background]:
    background = Background(HANDS, name="workers")
    yield background
    background.close()
    background.join()


@pytest.fixture
def busy(background: Background) -> Iterator[threading.Event]:
    """Keep all threads at work until it is set."""
    go_on, all_there = threading.Event(), threading.Barrier(HANDS + 1)

    def work() -> None:
        all_there.wait(600)
        assert go_on.wait(600)

    for _ in range(HANDS):
        background.submit(work)
    all_there.wait(600)
    yield go_on
    go_on.set()


def test_what_a_job_raises_whoever_asks_for_its_result_raises(background: Background) -> None:
    def job() -> None:
        raise ValueError("one of them")

    with pytest.raises(ValueError, match="one of them"):
        background.submit(job).result(600)


def test_jobs_are_done_side_by_side(background: Background) -> None:
    all_there = threading.Barrier(HANDS)
    jobs = [background.submit(lambda: all_there.wait(600)) for _ in range(HANDS)]
    assert sorted(job.result(600) for job in jobs) == list(range(HANDS))


def test_threads_have_its_name_and_keep_no_process_alive(background: Background) -> None:
    assert [thread.name for thread in background._threads] == ["workers_0", "workers_1", "workers_2"]
    assert all(thread.daemon for thread in background._threads)


def test_what_is_cancelled_nobody_begins(background: Background, busy: threading.Event) -> None:
    begun: list[int] = []
    job = background.submit(lambda: begun.append(0))
    assert job.cancel()
    busy.set()
    for _ in range(HANDS):
        background.submit(lambda: None).result(600)
    assert not begun


def test_closing_cancels_what_is_not_begun(background: Background, busy: threading.Event) -> None:
    before = background.submit(lambda: None)
    background.close()
    after = background.submit(lambda: None)
    busy.set()
    for job in (before, after):
        with pytest.raises(CancelledError):
            job.result(600)


def test_what_must_not_be_broken_off_is_waited_for_however_late_it_is(background: Background) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        with background.unbroken():
            begun.set()
            assert go_on.wait(600)
            done.append("the library's call")

    background.submit(work)
    assert begun.wait(600)
    background.close()
    joined = threading.Thread(target=background.join)
    joined.start()
    joined.join(1.5)  # Longer than a job is waited for that may be broken off.
    assert joined.is_alive()
    go_on.set()
    joined.join(600)
    assert done


def test_after_closing_nothing_is_begun_that_must_not_be_broken_off(background: Background) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(600)
        with background.unbroken():
            raise AssertionError

    job = background.submit(work)
    assert begun.wait(600)
    background.close()
    go_on.set()
    with pytest.raises(CancelledError):
        job.result(600)
    background.join()


def test_threads_are_waited_for_that_end_in_time(
    background: Background, busy: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dalirefurb.system.threads._END_S", 600.0)
    background.close()
    joined = threading.Thread(target=background.join)
    joined.start()
    joined.join(0.1)
    assert joined.is_alive()
    busy.set()
    joined.join(600)
    assert not any(thread.is_alive() for thread in background._threads)


def test_a_thread_does_not_wait_for_itself_to_end() -> None:
    background = Background(1, name="workers")
    background.submit(background.join).result(600)
    background.close()
    background.join()


LATE = """
import os, threading, time
import dalirefurb.engine.engine
from dalirefurb.system.threads import Background

begun = threading.Event()
background = Background(1, name="late")

def work():
    with background.unbroken():
        begun.set()
        time.sleep(2)
        os.write(1, b"done")

background.submit(work)
assert begun.wait(600)
"""


def test_the_interpreter_ends_after_what_must_not_be_broken_off() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done", "")


FORKED = """
import os, signal, sys, threading
import dalirefurb.engine.engine
from dalirefurb.system.threads import Background

begun, go_on = threading.Event(), threading.Event()
background = Background(1, name="parents")

def work():
    with background.unbroken():
        begun.set()
        assert go_on.wait(600)

background.submit(work)
assert begun.wait(600)
child = os.fork()
if not child:
    signal.alarm(20)
    sys.exit()
print(os.waitpid(child, 0)[1])
go_on.set()
"""


def test_a_forked_child_ends_without_what_its_parents_threads_must_finish() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


class Result:
    pass


def test_a_result_goes_with_its_future_and_not_with_the_next_job(background: Background) -> None:
    result = weakref.ref(background.submit(Result).result(600))
    deadline = time.monotonic() + 60
    while result() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_threads_end_with_a_background_that_nobody_closed() -> None:
    background = Background(2, name="dalirefurb-forgotten")
    assert background.submit(lambda: 1).result() == 1
    threads = background._threads
    del background
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive()
