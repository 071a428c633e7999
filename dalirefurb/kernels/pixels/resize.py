"""The resize kernel: cut, resize, mirror and crop, in one pass over the rows of the source.

A row is resized horizontally when it is first needed, and kept as long as the vertical filter reaches it. All three
channels of a pixel are added up in one 64-bit number, 21 bits each: levels of 8 bits by weights of 13. Of an image that
is cropped right after, nothing but the crop's window is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.buffers import ALIGNMENT
from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, jitable, memory
from dalirefurb.kernels.pixels.crop_flip import window_of, window_refused
from dalirefurb.kernels.record import FULL, MIRROR

WEIGHT_BITS = 13
_FIELD_BITS = 21
_FIELD = (1 << _FIELD_BITS) - 1

_TABLES = 7
"""Those of `resize`, each of which begins with a cache line."""

MANY_TAPS = 64
"""The weights of more are not made whole: of such small ones rounding would leave too much."""


@jitable
def taps(source: Any, target: Any) -> Any:
    """Return how many source pixels are weighed for a target pixel."""
    return np.maximum(-(-2 * source // target), 2)


def bilinear_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of the tables of weights, and of the rows that are kept."""
    window_height, window_width = np.int64(numbers[2]), np.int64(numbers[3])
    full_height, full_width = np.maximum(np.int64(numbers[FULL]), 1), np.maximum(np.int64(numbers[FULL + 1]), 1)
    across, down = taps(window_width, full_width), taps(window_height, full_height)
    reach = columns * window_width // full_width + across + 3
    of_eight = across + columns * (1 + across) + lines * (1 + down) + reach
    needed = 8 * of_eight + 12 * columns * (1 + down) + _TABLES * ALIGNMENT
    return needed + window_refused(height, width, lines, columns, numbers)


@compiled
def behind(room: Any, nbytes: Any) -> Any:
    """Return where the next table begins: whole vectors of it are in one cache line."""
    return room + (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@compiled
def _weigh(x: Any, scale: Any, radius: Any, weights: Any) -> Any:
    """Weigh the source for a target pixel: a triangle as wide as a target pixel, at least a source pixel.

    Args:
        x: Place of the target pixel in its row or column, counted from 0.
        scale: Number of source pixels for each target pixel.
        radius: Radius of the triangle in source pixels.
        weights: Weights of the source pixels, whose sum is 1, float64 of shape (taps,); they are written here.

    Returns:
        The source pixel that the first weight is for, perhaps before the first one or beyond the last one, whose place
        the nearest takes.
    """
    centre = (x + 0.5) * scale - 0.5
    first = int(np.ceil(centre - radius))
    total = 0.0
    for tap in range(weights.size):
        weights[tap] = max(0.0, 1 - abs(first + tap - centre) / radius)
        total += weights[tap]
    for tap in range(weights.size):
        weights[tap] /= total
    return first


@compiled
def _whole(weights: Any, whole: Any) -> None:
    """Scale weights to whole numbers whose sum is 2 ** 13, int64 (taps,): what rounding leaves goes to the largest."""
    rest, largest = 1 << WEIGHT_BITS, 0
    for tap in range(weights.size):
        whole[tap] = int(np.rint(weights[tap] * (1 << WEIGHT_BITS)))
        rest -= whole[tap]
        if weights[tap] > weights[largest]:
            largest = tap
    whole[largest] += rest


@compiled
def _packed(image: Any, at: Any) -> Any:
    """Put a pixel into one number."""
    return (
        np.int64(image[at])
        | np.int64(image[at + np.uint64(1)]) << _FIELD_BITS
        | np.int64(image[at + np.uint64(2)]) << 2 * _FIELD_BITS
    )


@compiled
def _pack(image: Any, start: Any, width: Any, first: Any, packed: Any) -> None:
    """Pack pixels of a row from the `first` on; beyond its ends its outermost ones are repeated."""
    begin, end = min(max(-first, 0), packed.size), max(min(width - first, packed.size), 0)
    source = start + 3 * first
    for x in range(begin, end):
        packed[np.uint64(x)] = _packed(image, np.uint64(source + 3 * x))
    outermost = _packed(image, np.uint64(start))
    for x in range(begin):
        packed[x] = outermost
    outermost = _packed(image, np.uint64(start + 3 * (width - 1)))
    for x in range(end, packed.size):
        packed[x] = outermost


@compiled
def _resize_row(packed: Any, firsts: Any, weights: Any, mirror: Any, row: Any) -> None:
    """Resize a packed row horizontally; channels are levels times 2 ** 13."""
    target, taps = weights.shape
    for x in range(target):
        total = np.int64(0)
        first = np.uint64(firsts[x])
        for tap in range(taps):
            total += packed[first + np.uint64(tap)] * weights[np.uint64(x), np.uint64(tap)]
        at = np.uint64(3 * (target - 1 - x if mirror else x))
        row[at] = np.float32(total & _FIELD)
        row[at + np.uint64(1)] = np.float32((total >> _FIELD_BITS) & _FIELD)
        row[at + np.uint64(2)] = np.float32(total >> 2 * _FIELD_BITS)


@compiled
def _average_row(
    image: Any, start: Any, width: Any, first: Any, firsts: Any, weights: Any, mirror: Any, row: Any
) -> None:
    """Do the same to a row that is not packed, with weights whose sum is 1."""
    target, taps = weights.shape
    for x in range(target):
        red, green, blue = 0.0, 0.0, 0.0
        for tap in range(taps):
            source = np.uint64(start + 3 * min(max(first + firsts[x] + tap, 0), width - 1))
            red += image[source] * weights[x, tap]
            green += image[source + np.uint64(1)] * weights[x, tap]
            blue += image[source + np.uint64(2)] * weights[x, tap]
        at = np.uint64(3 * (target - 1 - x if mirror else x))
        row[at] = np.float32(red * (1 << WEIGHT_BITS))
        row[at + np.uint64(1)] = np.float32(green * (1 << WEIGHT_BITS))
        row[at + np.uint64(2)] = np.float32(blue * (1 << WEIGHT_BITS))


@kernel(bilinear_bytes)
def bilinear(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Resize a window, anti-aliased, with the triangular filter; mirror the result or not; crop it.

    For the numbers see `kernel_call.Code.RESIZE`.
    """
    (top, left, window_height, window_width), start, full = window_of(numbers)
    mirror = numbers[MIRROR] > 0
    scale_x, scale_y = window_width / full[1], window_height / full[0]
    across, down = taps(window_width, full[1]), taps(window_height, full[0])
    weights, room = memory(room, (across,), np.float64), behind(room, 8 * across)
    firsts, room = memory(room, (columns,), np.int64), behind(room, 8 * columns)
    wholes, parts = memory(room, (columns, across), np.int64), memory(room, (columns, across), np.float64)
    many, room = across > MANY_TAPS, behind(room, 8 * columns * across)
    begin = full[1] - start[1] - columns if mirror else start[1]
    for x in range(columns):
        if many:
            firsts[x] = _weigh(begin + x, scale_x, max(scale_x, 1.0), parts[x])
        else:
            firsts[x] = _weigh(begin + x, scale_x, max(scale_x, 1.0), weights)
            _whole(weights, wholes[x])
    rows, room = memory(room, (lines,), np.int64), behind(room, 8 * lines)
    shares, room = memory(room, (lines, down), np.float64), behind(room, 8 * lines * down)
    for y in range(lines):
        rows[y] = _weigh(start[0] + y, scale_y, max(scale_y, 1.0), shares[y])
    first = firsts[0]
    for x in range(columns):
        firsts[x] -= first
    reach, length = firsts[columns - 1] + across, 3 * columns
    packed, room = memory(room, (reach,), np.int64), behind(room, 8 * reach)
    kept, room = memory(room, (down, length), np.float32), behind(room, 4 * down * length)
    sums = memory(room, (length,), np.float32)
    ready = 0
    for y in range(lines):
        last = min(rows[y] + down, window_height)
        ready = max(ready, min(rows[y], last - 1))
        while ready < last:
            line = 3 * ((top + ready) * width + left)
            if many:
                _average_row(image, line, window_width, first, firsts, parts, mirror, kept[ready % down])
            else:
                _pack(image, line, window_width, first, packed)
                _resize_row(packed, firsts, wholes, mirror, kept[ready % down])
            ready += 1
        for tap in range(down):
            source = kept[min(max(rows[y] + tap, 0), window_height - 1) % down]
            weight = np.float32(shares[y, tap] / (1 << WEIGHT_BITS))
            if tap == 0:
                for x in range(length):
                    sums[x] = np.float32(0.5) + weight * source[x]
            elif weight > 0:
                for x in range(length):
                    sums[x] += weight * source[x]
        line = y * length
        for x in range(length):
            out[np.uint64(line + x)] = np.uint8(np.int32(min(sums[x], np.float32(255))))
