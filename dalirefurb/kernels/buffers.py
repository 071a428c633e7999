"""Memory for images that kernels make: a store's slots, or what earlier results left, since fresh costs more."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images, aligned_empty, rounded
from dalirefurb.system.resources import Remains


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Make an array that begins at a multiple of `ALIGNMENT` bytes, with whatever is in it.

    Raises:
        LoaderError: If there is no memory for it.
    """
    try:
        return aligned_empty(nbytes)
    except MemoryError as error:
        raise LoaderError(
            f"images and masks of a batch must have room in memory, but the system has none for {nbytes:,} bytes: pass "
            f"a smaller batch size to the planner, or a smaller max_pixels, num_threads or look_ahead to the loader"
        ) from error


@dataclass(frozen=True)
class PlainLevels:
    """What kernels leave where DALI's operators go on: levels as they are, uint8 of shape (B, height, width, 3).

    Attributes:
        sides: Height and width in pixels.
    """

    sides: tuple[int, int]

    dtype = "uint8"
    channels = 3
    channels_last = True
    means, stds = (0.0,) * 3, (1.0,) * 3

    @property
    def sides_text(self) -> str:
        """Height and width, for messages."""
        return "{} x {}".format(*self.sides)


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


class OutputBuffers:
    """Makes room for a batch's images.

    Args:
        most_batches: Number of batches whose images are there at the same time, those that were handed on included.
        reserve: Function that gives room for partial images, see `Store.reserve`.
    """

    def __init__(self, most_batches: int, reserve: Callable[[int], Images | None] | None = None) -> None:
        self._partials, self._results = Buffers(most_batches), Buffers(most_batches)
        self._reserve = reserve

    def partials(self, sizes: NDArray[np.int64]) -> Images:
        """Make room for partial images of these sizes, (n, 2)."""
        count = len(sizes)
        if count and (sizes != sizes[0]).any():
            nbytes = 3 * sizes.prod(axis=1)
            room = rounded(nbytes)
            block = self._partials.take((int(room.sum()),), "uint8")
            starts = np.cumsum(room) - room
            places = zip(starts.tolist(), (starts + nbytes).tolist(), sizes.tolist(), strict=True)
            return Images([block[start:end].reshape(*sides, 3) for start, end, sides in places])
        height, width = sizes[0].tolist() if count else (0, 0)
        room = None if self._reserve is None or not count else self._reserve(count)
        if room is not None and room.kinds == {(np.dtype(np.uint8), (height, width, 3))}:
            return room
        return Images(self._partials.take((count, height, width, 3), "uint8"))

    def results(self, output: Output | PlainLevels, count: int) -> NDArray[Any]:
        """Make room for what the model, or DALI, receives of so many images."""
        shape = (*output.sides, output.channels) if output.channels_last else (output.channels, *output.sides)
        return self._results.take((count, *shape), "uint16" if output.dtype == "bfloat16" else output.dtype)
