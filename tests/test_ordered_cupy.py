"""The stand-in for CuPy raises where a GPU could come too early, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from tests.ordered_device import Event, Lock, OrderedDevice, Stream
from tests.ordered_memory import HostView, Race


class Bench:
    """Two streams, and device and pinned memory that are written by now, 8 bytes each."""

    def __init__(self) -> None:
        self.device = OrderedDevice()
        self.cupy, cuda = self.device.cupy, self.device.cupy.cuda
        self.one, self.two = self.device.stream("stream one"), self.device.stream("stream two")
        self.array = self.cupy.ndarray((8,), np.uint8, cuda.MemoryPointer(cuda.Memory(8), 0))
        pinned = cuda.PinnedMemory(8)
        self.pinned = self.cupy.ndarray((8,), np.uint8, cuda.MemoryPointer(pinned, 0))
        self.host = np.ndarray((8,), np.uint8, buffer=cuda.PinnedMemoryPointer(pinned, 0)).view(HostView)
        self.host.on_touch = self.device.touch_on_host
        self.host[...] = 1
        with self.one:
            self.array.fill(1)
        self.one.synchronize()


def read(stream: Stream, array: Any) -> None:
    with stream:
        array.touch(writes=False)


def write(stream: Stream, array: Any) -> None:
    with stream:
        array.fill(2)


def copy_to_the_device(bench: Bench) -> None:
    with bench.one:
        bench.cupy.asarray(bench.host)


# What stream one does, what must come after it, and what is said where nothing sees to that.
CONFLICTS: dict[str, tuple[Callable[[Bench], Any], Callable[[Bench], Any], str]] = {
    "read after write": (
        lambda bench: write(bench.one, bench.array),
        lambda bench: read(bench.two, bench.array),
        "stream two reads 8 bytes of device memory that stream one writes first, but nothing makes it wait for that",
    ),
    "write after write": (
        lambda bench: write(bench.one, bench.array),
        lambda bench: write(bench.two, bench.array[2:5]),
        "stream two writes 3 bytes of device memory that stream one writes first",
    ),
    "write after read": (
        lambda bench: read(bench.one, bench.array[:4]),
        lambda bench: write(bench.two, bench.array[2:8:2]),
        "stream two writes 1 bytes of device memory that stream one reads first",
    ),
    "host's write after read": (
        lambda bench: read(bench.one, bench.pinned),
        lambda bench: bench.host[1:3].fill(2),
        "MainThread writes 2 bytes of pinned memory that stream one reads first",
    ),
    "host's write after copy": (
        copy_to_the_device,
        lambda bench: np.copyto(bench.host[2:5], np.zeros(3, np.uint8)),
        "MainThread writes 3 bytes of pinned memory that stream one reads first",
    ),
    "host's arithmetic after write": (
        lambda bench: write(bench.one, bench.pinned),
        lambda bench: bench.host + 1,
        "MainThread reads 8 bytes of pinned memory that stream one writes first",
    ),
    "host's function of several after write": (
        lambda bench: write(bench.one, bench.pinned[1:]),
        lambda bench: np.stack([bench.host[:1], bench.host[1:2]]),
        "MainThread reads 1 bytes of pinned memory that stream one writes first",
    ),
    "host's item after write": (
        lambda bench: write(bench.one, bench.pinned),
        lambda bench: int(bench.host[3]),
        "MainThread reads 1 bytes of pinned memory that stream one writes first",
    ),
}


def event_that_is_waited_for(bench: Bench, before: Event) -> None:
    bench.two.wait_event(bench.one.record())
    bench.two.synchronize()


def host_that_waits(bench: Bench, before: Event) -> None:
    bench.one.synchronize()


def nothing(bench: Bench, before: Event) -> None: ...


def event_of_too_early(bench: Bench, before: Event) -> None:
    bench.two.wait_event(before)
    bench.two.synchronize()


def event_of_another_stream(bench: Bench, before: Event) -> None:
    bench.two.wait_event(bench.device.stream("stream three").record())
    bench.two.synchronize()


def event_that_nobody_waits_for(bench: Bench, before: Event) -> None:
    bench.one.record()


Order = Callable[[Bench, Event], None]


def play(name: str, order: Order) -> Bench:
    first, second, _ = CONFLICTS[name]
    bench = Bench()
    before = bench.one.record()
    first(bench)
    order(bench, before)
    second(bench)
    return bench


@pytest.mark.parametrize("name", CONFLICTS)
@pytest.mark.parametrize("order", [event_that_is_waited_for, host_that_waits])
def test_what_waits_may_come(name: str, order: Order) -> None:
    assert play(name, order).device.races == []


@pytest.mark.parametrize("name", CONFLICTS)
@pytest.mark.parametrize("order", [nothing, event_of_too_early, event_of_another_stream, event_that_nobody_waits_for])
def test_what_does_not_wait_may_not(name: str, order: Order) -> None:
    with pytest.raises(Race, match=CONFLICTS[name][2]):
        play(name, order)


def test_one_stream_is_in_order_and_bytes_apart_need_none() -> None:
    bench = Bench()
    write(bench.one, bench.array[:4])
    read(bench.one, bench.array)
    write(bench.one, bench.array[:4])
    write(bench.two, bench.pinned[4:])
    bench.host[:4] = 3
    read(bench.two, bench.array[4:])
    assert bench.device.races == []


def test_an_order_holds_through_others() -> None:
    """One waits for the other that waited for the first."""
    bench = Bench()
    three = bench.device.stream("stream three")
    write(bench.one, bench.array)
    bench.two.wait_event(bench.one.record())
    three.wait_event(bench.two.record())
    write(three, bench.array)
    with pytest.raises(Race, match="stream two reads 8 bytes of device memory that stream three writes"):
        read(bench.two, bench.array)


def test_what_nobody_wrote_is_not_read() -> None:
    bench = Bench()
    with pytest.raises(Race, match="the default stream reads temporary memory that nobody wrote"):
        bench.cupy.ndarray((3,), np.uint8).touch(writes=False)


def test_memory_of_a_pool_keeps_its_past() -> None:
    """It is given out again on the stream where it was asked for, though another may read it still."""
    bench = Bench()
    with bench.one:
        array = bench.cupy.full((5,), 1, np.uint8)
    bench.two.wait_event(bench.one.record())
    read(bench.two, array)
    del array
    with bench.one, pytest.raises(Race, match="stream one writes 5 bytes of temporary memory that stream two reads"):
        bench.cupy.full((5,), 1, np.uint8)


def test_the_default_stream_and_blocking_ones_wait_for_each_other() -> None:
    bench = Bench()
    default, blocking = bench.device.default, bench.cupy.cuda.Stream()
    write(blocking, bench.array)
    write(default, bench.array)
    write(blocking, bench.array)
    with pytest.raises(Race, match="stream two reads 8 bytes"):
        read(bench.two, bench.array)


@pytest.mark.parametrize("locked", [False, True])
def test_a_thread_comes_after_another_that_had_the_lock_before(locked: bool) -> None:
    bench = Bench()
    lock: Any = Lock(bench.device) if locked else nullcontext()

    def write_on_host() -> None:
        with lock:
            bench.host[...] = 2

    with nullcontext() if locked else pytest.raises(Race, match=r"thread 2 writes 8 bytes .* that thread 1 writes"):
        bench.device.run(write_on_host, write_on_host)
    if locked:
        bench.host[...] = 3
        assert bench.device.races == []


def test_what_cupy_refuses_is_refused() -> None:
    bench = Bench()
    with pytest.raises(TypeError, match="copied to the host by asnumpy"):
        np.asarray(bench.array)
    with pytest.raises(TypeError, match="must be there: use asarray"):
        bench.array[:] = np.zeros(8, np.uint8)
    with pytest.raises(AttributeError):
        _ = bench.cupy.concatenate
