"""ClosableQueue: items on their way from one thread to the next, with an end.

Whoever puts waits for room, whoever takes waits for an item, and either wait can be ended: `fail` raises in `take`
once the items put before are taken, `stop` ends both sides at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

_POLL_S = 1.0

Item = TypeVar("Item")


class Stopped(BaseException):
    """The wait was ended by `ClosableQueue.stop`: no error, so what handles errors lets it pass."""


class ClosableQueue(Generic[Item]):
    """Items on their way from one thread to another, in order.

    Args:
        capacity: Number of items in the queue from which on `put` waits; one call of `put` adds all of its items at
            once.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._error: BaseException | None = None
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def __len__(self) -> int:
        """Count the items that can be taken without waiting."""
        return len(self._items)

    def put(self, items: Iterable[Item]) -> None:
        """Lay items down, once there is room.

        Raises:
            Stopped: Nobody will take them.
        """
        with self._changed:
            while len(self._items) >= self._capacity and not self._stopping:
                self._changed.wait(_POLL_S)
            self._check_going_on()
            self._items.extend(items)
            self._changed.notify_all()

    def take(self) -> Item:
        """Wait for the next item.

        Raises:
            Stopped: None will come.
            BaseException: What `fail` was given.
        """
        with self._changed:
            while not self._items and self._error is None and not self._stopping:
                self._changed.wait(_POLL_S)
            self._check_going_on()
            if not self._items:
                assert self._error is not None
                raise self._error
            item = self._items.popleft()
            self._changed.notify_all()
        return item

    def close(self) -> list[Item]:
        """End both sides' waits; return what nobody will take."""
        with self._changed:
            self.stop()
            rest, self._items = list(self._items), deque()
        return rest

    def fail(self, error: BaseException) -> None:
        """Raise an error in `take`, after the items that are there; once it is stopped, nobody asks for it."""
        with self._changed:
            if not self._stopping:
                self._error = error
                self._changed.notify_all()

    def stop(self) -> None:
        """End both sides' waits. No error is kept: its traceback would keep all that the frames in it have."""
        with self._changed:
            self._stopping = True
            self._error = None
            self._changed.notify_all()

    def _check_going_on(self) -> None:
        if self._stopping:
            raise Stopped
