"""Kernels that blend an image with several that are made of it one after the other; the first number is a weight.

Between them other kernels work in the same memory. What is kept lies behind what any operation of a policy needs:

    memory of a thread   │ for operations │ sums, float32 (3 * height * width,) │ the image, uint8 │
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.kernels.kernel import kernel
from dalirefurb.kernels.llvm import compiled, jitable, level, memory


@jitable
def ahead_bytes(width: Any) -> Any:
    """Return bytes that are enough for any operation of a policy, a multiple of 16."""
    return (14 << 10) + 48 * width


def mixed_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    """Return the bytes of what is kept, and of what is before it."""
    return ahead_bytes(width) + 15 * height * width


@compiled
def _sums(room: Any, width: Any, size: Any) -> Any:
    return memory(room + ahead_bytes(width), (size,), np.float32)


@compiled
def _kept(room: Any, width: Any, size: Any) -> Any:
    return memory(room + ahead_bytes(width) + 4 * size, (size,), np.uint8)


@kernel(mixed_bytes)
def begin(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Keep the image, and begin sums with it."""
    weight, size = np.float32(numbers[0]), image.size
    sums, kept = _sums(room, width, size), _kept(room, width, size)
    for i in range(size):
        sums[i] = np.float32(image[i]) * weight
        kept[i] = image[i]
        out[i] = image[i]


@kernel(mixed_bytes)
def add(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Add what was made of the image to the sums, and go on with the one that was kept."""
    weight, size = np.float32(numbers[0]), image.size
    sums, kept = _sums(room, width, size), _kept(room, width, size)
    for i in range(size):
        sums[i] += np.float32(image[i]) * weight
        out[i] = kept[i]


@kernel(mixed_bytes)
def end(image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any) -> None:
    """Add what was made of the image to the sums, and show these."""
    weight, size = np.float32(numbers[0]), image.size
    sums = _sums(room, width, size)
    for i in range(size):
        out[i] = level(sums[i] + np.float32(image[i]) * weight)
