"""Kernels that paint over a window: one colour, or noise, see `augment.stages.erasing`."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.stages.erasing import FIRST, ROW, SECOND, THIRD
from dalirefurb.kernels.instructions import copy
from dalirefurb.kernels.kernel import REFUSED, kernel
from dalirefurb.kernels.llvm import compiled, jitable, level, memory

_ROW, _FIRST, _SECOND, _THIRD = (np.uint32(number) for number in (ROW, FIRST, SECOND, THIRD))
_PAIR, _LOW = np.uint32(0x00FF00FF), np.uint32(0xFFFF)


@jitable
def paint_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return that no memory is needed, or `REFUSED` where the window is not within the image."""
    top, left, rows, length = numbers[0], numbers[1], numbers[2], numbers[3]
    fits = (top >= 0) & (rows >= 0) & (top + rows <= height) & (left >= 0) & (length >= 0) & (left + length <= width)
    return REFUSED * (1 - fits)


def noise_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of the sums of a row."""
    return 6 * width + paint_bytes(height, width, lines, columns, numbers)


@kernel(paint_bytes)
def paint(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Paint a colour over a window; the numbers are first row and column, height and width, and the levels."""
    copy(image, 0, image.size, out, 0)
    top, left, rows, length = int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3])
    red, green, blue = np.uint8(numbers[4]), np.uint8(numbers[5]), np.uint8(numbers[6])
    for y in range(top, top + rows):
        start = 3 * (y * width + left)
        for i in range(start, start + 3 * length, 3):
            at = np.uint64(i)
            out[at] = red
            out[at + np.uint64(1)] = green
            out[at + np.uint64(2)] = blue


@compiled
def _byte_sum(bits: Any) -> Any:
    """Return the sum of eight random bytes, uint16; see `augment.stages.erasing.byte_sums`."""
    # Numba takes products and sums of 32 bits for 64; these cut them off.
    bits = np.uint32((bits ^ (bits >> np.uint32(16))) * _FIRST)
    bits = np.uint32((bits ^ (bits >> np.uint32(13))) * _SECOND)
    bits = np.uint32(bits ^ (bits >> np.uint32(16)))
    more = np.uint32((bits ^ (bits >> np.uint32(15))) * _THIRD)
    more = np.uint32(more ^ (more >> np.uint32(13)))
    pairs = (bits & _PAIR) + ((bits >> np.uint32(8)) & _PAIR) + (more & _PAIR) + ((more >> np.uint32(8)) & _PAIR)
    pairs = np.uint32(pairs)
    return np.uint16((pairs & _LOW) + (pairs >> np.uint32(16)))


@kernel(noise_bytes)
def noise(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Paint noise over a window.

    The numbers are its first row and column, height and width; the key of the noise; and of each channel the scale, and
    of each the shift, that make levels of sums of bytes.
    """
    copy(image, 0, image.size, out, 0)
    top, left, rows, length = int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3])
    key = np.uint32(np.uint32(int(numbers[4])) * _THIRD)
    red_scale, green_scale, blue_scale = np.float32(numbers[5]), np.float32(numbers[6]), np.float32(numbers[7])
    red_shift, green_shift, blue_shift = np.float32(numbers[8]), np.float32(numbers[9]), np.float32(numbers[10])
    sums = memory(room, (3 * length,), np.uint16)
    for y in range(rows):
        start = np.uint32(key + np.uint32(y) * _ROW)
        for i in range(3 * length):
            sums[i] = _byte_sum(np.uint32(start + np.uint32(i)))
        line = 3 * ((top + y) * width + left)
        for i in range(0, 3 * length, 3):
            at, sum_at = np.uint64(line + i), np.uint64(i)
            out[at] = level(np.float32(sums[sum_at]) * red_scale + red_shift)
            out[at + np.uint64(1)] = level(np.float32(sums[sum_at + np.uint64(1)]) * green_scale + green_shift)
            out[at + np.uint64(2)] = level(np.float32(sums[sum_at + np.uint64(2)]) * blue_scale + blue_shift)
