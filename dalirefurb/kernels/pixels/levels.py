"""Kernels that map each channel's levels, whatever lies beside them: the first number says how far."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.policies.operations import TRUNCATE
from dalirefurb.kernels.instructions import grey
from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, memory

_TRUNCATE = np.float32(TRUNCATE)
# As DALI computes it, from a share of the highest level.
_SHIFT = np.float32(255) * np.float32(-TRUNCATE / 255)

_TABLE_BYTES = 3 * 256
_TURNS = 4
"""Pixels that are counted apart, since to count a level again at once takes the time until its count is stored."""

_COUNT_BYTES = _TURNS * 3 * 256 * 4


def tables_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of a table of each channel's levels, and of their counts."""
    return _TABLE_BYTES + _COUNT_BYTES + 0 * columns


@compiled
def _level(value: Any) -> Any:
    """Round a float32 to the nearest level; a half goes up."""
    return np.uint8(np.int32(min(max(value, np.float32(0)), np.float32(255)) + np.float32(0.5)))


@kernel()
def posterize(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Clear the bits that are 0 in the number."""
    kept = np.uint8(np.int32(numbers[0]))
    for i in range(image.size):
        out[i] = image[i] & kept


@kernel()
def solarize(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Invert the levels above the number's negative, which may be -1."""
    highest = np.uint8(min(max(-numbers[0], 0), 255))
    if numbers[0] > 0:
        for i in range(image.size):
            out[i] = ~image[i]
    else:
        for i in range(image.size):
            out[i] = ~image[i] if image[i] > highest else image[i]


@compiled
def _scale(image: Any, factor: Any, shift: Any, out: Any) -> None:
    """Multiply, then add; both numbers are float32."""
    for i in range(image.size):
        out[i] = _level(np.float32(image[i]) * factor + shift)


@kernel()
def brightness(
    image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any
) -> None:
    """Blend with black."""
    _scale(image, np.float32(numbers[0]), _SHIFT, out)


@kernel()
def contrast(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Blend with the mean level of the grey picture."""
    factor, total = np.float32(numbers[0]), np.int64(0)
    for i in range(0, image.size, 3):
        at = np.uint64(i)
        total += grey(image[at], image[at + np.uint64(1)], image[at + np.uint64(2)])
    mean = np.floor(np.float32(total) / np.float32(image.size // 3) + np.float32(0.5))
    _scale(image, factor, (mean - factor * mean) + _SHIFT, out)


@compiled
def _extremes(image: Any) -> Any:
    """Return the lowest levels of the three channels, and the highest ones."""
    low_red, low_green, low_blue = np.uint8(255), np.uint8(255), np.uint8(255)
    high_red, high_green, high_blue = np.uint8(0), np.uint8(0), np.uint8(0)
    for i in range(0, image.size, 3):
        at = np.uint64(i)
        red, green, blue = image[at], image[at + np.uint64(1)], image[at + np.uint64(2)]
        low_red, low_green, low_blue = min(low_red, red), min(low_green, green), min(low_blue, blue)
        high_red, high_green, high_blue = max(high_red, red), max(high_green, green), max(high_blue, blue)
    return (low_red, low_green, low_blue), (high_red, high_green, high_blue)


@kernel(tables_bytes)
def auto_contrast(
    image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any
) -> None:
    """Stretch the levels of each channel to 0 .. 255."""
    table = memory(room, (3, 256), np.uint8)
    lowest, highest = _extremes(image)
    for channel in range(3):
        black, extent = np.float32(lowest[channel]), np.float32(highest[channel] - lowest[channel])
        if extent == 0:
            black, extent = np.float32(0), np.float32(255)
        black += extent * (_TRUNCATE / np.float32(255))
        for i in range(256):
            table[channel, i] = _level((np.float32(i) - black) * (np.float32(255) / extent))
    _look_up(image, table, out)


@compiled
def _count(image: Any, counts: Any) -> None:
    """Count each channel's 256 levels, in all at the first of `_TURNS`."""
    for i in range(counts.size):
        counts[i] = 0
    whole = image.size // (3 * _TURNS) * (3 * _TURNS)
    for i in range(0, whole, 3 * _TURNS):
        for turn in range(_TURNS):
            for channel in range(3):
                level = image[np.uint64(i + 3 * turn + channel)]
                counts[np.uint64(3 * 256 * turn + 256 * channel) + np.uint64(level)] += 1
    for i in range(whole, image.size):
        counts[np.uint64(256 * (i % 3)) + np.uint64(image[np.uint64(i)])] += 1
    for i in range(3 * 256):
        for turn in range(1, _TURNS):
            counts[i] += counts[3 * 256 * turn + i]


@kernel(tables_bytes)
def equalize(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Spread the levels of each channel by how many pixels have a lower one, as Pillow: in steps of whole pixels.

    A channel of so few pixels that a level's step would be none stays.
    """
    table, counts = memory(room, (3, 256), np.uint8), memory(room + _TABLE_BYTES, (_TURNS * 3 * 256,), np.int32)
    _count(image, counts)
    for channel in range(3):
        highest = 255
        while highest > 0 and counts[256 * channel + highest] == 0:
            highest -= 1
        step = (image.size // 3 - counts[256 * channel + highest]) // 255
        below = step // 2
        for i in range(256):
            table[channel, i] = min(below // step, 255) if step else i
            below += counts[256 * channel + i]
    _look_up(image, table, out)


@compiled
def _look_up(image: Any, table: Any, out: Any) -> None:
    for i in range(0, image.size, 3):
        at = np.uint64(i)
        red, green, blue = image[at], image[at + np.uint64(1)], image[at + np.uint64(2)]
        red, green, blue = table[0, np.uint64(red)], table[1, np.uint64(green)], table[2, np.uint64(blue)]
        out[at], out[at + np.uint64(1)], out[at + np.uint64(2)] = red, green, blue
