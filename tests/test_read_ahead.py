import os

import numpy as np
import pytest

from dalirefurb.store.read_ahead import ReadAhead

START = 4096
BLOCK = 1 << 18


@pytest.fixture
def asked(monkeypatch):
    """What the kernel is asked for: (first byte, bytes)."""
    calls = []

    def advise(fd, start, size, advice):
        assert advice == os.POSIX_FADV_WILLNEED
        calls.append((start, size))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    return calls


def ask(slot_bytes, slots, places, fits=True):
    starts = np.array(places, np.int64) * slot_bytes
    ReadAhead(3, START, slots * slot_bytes, slots, fits=fits).ask(starts, np.full(len(starts), slot_bytes - 100))


def test_large_samples_are_asked_for_as_they_are(asked):
    ask(16384, 1000, [7, 3])
    assert asked == [(START + 7 * 16384, 16284), (START + 3 * 16384, 16284)]


def test_small_samples_are_asked_for_in_the_blocks_that_they_are_in(asked):
    ask(4096, 1000, [0, 63, 64, 999, 5])
    assert asked == [(START + block * BLOCK, BLOCK) for block in (0, 1, 15)]


def test_a_small_sample_in_two_blocks_needs_both(asked):
    ask(4099, 1000, [63])
    assert asked == [(START, BLOCK), (START + BLOCK, BLOCK)]


def test_small_samples_are_asked_for_as_they_are_where_memory_has_no_room_for_all(asked):
    ask(4096, 1000, [1, 2], fits=False)
    assert asked == [(START + 4096, 3996), (START + 2 * 4096, 3996)]


def test_no_sample_is_nothing_to_ask_for(asked):
    ask(4096, 1000, [])
    ask(16384, 1000, [])
    assert asked == []
