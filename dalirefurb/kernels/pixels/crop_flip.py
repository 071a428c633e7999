"""Kernels that move pixels unchanged: flipped, cropped, picked for a resize without interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.stages.resize import LONG_ROWS, WHOLE_PIXELS
from dalirefurb.kernels.instructions import copy
from dalirefurb.kernels.kernel import REFUSED, kernel
from dalirefurb.kernels.llvm import compiled, jitable, memory
from dalirefurb.kernels.record import FULL, MIRROR, START


@kernel()
def flip(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Mirror left and right."""
    for y in range(height):
        line = 3 * y * width
        for x in range(width):
            source, target = np.uint64(line + 3 * x), np.uint64(line + 3 * (width - 1 - x))
            out[target] = image[source]
            out[target + np.uint64(1)] = image[source + np.uint64(1)]
            out[target + np.uint64(2)] = image[source + np.uint64(2)]


@kernel()
def flip_over(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Mirror top and bottom."""
    length = 3 * width
    for y in range(height):
        copy(image, y * length, length, out, (height - 1 - y) * length)


@kernel()
def crop(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Cut a window, whose first row and column are the numbers. What lies outside the image is 0."""
    top, left = int(numbers[0]), int(numbers[1])
    first, end = min(max(left, 0), width), max(min(left + columns, width), 0)
    for row in range(lines):
        line, y = 3 * row * columns, top + row
        inside = 0 <= y < height
        start = 3 * (first - left) if inside else 3 * columns
        stop = 3 * (end - left) if inside else 0
        for i in range(min(start, 3 * columns)):
            out[np.uint64(line + i)] = 0
        source = 3 * (y * width + first)
        for i in range(stop - start):
            out[np.uint64(line + start + i)] = image[np.uint64(source + i)]
        for i in range(max(stop, 0), 3 * columns):
            out[np.uint64(line + i)] = 0


def reflected_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of a source's column for each of the result's."""
    return 8 * columns


@compiled
def mirrored(place: Any, count: Any) -> Any:
    """Return which pixel of a row lies at a place, if the row is mirrored at its first pixel and at its last one."""
    period = max(2 * (count - 1), 1)
    place = abs(place) % period
    return min(place, period - place) if count > 1 else 0


@kernel(reflected_bytes)
def crop_reflected(
    image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any
) -> None:
    """Cut a window, whose first row and column are the numbers. What lies outside mirrors the image."""
    top, left = int(numbers[0]), int(numbers[1])
    first, end = min(max(-left, 0), columns), max(min(width - left, columns), 0)
    picked = memory(room, (columns,), np.int64)
    for x in range(columns):
        picked[x] = 3 * mirrored(left + x, width)
    for row in range(lines):
        line, source = 3 * row * columns, 3 * width * mirrored(top + row, height)
        for x in range(first):
            for channel in range(3):
                out[np.uint64(line + 3 * x + channel)] = image[np.uint64(source + picked[x] + channel)]
        for i in range(3 * first, 3 * end):
            out[np.uint64(line + i)] = image[np.uint64(source + 3 * left + i)]
        for x in range(max(first, end), columns):
            for channel in range(3):
                out[np.uint64(line + 3 * x + channel)] = image[np.uint64(source + picked[x] + channel)]


@jitable
def window_refused(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return `REFUSED` where a resize's window is not within the image, or its part not within what it becomes."""
    top, left, window_height, window_width = numbers[0], numbers[1], numbers[2], numbers[3]
    fits = (top >= 0) & (window_height > 0) & (top + window_height <= height)
    fits &= (left >= 0) & (window_width > 0) & (left + window_width <= width)
    fits &= (numbers[START] >= 0) & (lines > 0) & (numbers[START] + lines <= numbers[FULL])
    fits &= (numbers[START + 1] >= 0) & (columns > 0) & (numbers[START + 1] + columns <= numbers[FULL + 1])
    return REFUSED * (1 - fits)


def pick_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of a source's column for each of the result's."""
    return 8 * columns + window_refused(height, width, lines, columns, numbers)


@compiled
def window_of(numbers: Any) -> Any:
    """Return a resize's window (first row and column, height and width), and of what it becomes the start and size.

    The start is the first row and column of the part that is made, the size the height and width of all of it.
    """
    window = int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3])
    return window, (int(numbers[START]), int(numbers[START + 1])), (int(numbers[FULL]), int(numbers[FULL + 1]))


@kernel(pick_bytes)
def pick(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Resize a window by taking the nearest pixels; for the numbers see `kernel_call.Code.RESIZE`."""
    (top, left, window_height, window_width), start, full = window_of(numbers)
    mirror = numbers[MIRROR] > 0
    picked = memory(room, (columns,), np.int64)
    # Of what is so large single precision would find other pixels.
    large = full[0] * full[1] > WHOLE_PIXELS
    scale, exact_scale = np.float32(window_width) / np.float32(full[1]), window_width / full[1]
    begin = full[1] - start[1] - columns if mirror else start[1]
    for x in range(columns):
        column = int(np.floor((np.float32(begin + x) + np.float32(0.5)) * scale))
        if large:
            column = int(np.floor((begin + x + 0.5) * exact_scale))
        picked[columns - 1 - x if mirror else x] = left + min(max(column, 0), window_width - 1)
    scale, exact_scale = np.float32(window_height) / np.float32(full[0]), window_height / full[0]
    # DALI adds the step up in single precision, which decides where two rows are as near.
    source = np.float32(0.5) * scale
    exact = large or window_height * full[0] > LONG_ROWS
    for _ in range(0 if exact else start[0]):
        source += scale
    for y in range(lines):
        place = int(np.floor(source))
        if exact:
            place = int(np.floor((start[0] + y + 0.5) * exact_scale))
        row = top + min(max(place, 0), window_height - 1)
        source += scale
        for x in range(columns):
            at, target = np.uint64(3 * (row * width + picked[x])), np.uint64(3 * (y * columns + x))
            for channel in range(3):
                out[target + np.uint64(channel)] = image[at + np.uint64(channel)]


@compiled
def _fill(out: Any, start: Any, stop: Any, fill: Any) -> None:
    """Write the levels of `fill` into pixels start .. stop - 1."""
    for pixel in range(start, stop):
        for channel in range(3):
            out[np.uint64(3 * pixel + channel)] = np.uint8(fill[channel])


@compiled
def show_part(image: Any, size: Any, place: Any, rows: Any, span: Any, columns: Any, fill: Any, out: Any) -> None:
    """Write a part of a result: rows and columns, first and end, where an image of a size begins at a place."""
    (height, width), (top, left), (first, end), (start, stop) = size, place, rows, span
    shown, hidden = max(start, left), min(stop, left + width)
    for y in range(first, end):
        line = y * columns
        if y < top or y >= top + height or shown >= hidden:
            _fill(out, line + start, line + stop, fill)
        else:
            _fill(out, line + start, line + shown, fill)
            source = (y - top) * width + shown - left
            copy(image, 3 * source, 3 * (hidden - shown), out, 3 * (line + shown))
            _fill(out, line + hidden, line + stop, fill)
