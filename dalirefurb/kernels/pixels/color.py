"""Kernels that change colours: hue, grey, AutoAugment's SolarizeAdd; blends with the grey picture, or a smooth one."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.instructions import copy, grey
from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, fused, level, memory

_ZERO, _ONE, _TWO, _THREE, _FOUR, _FIVE, _SIX = (np.float32(number) for number in range(7))
_SIXTH = np.float32(1 / 6)


@compiled
def _share(distance: Any) -> Any:
    """Return how much of the chroma a channel lacks, of its distance in hue, 6 to a full turn."""
    distance -= np.floor(distance * _SIXTH) * _SIX
    return min(max(min(distance, _FOUR - distance), _ZERO), _ONE)


@kernel()
def hue(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Turn the hue by a share of a full turn, the first number, -0.5 .. 0.5."""
    turn = np.float32(numbers[0]) * _SIX
    for i in range(0, image.size, 3):
        at = np.uint64(i)
        red = np.float32(image[at])
        green = np.float32(image[at + np.uint64(1)])
        blue = np.float32(image[at + np.uint64(2)])
        value = max(red, max(green, blue))
        chroma = value - min(red, min(green, blue))
        scale = _ONE / max(chroma, _ONE)
        of_green = (blue - red) * scale + _TWO if green == value else (red - green) * scale + _FOUR
        angle = ((green - blue) * scale if red == value else of_green) + turn
        out[at] = level(value - chroma * _share(angle + _FIVE))
        out[at + np.uint64(1)] = level(value - chroma * _share(angle + _THREE))
        out[at + np.uint64(2)] = level(value - chroma * _share(angle + _ONE))


@kernel()
def grayscale(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Show the grey picture, in three equal channels."""
    for i in range(0, image.size, 3):
        at = np.uint64(i)
        red, green, blue = image[at], image[at + np.uint64(1)], image[at + np.uint64(2)]
        shown = grey(red, green, blue)
        out[at] = shown
        out[at + np.uint64(1)] = shown
        out[at + np.uint64(2)] = shown


@kernel()
def solarize_add(
    image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any
) -> None:
    """Add the first number to the levels below the second one; both are whole."""
    addition, threshold = np.int16(numbers[0]), np.int16(numbers[1])
    for i in range(image.size):
        level = np.int16(image[i])
        lit = min(max(np.int16(level + addition), np.int16(0)), np.int16(255))
        out[i] = np.uint8(lit if level < threshold else level)


@kernel()
def blend(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
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
