"""Warp kernels: shears, translations and rotations, with the coordinates that OpenCV rounds to.

Pixels travel as four bytes, of which the fourth is the next pixel's: one instruction each way. Of the last pixel of an
image, and of pixels outside, care is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.operations import MOST_PIXELS
from dalirefurb.kernels.kernel import REFUSED, kernel
from dalirefurb.kernels.llvm import compiled, fused, load_pixel, memory, store_pixel

_SOME, _NONE = -1, -2
"""In place of a source's offset: some of its neighbours are inside, or none."""

FILL = 9
"""Which numbers of a warp are the levels of the channels where there is no source, after a 3x3 matrix row by row: the
map from the result's coordinates to the source's."""


def nearest_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of an offset for each column; offsets have 32 bits."""
    return 4 * width + REFUSED * (height * width > MOST_PIXELS)


def bilinear_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of four pixels, an offset and two shares for each column; offsets have 32 bits."""
    return 28 * width + REFUSED * (height * width > MOST_PIXELS)


@compiled
def _centred(numbers: Any) -> Any:
    """Move the origin of a map from the corner of the first pixel to its centre, in single precision."""
    half = np.float32(0.5)
    xx, xy, x0 = np.float32(numbers[0]), np.float32(numbers[1]), np.float32(numbers[2])
    yx, yy, y0 = np.float32(numbers[3]), np.float32(numbers[4]), np.float32(numbers[5])
    return xx, xy, (half * xx + half * xy + x0) - half, yx, yy, (half * yx + half * yy + y0) - half


@compiled
def _filled(numbers: Any) -> Any:
    return _pixel(
        np.uint8(np.int32(numbers[FILL])), np.uint8(np.int32(numbers[FILL + 1])), np.uint8(np.int32(numbers[FILL + 2]))
    )


@compiled
def _pixel(red: Any, green: Any, blue: Any) -> Any:
    return np.uint32(red) | np.uint32(green) << np.uint32(8) | np.uint32(blue) << np.uint32(16)


@compiled
def _pixel_at(image: Any, height: Any, width: Any, row: Any, column: Any, filled: Any) -> Any:
    if 0 <= row < height and 0 <= column < width:
        at = 3 * (row * width + column)
        return _pixel(image[at], image[at + 1], image[at + 2])
    return filled


@compiled
def _store_last(out: Any, at: Any, pixel: Any) -> None:
    """Store a pixel that may be the last of its image."""
    for channel in range(3):
        out[at + channel] = np.uint8(pixel >> np.uint32(8 * channel))


@kernel(nearest_bytes)
def nearest(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Show at each pixel the nearest source, or `FILL` where there is none."""
    xx, xy, x0, yx, yy, y0 = _centred(numbers)
    filled = _filled(numbers)
    last = 3 * (height * width - 1)
    columns, rows = np.float32(width - 1), np.float32(height - 1)
    offsets = memory(room, (width,), np.int32)
    for y in range(height):
        start_x, start_y = xy * np.float32(y) + x0, yy * np.float32(y) + y0
        inside = np.int32(0)
        for x in range(width):
            column = np.rint(fused(np.float32(x), xx, start_x))
            row = np.rint(fused(np.float32(x), yx, start_y))
            hit = (column >= 0) & (column <= columns) & (row >= 0) & (row <= rows)
            offsets[x] = np.int32(3) * (np.int32(row) * np.int32(width) + np.int32(column)) if hit else np.int32(-1)
            inside += np.int32(hit)
        # A straight line enters the source once and leaves it once.
        first = 0
        while first < width and inside > 0 and offsets[first] < 0:
            first += 1
        end = first + inside
        line = 3 * y * width
        for x in range(first):
            store_pixel(out, line + 3 * x, filled)
        for x in range(first, min(end, width - 1)):
            offset = np.int64(offsets[x])
            # Four bytes from the last pixel on would be one too many.
            behind = np.int64(offset == last)
            store_pixel(out, line + 3 * x, load_pixel(image, offset - behind) >> np.uint32(8 * behind))
        for x in range(end, width - 1):
            store_pixel(out, line + 3 * x, filled)
        if offsets[width - 1] < 0:
            _store_last(out, line + 3 * width - 3, filled)
        else:
            for channel in range(3):
                out[line + 3 * width - 3 + channel] = image[offsets[width - 1] + channel]


@kernel(bilinear_bytes)
def bilinear(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Blend the four nearest sources at each pixel; around the source lies `FILL`."""
    xx, xy, x0, yx, yy, y0 = _centred(numbers)
    filled = _filled(numbers)
    # Where all four are inside, and none is the last pixel.
    columns, rows = np.float32(width - 2), np.float32(height - 2)
    corner = 3 * ((height - 2) * width + width - 2)
    near, offsets = memory(room, (4, width), np.uint32), memory(room + 16 * width, (width,), np.int32)
    across, down = memory(room + 20 * width, (width,), np.float32), memory(room + 24 * width, (width,), np.float32)
    for y in range(height):
        start_x, start_y = xy * np.float32(y) + x0, yy * np.float32(y) + y0
        for x in range(width):
            source_x = fused(np.float32(x), xx, start_x)
            source_y = fused(np.float32(x), yx, start_y)
            column, row = np.floor(source_x), np.floor(source_y)
            across[x], down[x] = source_x - column, source_y - row
            hit = (column >= 0) & (column <= columns) & (row >= 0) & (row <= rows)
            offset = np.int32(3) * (np.int32(row) * np.int32(width) + np.int32(column))
            offsets[x] = offset if hit and offset != corner else np.int32(_SOME)
            if (column < -1) | (column > columns + 1) | (row < -1) | (row > rows + 1):
                offsets[x] = np.int32(_NONE)
        for x in range(width):
            above = np.int64(offsets[x])
            if above >= 0:
                near[0, x] = load_pixel(image, above)
                near[1, x] = load_pixel(image, above + 3)
                near[2, x] = load_pixel(image, above + 3 * width)
                near[3, x] = load_pixel(image, above + 3 * width + 3)
            elif above == _NONE:
                near[0, x] = near[1, x] = near[2, x] = near[3, x] = filled
            else:
                column = int(np.floor(fused(np.float32(x), xx, start_x)))
                row = int(np.floor(fused(np.float32(x), yx, start_y)))
                near[0, x] = _pixel_at(image, height, width, row, column, filled)
                near[1, x] = _pixel_at(image, height, width, row, column + 1, filled)
                near[2, x] = _pixel_at(image, height, width, row + 1, column, filled)
                near[3, x] = _pixel_at(image, height, width, row + 1, column + 1, filled)
        for x in range(width):
            one, two, three, four = near[0, x], near[1, x], near[2, x], near[3, x]
            near[0, x] = _pixel(
                _blend(one, two, three, four, 0, across[x], down[x]),
                _blend(one, two, three, four, 8, across[x], down[x]),
                _blend(one, two, three, four, 16, across[x], down[x]),
            )
        line = 3 * y * width
        for x in range(width - 1):
            store_pixel(out, line + 3 * x, near[0, x])
        _store_last(out, line + 3 * width - 3, near[0, width - 1])


@compiled
def _blend(one: Any, two: Any, three: Any, four: Any, shift: Any, across: Any, down: Any) -> Any:
    """Blend one channel of four pixels, two above two."""
    above = _between(_channel(one, shift), _channel(two, shift), across)
    below = _between(_channel(three, shift), _channel(four, shift), across)
    return np.int32(np.rint(_between(above, below, down)))


@compiled
def _channel(pixel: Any, shift: Any) -> Any:
    return np.float32(np.int32((pixel >> np.uint32(shift)) & np.uint32(255)))


@compiled
def _between(one: Any, other: Any, share: Any) -> Any:
    return fused(share, other - one, one)
