"""Threads that do jobs: alone, or several one job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, wait

import pytest

from dalirefurb.background import Background

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
        all_there.wait(60)
        assert go_on.wait(60)

    for _ in range(HANDS):
        background.submit(work)
    all_there.wait(60)
    yield go_on
    go_on.set()


def test_several_threads_do_one_job_which_is_done_when_the_last_one_comes_back(background: Background) -> None:
    all_there, others_leave, gone = threading.Barrier(HANDS), threading.Event(), threading.Semaphore(0)

    def job() -> str:
        if all_there.wait(60):
            assert others_leave.wait(60)
        gone.release()
        return "done"

    done = background.submit(job, HANDS)
    assert gone.acquire(timeout=60)
    assert not wait([done], timeout=0.05).done
    others_leave.set()
    assert done.result(60) == "done"


def test_who_comes_late_does_not_begin(background: Background, busy: threading.Event) -> None:
    begun: list[int] = []
    done = background.submit(lambda: begun.append(0))
    late = background.submit(lambda: begun.append(1), 1000)
    busy.set()
    done.result(60)
    late.result(60)
    count = len(begun)
    for _ in range(HANDS):
        background.submit(lambda: None).result(60)
    assert 2 <= len(begun) == count <= 1 + HANDS


def test_what_one_raises_the_job_raises(background: Background) -> None:
    all_there = threading.Barrier(HANDS)

    def job() -> None:
        if all_there.wait(60) == 1:
            raise ValueError("one of them")

    with pytest.raises(ValueError, match="one of them"):
        background.submit(job, HANDS).result(60)


def test_what_is_cancelled_nobody_begins(background: Background, busy: threading.Event) -> None:
    begun: list[int] = []
    job = background.submit(lambda: begun.append(0), HANDS)
    assert job.cancel()
    busy.set()
    for _ in range(HANDS):
        background.submit(lambda: None, HANDS).result(60)
    assert not begun


def test_whoever_waits_can_do_the_job(background: Background, busy: threading.Event) -> None:
    job = background.submit(threading.get_ident, HANDS)
    job.lend_a_hand()
    assert job.result(0) == threading.get_ident()


def test_whoever_waits_can_join_in(background: Background) -> None:
    all_there = threading.Barrier(HANDS + 1)
    job = background.submit(lambda: all_there.wait(60), HANDS)
    job.lend_a_hand()
    assert job.result(60) in range(HANDS + 1)


def test_whoever_comes_to_a_job_that_is_cancelled_or_done_does_nothing(
    background: Background, busy: threading.Event
) -> None:
    begun: list[int] = []
    cancelled = background.submit(lambda: begun.append(0), HANDS)
    assert cancelled.cancel()
    cancelled.lend_a_hand()
    busy.set()
    done = background.submit(lambda: None)
    done.result(60)
    done.lend_a_hand()
    assert cancelled.cancelled()
    assert not begun


def test_closing_cancels_what_is_not_begun(background: Background, busy: threading.Event) -> None:
    before = background.submit(lambda: None, HANDS)
    background.close()
    after = background.submit(lambda: None, HANDS)
    busy.set()
    for job in (before, after):
        with pytest.raises(CancelledError):
            job.result(60)
