"""Warp kernels of changes of perspective, which divide at each pixel, as OpenCV does.

Their numbers are those of `warp`'s: a 3x3 matrix row by row, and `FILL`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.instructions import load_pixel, store_pixel
from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, fused, memory
from dalirefurb.kernels.pixels.warp import (
    bilinear_bytes,
    blend_row,
    fetch,
    filled_pixel,
    nearest_bytes,
    offset_of,
    rows_of,
    show_carefully,
    show_last,
)


@compiled
def _centred(numbers: Any) -> Any:
    """Move the origin of a map from the corner of the first pixel to its centre, in single precision."""
    half = np.float32(0.5)
    xx, xy, x0 = np.float32(numbers[0]), np.float32(numbers[1]), np.float32(numbers[2])
    yx, yy, y0 = np.float32(numbers[3]), np.float32(numbers[4]), np.float32(numbers[5])
    wx, wy, w0 = np.float32(numbers[6]), np.float32(numbers[7]), np.float32(numbers[8])
    x0, y0, w0 = half * xx + half * xy + x0, half * yx + half * yy + y0, half * wx + half * wy + w0
    return (
        (xx - half * wx, xy - half * wy, x0 - half * w0),
        (yx - half * wx, yy - half * wy, y0 - half * w0),
        (wx, wy, w0),
    )


@kernel(nearest_bytes)
def nearest(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Show at each pixel the nearest source, or `FILL` where there is none."""
    (xx, xy, x0), (yx, yy, y0), (wx, wy, w0) = _centred(numbers)
    filled = filled_pixel(numbers)
    fetch(image)
    last, stride = np.int32(3 * (height * width - 1)), np.int32(3 * width)
    columns, rows = np.float32(width - 1), np.float32(height - 1)
    offsets = memory(room, (width,), np.int32)
    for y in range(height):
        start_x, start_y = xy * np.float32(y) + x0, yy * np.float32(y) + y0
        start_w, furthest = wy * np.float32(y) + w0, np.int32(0)
        for x in range(width):
            step = np.float32(np.int32(x))
            divisor = fused(step, wx, start_w)
            column, row = np.rint(fused(step, xx, start_x) / divisor), np.rint(fused(step, yx, start_y) / divisor)
            hit = (column >= 0) & (column <= columns) & (row >= 0) & (row <= rows)
            offset = offset_of(row, column, stride) if hit else np.int32(-1)
            offsets[x] = offset
            furthest = max(furthest, offset)
        line = 3 * y * width
        if furthest == last:
            show_carefully(image, offsets, 0, width - 1, filled, out, line)
        else:
            for x in range(width - 1):
                pixel = load_pixel(image, np.int64(max(offsets[x], np.int32(0))))
                store_pixel(out, line + 3 * x, filled if offsets[x] < 0 else pixel)
        show_last(image, offsets, width, filled, out, line)


@kernel(bilinear_bytes)
def bilinear(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Blend the four nearest sources at each pixel; around the source lies `FILL`."""
    (xx, xy, x0), (yx, yy, y0), (wx, wy, w0) = _centred(numbers)
    filled = filled_pixel(numbers)
    fetch(image)
    pairs, halves, offsets, across, down = rows_of(room, width)
    for y in range(height):
        start_x, start_y = xy * np.float32(y) + x0, yy * np.float32(y) + y0
        start_w = wy * np.float32(y) + w0
        for x in range(width):
            step = np.float32(np.int32(x))
            divisor = fused(step, wx, start_w)
            across[x], down[x] = fused(step, xx, start_x) / divisor, fused(step, yx, start_y) / divisor
        blend_row(image, height, width, filled, pairs, halves, offsets, across, down, out, 3 * y * width)
