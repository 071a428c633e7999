import os
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dalirefurb.store.disk import page_cache
from dalirefurb.store.disk.page_cache import BlockReadAhead, SampleReadAhead, spans

START = 4096
BLOCK = 1 << 18
BLOCKS = 100


@pytest.fixture
def announced(monkeypatch):
    """What the kernel is told to read: (first byte, bytes)."""
    calls = []

    def advise(fd, start, size, advice):
        assert advice == os.POSIX_FADV_WILLNEED
        calls.append((start, size))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return calls


class Disk:
    """A file of 100 blocks, of which some are in memory; reading can be held up, and can fail."""

    def __init__(self, there=(), broken=()):
        self.there = set(there)
        self.broken = set(broken)
        self.read = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def has(self, start):
        return (start - START) // BLOCK in self.there

    def bring(self, start, buffer):
        assert self.goes_on.wait(600)
        first, rest = divmod(start - START, BLOCK)
        assert rest == 0
        blocks = range(first, min(first + -(-len(buffer) // BLOCK), BLOCKS))
        if self.broken.intersection(blocks):
            raise OSError("it fails")
        self.read += blocks
        self.there.update(blocks)
        return len(blocks) * BLOCK


@pytest.fixture
def disk():
    return Disk()


def places(*blocks):
    """Starts and sizes of samples, one in each block."""
    return np.array(blocks, np.int64) * BLOCK + 1000, np.full(len(blocks), 3072)


def thread_names():
    return [thread.name for thread in threading.enumerate()]


def test_samples_are_announced_as_they_are(announced):
    ahead = SampleReadAhead(3, START)
    ahead.ask(np.array([7 * 16384, 3 * 16384]), np.array([16284, 100]))
    ahead.ask(np.array([], np.int64), np.array([], np.int64))
    assert announced == [(START + 7 * 16384, 16284), (START + 3 * 16384, 100)]


def test_blocks_are_read_in_order_and_are_there_after_waiting(disk, announced):
    ahead = BlockReadAhead(3, disk, START)
    ahead.ask(*places(40, 7, 90, 8, 7))
    ahead.wait(*places(90))
    assert disk.read == [7, 8, 40, 90]
    assert announced == [(START + first * BLOCK, count * BLOCK) for first, count in [(7, 2), (40, 1), (90, 1)]]


def test_a_sample_in_two_blocks_needs_both(disk, announced):
    ahead = BlockReadAhead(3, disk, START)
    sample = np.array([BLOCK - 1]), np.array([2])
    ahead.ask(*sample)
    ahead.wait(*sample)
    assert disk.read == [0, 1]
    ahead.ask(np.array([3 * BLOCK]), np.array([BLOCK]))
    ahead.wait(*places(3))
    assert disk.read == [0, 1, 3]


def test_a_long_span_is_left_to_the_kernel_and_read_through_small_gaps(disk, announced):
    ahead = BlockReadAhead(3, disk, START)
    ahead.ask(*places(10, 14, 18, 22))
    ahead.wait(*places(22))
    assert disk.read == list(range(10, 23))
    assert announced == []


def test_what_is_in_memory_or_on_its_way_is_not_read_again(disk, announced):
    disk.there = {5, 6}
    disk.goes_on.clear()
    ahead = BlockReadAhead(3, disk, START)
    ahead.ask(*places(5, 6, 7))
    ahead.ask(*places(7, 6, 30))
    disk.goes_on.set()
    ahead.wait(*places(7, 30))
    ahead.ask(*places(7, 30))
    ahead.wait(*places(7, 30))
    assert disk.read == [7, 30]


def test_waiting_is_for_what_was_asked_for_and_nothing_else(disk, announced):
    disk.goes_on.clear()
    ahead = BlockReadAhead(3, disk, START)
    ahead.wait(*places(1))
    ahead.ask(*places(1))
    ahead.wait(*places(2, 3))
    waiting = threading.Thread(target=ahead.wait, args=places(3, 1))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    disk.goes_on.set()
    waiting.join(600)
    assert not waiting.is_alive()


def test_what_cannot_be_read_or_is_not_there_is_not_waited_for(disk, announced):
    disk.broken = {4}
    ahead = BlockReadAhead(3, disk, START)
    ahead.ask(*places(4, 50, BLOCKS + 7))
    ahead.wait(*places(4, 50, BLOCKS + 7))
    assert disk.read == [50]


def test_the_thread_ends_when_nothing_is_left_and_a_new_one_begins(disk, announced):
    ahead = BlockReadAhead(3, disk, START)
    for block in (1, 60):
        ahead.ask(*places(block))
        ahead.wait(*places(block))
        for thread in threading.enumerate():
            if thread.name == "dalirefurb-read-ahead":
                thread.join(600)
        assert "dalirefurb-read-ahead" not in thread_names()
    assert disk.read == [1, 60]


@pytest.mark.parametrize("fails", ["to start", "at once"])
def test_a_thread_that_fails_keeps_nobody_waiting(fails, disk, announced, monkeypatch):
    ahead = BlockReadAhead(3, disk, START)
    with monkeypatch.context() as patch:
        if fails == "to start":

            def refuse(thread):
                raise RuntimeError("can't start new thread")

            patch.setattr(threading.Thread, "start", refuse)
        else:
            # As if there were no memory for it.
            patch.setattr(page_cache, "_PIECE", -1)
            patch.setattr(threading, "excepthook", lambda _: None)
        ahead.ask(*places(1, 20))
        ahead.wait(*places(1, 20))
    assert disk.read == []
    ahead.ask(*places(1, 20))
    ahead.wait(*places(1, 20))
    ahead.close()
    assert disk.read == [1, 20]


def test_closing_reads_no_more_and_leaves_no_thread(disk, announced):
    disk.goes_on.clear()
    ahead = BlockReadAhead(3, disk, START)
    ahead.ask(*places(1, 20, 40))
    threading.Timer(0.05, disk.goes_on.set).start()
    ahead.close()
    assert len(disk.read) <= 1
    assert "dalirefurb-read-ahead" not in thread_names()
    ahead.ask(*places(80))
    ahead.wait(*places(1, 20, 40, 80))
    ahead.close()
    assert 80 not in disk.read


@given(st.sets(st.integers(0, 60)))
def test_spans_cover_the_blocks_and_gaps_of_less_than_four(blocks):
    found = spans(sorted(blocks))
    covered = [block for span in found for block in range(*span)]
    assert covered == sorted(set(covered))
    assert blocks <= set(covered)
    assert all({first, end - 1} <= blocks for first, end in found)
    assert all(after[0] - before[1] >= 4 for before, after in pairwise(found))
    gaps = [after - before - 1 for span in found for before, after in pairwise(sorted(blocks & set(range(*span))))]
    assert all(gap < 4 for gap in gaps)
