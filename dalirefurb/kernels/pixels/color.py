"""Kernels that change colours pixel by pixel: hue, grey, and AutoAugment's SolarizeAdd."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.instructions import grey
from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, level

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
