"""What is an image blended with, pixel by pixel? With its grey picture, or with a smooth one."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.compiled import compiled, fused, grey, level


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
    out[: image.size] = image
    line = 3 * width
    for y in range(1, height - 1):
        for i in range(y * line + 3, (y + 1) * line - 3):
            total = np.float32(0)
            for row in range(3):
                at = np.uint64(i + (row - 1) * line - 3)
                total = fused(np.float32(image[at]), kernel[3 * row], total)
                total = fused(np.float32(image[at + np.uint64(3)]), kernel[3 * row + 1], total)
                total = fused(np.float32(image[at + np.uint64(6)]), kernel[3 * row + 2], total)
            out[np.uint64(i)] = level(total)
