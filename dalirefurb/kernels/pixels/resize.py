"""The resize kernel: cut, resize, mirror and crop, in one pass over the rows of the source.

A row is resized horizontally when it is first needed, and kept as long as the vertical filter reaches it. Pixels are
added up two by two, as processors have an instruction for: levels of 8 bits by whole weights of 13. Of an image that is
cropped right after, nothing but the crop's window is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.image_batch import ALIGNMENT
from dalirefurb.kernels.instructions import weighed_pairs
from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, jitable, memory
from dalirefurb.kernels.pixels.crop_flip import window_of, window_refused
from dalirefurb.kernels.record import FULL, MIRROR

WEIGHT_BITS = 13

_TABLES = 9
"""Those of `bilinear` but the last, each of which ends with a cache line."""

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
    reach = columns * window_width // full_width + across + 4
    of_eight = 2 * across + columns * (1 + across) + 3 * down + 8
    needed = 8 * of_eight + 4 * (3 * columns + 1) * (1 + down) + 3 * reach + _TABLES * ALIGNMENT
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
def _inside(first: Any, width: Any, weights: Any, pairs: Any) -> Any:
    """Have pixels of the window alone weighed: those beyond its ends are its outermost ones again.

    Args:
        first: The source pixel that the first weight is for.
        width: Width of the window in pixels.
        weights: Weights of the source pixels, int64 (taps,).
        pairs: Those weights, two by two, of the pixels from the returned one on, int16 (at least taps,); written here.

    Returns:
        The source pixel that the first of `pairs` is for.
    """
    begin = min(max(first, 0), max(width - pairs.size, 0))
    for tap in range(pairs.size):
        pairs[tap] = 0
    for tap in range(weights.size):
        pairs[min(max(first + tap, 0), width - 1) - begin] += np.int16(weights[tap])
    return begin


@compiled
def _resize_row(image: Any, start: Any, firsts: Any, weights: Any, mirror: Any, row: Any) -> None:
    """Resize a row horizontally; channels are levels times 2 ** 13. One number more is written than the row has."""
    target, taps = weights.shape
    pairs = taps // 2
    # What is known of the number of pairs makes the most usual ones a third faster.
    for x in range(target):
        source = target - 1 - x if mirror else x
        at, first = start + 3 * firsts[source], source * taps
        if pairs == 1:
            weighed_pairs(image, at, weights, first, 1, row, 3 * x)
        elif pairs == 2:
            weighed_pairs(image, at, weights, first, 2, row, 3 * x)
        elif pairs == 3:
            weighed_pairs(image, at, weights, first, 3, row, 3 * x)
        else:
            weighed_pairs(image, at, weights, first, pairs, row, 3 * x)


@compiled
def _average_row(image: Any, start: Any, width: Any, firsts: Any, weights: Any, mirror: Any, row: Any) -> None:
    """Do the same with weights whose sum is 1."""
    target, taps = weights.shape
    for x in range(target):
        red, green, blue = 0.0, 0.0, 0.0
        for tap in range(taps):
            source = np.uint64(start + 3 * min(max(firsts[x] + tap, 0), width - 1))
            red += image[source] * weights[x, tap]
            green += image[source + np.uint64(1)] * weights[x, tap]
            blue += image[source + np.uint64(2)] * weights[x, tap]
        at = np.uint64(3 * (target - 1 - x if mirror else x))
        row[at] = np.float32(red * (1 << WEIGHT_BITS))
        row[at + np.uint64(1)] = np.float32(green * (1 << WEIGHT_BITS))
        row[at + np.uint64(2)] = np.float32(blue * (1 << WEIGHT_BITS))


@compiled
def _total(sums: Any, four: Any, shares: Any, first: Any, x: Any) -> Any:
    """Return a number of the sums, and those of four rows in its place, each times its share, one after the other."""
    total = sums[x] + shares[first] * four[0][x]
    total += shares[first + 1] * four[1][x]
    total += shares[first + 2] * four[2][x]
    total += shares[first + 3] * four[3][x]
    return total


@compiled
def _add_rows(
    sums: Any, rows: Any, places: Any, shares: Any, first: Any, length: Any, last: Any, out: Any, start: Any
) -> None:
    """Add four rows to sums, each by its share; of the last ones write the levels that this makes."""
    four = rows[places[first]], rows[places[first + 1]], rows[places[first + 2]], rows[places[first + 3]]
    if last:
        for x in range(length):
            total = min(_total(sums, four, shares, first, x), np.float32(255))
            out[np.uint64(start + x)] = np.uint8(np.int32(total))
    else:
        for x in range(length):
            sums[x] = _total(sums, four, shares, first, x)


@kernel(bilinear_bytes)
def bilinear(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Resize a window, anti-aliased, with the triangular filter; mirror the result or not; crop it.

    For the numbers see `kernel_call.Code.RESIZE`.
    """
    (top, left, window_height, window_width), start, full = window_of(numbers)
    mirror = numbers[MIRROR] > 0
    scale_x, scale_y = window_width / full[1], window_height / full[0]
    across, down = taps(window_width, full[1]), taps(window_height, full[0])
    even, fours = (across + 1) // 2 * 2, (down + 3) // 4 * 4
    weights, room = memory(room, (across,), np.float64), behind(room, 8 * across)
    whole, room = memory(room, (across,), np.int64), behind(room, 8 * across)
    firsts, room = memory(room, (columns,), np.int64), behind(room, 8 * columns)
    pairs, parts = memory(room, (columns, even), np.int16), memory(room, (columns, across), np.float64)
    many, room = across > MANY_TAPS, behind(room, 8 * columns * across)
    begin = full[1] - start[1] - columns if mirror else start[1]
    for x in range(columns):
        if many:
            firsts[x] = _weigh(begin + x, scale_x, max(scale_x, 1.0), parts[x])
        else:
            first = _weigh(begin + x, scale_x, max(scale_x, 1.0), weights)
            _whole(weights, whole)
            firsts[x] = _inside(first, window_width, whole, pairs[x])
    weights, room = memory(room, (down,), np.float64), behind(room, 8 * down)
    shares, room = memory(room, (fours,), np.float32), behind(room, 4 * fours)
    places, room = memory(room, (fours,), np.int64), behind(room, 8 * fours)
    length, leftmost, reach = 3 * columns, 3 * firsts[0], 3 * (firsts[columns - 1] + even) + 2
    kept, room = memory(room, (down, length + 1), np.float32), behind(room, 4 * down * (length + 1))
    sums, room = memory(room, (length,), np.float32), behind(room, 4 * length)
    spare = memory(room, (reach - leftmost,), np.uint8)
    ready = 0
    for y in range(lines):
        first = _weigh(start[0] + y, scale_y, max(scale_y, 1.0), weights)
        last = min(first + down, window_height)
        ready = max(ready, min(first, last - 1))
        while ready < last:
            line, row = 3 * ((top + ready) * width + left), kept[ready % down]
            if many:
                _average_row(image, line, window_width, firsts, parts, mirror, row)
            elif line + reach <= image.size:
                _resize_row(image, line, firsts, pairs, mirror, row)
            else:
                # More is read than is weighed, and behind the image there is nothing.
                for i in range(leftmost, min(3 * window_width, reach)):
                    spare[i - leftmost] = image[np.uint64(line + i)]
                _resize_row(spare, -leftmost, firsts, pairs, mirror, row)
            ready += 1
        for tap in range(fours):
            shares[tap] = np.float32(weights[tap] / (1 << WEIGHT_BITS)) if tap < down else np.float32(0)
            places[tap] = min(max(first + min(tap, down - 1), 0), window_height - 1) % down
        for x in range(length):
            sums[x] = np.float32(0.5)
        for tap in range(0, fours, 4):
            _add_rows(sums, kept, places, shares, tap, length, tap == fours - 4, out, y * length)
