"""Warp kernels, with the coordinates that OpenCV rounds to: shears, translations, rotations, changes of perspective.

Pixels travel as four bytes, of which the fourth is the next pixel's: one instruction each way. Of the last pixel of an
image, and of pixels outside, care is taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.stage import MOST_PIXELS
from dalirefurb.kernels.instructions import copy, load_pair, load_pixel, store_four, store_pixel, touch
from dalirefurb.kernels.kernel import REFUSED, kernel
from dalirefurb.kernels.llvm import compiled, fused, memory
from dalirefurb.kernels.record import WARP_START

_SOME, _NONE = -1, -2
"""In place of a source's offset: some of its neighbours are inside, or none."""

_FETCHED = 1 << 19
"""Bytes of an image, at most, that are brought to the caches before they are needed."""

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
def filled_pixel(numbers: Any) -> Any:
    """Return the pixel of `FILL`."""
    return _pixel(
        np.uint8(np.int32(numbers[FILL])), np.uint8(np.int32(numbers[FILL + 1])), np.uint8(np.int32(numbers[FILL + 2]))
    )


@compiled
def _pixel(red: Any, green: Any, blue: Any) -> Any:
    return np.uint32(red) | np.uint32(green) << np.uint32(8) | np.uint32(blue) << np.uint32(16)


@compiled
def fetch(image: Any) -> None:
    """Have an image brought to the caches from its first pixel to its last, which is faster than in another order."""
    for offset in range(0, min(image.size, _FETCHED), 64):
        touch(image, offset)


@compiled
def offset_of(row: Any, column: Any, stride: Any) -> Any:
    """Return the offset of a pixel, int32, like what a row has of bytes; row and column are whole float32 numbers."""
    return np.int32(np.int32(row) * stride + np.int32(3) * np.int32(column))


@compiled
def _pixel_at(image: Any, height: Any, width: Any, row: Any, column: Any, filled: Any) -> Any:
    if 0 <= row < height and 0 <= column < width:
        at = 3 * (row * width + column)
        return _pixel(image[at], image[at + 1], image[at + 2])
    return filled


@compiled
def store_last(out: Any, at: Any, pixel: Any) -> None:
    """Store a pixel that may be the last of its image."""
    for channel in range(3):
        out[at + channel] = np.uint8(pixel >> np.uint32(8 * channel))


@kernel(nearest_bytes)
def nearest(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Show at each pixel the nearest source, or `FILL` where there is none."""
    xx, xy, x0, yx, yy, y0 = _centred(numbers)
    filled = filled_pixel(numbers)
    fetch(image)
    last, stride = np.int32(3 * (height * width - 1)), np.int32(3 * width)
    most_column, most_row = np.float32(width - 1), np.float32(height - 1)
    top, left = int(numbers[WARP_START]), int(numbers[WARP_START + 1])
    shifted = xx == 1 and yx == 0
    offsets = memory(room, (width,), np.int32)
    for y in range(lines):
        start_x, start_y = xy * np.float32(top + y) + x0, yy * np.float32(top + y) + y0
        inside, furthest = np.int32(0), np.int32(0)
        for x in range(columns):
            step = np.float32(np.int32(left + x))
            column, row = np.rint(fused(step, xx, start_x)), np.rint(fused(step, yx, start_y))
            hit = (column >= 0) & (column <= most_column) & (row >= 0) & (row <= most_row)
            offset = offset_of(row, column, stride) if hit else np.int32(-1)
            offsets[x] = offset
            inside = np.int32(inside + np.int32(hit))
            furthest = max(furthest, offset)
        # A straight line enters the source once and leaves it once.
        first = 0
        while first < columns and inside > 0 and offsets[first] < 0:
            first += 1
        end = first + inside
        line = 3 * y * columns
        for x in range(first):
            store_pixel(out, line + 3 * x, filled)
        if shifted and _consecutive(offsets, first, end):
            copy(image, np.int64(offsets[np.uint64(first)]), 3 * (end - first), out, line + 3 * first)
        elif furthest == last:
            show_carefully(image, offsets, first, min(end, columns - 1), filled, out, line)
        else:
            for x in range(first, min(end, columns - 1)):
                store_pixel(out, line + 3 * x, load_pixel(image, np.int64(offsets[np.uint64(x)])))
        for x in range(end, columns - 1):
            store_pixel(out, line + 3 * x, filled)
        show_last(image, offsets, columns, filled, out, line)


@compiled
def _consecutive(offsets: Any, first: Any, end: Any) -> Any:
    """Tell whether the sources of some pixels of a row lie one after the other; shifts may round otherwise."""
    start, others = offsets[np.uint64(first)], np.int32(0)
    for x in range(end - first):
        others = np.int32(others | (offsets[np.uint64(first + x)] ^ np.int32(start + 3 * x)))
    return others == 0


@compiled
def show_carefully(image: Any, offsets: Any, first: Any, end: Any, filled: Any, out: Any, line: Any) -> None:
    """Show sources at pixels of a row but its last, where four bytes from a source on may be one too many."""
    for x in range(first, end):
        offset = np.int64(offsets[np.uint64(x)])
        behind = np.int64(offset == image.size - 3)
        pixel = filled if offset < 0 else load_pixel(image, offset - behind) >> np.uint32(8 * behind)
        store_pixel(out, line + 3 * x, pixel)


@compiled
def show_last(image: Any, offsets: Any, width: Any, filled: Any, out: Any, line: Any) -> None:
    """Show the source at the last pixel of a row."""
    offset = offsets[width - 1]
    if offset < 0:
        store_last(out, line + 3 * width - 3, filled)
    else:
        for channel in range(3):
            out[line + 3 * width - 3 + channel] = image[offset + channel]


@kernel(bilinear_bytes)
def bilinear(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Blend the four nearest sources at each pixel; around the source lies `FILL`."""
    xx, xy, x0, yx, yy, y0 = _centred(numbers)
    filled = filled_pixel(numbers)
    fetch(image)
    pairs, halves, offsets, across, down = rows_of(room, width)
    top, left = int(numbers[WARP_START]), int(numbers[WARP_START + 1])
    for y in range(lines):
        start_x, start_y = xy * np.float32(top + y) + x0, yy * np.float32(top + y) + y0
        for x in range(columns):
            step = np.float32(np.int32(left + x))
            across[x], down[x] = fused(step, xx, start_x), fused(step, yx, start_y)
        blend_row(image, height, width, columns, filled, pairs, halves, offsets, across, down, out, 3 * y * columns)


@compiled
def rows_of(room: Any, width: Any) -> Any:
    """Lay out the memory of `bilinear_bytes`: what `blend_row` works in, and what it is given."""
    pairs, halves = memory(room, (2, width), np.uint64), memory(room, (2, 2 * width), np.uint32)
    offsets = memory(room + 16 * width, (width,), np.int32)
    across, down = memory(room + 20 * width, (width,), np.float32), memory(room + 24 * width, (width,), np.float32)
    return pairs, halves, offsets, across, down


@compiled
def blend_row(
    image: Any,
    height: Any,
    width: Any,
    count: Any,
    filled: Any,
    pairs: Any,
    halves: Any,
    offsets: Any,
    across: Any,
    down: Any,
    out: Any,
    line: Any,
) -> None:
    """Blend the four nearest sources at each pixel of a row.

    Args:
        image: See `Kernel`.
        height: Height of the image in pixels.
        width: Width of the image in pixels.
        count: Number of pixels of the row, at most as many.
        filled: Pixel that lies around the image.
        pairs: Room for two pairs of pixels a column, see `load_pair`.
        halves: The same memory, as two numbers of 32 bits a pair.
        offsets: Room for a number a column.
        across: Columns of the sources, from the centre of the first pixel, float32 of shape (width,).
        down: Rows of the sources, likewise.
        out: See `Kernel`.
        line: Offset of the row in the result.
    """
    # Where all four are inside, and none is the last pixel.
    zero, one = np.float32(0), np.float32(1)
    columns, rows = np.float32(width - 2), np.float32(height - 2)
    corner, stride = np.int32(3 * ((height - 2) * width + width - 2)), np.int32(3 * width)
    for x in range(count):
        column, row = np.floor(across[x]), np.floor(down[x])
        hit = (column >= zero) & (column <= columns) & (row >= zero) & (row <= rows)
        near = (column >= -one) & (column <= columns + one) & (row >= -one) & (row <= rows + one)
        offset = offset_of(row, column, stride)
        offset = offset if hit and offset != corner else np.int32(_SOME)
        offsets[x] = offset if near else np.int32(_NONE)
    for x in range(count):
        above = np.int64(offsets[x])
        if above >= 0:
            pairs[0, x], pairs[1, x] = load_pair(image, above), load_pair(image, above + 3 * width)
        elif above == _NONE:
            pairs[0, x] = pairs[1, x] = _pair(filled, filled)
        else:
            column, row = int(np.floor(across[x])), int(np.floor(down[x]))
            for below in range(2):
                left = _pixel_at(image, height, width, row + below, column, filled)
                right = _pixel_at(image, height, width, row + below, column + 1, filled)
                pairs[below, x] = _pair(left, right)
    for x in range(count):
        upper, lower = (halves[0, 2 * x], halves[0, 2 * x + 1]), (halves[1, 2 * x], halves[1, 2 * x + 1])
        shares = across[x] - np.floor(across[x]), down[x] - np.floor(down[x])
        offsets[x] = _pixel(
            _blend(upper, lower, 0, *shares),
            _blend(upper, lower, 1, *shares),
            _blend(upper, lower, 2, *shares),
        )
    fours = max(count - 2, 0) // 4
    for four in range(fours):
        store_four(out, line + 12 * four, offsets, 4 * four)
    for x in range(4 * fours, count):
        store_last(out, line + 3 * x, np.uint32(offsets[x]))


@compiled
def _pair(left: Any, right: Any) -> Any:
    """Return two pixels as `load_pair` reads them."""
    return np.uint64(left) | np.uint64(right) << np.uint64(24)


@compiled
def _blend(upper: Any, lower: Any, channel: Any, across: Any, down: Any) -> Any:
    """Blend one channel of a pair of pixels with that of the pair below, four bytes each half."""
    above = _between(_level_of(upper, channel), _level_of(upper, channel + 3), across)
    below = _between(_level_of(lower, channel), _level_of(lower, channel + 3), across)
    return np.int32(np.rint(_between(above, below, down)))


@compiled
def _level_of(pair: Any, place: Any) -> Any:
    half = pair[1] if place >= 4 else pair[0]
    return np.float32(np.int32((half >> np.uint32(8 * (place & 3))) & np.uint32(255)))


@compiled
def _between(one: Any, other: Any, share: Any) -> Any:
    return fused(share, other - one, one)


@compiled
def _centred_perspective(numbers: Any) -> Any:
    """Do the same to a map that divides, as OpenCV does, by a number that depends on the pixel."""
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
def perspective_nearest(
    image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any
) -> None:
    """Show at each pixel the nearest source, or `FILL` where there is none."""
    (xx, xy, x0), (yx, yy, y0), (wx, wy, w0) = _centred_perspective(numbers)
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
def perspective_bilinear(
    image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any
) -> None:
    """Blend the four nearest sources at each pixel; around the source lies `FILL`."""
    (xx, xy, x0), (yx, yy, y0), (wx, wy, w0) = _centred_perspective(numbers)
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
        blend_row(image, height, width, width, filled, pairs, halves, offsets, across, down, out, 3 * y * width)
