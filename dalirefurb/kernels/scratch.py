"""Scratch memory that kernels need beside images; how much is known before they begin.

memory of a thread   │ image on the way │ another one │ room for a kernel's tables │
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Sizes
from dalirefurb.kernels.buffers import ALIGNMENT
from dalirefurb.kernels.kernel import kernel_named
from dalirefurb.kernels.lower import KernelOp


class Scratch(NamedTuple):
    """Memory of one thread; multiples of `ALIGNMENT`.

    Attributes:
        image_bytes: Number of bytes of the largest image on the way, rounded up to a multiple of `ALIGNMENT`.
        room_bytes: Number of bytes that kernels need beside images, rounded up to a multiple of `ALIGNMENT`.
    """

    image_bytes: int = 0
    room_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """All of it."""
        return 2 * self.image_bytes + self.room_bytes

    def with_step(self, step: KernelOp, before: Sizes, after: Sizes) -> Scratch:
        """Return what is needed if a step is taken, too, given the sizes of the images before and after it."""
        images = 3 * after[0] * after[1]
        return Scratch(
            max(self.image_bytes, _aligned(images)), max(self.room_bytes, _aligned(_room_bytes(step, before, after)))
        )


def _room_bytes(step: KernelOp, before: Sizes, after: Sizes) -> NDArray[np.int64]:
    """Return what any of a step's kernels needs for each image, at most: a window is not larger than its image."""
    numbers = step.largest(before).T
    most = np.zeros(len(before[0]), np.int64)
    for name in step.kernels:
        if isinstance(name, str):
            np.maximum(most, kernel_named(name).room_bytes(*before, *after, numbers), out=most)
    return most


def _aligned(nbytes: NDArray[np.int64]) -> int:
    return -(-int(nbytes.max(initial=0)) // ALIGNMENT) * ALIGNMENT
