"""Kernels that map each channel's levels, whatever lies beside them, and their tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.operations import TRUNCATE
from dalirefurb.kernels.llvm import compiled, grey, memory

_TRUNCATE = np.float32(TRUNCATE)
# As DALI computes it, from a share of the highest level.
_SHIFT = np.float32(255) * np.float32(-TRUNCATE / 255)

LEVELS_BYTES = 3 * 256 * 5
"""Of memory that a kernel needs beside images, at most: a table and counts of each channel's levels."""


@compiled
def _level(value: Any) -> Any:
    """Round a float32 to the nearest level; a half goes up."""
    return np.uint8(np.int32(min(max(value, np.float32(0)), np.float32(255)) + np.float32(0.5)))


@compiled
def posterize(image: Any, mask: Any, out: Any) -> None:
    """Clear the bits that are 0 in `mask`."""
    kept = np.uint8(mask)
    for i in range(image.size):
        out[i] = image[i] & kept


@compiled
def solarize(image: Any, highest: Any, out: Any) -> None:
    """Invert the levels above `highest`, which may be -1."""
    first = np.int32(highest) + 1
    for i in range(image.size):
        out[i] = ~image[i] if image[i] >= first else image[i]


@compiled
def scale(image: Any, factor: Any, shift: Any, out: Any) -> None:
    """Multiply, then add; both numbers are float32."""
    for i in range(image.size):
        out[i] = _level(np.float32(image[i]) * factor + shift)


@compiled
def brightness(image: Any, factor: Any, out: Any) -> None:
    """Blend with black."""
    scale(image, factor, _SHIFT, out)


@compiled
def contrast(image: Any, factor: Any, out: Any) -> None:
    """Blend with the mean level of the grey picture."""
    total = np.int64(0)
    for i in range(0, image.size, 3):
        at = np.uint64(i)
        total += grey(np.int32(image[at]), np.int32(image[at + np.uint64(1)]), np.int32(image[at + np.uint64(2)]))
    mean = np.floor(np.float32(total) / np.float32(image.size // 3) + np.float32(0.5))
    scale(image, factor, (mean - factor * mean) + _SHIFT, out)


@compiled
def auto_contrast(image: Any, room: Any, out: Any) -> None:
    """Stretch the levels of each channel to 0 .. 255; `room` is the address of memory, of `LEVELS_BYTES`."""
    table = memory(room, (3, 256), np.uint8)
    for channel in range(3):
        low, high = np.uint8(255), np.uint8(0)
        for i in range(channel, image.size, 3):
            low = min(low, image[np.uint64(i)])
            high = max(high, image[np.uint64(i)])
        black, extent = np.float32(low), np.float32(high - low)
        if extent == 0:
            black, extent = np.float32(0), np.float32(255)
        black += extent * (_TRUNCATE / np.float32(255))
        for i in range(256):
            table[channel, i] = _level((np.float32(i) - black) * (np.float32(255) / extent))
    _look_up(image, table, out)


@compiled
def equalize(image: Any, room: Any, out: Any) -> None:
    """Spread the levels of each channel by how many pixels have a lower one, as Pillow: in steps of whole pixels.

    A channel of so few pixels that a level's step would be none stays. `room` is the address of memory, of
    `LEVELS_BYTES`.
    """
    table, counts = memory(room, (3, 256), np.uint8), memory(room + 768, (3, 256), np.int32)
    counts[:] = 0
    for i in range(0, image.size, 3):
        for channel in range(3):
            counts[channel, np.uint64(image[np.uint64(i + channel)])] += 1
    for channel in range(3):
        highest = 255
        while highest > 0 and counts[channel, highest] == 0:
            highest -= 1
        step = (image.size // 3 - counts[channel, highest]) // 255
        below = step // 2
        for i in range(256):
            table[channel, i] = min(below // step, 255) if step else i
            below += counts[channel, i]
    _look_up(image, table, out)


@compiled
def _look_up(image: Any, table: Any, out: Any) -> None:
    for i in range(0, image.size, 3):
        for channel in range(3):
            at = np.uint64(i + channel)
            out[at] = table[channel, np.uint64(image[at])]
