"""Kernels that make one image of several; of each other one they are given address, height and width."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.instructions import copy, load_pair
from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, memory
from dalirefurb.kernels.pixels.crop_flip import show_part


@compiled
def _band(band: Any, side: Any, first: Any, last: Any, length: Any, size: Any) -> Any:
    """Return where a band of the result begins and ends, of 2 or 3, and where an image of a size in it begins."""
    if band == 0:
        return (0, first), first - size
    if band == side - 1:
        return (last, length), last
    return (max(first, 0), min(last, length)), first + (last - first) // 2 - size // 2


@kernel()
def mosaic(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Put the image, and three or eight more, around a point, in two or three bands of rows and of columns.

    The numbers are row and column where the bands in the middle begin, the fill's levels, row and column where these
    bands end, how many bands there are, and the address of what is given of the others. Two have none in the middle.
    """
    top_cut, left_cut, low_cut, right_cut = int(numbers[0]), int(numbers[1]), int(numbers[5]), int(numbers[6])
    side = int(numbers[7])
    count = side * side
    others = memory(np.int64(numbers[8]), (count - 1, 3), np.float64)
    for part in range(count):
        source, its_height, its_width = image, height, width
        if part > 0:
            its_height, its_width = np.int64(others[part - 1, 1]), np.int64(others[part - 1, 2])
            source = memory(np.int64(others[part - 1, 0]), (3 * its_height * its_width,), np.uint8)
        place = (part + 4 * (side - 2)) % count
        rows, top = _band(place // side, side, top_cut, low_cut, lines, its_height)
        span, left = _band(place % side, side, left_cut, right_cut, columns, its_width)
        show_part(source, (its_height, its_width), (top, left), rows, span, columns, numbers[2:5], out)


@kernel()
def mix_up(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Blend two images of one size. The numbers are those of the other one, and the own one's share."""
    other = memory(np.int64(numbers[0]), (3 * height * width,), np.uint8)
    share = np.int32(65536 * numbers[3])
    rest = np.int32(65536 - share)
    for place in range(3 * height * width):
        i = np.uint64(place)
        out[i] = np.uint8((share * np.int32(image[i]) + rest * np.int32(other[i]) + 32768) >> 16)


@kernel()
def copy_paste(
    image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any
) -> None:
    """Take pixels where a shape is from another image of this size.

    The numbers are those of the other one, and the address of the shape, a byte a pixel, above 0 where it is.
    """
    count = height * width
    other, shape = (
        memory(np.int64(numbers[0]), (3 * count,), np.uint8),
        memory(np.int64(numbers[3]), (count,), np.uint8),
    )
    copy(image, 0, 3 * count, out, 0)
    pixel = 0
    while pixel < count:
        if pixel + 8 <= count and load_pair(shape, pixel) == 0:
            pixel += 8
        elif shape[pixel] == 0:
            pixel += 1
        else:
            start = pixel
            while pixel < count and shape[pixel] != 0:
                pixel += 1
            copy(other, 3 * start, 3 * (pixel - start), out, 3 * start)
