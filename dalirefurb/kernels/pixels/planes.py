"""Planes: kernel that makes RGB of a window of a JPEG's own planes, as libjpeg-turbo does; and what takes it.

Colours of 4:2:0 are stored for every second row and column. Between them it weighs the two nearest rows, and of these
the two nearest columns, 3 to 1 each ("fancy upsampling"), unless there are two columns or fewer, which are repeated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import UNTOUCHED, Code
from dalirefurb.image_batch import ALIGNMENT, GREY, HALVED, rounded
from dalirefurb.kernels.instructions import COLOUR_LANES, copy, store_colours, three_to_one
from dalirefurb.kernels.kernel import REFUSED, compile_kernel, kernel, kernel_named
from dalirefurb.kernels.llvm import compiled, memory
from dalirefurb.kernels.pixels.resize import behind
from dalirefurb.kernels.record import DONE, NOT_SPLIT, WIDTH

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


FROM_PLANES = "planes.window"
"""The kernel that makes RGB of planes."""


def planes_first(
    layouts: NDArray[np.int64],
    code: Code,
    sizes: NDArray[np.int64],
    chosen: NDArray[np.int64],
    numbers: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], tuple[int, int]]:
    """Put a step before all others that makes RGB of planes: of what the first of these reads, if that is known.

    Args:
        layouts: How each of the first c of n images lies, see `Places.layouts`, shape (c,).
        code: What is known of the first step. Of images that another one enters all is made.
        sizes: Heights and widths before, between and after the steps, (s + 1, n, 2).
        chosen: Kernel of each step and image, (s, n).
        numbers: Numbers of each step and image, (s, n, WIDTH); what has a window now begins at 0 in these.

    Returns:
        The same with one step more, (s + 2, n, 2), (s + 1, n) and (s + 1, n, WIDTH); and the bytes of the largest image
        on the way that it makes, and of memory that it works in.
    """
    rows = np.flatnonzero(layouts)
    heights, widths = sizes[0, rows].T
    windows = np.zeros((len(rows), 4))
    windows[:, 2:] = sizes[0, rows]
    if code in (Code.RESIZE, Code.CROP):
        wanted = numbers[0, rows, :4]
        if code == Code.CROP:
            wanted[:, 2:] = sizes[1, rows]
        inside = (wanted[:, :2] >= 0) & (wanted[:, 2:] > 0) & (wanted[:, :2] + wanted[:, 2:] <= sizes[0, rows])
        cut = inside.all(axis=1) & (chosen[0, rows] != UNTOUCHED)
        windows[cut] = wanted[cut]
        numbers[0, rows[cut], :2] = 0
    sizes = np.concatenate([sizes[:1], sizes])
    sizes[1, rows] = windows[:, 2:]
    taken = np.full((1, sizes.shape[1]), UNTOUCHED, np.int64)
    taken[0, rows] = 0
    given = np.zeros((1, sizes.shape[1], WIDTH))
    given[0, rows, :2], given[0, rows, 2] = windows[:, :2], layouts[rows]
    lines, columns = sizes[1, rows].T
    room = kernel_named(FROM_PLANES).room_bytes(heights, widths, lines, columns, given[0, rows].T)
    most = (int(nbytes.max(initial=0)) for nbytes in (3 * lines * columns, room))
    image_bytes, room_bytes = map(rounded, most)
    return sizes, np.concatenate([taken, chosen]), np.concatenate([given, numbers]), (image_bytes, room_bytes)


def record_behind_planes(record: NDArray[Any], constants: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the `WORK` of steps, shape (1,), behind the one that makes RGB; its tables join those of the constants."""
    record, table = record.copy(), constants["kernels"]
    first = np.zeros((1, table.shape[1]), np.int64)
    first[0, 0] = compile_kernel(FROM_PLANES).address
    for name, one, others in (("kernels", first, table), ("codes", [Code.OTHER], constants["codes"])):
        joined = constants[f"{name} from planes"] = np.concatenate([one, others])
        record[name] = joined.__array_interface__["data"][0]
    record["steps"] += 1
    record["tail"] += 1
    record["split"] += record["split"] != NOT_SPLIT
    return record


def rgb(planes: NDArray[np.uint8], sides: tuple[int, int], layout: int) -> NDArray[np.uint8]:
    """Make RGB of a whole image, uint8 of shape (height, width, 3), of its planes, uint8 of shape (nbytes,)."""
    image = np.empty((*sides, 3), np.uint8)
    numbers = np.zeros(WIDTH)
    numbers[2] = layout
    size = (*sides, *sides)
    room = np.empty(max(int(kernel_named(FROM_PLANES).room_bytes(*size, numbers)), 0), np.uint8)
    given: tuple[Any, ...] = planes.ctypes.data, *size, numbers.ctypes.data, room.ctypes.data, len(room)
    outcome = compile_kernel(FROM_PLANES).ctypes(*given, image.ctypes.data)
    assert outcome == DONE, f"{sides}, layout {layout}"
    return image
