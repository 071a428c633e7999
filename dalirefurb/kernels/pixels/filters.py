"""Kernels that blend an image with its grey picture, or with a smooth one."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.instructions import grey
from dalirefurb.kernels.llvm import fused, level


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


@kernel()
def sharpness(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Filter all but the outermost pixels; the numbers are 3x3 weights, row by row."""
    for i in range(image.size):
        out[i] = image[i]
    line = 3 * width
    above_left, above, above_right = np.float32(numbers[0]), np.float32(numbers[1]), np.float32(numbers[2])
    left, centre, right = np.float32(numbers[3]), np.float32(numbers[4]), np.float32(numbers[5])
    below_left, below, below_right = np.float32(numbers[6]), np.float32(numbers[7]), np.float32(numbers[8])
    step, two_steps = np.uint64(3), np.uint64(6)
    for y in range(1, height - 1):
        for i in range(y * line + 3, (y + 1) * line - 3):
            at = np.uint64(i - line - 3)
            # The first product is rounded, like all sums.
            total = np.float32(image[at]) * above_left
            total = fused(np.float32(image[at + step]), above, total)
            total = fused(np.float32(image[at + two_steps]), above_right, total)
            at = np.uint64(i - 3)
            total = fused(np.float32(image[at]), left, total)
            total = fused(np.float32(image[at + step]), centre, total)
            total = fused(np.float32(image[at + two_steps]), right, total)
            at = np.uint64(i + line - 3)
            total = fused(np.float32(image[at]), below_left, total)
            total = fused(np.float32(image[at + step]), below, total)
            total = fused(np.float32(image[at + two_steps]), below_right, total)
            out[np.uint64(i)] = level(total)
