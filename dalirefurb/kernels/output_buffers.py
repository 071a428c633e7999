"""Memory for the images that kernels make: a store's slots, or what earlier batches have left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.image_batch import Images
from dalirefurb.kernels.buffers import Buffers, aligned

Reserve = Callable[[int], Images | None]
"""Gives room for a number of images, or has none."""


class OutputBuffers:
    """Makes room for a batch's images.

    Args:
        most_batches: Number of batches whose images are there at the same time, those that were handed on included.
        reserve: Function that gives room for partial images, see `Store.reserve`.
    """

    def __init__(self, most_batches: int, reserve: Reserve | None = None) -> None:
        self._partials, self._results = Buffers(most_batches), Buffers(most_batches)
        self._reserve = reserve

    def partials(self, sizes: NDArray[np.int64]) -> Images:
        """Make room for partial images of these sizes, (n, 2)."""
        count = len(sizes)
        if count and (sizes != sizes[0]).any():
            return Images([aligned(3 * height * width).reshape(height, width, 3) for height, width in sizes.tolist()])
        height, width = sizes[0].tolist() if count else (0, 0)
        room = None if self._reserve is None or not count else self._reserve(count)
        if room is not None and room.kinds == {(np.dtype(np.uint8), (height, width, 3))}:
            return room
        return Images(self._partials.take((count, height, width, 3), "uint8"))

    def results(self, output: Output, count: int) -> NDArray[Any]:
        """Make room for what the model receives of so many images."""
        shape = (*output.sides, output.channels) if output.channels_last else (output.channels, *output.sides)
        return self._results.take((count, *shape), "uint16" if output.dtype == "bfloat16" else output.dtype)
