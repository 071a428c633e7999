"""Features of an image for an Assistant: low-resolution pixels, which cost next to nothing.

A sample's features are the means of its version 0 over a grid of equal cells, each rounded to a byte; of a bad sample
that is replaced, zeros. All sums are of integers, and exact: they depend on nothing but the pixels, not on which images
come together, nor in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import integer
from dalirefurb.planning.batch_plan import Indices

_PIXELS_AT_ONCE = 1 << 20


class FeatureTable:
    """The features of each sample that was seen: 193 bytes a sample at resolution 8. A row never changes once there.

    >>> table = FeatureTable(3, resolution=1)
    >>> table.fill(np.array([2]), [np.full((4, 5, 3), 255, np.uint8)])
    >>> table.missing(np.arange(3)).tolist(), table.rows(np.array([2])).tolist()
    ([0, 1], [[1.0, 1.0, 1.0]])

    Attributes:
        num_samples: Number of samples, one row of the table each, at least 1.
        resolution: Cells along each side of the grid, at least 1.
    """

    def __init__(self, num_samples: int, *, resolution: int) -> None:
        self.resolution = integer("resolution", resolution, 1, None, "pass the pixels a side to judge images by")
        self.num_samples = integer("num_samples", num_samples, 1, None, "pass the planner's num_samples")
        self._table = np.zeros((self.num_samples, self.resolution**2 * 3), np.uint8)
        self._there = np.zeros(self.num_samples, np.bool_)

    def fill(self, indices: Indices, images: Sequence[NDArray[np.uint8]]) -> None:
        """Put the features of samples in.

        Args:
            indices: Indices of the samples, shape (n,).
            images: The partial image of version 0 of each sample, HWC, of any size.
        """
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for place, image in enumerate(images):
            by_shape.setdefault(image.shape, []).append(place)
        for shape, places in by_shape.items():
            at_once = max(1, _PIXELS_AT_ONCE // (3 * shape[0] * shape[1]))
            for start in range(0, len(places), at_once):
                some = places[start : start + at_once]
                self._table[indices[some]] = cell_means([images[place] for place in some], self.resolution)
        self._there[indices] = True

    def missing(self, indices: Indices) -> Indices:
        """Return those samples whose features are not there, each once, ascending."""
        return np.unique(indices[~self._there[indices]])

    def rows(self, indices: Indices) -> NDArray[np.float64]:
        """Return features scaled to -1..1, shape (n, resolution * resolution * 3); all must be there."""
        return self._table[indices] / 127.5 - 1


def cell_means(images: Sequence[NDArray[np.uint8]], cells: int) -> NDArray[np.uint8]:
    """Return the means of n images of one shape over `cells` x `cells` equal cells, shape (n, cells * cells * 3).

    A pixel counts with the area that it has in a cell. Halves are rounded up.
    """
    height, width, channels = images[0].shape
    pixels = np.stack(images, dtype=np.float32).reshape(-1, height, width * channels)
    # A column's sum is at most 255 * height, exact in float32 up to 65,000 rows; a cell's needs float64.
    columns = (_overlaps(height, cells) @ pixels).reshape(-1, width, channels)  # (n * cells, width, 3)
    sums = (_overlaps(width, cells) @ columns.astype(np.float64)).astype(np.int64)  # (n * cells, cells, 3)
    means: NDArray[np.int64] = (2 * sums + height * width) // (2 * height * width)
    return means.astype(np.uint8).reshape(len(images), -1)


@lru_cache(maxsize=256)
def _overlaps(size: int, cells: int) -> NDArray[np.float32]:
    """Measure how much of each pixel is in each cell, shape (cells, size), in units of 1 / cells of a pixel.

    >>> _overlaps(3, 2).tolist()
    [[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]
    """
    pixel, cell = cells * np.arange(size), size * np.arange(cells)[:, None]
    overlap: Indices = np.minimum(pixel + cells, cell + size) - np.maximum(pixel, cell)
    return overlap.clip(0).astype(np.float32)
