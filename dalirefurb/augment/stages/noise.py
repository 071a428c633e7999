"""Noise: levels that are a function of a key and of a place, whatever computes them, see `rng`.

A level is a mean plus a standard deviation times the sum of eight random bytes, which is nearly normal: its share below
any number differs from the normal distribution's by 0.004 at most, and its tails end at 4.9 standard deviations.
All is integer arithmetic of 32 bits up to that sum, so that NumPy, kernels and DALI's operators make the same levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KEYS = 2**31
"""How many keys there are: 0 .. 2**31 - 1."""

LONGEST_SIDE = 2**16
"""Pixels that a window of noise has in each direction, at most, if DALI's operators make it."""

ROW, FIRST, SECOND, THIRD = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F
"""Odd multipliers: of a row's number, and of the steps that mix bits."""

_BYTES = 8
_MIDDLE = _BYTES * 255 / 2
_DEVIATION = math.sqrt(_BYTES * (256**2 - 1) / 12)


class Noise(NamedTuple):
    """How levels are made of sums of bytes: scale * sum + shift, for each channel.

    Attributes:
        scale: Scale of each channel.
        shift: Shift of each channel.
    """

    scale: tuple[float, float, float]
    shift: tuple[float, float, float]

    @classmethod
    def of(cls, means: Sequence[float], stds: Sequence[float]) -> Noise:
        """Make noise of the channels' means and standard deviations, of pixels in 0..1."""
        scale = 255 * np.array(stds) / _DEVIATION
        shift = 255 * np.array(means) - scale * _MIDDLE
        # What single precision makes of them, as all who compute levels do.
        rounded = np.array([scale, shift], np.float32).tolist()
        return cls(*map(tuple, rounded))

    def levels(self, sums: NDArray[np.uint32]) -> NDArray[np.float32]:
        """Turn sums of bytes, shape (..., 3), into levels: whole numbers in 0 .. 255."""
        scale, shift = np.array(self, np.float32)
        levels: NDArray[np.float32] = np.rint(sums.astype(np.float32) * scale + shift).clip(0, 255)
        return levels


def byte_sums(keys: NDArray[np.int32], row: int = 0, columns: int = 3) -> NDArray[np.uint32]:
    """Return sums of random bytes.

    Args:
        keys: Keys, shape (n,).
        row: Number of the row of pixels.
        columns: Levels of a row, three to a pixel.

    Returns:
        Sums of the row's levels, shape (n, columns).
    """
    place = np.uint32(row * ROW % 2**32) + np.arange(columns, dtype=np.uint32)
    bits = keys.astype(np.uint32)[:, None] * np.uint32(THIRD) + place
    bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(FIRST)
    bits = (bits ^ (bits >> np.uint32(13))) * np.uint32(SECOND)
    bits ^= bits >> np.uint32(16)
    more = (bits ^ (bits >> np.uint32(15))) * np.uint32(THIRD)
    more ^= more >> np.uint32(13)
    pairs = sum((each >> np.uint32(shift)) & np.uint32(0x00FF00FF) for each in (bits, more) for shift in (0, 8))
    sums: NDArray[np.uint32] = (pairs & np.uint32(0xFFFF)) + (pairs >> np.uint32(16))
    return sums
