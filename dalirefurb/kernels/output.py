"""What does the model receive? Normalised numbers, in the layout and the type that it wants."""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.compiled import compiled


@compiled
def planes(image: Any, mean: Any, scale: Any, out: Any) -> None:
    """Subtract the mean and multiply, channel after channel; all three are float32, (3,), (3,) and (3 * H * W,)."""
    pixels = image.size // 3
    for i in range(pixels):
        at, place = np.uint64(3 * i), np.uint64(i)
        out[place] = (np.float32(image[at]) - mean[0]) * scale[0]
        out[place + np.uint64(pixels)] = (np.float32(image[at + np.uint64(1)]) - mean[1]) * scale[1]
        out[place + np.uint64(2 * pixels)] = (np.float32(image[at + np.uint64(2)]) - mean[2]) * scale[2]


@compiled
def pixels(image: Any, mean: Any, scale: Any, out: Any) -> None:
    """Do the same, pixel after pixel."""
    for i in range(0, image.size, 3):
        at = np.uint64(i)
        out[at] = (np.float32(image[at]) - mean[0]) * scale[0]
        out[at + np.uint64(1)] = (np.float32(image[at + np.uint64(1)]) - mean[1]) * scale[1]
        out[at + np.uint64(2)] = (np.float32(image[at + np.uint64(2)]) - mean[2]) * scale[2]


@compiled
def half_planes(image: Any, table: Any, out: Any) -> None:
    """Look float16 numbers up, channel after channel; table and result hold their bits, uint16 (3, 256)."""
    pixels = image.size // 3
    for channel in range(3):
        for i in range(pixels):
            out[channel * pixels + i] = table[channel, np.uint64(image[np.uint64(3 * i + channel)])]


@compiled
def half_pixels(image: Any, table: Any, out: Any) -> None:
    """Do the same, pixel after pixel."""
    for i in range(0, image.size, 3):
        for channel in range(3):
            at = np.uint64(i + channel)
            out[at] = table[channel, np.uint64(image[at])]
