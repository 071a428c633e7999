"""Makes one call of many fail: the n-th one into some method, whichever object it is called on."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from types import FrameType
from typing import Any

from tests.in_turn import EACH_CHANGE

LIMIT_S = 600


def turns() -> Iterator[int]:
    """Which call fails, run after run: each in turn; where each change is tested, fewer and fewer of them."""
    if EACH_CHANGE:
        return chain((1, 3), (6 * 4**power for power in count()))
    return count(1)


class FaultError(Exception):
    """What a call that is made to fail raises."""


class Fault:
    """Fails at the n-th call into a method, from whatever thread; the method is not called then.

    Attributes:
        raised: What was raised, None as long as nothing was.
    """

    def __init__(self, owner: type, method: str, nth: int, error: type[Exception] = FaultError) -> None:
        self._owner, self._method, self._nth, self._error = owner, method, nth, error
        self._lock = threading.Lock()
        self._calls = 0
        self.raised: Exception | None = None

    @contextmanager
    def installed(self) -> Iterator[Fault]:
        """Count from here on."""
        inherited = self._method not in vars(self._owner)
        original = getattr(self._owner, self._method)
        setattr(self._owner, self._method, self._failing(original))
        try:
            yield self
        finally:
            if inherited:
                delattr(self._owner, self._method)
            else:
                setattr(self._owner, self._method, original)

    def caused(self, error: BaseException | None) -> bool:
        """Whether an error is what was raised, or has it among its causes."""
        return error is not None and (error is self.raised or self.caused(error.__cause__))

    def _failing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                self._calls += 1
                if self._calls == self._nth:
                    self.raised = self._error(f"call {self._nth} of {self._method}")
                    raise self.raised
            return original(*arguments, **named)

        return call


@contextmanager
def limited(seconds: int = LIMIT_S) -> Iterator[None]:
    """Fail a block that hangs in the main thread."""

    def fail(_: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it hangs, after {seconds} s, at {frame}")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
