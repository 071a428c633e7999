"""Resize kernels with filters that have negative weights: bicubic and Lanczos, in the whole numbers that Pillow takes.

A row is resized horizontally when it is first needed, rounded to levels, and kept as long as the vertical filter
reaches it; or rows are added up first, where Pillow does so since version 13. Beyond the window's borders there is
nothing: the weights of what is inside are made to sum to 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dalirefurb.image_batch import ALIGNMENT
from dalirefurb.kernels.instructions import store_pixel, weighed_pixels
from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, jitable, memory
from dalirefurb.kernels.pixels.crop_flip import window_of, window_refused
from dalirefurb.kernels.pixels.resize import behind
from dalirefurb.kernels.record import FULL, MIRROR

WEIGHT_BITS = 22
"""So that sums of levels, whose weights sum to 1, fit 32 bits with a sign."""

_HALF = np.int32(1 << WEIGHT_BITS - 1)
"""Of a level, so that sums are rounded."""

BICUBIC, LANCZOS = 2, 3
"""How far the filters reach, in pixels of the larger image."""

_TABLES = 9
"""Those of `_resample`, each of which begins with a cache line."""


@jitable
def taps(radius: Any, source: Any, target: Any) -> Any:
    """Return how many source pixels are weighed for a target pixel, at most."""
    return 2 * np.int64(np.ceil(radius * np.maximum(source / target, 1.0))) + 1


@jitable
def _bytes(radius: int, height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of the tables of weights, and of the rows that are kept."""
    window_height, window_width = np.int64(numbers[2]), np.int64(numbers[3])
    full_height, full_width = np.maximum(np.int64(numbers[FULL]), 1), np.maximum(np.int64(numbers[FULL + 1]), 1)
    across, down = taps(radius, window_width, full_width), taps(radius, window_height, full_height)
    of_eight = 2 * columns + 2 * lines + np.maximum(across, down)
    of_four = columns * across + lines * down + 3 * np.maximum(columns, window_width)
    of_one = down * (3 * columns + 1) + 3 * window_width + 1
    needed = 8 * of_eight + 4 * of_four + of_one + _TABLES * ALIGNMENT
    return needed + window_refused(height, width, lines, columns, numbers)


def bicubic_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of memory that `bicubic` works in."""
    return _bytes(BICUBIC, height, width, lines, columns, numbers)


def lanczos_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of memory that `lanczos` works in."""
    return _bytes(LANCZOS, height, width, lines, columns, numbers)


@compiled
def _filter(radius: Any, x: Any) -> Any:
    """Return a filter's value at a distance from its centre."""
    x = abs(x)
    if radius == BICUBIC:
        # Keys' cubic with a = -0.5.
        if x < 1.0:
            return (1.5 * x - 2.5) * x * x + 1
        return (((x - 5) * x + 8) * x - 4) * -0.5 if x < 2.0 else 0.0
    if x == 0.0:
        return 1.0
    # sinc(x) * sinc(x / 3), where sin(3 * a) = (3 - 4 * sin(a) ** 2) * sin(a).
    sine = math.sin(x * (math.pi / 3))
    return (3 - 4 * sine * sine) * sine * sine / (x * x * (math.pi * math.pi / 3)) if x < 3.0 else 0.0


@compiled
def _weigh(radius: Any, x: Any, source: Any, target: Any, parts: Any, weights: Any) -> Any:
    """Weigh the source for a target pixel, as Pillow does.

    Args:
        radius: Radius of the filter in pixels of the larger image.
        x: Place of the target pixel in its row or column, counted from 0.
        source: Number of source pixels.
        target: Number of target pixels.
        parts: Room for weights whose sum is 1, float64 of shape (taps,).
        weights: Weights whose sum is 2 ** 22, but for rounding, int32 of shape (taps,); they are written here.

    Returns:
        The source pixel that the first weight is for, and how many are weighed.
    """
    scale = source / target
    stretch = max(scale, 1.0)
    centre = (x + 0.5) * scale
    first = max(int(centre - radius * stretch + 0.5), 0)
    count = min(int(centre + radius * stretch + 0.5), source) - first
    total = 0.0
    for tap in range(count):
        parts[tap] = _filter(radius, (first + tap - centre + 0.5) * (1.0 / stretch))
        total += parts[tap]
    for tap in range(count):
        share = parts[tap] / total * (1 << WEIGHT_BITS)
        weights[tap] = np.int32(share - 0.5 if share < 0 else share + 0.5)
    return first, count


@compiled
def _add_row(sums: Any, length: Any, source: Any, start: Any, weight: Any) -> None:
    for x in range(length):
        sums[x] = np.int32(sums[x] + weight * np.int32(source[np.uint64(start + x)]))


@compiled
def _round_row(sums: Any, length: Any, out: Any, start: Any) -> None:
    for x in range(length):
        out[np.uint64(start + x)] = np.uint8(min(max(sums[x] >> np.int32(WEIGHT_BITS), 0), 255))


@compiled
def _resample(
    radius: Any, image: Any, width: Any, height: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any
) -> None:
    (top, left, window_height, window_width), start, full = window_of(numbers)
    mirror = numbers[MIRROR] > 0
    across, down = taps(radius, window_width, full[1]), taps(radius, window_height, full[0])
    parts, room = memory(room, (max(across, down),), np.float64), behind(room, 8 * max(across, down))
    firsts, room = memory(room, (columns,), np.int64), behind(room, 8 * columns)
    counts, room = memory(room, (columns,), np.int64), behind(room, 8 * columns)
    weights, room = memory(room, (columns, across), np.int32), behind(room, 4 * columns * across)
    begin = full[1] - start[1] - 1 if mirror else start[1]
    for x in range(columns):
        place = begin - x if mirror else begin + x
        firsts[x], counts[x] = _weigh(radius, place, window_width, full[1], parts, weights[x])
    rows, room = memory(room, (2, lines), np.int64), behind(room, 16 * lines)
    shares, room = memory(room, (lines, down), np.int32), behind(room, 4 * lines * down)
    for y in range(lines):
        rows[0, y], rows[1, y] = _weigh(radius, start[0] + y, window_height, full[0], parts, shares[y])
    length, needed = 3 * columns, 3 * window_width
    kept, room = memory(room, (down, length + 1), np.uint8), behind(room, down * (length + 1))
    sums, room = memory(room, (max(length, needed),), np.int32), behind(room, 4 * max(length, needed))
    spare = memory(room, (needed + 1,), np.uint8)
    # Where the height shrinks by more than twice as many pixels as the width Pillow begins with the rows.
    if window_height - full[0] > max(2 * (window_width - full[1]), 0):
        leftmost = min(firsts[0], firsts[columns - 1])
        needed = 3 * (max(firsts[0] + counts[0], firsts[columns - 1] + counts[columns - 1]) - leftmost)
        row = kept[0]
        for y in range(lines):
            sums[:needed] = _HALF
            for tap in range(rows[1, y]):
                line = 3 * ((top + rows[0, y] + tap) * width + left + leftmost)
                _add_row(sums, needed, image, line, shares[y, tap])
            _round_row(sums, needed, spare, 0)
            for x in range(columns):
                at = 3 * (firsts[x] - leftmost)
                store_pixel(row, 3 * x, weighed_pixels(spare, at, weights[x], counts[x], WEIGHT_BITS))
            for x in range(length):
                out[np.uint64(y * length + x)] = row[x]
        return
    ready = 0
    for y in range(lines):
        first, count = rows[0, y], rows[1, y]
        ready = max(ready, first)
        while ready < first + count:
            line, source = 3 * ((top + ready) * width + left), image
            if top + ready == height - 1:
                # Four bytes are read of a pixel, and behind the image there is none.
                for i in range(needed):
                    spare[i] = image[line + i]
                line, source = 0, spare
            row = kept[ready % down]
            for x in range(columns):
                pixel = weighed_pixels(source, line + 3 * firsts[x], weights[x], counts[x], WEIGHT_BITS)
                store_pixel(row, 3 * x, pixel)
            ready += 1
        sums[:length] = _HALF
        for tap in range(count):
            _add_row(sums, length, kept[(first + tap) % down], 0, shares[y, tap])
        _round_row(sums, length, out, y * length)


@kernel(bicubic_bytes)
def bicubic(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Resize a window, anti-aliased, with the cubic filter; mirror the result or not; crop it.

    For the numbers see `kernel_call.Code.RESIZE`.
    """
    _resample(BICUBIC, image, width, height, lines, columns, numbers, room, out)


@kernel(lanczos_bytes)
def lanczos(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Do the same with Lanczos' filter of radius 3."""
    _resample(LANCZOS, image, width, height, lines, columns, numbers, room, out)
