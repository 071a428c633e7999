"""Kernels that blend an image with its grey picture, or with a smooth one."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.instructions import copy, grey
from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, fused, level, memory


@kernel()
def color(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Blend with the grey picture; the numbers are the picture's share and, the fourth, the grey one's."""
    share, grey_share = np.float32(numbers[0]), np.float32(numbers[3])
    for i in range(0, image.size, 3):
        at = np.uint64(i)
        red, green, blue = image[at], image[at + np.uint64(1)], image[at + np.uint64(2)]
        added = np.float32(np.int32(grey(red, green, blue)))
        out[at] = level(fused(added, grey_share, np.float32(red) * share))
        out[at + np.uint64(1)] = level(fused(added, grey_share, np.float32(green) * share))
        out[at + np.uint64(2)] = level(fused(added, grey_share, np.float32(blue) * share))


def sharpness_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of three rows of numbers."""
    return 3 * 4 * 3 * width


@compiled
def _as_numbers(image: Any, start: Any, row: Any) -> None:
    """Make float32 numbers of levels from an offset on."""
    for i in range(row.size):
        row[i] = np.float32(np.int32(image[np.uint64(start + i)]))


@kernel(sharpness_bytes)
def sharpness(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Filter all but the outermost pixels; the numbers are 3x3 weights, row by row."""
    line = 3 * width
    if height < 3 or width < 3:
        copy(image, 0, image.size, out, 0)
        return
    above_left, above, above_right = np.float32(numbers[0]), np.float32(numbers[1]), np.float32(numbers[2])
    left, centre, right = np.float32(numbers[3]), np.float32(numbers[4]), np.float32(numbers[5])
    below_left, below, below_right = np.float32(numbers[6]), np.float32(numbers[7]), np.float32(numbers[8])
    rows = memory(room, (3, line), np.float32)
    for y in range(2):
        _as_numbers(image, y * line, rows[y])
    copy(image, 0, line, out, 0)
    for y in range(1, height - 1):
        upper, middle, lower = rows[(y - 1) % 3], rows[y % 3], rows[(y + 1) % 3]
        _as_numbers(image, (y + 1) * line, lower)
        start = y * line + 3
        for i in range(line - 6):
            # The first product is rounded, like all sums.
            total = upper[i] * above_left
            total = fused(upper[i + 3], above, total)
            total = fused(upper[i + 6], above_right, total)
            total = fused(middle[i], left, total)
            total = fused(middle[i + 3], centre, total)
            total = fused(middle[i + 6], right, total)
            total = fused(lower[i], below_left, total)
            total = fused(lower[i + 3], below, total)
            total = fused(lower[i + 6], below_right, total)
            out[np.uint64(start + i)] = level(total)
        copy(image, y * line, 3, out, y * line)
        copy(image, y * line + line - 3, 3, out, y * line + line - 3)
    copy(image, (height - 1) * line, line, out, (height - 1) * line)
