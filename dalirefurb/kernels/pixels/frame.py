"""Kernels that resize an image and show it in a frame, part of it or with a fill around; see `augment.stages.frame`.

The numbers are those of a resize whose crop is what is seen of the image, then the fill, then where in the frame that
begins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.stages.frame import FRAME_FILL, FRAME_START
from dalirefurb.kernels.buffers import ALIGNMENT
from dalirefurb.kernels.instructions import copy
from dalirefurb.kernels.kernel import Kernel
from dalirefurb.kernels.llvm import compiled, jitable, memory, with_functions
from dalirefurb.kernels.pixels import crop_flip, resample, resize
from dalirefurb.kernels.pixels.crop_flip import window_refused
from dalirefurb.kernels.pixels.resize import behind
from dalirefurb.kernels.record import FULL, START


@jitable
def _seen(lines: Any, columns: Any, numbers: Any) -> Any:
    """Return height and width of what of the image is seen in a frame."""
    rows = np.minimum(lines - numbers[FRAME_START], numbers[FULL] - numbers[START])
    return rows, np.minimum(columns - numbers[FRAME_START + 1], numbers[FULL + 1] - numbers[START + 1])


@compiled
def _begin(lines: Any, columns: Any, numbers: Any, room: Any) -> Any:
    """Return height and width of what is seen, memory for it, and where room for more begins."""
    rows, length = _seen(lines, columns, numbers)
    rows, length = int(rows), int(length)
    return rows, length, memory(room, (3 * rows * length,), np.uint8), behind(room, 3 * rows * length)


@compiled
def _show(seen: Any, rows: Any, length: Any, lines: Any, columns: Any, numbers: Any, out: Any) -> None:
    """Copy what is seen into its frame, and fill what is around."""
    top, left = int(numbers[FRAME_START]), int(numbers[FRAME_START + 1])
    for y in range(lines):
        begin, within = 3 * y * columns, top <= y < top + rows
        first, end = (left, left + length) if within else (columns, columns)
        for x in range(first):
            for channel in range(3):
                out[np.uint64(begin + 3 * x + channel)] = np.uint8(numbers[FRAME_FILL + channel])
        if within:
            copy(seen, 3 * (y - top) * length, 3 * length, out, begin + 3 * left)
        for x in range(end, columns):
            for channel in range(3):
                out[np.uint64(begin + 3 * x + channel)] = np.uint8(numbers[FRAME_FILL + channel])


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
        rows, length, seen, room = _begin(lines, columns, numbers, room)
        resized(image, height, width, rows, length, numbers, room, seen)
        _show(seen, rows, length, lines, columns, numbers, out)

    name = f"framed_{resizing.function.__name__}"
    return Kernel(with_functions(framed, name), with_functions(room_bytes, f"{name}_bytes"))


pick, bilinear = _framed(crop_flip.pick), _framed(resize.bilinear)
bicubic, lanczos = _framed(resample.bicubic), _framed(resample.lanczos)
