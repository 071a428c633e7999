"""Buffers that earlier results have left: fresh memory costs more than most kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import LoaderError
from dalirefurb.system.remains import Remains

ALIGNMENT = 64
"""Bytes of a cache line."""


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Make an array that begins at a multiple of `ALIGNMENT` bytes, with whatever is in it.

    Raises:
        LoaderError: If there is no memory for it.
    """
    try:
        unaligned = np.empty(nbytes + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise LoaderError(
            f"images of a batch must have room in memory, but the system has none for {nbytes:,} bytes: pass a smaller "
            f"batch size to the planner, or a smaller max_pixels, num_threads or look_ahead to the loader"
        ) from error
    start = -unaligned.ctypes.data % ALIGNMENT
    return unaligned[start : start + nbytes]


class Buffers:
    """Hands out arrays. The memory of one that nobody refers to any more, nor to a part of it, is handed out again.

    Each is as large as the largest that it was handed out for.

    Args:
        most_free: Largest number of arrays whose memory stays taken although they are not in use: as many as are in use
            at a time, however that varies. On a virtual machine a batch's fresh memory can cost several batches' time.
    """

    def __init__(self, most_free: int) -> None:
        self._free: Remains[NDArray[np.uint8]] = Remains(most_free)

    def take(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Hand out a C-contiguous array with whatever is in it, see `aligned`."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if not size:
            return np.empty(shape, dtype)
        try:
            memory = self._free.take()
        except IndexError:
            memory = np.empty(0, np.uint8)
        if len(memory) < size:
            memory = aligned(size)
        # A view of an array would refer to the memory, not to what is handed out.
        handed_out = np.frombuffer(memory.data, np.uint8, size)
        self._free.expect(handed_out, memory)
        return handed_out.view(dtype).reshape(shape)
