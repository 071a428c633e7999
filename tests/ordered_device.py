"""A device whose streams could do everything in any order that nothing forbids, and raise `Race` where that matters.

NumPy does all work at once, so values are right; what is checked is that they had to be. A stream comes after what its
thread did before it queued the work, after an event that it waits for, and, if it is blocking, after the default
stream. A thread comes after a stream that it synchronises with, and after whoever had a `Lock` before it.
`tests.ordered_memory` holds every read and write against that, `tests.ordered_cupy` is CuPy.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

from dalirefurb.store import slot_table
from dalirefurb.store.device import memory as device_memory
from tests import ordered_cupy
from tests.ordered_memory import Actor, Allocation, Clock, HostView


class Wait(NamedTuple):
    """A line of the library that asks `DeviceMemory` for an order, and one step of what that does."""

    function: str
    step: str
    line: int


class OrderedDevice:
    """A device, and the host threads that use it.

    Attributes:
        races: What was raised, even where somebody swallowed it.
        waits: Steps by which the library has ordered something.
        left_out: One of them, which is left out.
        arrays_left: How many temporary arrays there is room for; None if for any number.
        current: Stream that the calling thread has entered last.
    """

    def __init__(self) -> None:
        self.races: list[str] = []
        self.waits: set[Wait] = set()
        self.left_out: Wait | None = None
        self.arrays_left: int | None = None
        self.streams: list[Stream] = []
        self.guard = threading.RLock()
        self._allocations: weakref.WeakSet[Allocation] = weakref.WeakSet()
        self._thread = threading.local()
        self.default = Stream(self, "the default stream", non_blocking=False)
        self.cupy = ordered_cupy.module(self)

    def install(self, monkeypatch: pytest.MonkeyPatch, *, locks: bool = True) -> None:
        """Be the CuPy that device stores find.

        Args:
            monkeypatch: What puts everything back.
            locks: Whether a store's lock tells the threads that take it what came before.
        """
        empty_pinned = device_memory._CuPyMemory.empty_pinned

        def watched(memory: Any, shape: Any) -> Any:
            slab, host = empty_pinned(memory, shape)
            view = host.view(HostView)
            view.on_touch = self.touch_on_host
            return slab, view

        monkeypatch.setitem(sys.modules, "cupy", self.cupy)
        monkeypatch.setattr(device_memory._CuPyMemory, "empty_pinned", watched)
        if locks:
            monkeypatch.setattr(slot_table, "Lock", lambda: Lock(self))

    def allocate(self, kind: str, nbytes: int) -> Allocation:
        allocation = Allocation(kind, nbytes, self.races)
        self._allocations.add(allocation)
        return allocation

    def nbytes(self, kind: str) -> int:
        """Count the bytes of a kind that are not given back."""
        with self.guard:
            return sum(len(each.bytes) for each in self._allocations if each.kind == kind)

    def at(self, address: int) -> Allocation:
        """Return the memory that has an address."""
        with self.guard:
            return next(each for each in self._allocations if each.ptr <= address < each.ptr + len(each.bytes))

    def pinned(self, array: np.ndarray) -> Allocation | None:
        """Return the pinned memory in which a host array lies, if it does."""
        with self.guard:
            return next((each for each in self._allocations if each.kind == "pinned" and each.has(array)), None)

    def touch_on_host(self, array: np.ndarray, key: Any = ..., *, writes: bool) -> None:
        """Have this thread read or write a host array; that matters if it is pinned."""
        with self.guard:
            owner = self.pinned(array)
            if owner is not None:
                owner.touch(self.thread, array, key, writes=writes)

    @property
    def thread(self) -> Actor:
        """The calling thread."""
        if not hasattr(self._thread, "actor"):
            self._thread.actor = Actor(threading.current_thread().name)
        actor: Actor = self._thread.actor
        return actor

    @property
    def entered(self) -> list[Stream]:
        """The streams that the calling thread has entered, outermost first."""
        if not hasattr(self._thread, "streams"):
            self._thread.streams = [self.default]
        streams: list[Stream] = self._thread.streams
        return streams

    @property
    def current(self) -> Stream:
        return self.entered[-1]

    def stream(self, name: str) -> Stream:
        return Stream(self, name, non_blocking=True)

    def run(self, *tasks: Callable[[], None], together: bool = False) -> None:
        """Run each task in a thread of its own, one after another or together, and wait for them.

        All come after what the caller did, and before what it does then; none comes after another because of its turn.
        """
        before, ended, errors = dict(self.thread.clock), list[Clock](), list[BaseException]()

        def run(task: Callable[[], None]) -> None:
            self.thread.learn(before)
            try:
                task()
            except BaseException as error:
                errors.append(error)
            ended.append(self.thread.clock)

        threads = [threading.Thread(target=run, args=(task,), name=f"thread {n}") for n, task in enumerate(tasks, 1)]
        for thread in threads:
            thread.start()
            if not together:
                thread.join()
        for thread in threads:
            thread.join()
        for clock in ended:
            self.thread.learn(clock)
        if errors:
            raise errors[0]

    def happens(self, step: str) -> bool:
        """Note a step by which something is ordered, if it is the library's; return whether it is taken."""
        with self.guard:
            wait = _wait(step)
            if wait is not None:
                self.waits.add(wait)
            return wait is None or wait != self.left_out

    def named_waits(self) -> dict[str, Wait]:
        """Name the steps, numbered where one function has several of a kind."""
        turns: Counter[str] = Counter()
        named = {}
        for wait in sorted(self.waits):
            name = f"{wait.function}: {wait.step}"
            turns[name] += 1
            named[name if turns[name] == 1 else f"{name} ({turns[name]})"] = wait
        return named


def _wait(step: str) -> Wait | None:
    """Find the line for which a step is taken; None if it is not the library's."""
    own = {__name__, ordered_cupy.__name__, "contextlib", device_memory.__name__}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_globals["__name__"] in own or frame.f_code.co_name == "on_stream"):
        frame = frame.f_back
    module = "" if frame is None else frame.f_globals["__name__"]
    if frame is None or not module.startswith("dalirefurb."):
        return None
    place = type(frame.f_locals["self"]).__name__ if "self" in frame.f_locals else module.rpartition(".")[2]
    return Wait(f"{place}.{frame.f_code.co_name}", step, frame.f_lineno)


class Stream(Actor):
    """Work, done in the order in which it is queued. Blocking streams and the default one wait for each other."""

    def __init__(self, device: OrderedDevice, name: str, *, non_blocking: bool) -> None:
        super().__init__(name)
        self._device, self._blocking = device, not non_blocking
        device.streams.append(self)

    def queue(self) -> Stream:
        """Come after what the calling thread knows, and what CUDA itself makes a blocking stream wait for."""
        self.learn(self._device.thread.clock)
        default = self._device.default
        for other in self._device.streams if self is default else [default]:
            if self._blocking and other._blocking:
                self.learn(other.clock)
        return self

    def __enter__(self) -> Stream:
        entered = self._device.entered
        entered.append(self if self._device.happens("the stream is entered") else entered[-1])
        return self

    def __exit__(self, *error: object) -> None:
        self._device.entered.pop()

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        with self._device.guard:
            event.clock, event.device = dict(self.queue().clock), self._device
        return event

    def wait_event(self, event: Event) -> None:
        who = "the caller's stream" if self is self._device.current else "the store's stream"
        if self._device.happens(f"{who} waits"):
            with self._device.guard:
                self.learn(event.clock)

    def synchronize(self) -> None:
        if self._device.happens("the host waits"):
            with self._device.guard:
                self._device.thread.learn(self.queue().clock)


class Event:
    """What a stream was given before the event was recorded on it; nothing if it never was."""

    def __init__(self, *, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.clock: Clock = {}
        self.device: OrderedDevice | None = None

    def synchronize(self) -> None:
        if self.device is not None and self.device.happens("the host waits"):
            with self.device.guard:
                self.device.thread.learn(self.clock)


class Lock:
    """A lock whose holder comes after what its holders before did."""

    def __init__(self, device: OrderedDevice) -> None:
        self._device, self._lock, self._clock = device, threading.Lock(), Clock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._device.thread.learn(self._clock)

    def __exit__(self, *error: object) -> None:
        self._clock = dict(self._device.thread.clock)
        self._lock.release()
