"""Noise: levels that are a function of a key and of a place, whatever computes them, see `rng`.

A level is a mean plus a standard deviation times the sum of eight random bytes, which is nearly normal: its share below
any number differs from the normal distribution's by 0.004 at most, and its tails end at 4.9 standard deviations.
All is integer arithmetic of 32 bits up to that sum, so that NumPy, kernels and DALI's operators make the same levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Node

KEYS = 2**31
"""How many keys there are: 0 .. 2**31 - 1."""

LONGEST_SIDE = 2**16
"""Pixels that a window of noise has in each direction, at most, if DALI's operators make it."""

ROW, FIRST, SECOND, THIRD = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F
"""Odd multipliers: of a row's number, and of the steps that mix bits."""

_BASE = 512  # of two digits that DALI counts in
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
    sums: NDArray[np.uint32] = _mixed(keys.astype(np.uint32)[:, None] * np.uint32(THIRD) + place, np.uint32)
    return sums


def _mixed(bits: Any, whole: Callable[[int], Any]) -> Any:
    """Return the sums of the eight bytes that 32 bits each become, in whatever arithmetic has `whole` numbers."""
    bits = (bits ^ (bits >> whole(16))) * whole(FIRST)
    bits = (bits ^ (bits >> whole(13))) * whole(SECOND)
    bits = bits ^ (bits >> whole(16))
    more = (bits ^ (bits >> whole(15))) * whole(THIRD)
    more = more ^ (more >> whole(13))
    byte = whole(0x00FF00FF)
    pairs = (bits & byte) + ((bits >> whole(8)) & byte) + (more & byte) + ((more >> whole(8)) & byte)
    return (pairs & whole(0xFFFF)) + (pairs >> whole(16))


def paint_noise(images: Node, window: Node, key: Node, noise: Noise, *, as_wide: bool | None = None) -> Node:
    """Paint noise over a window of each image by DALI's operators; call it where conditionals are enabled.

    Args:
        images: HWC uint8 images with 3 channels, on "cpu" or "gpu".
        window: First row, first column, height and width, shape (4,), as a CPU node; images without pixels there stay.
        key: Key of the noise, as a CPU node.
        noise: How levels are made.
        as_wide: Whether the noise is made as wide as the image, of which the window's part is pasted; None: on a GPU.
            There DALI 2.4 reads everything that it pastes by the lines of the first image.
    """
    from nvidia.dali import fn, types

    if window[2] * window[3] > 0:
        size = images.shape(dtype=types.INT32)[:2]
        wide = images.device == "gpu" if as_wide is None else as_wide
        painted = fn.multi_paste(
            images,
            _levels(window[2], size[1] if wide else window[3], key, noise, images.device),
            out_anchors=fn.stack(types.Constant(np.zeros(2, np.int32)), window[:2]),
            output_size=size,
            **({"shapes": fn.stack(size, window[2:])} if wide else {}),
        )
    else:
        painted = images
    return painted


def _whole(value: int) -> Node:
    from nvidia.dali import types

    return types.Constant(value, dtype=types.UINT32)


def _first(values: Node, count: Node) -> Node:
    from nvidia.dali import fn, types

    start = types.Constant(np.zeros(1, np.int32))
    return fn.slice(values, start=start, shape=fn.reshape(count, shape=[1]), axes=[0])


def _counted(count: Node) -> Node:
    """Return 0, 1, ..., shape (count,), of a table of two digits: one of all numbers would be megabytes of a graph."""
    from nvidia.dali import fn, types

    low = types.Constant(np.arange(_BASE, dtype=np.uint32)[None])
    high = types.Constant(np.arange(0, 3 * LONGEST_SIDE, _BASE, dtype=np.uint32))
    rows = _first(high, count // types.Constant(_BASE, dtype=types.INT32) + types.Constant(1, dtype=types.INT32))
    return _first(fn.reshape(fn.reshape(rows, shape=[-1, 1]) + low, shape=[-1]), count)


def _levels(height: Node, width: Node, key: Node, noise: Noise, device: str) -> Node:
    """Return levels of noise, as `byte_sums` and `Noise.levels` say."""
    from nvidia.dali import fn, types

    rows = fn.reshape(_counted(height), shape=[-1, 1, 1])
    row = fn.reshape(_counted(width * types.Constant(3, dtype=types.INT32)), shape=[1, -1, 3])
    start = fn.cast(key, dtype=types.UINT32) * _whole(THIRD)
    if device == "gpu":
        rows, row, start = rows.gpu(), row.gpu(), start.gpu()
    sums = fn.cast(_mixed(start + rows * _whole(ROW) + row, _whole), dtype=types.FLOAT)
    scale, shift = (types.Constant(np.array([[each]], np.float32), device=device) for each in noise)
    return fn.reshape(fn.cast(sums * scale + shift, dtype=types.UINT8), layout="HWC")
