"""Scratch memory that kernels need beside images; how much is known before they begin.

memory of a thread   │ image on the way │ another one │ room for a kernel's tables │
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Sizes
from dalirefurb.kernels.buffers import ALIGNMENT
from dalirefurb.kernels.crop_flip import pick_bytes
from dalirefurb.kernels.lower import Code, KernelOp
from dalirefurb.kernels.operate import operate_bytes
from dalirefurb.kernels.resize import resize_bytes, taps
from dalirefurb.kernels.rows import MATRIX_BYTES


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
    """Return what a kernel needs for each image, at most: a window is not larger than its image."""
    if step.code == Code.RESIZE:
        full = step.stage.output_sizes(*before)
        down, across = (taps(*sides) for sides in zip(before, full, strict=True))
        needed = resize_bytes(before[1], full[1], *after, across, down) if step.bilinear else pick_bytes(after[1])
    elif step.code == Code.OPERATE:
        needed = MATRIX_BYTES + operate_bytes(before[1])
    else:
        needed = 0 * before[1]
    return cast(NDArray[np.int64], needed)


def _aligned(nbytes: NDArray[np.int64]) -> int:
    return -(-int(nbytes.max(initial=0)) // ALIGNMENT) * ALIGNMENT
