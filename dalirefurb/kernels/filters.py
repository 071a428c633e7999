"""Kernels that blend an image with its grey picture, or with a smooth one."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.llvm import compiled, fused, grey, level


@compiled
def color(image: Any, share: Any, grey_share: Any, out: Any) -> None:
    """Blend with the grey picture; both shares are float32."""
    for i in range(0, image.size, 3):
        at = np.uint64(i)
        red, green, blue = image[at], image[at + np.uint64(1)], image[at + np.uint64(2)]
        added = np.float32(grey(np.int32(red), np.int32(green), np.int32(blue)))
        out[at] = level(fused(added, grey_share, np.float32(red) * share))
        out[at + np.uint64(1)] = level(fused(added, grey_share, np.float32(green) * share))
        out[at + np.uint64(2)] = level(fused(added, grey_share, np.float32(blue) * share))


@compiled
def sharpness(image: Any, height: Any, width: Any, kernel: Any, out: Any) -> None:
    """Filter all but the outermost pixels with 3x3 weights, float32 (9,), row by row."""
    for i in range(image.size):
        out[i] = image[i]
    line = 3 * width
    above_left, above, above_right = kernel[0], kernel[1], kernel[2]
    left, centre, right = kernel[3], kernel[4], kernel[5]
    below_left, below, below_right = kernel[6], kernel[7], kernel[8]
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
