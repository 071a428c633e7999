"""Maps: 3x3 matrices from coordinates (x, y, 1) in a result to those in the image that it was made of.

(0, 0) is an image's outer corner: pixel i of a row covers i .. i + 1, and its centre is at i + 0.5. What is mapped is
divided by its third coordinate, so a matrix times any number above 0 is the same map. Where that is 0 or less a change
of perspective shows what is behind its horizon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Maps = NDArray[np.float64]
"""One map for each of n images, (n, 3, 3)."""


def unmoved(count: int) -> Maps:
    """Return maps that leave everything where it is."""
    return np.tile(np.eye(3), (count, 1, 1))


def placed(starts: NDArray[Any], scales: ArrayLike = 1.0) -> Maps:
    """Return maps that multiply by scales, then add starts, each x and y, (n, 2)."""
    maps = unmoved(len(starts))
    maps[:, 0, 0], maps[:, 1, 1] = np.broadcast_to(scales, starts.shape).T
    maps[:, :2, 2] = starts
    return maps


def chained(parts: Iterable[Maps], count: int) -> Maps:
    """Return the maps of what is done to images one after the other."""
    made = unmoved(count)
    for maps in parts:
        made = made @ maps
    return made


def inverted(maps: Maps) -> Maps:
    """Return the maps from the image to the result, but for a factor above 0; of one that has no inverse, zeros.

    They have the inverse's signs, so that what was above 0 is.
    """
    first, second, third = maps.transpose(1, 0, 2)
    adjugates = np.stack([np.cross(second, third), np.cross(third, first), np.cross(first, second)], axis=2)
    determinants = np.einsum("ni,ni->n", first, adjugates[:, :, 0])
    inverses: Maps = adjugates * np.sign(determinants)[:, None, None]
    return inverses
