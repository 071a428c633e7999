"""How steady is the machine itself? Batches of fixed work, whose pieces all cores take in turn, as long as real ones.

Time per batch of these varies only by what the machine does: its clock, its neighbours, its scheduler.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import harness
import numpy as np
from harness import Contender

_TRIAL_S = 0.5
_LEVELS = np.random.default_rng(0).integers(0, 8, 1 << 15, np.uint8).tobytes()


class FixedWork:
    """Batches of so many pieces that each takes as long as asked, about, on all cores.

    Args:
        name: For tables and results.
        batch_s: How long a batch takes, in seconds.
    """

    def __init__(self, name: str, batch_s: float) -> None:
        self.name = name
        with ThreadPoolExecutor(harness.cores()) as pool:
            pieces, began = 0, time.perf_counter()
            while time.perf_counter() - began < _TRIAL_S:
                pieces += _batch(pool, 64)
            self._pieces = max(1, round(pieces * batch_s / (time.perf_counter() - began)))

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Have threads for one turn."""
        with ThreadPoolExecutor(harness.cores()) as pool:
            yield Contender(self.name, f"{harness.cores()} threads", 0, self._batches(pool))

    def _batches(self, pool: ThreadPoolExecutor) -> Generator[int, None, None]:
        while True:
            yield _batch(pool, self._pieces)


def _batch(pool: ThreadPoolExecutor, pieces: int) -> int:
    """Do so many pieces, some hundred microseconds each, without Python's lock."""
    turns = count()

    def work() -> None:
        while next(turns) < pieces:
            zlib.compress(_LEVELS, 1)

    for job in [pool.submit(work) for _ in range(harness.cores())]:
        job.result()
    return pieces
