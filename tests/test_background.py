"""Threads that do jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

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


def test_what_a_job_raises_whoever_asks_for_its_result_raises(background: Background) -> None:
    def job() -> None:
        raise ValueError("one of them")

    with pytest.raises(ValueError, match="one of them"):
        background.submit(job).result(60)


def test_jobs_are_done_side_by_side(background: Background) -> None:
    all_there = threading.Barrier(HANDS)
    jobs = [background.submit(lambda: all_there.wait(60)) for _ in range(HANDS)]
    assert sorted(job.result(60) for job in jobs) == list(range(HANDS))


def test_what_is_cancelled_nobody_begins(background: Background, busy: threading.Event) -> None:
    begun: list[int] = []
    job = background.submit(lambda: begun.append(0))
    assert job.cancel()
    busy.set()
    for _ in range(HANDS):
        background.submit(lambda: None).result(60)
    assert not begun


def test_closing_cancels_what_is_not_begun(background: Background, busy: threading.Event) -> None:
    before = background.submit(lambda: None)
    background.close()
    after = background.submit(lambda: None)
    busy.set()
    for job in (before, after):
        with pytest.raises(CancelledError):
            job.result(60)
