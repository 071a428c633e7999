"""What if reading is slow? Another source behind a line of limited bandwidth: it waits, and computes nothing."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.source import Source


class SlowSource(Source):
    """Gives another source's samples, one every `wait_s` at most, however many threads read.

    Args:
        source: Whose samples.
        wait_s: Seconds a sample.
    """

    def __init__(self, source: Source, wait_s: float) -> None:
        self._source = source
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.labels = source.labels
        self.encoded = source.encoded
        self.image_shape = source.image_shape
        self.classes = source.classes

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Wait in line, then as long as so many samples take; return them."""
        with self._lock:
            self._free_at = max(self._free_at, time.perf_counter()) + len(indices) * self._wait_s
            arrival = self._free_at
        time.sleep(max(0.0, arrival - time.perf_counter()))
        return self._source.read(indices)

    def name(self, index: int) -> str:
        """Tell where sample `index` is, for messages."""
        return self._source.name(index)

    def fingerprint(self) -> dict[str, Any]:
        """Identify the samples; waiting does not change them."""
        return self._source.fingerprint()
