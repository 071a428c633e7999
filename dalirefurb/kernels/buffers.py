"""Where do results go? Into memory that earlier results have left: fresh memory costs more than most kernels."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Buffers:
    """Lends arrays. One that nobody refers to any more, nor to a part of it, is lent again.

    As much memory stays taken as was lent at once.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Lend a C-contiguous array with whatever is in it."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not size:
            return np.empty(shape, dtype)
        free = self._free[size]
        try:
            memory = free.pop()  # Of a list, this and `append` are safe whichever thread calls.
        except IndexError:
            memory = np.empty(size, np.uint8)
        # A view of an array would refer to the memory, not to what was lent.
        lent = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(lent, free.append, memory).atexit = False
        return lent.view(dtype).reshape(shape)
