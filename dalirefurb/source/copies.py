"""Copies of a dataset, one for each thread that reads what was made for one; or one thread at a time."""

from __future__ import annotations

import io
import os
import pickle
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

MOST_BYTES = 128 << 20
"""Of a dataset that is copied, pickled: as much as the paths of some two million files."""

_TURN = threading.RLock()
"""Who has it reads what is not copied. There is one, as datasets may have parts in common, such as an open file."""


class Copies:
    """A dataset to be read from any thread.

    Each thread reads a copy of its own, made when it first reads, of the dataset as it was when this was made: what
    one thread opens, moves or remembers in it no other one sees. Where the dataset cannot be pickled, or takes more
    than `MOST_BYTES`, threads read it one at a time, and no other such dataset meanwhile.

    Args:
        dataset: Dataset with `__getitem__`.
        thread_safe: Whether threads can read the dataset side by side; then all do, and there are no copies.
    """

    def __init__(self, dataset: Any, *, thread_safe: bool) -> None:
        self.dataset = dataset
        self._thread_safe = thread_safe
        # Before the first read: a file that is opened then could not be pickled any more.
        self._pickled = None if thread_safe else _pickled(dataset)
        self._own = threading.local()

    @property
    def copied(self) -> bool:
        """Whether each thread has a copy."""
        return self._pickled is not None

    def do_without(self) -> None:
        """Make no copies: threads read the dataset one at a time from now on."""
        self._pickled = None

    def turn(self) -> AbstractContextManager[Any]:
        """Wait until nobody else reads, where only one may; whoever has the turn can take it again.

        It is to be held until an item is taken apart: an image may be read from its file no sooner than that.
        """
        return nullcontext() if self._thread_safe or self.copied else _TURN

    def original(self, index: int) -> Any:
        """Read an item of the dataset that was given."""
        with nullcontext() if self._thread_safe else _TURN:
            return self.dataset[index]

    def __getitem__(self, index: int) -> Any:
        if (pickled := self._pickled) is None:
            return self.original(index)
        own = self._own
        if getattr(own, "pid", None) != os.getpid():  # A file that was open at a fork has one place for both processes.
            try:
                own.dataset, own.pid = pickle.loads(pickled), os.getpid()
            except Exception:  # As below.
                self.do_without()
                return self.original(index)
        return own.dataset[index]

    def __reduce__(self) -> tuple[Any, ...]:
        dataset = self.dataset if self._pickled is None else pickle.loads(self._pickled)
        return partial(Copies, thread_safe=self._thread_safe), (dataset,)


def _pickled(dataset: Any) -> bytes | None:
    """Pickle a dataset; None if that cannot be done, or takes too many bytes."""
    pickled = _Limited()
    try:
        _Pickler(pickled, protocol=pickle.HIGHEST_PROTOCOL).dump(dataset)
    except Exception:  # Whatever a user's class does that was never meant to be pickled.
        return None
    return pickled.getvalue()


def _begin_anew() -> None:
    """Let a forked child have its turn, though a thread that exists in its parent only may have had it."""
    global _TURN
    _TURN = threading.RLock()


os.register_at_fork(after_in_child=_begin_anew)


class _Limited(io.BytesIO):
    """Takes `MOST_BYTES` at most."""

    def write(self, data: Any, /) -> int:
        _refuse_above(self.tell() + memoryview(data).nbytes)
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Refuses large arrays and tensors before it copies them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            _refuse_above(value.nbytes)
        elif hasattr(type(value), "untyped_storage"):  # a tensor, which takes all its storage with it
            _refuse_above(value.untyped_storage().nbytes())
        return NotImplemented


def _refuse_above(num_bytes: int) -> None:
    if num_bytes > MOST_BYTES:
        raise pickle.PicklingError(f"a dataset that is copied must take {MOST_BYTES:,} bytes at most, got more")
