"""Kernels that move pixels unchanged: flipped, cropped, picked for a resize without interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.resize import WHOLE_PIXELS
from dalirefurb.kernels.llvm import compiled, memory


@compiled
def flip(image: Any, height: Any, width: Any, out: Any) -> None:
    """Mirror left and right."""
    for y in range(height):
        line = 3 * y * width
        for x in range(width):
            source, target = np.uint64(line + 3 * x), np.uint64(line + 3 * (width - 1 - x))
            out[target] = image[source]
            out[target + np.uint64(1)] = image[source + np.uint64(1)]
            out[target + np.uint64(2)] = image[source + np.uint64(2)]


@compiled
def crop(image: Any, height: Any, width: Any, window: Any, out: Any) -> None:
    """Cut a window: its first row and column, height and width. What lies outside the image is 0."""
    top, left, window_height, window_width = window
    first, end = min(max(left, 0), width), max(min(left + window_width, width), 0)
    for row in range(window_height):
        line, y = 3 * row * window_width, top + row
        inside = 0 <= y < height
        start = 3 * (first - left) if inside else 3 * window_width
        stop = 3 * (end - left) if inside else 0
        for i in range(min(start, 3 * window_width)):
            out[np.uint64(line + i)] = 0
        source = 3 * (y * width + first)
        for i in range(stop - start):
            out[np.uint64(line + start + i)] = image[np.uint64(source + i)]
        for i in range(max(stop, 0), 3 * window_width):
            out[np.uint64(line + i)] = 0


@compiled
def pick(
    image: Any,
    width: Any,
    window: Any,
    mirror: Any,
    full: Any,
    start: Any,
    lines: Any,
    columns: Any,
    room: Any,
    out: Any,
) -> None:
    """Resize a window by taking the nearest pixels; for the arguments see `resize.resize`, for memory `pick_bytes`."""
    top, left, window_height, window_width = window
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
    for _ in range(0 if large else start[0]):
        source += scale
    for y in range(lines):
        place = int(np.floor(source))
        if large:
            place = int(np.floor((start[0] + y + 0.5) * exact_scale))
        row = top + min(max(place, 0), window_height - 1)
        source += scale
        for x in range(columns):
            at, target = np.uint64(3 * (row * width + picked[x])), np.uint64(3 * (y * columns + x))
            for channel in range(3):
                out[target + np.uint64(channel)] = image[at + np.uint64(channel)]


def pick_bytes(columns: Any) -> Any:
    """Return the bytes of memory that `pick` needs beside images of so many columns."""
    return 8 * columns
