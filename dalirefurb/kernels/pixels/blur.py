"""Gaussian blur: a row of sums down, then sums along it; the border is mirrored, without repeating outermost pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.stages.color import LONGEST_KERNEL
from dalirefurb.kernels.kernel import REFUSED, kernel
from dalirefurb.kernels.llvm import compiled, level, memory
from dalirefurb.kernels.pixels.crop_flip import mirrored

MOST_RADIUS = LONGEST_KERNEL // 2

LEAST_WEIGHT = 2.0**-17
"""Of a pixel, as a share of the middle one's, for it to count: the others change a level by 0.01 at most."""


def gaussian_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of weights, of a row with its mirrored ends, and of a row."""
    return 4 * (MOST_RADIUS + 1) + 24 * (width + MOST_RADIUS) + REFUSED * (numbers[1] > MOST_RADIUS)


@kernel(gaussian_bytes)
def gaussian(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Blur with a Gaussian of a standard deviation, the first number, cut off at a radius, the second one."""
    sigma, radius = numbers[0], int(numbers[1])
    weights = memory(room, (MOST_RADIUS + 1,), np.float32)
    total, reach = 0.0, 0
    for tap in range(radius + 1):
        weight = np.exp(-0.5 * (tap / sigma) ** 2)
        total += weight if tap == 0 else 2 * weight
        if weight >= LEAST_WEIGHT:
            reach = tap
    for tap in range(reach + 1):
        weights[tap] = np.float32(np.exp(-0.5 * (tap / sigma) ** 2) / total)
    length, margin = 3 * width, 3 * reach
    room += 4 * (MOST_RADIUS + 1)
    padded = memory(room, (length + 2 * margin,), np.float32)
    sums = memory(room + 12 * (width + 2 * MOST_RADIUS), (length,), np.float32)
    row = padded[margin : margin + length]
    for y in range(height):
        _weigh_rows(image, height, length, y, weights, reach, row)
        for x in range(1, reach + 1):
            left, right = 3 * mirrored(-x, width), 3 * mirrored(width - 1 + x, width)
            for channel in range(3):
                padded[margin - 3 * x + channel] = row[left + channel]
                padded[margin + length + 3 * (x - 1) + channel] = row[right + channel]
        for i in range(length):
            sums[i] = row[i] * weights[0]
        for tap in range(1, reach + 1):
            weight, before, behind = weights[tap], padded[margin - 3 * tap :], padded[margin + 3 * tap :]
            for i in range(length):
                sums[i] += (before[i] + behind[i]) * weight
        line = y * length
        for i in range(length):
            out[np.uint64(line + i)] = level(sums[i])


@compiled
def _weigh_rows(image: Any, height: Any, length: Any, y: Any, weights: Any, reach: Any, row: Any) -> None:
    """Sum the rows about one, mirrored at the border."""
    middle = image[y * length : (y + 1) * length]
    for i in range(length):
        row[i] = np.float32(middle[i]) * weights[0]
    for tap in range(1, reach + 1):
        above, below = mirrored(y - tap, height) * length, mirrored(y + tap, height) * length
        upper, lower, weight = image[above : above + length], image[below : below + length], weights[tap]
        for i in range(length):
            row[i] += np.float32(np.int32(upper[i]) + np.int32(lower[i])) * weight
