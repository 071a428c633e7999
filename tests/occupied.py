"""Work that keeps a GPU from doing what is asked for: what does not wait for that is found out."""

from __future__ import annotations

from typing import Any

import numpy as np

_SPIN = """
extern "C" __global__ void spin(long long cycles) {
    long long began = clock64();
    while (clock64() - began < cycles) {}
}
"""
_CYCLES = 2 * 10**8
_BLOCK_THREADS = 1024


class Spin:
    """Queues, on CuPy's current stream, what takes some 100 ms."""

    def __init__(self, cupy: Any) -> None:
        self._kernel = cupy.RawKernel(_SPIN, "spin")
        self._kernel((1,), (1,), (np.int64(1),))
        device = cupy.cuda.Device()
        device.synchronize()
        resident = device.attributes["MultiProcessorCount"] * device.attributes["MaxThreadsPerMultiProcessor"]
        self._all_blocks = resident // _BLOCK_THREADS

    def stream(self) -> None:
        """Keep the stream busy; others go on."""
        self._kernel((1,), (1,), (np.int64(_CYCLES),))

    def device(self) -> None:
        """Keep the whole device busy, so that no other kernel begins."""
        self._kernel((self._all_blocks,), (_BLOCK_THREADS,), (np.int64(_CYCLES),))
