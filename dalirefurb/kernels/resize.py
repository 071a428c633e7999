"""How is an image resized? Cut, resize and mirror, in one pass over the rows of the source.

A row is resized horizontally when it is first needed, and kept as long as the vertical filter reaches it. All three
channels of a pixel are added up in one 64-bit number, 21 bits each: levels of 8 bits by weights of 13.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.compiled import compiled

_WEIGHT_BITS = 13
_FIELD_BITS = 21
_FIELD = (1 << _FIELD_BITS) - 1


@compiled
def _triangle(source: Any, target: Any) -> Any:
    """Weigh the source for each target pixel: a triangle as wide as a target pixel, at least a source pixel.

    Returns:
        The first source pixel, int64 (target,), perhaps before the first one or beyond the last one, whose place the
        nearest takes; and the weights from there on, float64 (target, taps), whose sum is 1.
    """
    scale = source / target
    radius = max(scale, 1.0)
    taps = int(np.ceil(2 * radius))
    firsts = np.empty(target, np.int64)
    weights = np.empty((target, taps), np.float64)
    for x in range(target):
        centre = (x + 0.5) * scale - 0.5
        firsts[x] = int(np.ceil(centre - radius))
        total = 0.0
        for tap in range(taps):
            weights[x, tap] = max(0.0, 1 - abs(firsts[x] + tap - centre) / radius)
            total += weights[x, tap]
        for tap in range(taps):
            weights[x, tap] /= total
    return firsts, weights


@compiled
def _whole(weights: Any) -> Any:
    """Scale weights to whole numbers whose sum is 2 ** 13: what rounding leaves goes to the largest."""
    whole = np.empty(weights.shape, np.int64)
    for x in range(weights.shape[0]):
        rest, largest = 1 << _WEIGHT_BITS, 0
        for tap in range(weights.shape[1]):
            whole[x, tap] = int(np.rint(weights[x, tap] * (1 << _WEIGHT_BITS)))
            rest -= whole[x, tap]
            if weights[x, tap] > weights[x, largest]:
                largest = tap
        whole[x, largest] += rest
    return whole


@compiled
def _pack(image: Any, start: Any, count: Any, border: Any, packed: Any) -> None:
    """Put each pixel of a row into one number; repeat the outermost `border` times on each side."""
    for x in range(count):
        at = np.uint64(start + 3 * x)
        packed[np.uint64(border + x)] = (
            np.int64(image[at])
            | np.int64(image[at + np.uint64(1)]) << _FIELD_BITS
            | np.int64(image[at + np.uint64(2)]) << 2 * _FIELD_BITS
        )
    for x in range(border):
        packed[x] = packed[border]
        packed[border + count + x] = packed[border + count - 1]


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
def resize(image: Any, width: Any, window: Any, mirror: Any, target_height: Any, target_width: Any, out: Any) -> None:
    """Resize a window, anti-aliased, with the triangular filter; mirror the result or not.

    Args:
        image: The source.
        width: Of the source.
        window: First row and column, height and width in the source.
        mirror: Whether left and right change places.
        target_height: Of the result.
        target_width: Likewise.
        out: The result.
    """
    top, left, window_height, window_width = window
    columns, across = _triangle(window_width, target_width)
    rows, down = _triangle(window_height, target_height)
    across = _whole(across)
    border = across.shape[1] + 1
    columns += border
    packed = np.empty(window_width + 2 * border, np.int64)
    taps = down.shape[1]
    length = 3 * target_width
    kept = np.empty((taps, length), np.float32)
    sums = np.empty(length, np.float32)
    ready = 0
    for y in range(target_height):
        last = min(rows[y] + taps, window_height)
        ready = max(ready, min(rows[y], last - 1))
        while ready < last:
            _pack(image, 3 * ((top + ready) * width + left), window_width, border, packed)
            _resize_row(packed, columns, across, mirror, kept[ready % taps])
            ready += 1
        sums[:] = np.float32(0.5)
        for tap in range(taps):
            source = kept[min(max(rows[y] + tap, 0), window_height - 1) % taps]
            weight = np.float32(down[y, tap] / (1 << _WEIGHT_BITS))
            for x in range(length):
                sums[x] += weight * source[x]
        start = y * length
        for x in range(length):
            out[start + x] = np.uint8(np.int32(min(sums[x], np.float32(255))))
