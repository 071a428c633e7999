"""Kernels that resize an image and show it in a frame, part of it or with a fill around; see `augment.stages.frame`.

The numbers are those of a resize whose crop is what is seen of the image, then the fill, then where in the frame that
begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.stages.frame import FRAME_FILL, FRAME_START
from dalirefurb.image_batch import ALIGNMENT
from dalirefurb.kernels.kernel import Kernel
from dalirefurb.kernels.llvm import compiled, jitable, memory, with_functions
from dalirefurb.kernels.pixels import crop_flip, resample, resize
from dalirefurb.kernels.pixels.crop_flip import show_part, window_refused
from dalirefurb.kernels.pixels.resize import behind
from dalirefurb.kernels.record import FULL, START


@jitable
def _seen(lines: Any, columns: Any, numbers: Any) -> Any:
    """Return height and width of what of the image is seen in a frame."""
    rows = np.minimum(lines - numbers[FRAME_START], numbers[FULL] - numbers[START])
    return rows, np.minimum(columns - numbers[FRAME_START + 1], numbers[FULL + 1] - numbers[START + 1])


def _framed(resizing: Kernel) -> Kernel:
    """Return the kernel that resizes as another one does, and shows what is seen of it in a frame.

    Its functions have names of their own: of two that are linked under one name Numba takes the first for both.
    """
    resized, resize_bytes = compiled(resizing.function), jitable(resizing.room_bytes)

    def room_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
        """Return the bytes of what is seen, and those of a resize of the frame's size, wherever that lies."""
        rows, length = _seen(lines, columns, numbers)
        own = 3 * lines * columns + ALIGNMENT + window_refused(height, width, rows, length, numbers)
        of_resize = resize_bytes(height, width, lines, columns, numbers)
        return of_resize - window_refused(height, width, lines, columns, numbers) + own

    def framed(
        image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, out: Any
    ) -> None:
        rows, length = _seen(lines, columns, numbers)
        size = int(rows), int(length)
        seen, room = memory(room, (3 * size[0] * size[1],), np.uint8), behind(room, 3 * size[0] * size[1])
        resized(image, height, width, size[0], size[1], numbers, room, seen)
        place = int(numbers[FRAME_START]), int(numbers[FRAME_START + 1])
        show_part(seen, size, place, (0, lines), (0, columns), columns, numbers[FRAME_FILL:FRAME_START], out)

    name = f"framed_{resizing.function.__name__}"
    return Kernel(with_functions(framed, name), with_functions(room_bytes, f"{name}_bytes"))


pick, bilinear = _framed(crop_flip.pick), _framed(resize.bilinear)
bicubic, lanczos = _framed(resample.bicubic), _framed(resample.lanczos)
