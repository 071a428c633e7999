"""Kernel that makes RGB of a window of a JPEG's own planes, bit for bit as libjpeg-turbo, with which DALI decodes.

Colours of 4:2:0 are stored for every second row and column. Between them it weighs the two nearest rows, and of these
the two nearest columns, 3 to 1 each ("fancy upsampling"), unless there are two columns or fewer, which are repeated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.image_batch import ALIGNMENT, GREY, HALVED
from dalirefurb.kernels.instructions import COLOUR_LANES, copy, store_colours, three_to_one
from dalirefurb.kernels.kernel import REFUSED, kernel
from dalirefurb.kernels.llvm import compiled, memory
from dalirefurb.kernels.pixels.resize import behind

_REPEATED = 2
"""Columns of colours, at most, that are not interpolated."""

_AT_ONCE = 64
"""Columns that loops of bytes take at a time, at most."""

_TABLES = 5


def window_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of rows of colours; below 0 for a window that is not within its image, or another layout."""
    top, left, layout = numbers[0], numbers[1], numbers[2]
    fits = (top >= 0) & (lines > 0) & (top + lines <= height) & (left >= 0) & (columns > 0) & (left + columns <= width)
    fits &= (layout == GREY) | (layout == HALVED)
    return 4 * (columns + 2) + 8 * (_AT_ONCE + 2) + 4 * COLOUR_LANES + _TABLES * ALIGNMENT + REFUSED * (1 - fits)


@compiled
def whole(count: Any) -> Any:
    """Round up to what a loop does in vectors alone, where it may do more: column by column is the longer part."""
    return (count + _AT_ONCE - 1) // _AT_ONCE * _AT_ONCE


@compiled
def _colour_row(
    image: Any, near: Any, far: Any, first: Any, end: Any, length: Any, rows: Any, sums: Any, out: Any
) -> None:
    """Interpolate colours of two rows, one of which is nearer, for the pixels of some columns of colours.

    Args:
        image: Planes, uint8.
        near: Place of the nearer row in them.
        far: Place of the other one.
        first: First column of colours.
        end: The one behind the last.
        length: Length of a row of colours.
        rows: Room for two rows of colours, uint8 (2, whole(end - first + 2)).
        sums: Room for these, weighed, uint16, two more than a row.
        out: Colours of 2 * (end - first) pixels, uint8; they are written here, and behind them what is left.
    """
    count = end - first
    if length <= _REPEATED:
        for x in range(count):
            out[2 * x] = out[2 * x + 1] = image[near + first + x]
        return
    # One column more on each side: beyond the outermost ones these again.
    begin, stop = max(first - 1, 0), min(end + 1, length)
    shift = begin - first + 1
    copy(image, near + begin, stop - begin, rows[0], shift)
    copy(image, far + begin, stop - begin, rows[1], shift)
    for x in range(whole(count + 2)):
        sums[np.uint64(x)] = three_to_one(rows[0, np.uint64(x)], rows[1, np.uint64(x)], 0, 0)
    if shift:
        sums[0] = sums[1]
    if stop == end:
        sums[count + 1] = sums[count]
    for x in range(whole(count)):
        at, nearest = np.uint64(x), sums[np.uint64(x + 1)]
        out[at + at] = np.uint8(three_to_one(nearest, sums[at], 8, 4))
        out[at + at + np.uint64(1)] = np.uint8(three_to_one(nearest, sums[np.uint64(x + 2)], 7, 4))


@kernel(window_bytes)
def window(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Make RGB of a window, whose first row and column are the first numbers; the third is the `Places.layouts`."""
    top, left = int(numbers[0]), int(numbers[1])
    if numbers[2] == GREY:
        for y in range(lines):
            line, at = (top + y) * width + left, 3 * y * columns
            for x in range(columns):
                for channel in range(3):
                    out[np.uint64(at + 3 * x + channel)] = image[np.uint64(line + x)]
        return
    rows, length = (height + 1) // 2, (width + 1) // 2
    first, end = left // 2, (left + columns - 1) // 2 + 1
    most = whole(end - first + 2)
    both, room = memory(room, (2, most), np.uint8), behind(room, 2 * most)
    sums, room = memory(room, (most + 2,), np.uint16), behind(room, 2 * (most + 2))
    blue, room = memory(room, (2 * most + COLOUR_LANES,), np.uint8), behind(room, 2 * most + COLOUR_LANES)
    red, room = memory(room, (2 * most + COLOUR_LANES,), np.uint8), behind(room, 2 * most + COLOUR_LANES)
    spare = memory(room, (4 * COLOUR_LANES,), np.uint8)
    odd, rest = left % 2, columns % COLOUR_LANES
    for y in range(lines):
        row = top + y
        near = row // 2
        far = min(max(near + 2 * (row % 2) - 1, 0), rows - 1)
        begin = height * width
        _colour_row(image, begin + near * length, begin + far * length, first, end, length, both, sums, blue)
        begin += rows * length
        _colour_row(image, begin + near * length, begin + far * length, first, end, length, both, sums, red)
        line, at = row * width + left, 3 * y * columns
        for x in range(0, columns - rest, COLOUR_LANES):
            store_colours(image, line + x, blue, red, odd + x, out, at + 3 * x)
        if rest:
            x = columns - rest
            copy(image, line + x, rest, spare, 0)
            store_colours(spare, 0, blue, red, odd + x, spare, COLOUR_LANES)
            copy(spare, COLOUR_LANES, 3 * rest, out, at + 3 * x)
