"""How do batches get from the owner thread to the training loop? Through one place that holds a run's batches.

The owner thread lays a run down when the batches before it are taken, so what is made ahead is bounded by the runs in
flight. Either side may end the other's wait: `fail` raises in `take`, `stop` ends `put`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.errors import LoaderError
from dalirefurb.exchange import Position

_POLL_S = 1.0


@dataclass(frozen=True)
class Served:
    """One batch as the training loop gets it.

    Attributes:
        position: Which batch it is.
        images: (B, 3, H, W) float32 or float16, on the final part's device.
        indices: Sample indices in serving order, (B,).
    """

    position: Position
    images: torch.Tensor
    indices: NDArray[np.int64]


class Handover:
    """Batches that are ready, and what ended them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: deque[Served] = deque()
        self._error: BaseException | None = None
        self.stopping = False

    # The training loop's side.

    def take(self, alive: Callable[[], bool]) -> Served:
        """Wait for the next batch.

        Args:
            alive: Whether the owner thread still works.

        Raises:
            DalirefurbError: Whatever stopped the owner thread.
        """
        with self._changed:
            while not self._ready:
                if self._error is not None:
                    raise self._error
                if not alive():
                    raise LoaderError("the loader was stopped while a batch was waited for; iterate again")
                self._changed.wait(_POLL_S)
            served = self._ready.popleft()
            self._changed.notify_all()
        return served

    def stop(self) -> None:
        """Ask the owner thread to end."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Forget everything, once the owner thread has ended."""
        self._ready.clear()
        self._error = None
        self.stopping = False

    # The owner thread's side.

    def put(self, batches: list[Served]) -> None:
        """Lay batches down, once those before them are taken."""
        with self._changed:
            while self._ready and not self.stopping:
                self._changed.wait(_POLL_S)
            self._ready.extend(batches)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Raise an error in `take`, after the batches that are ready."""
        with self._changed:
            self._error = error
            self._changed.notify_all()
