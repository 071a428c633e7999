"""The kernel of volumes: copies what is shown of one, line by line, and changes its values on the way.

Values are changed one step after the other, in single precision, so that they are the same whether all steps are done
in one go or some of them before, and cached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.volumes.voxels import AFFINE, Voxels


def show(volume: NDArray[Any], voxels: Voxels, fill: float, steps: NDArray[np.float32], out: NDArray[Any]) -> None:
    """Copy what is shown of one channel of a volume.

    Args:
        volume: Values, C-contiguous (D, H, W).
        voxels: What is shown.
        fill: Value of what is outside, when all steps are done.
        steps: What becomes of values, float32 (n, 3), see `Voxels.steps`.
        out: Values of the result, C-contiguous, of the shape of what is shown, to be written.
    """
    _, height, width = volume.shape
    strides = height * width, width, 1
    start = sum(begin * stride for begin, stride in zip(voxels.start, strides, strict=True))
    within = np.zeros((3, 2), np.int64)
    for axis, (own, direction) in enumerate(zip(voxels.axes, voxels.directions, strict=True)):
        begin, sides, (low, high) = voxels.start[own], voxels.shape[axis], voxels.limits[own]
        first, stop = (low - begin, high - begin) if direction > 0 else (begin - high + 1, begin - low + 1)
        first = min(max(first, 0), sides)
        within[axis] = first, min(max(stop, first), sides)
    moves = np.array([strides[own] * way for own, way in zip(voxels.axes, voxels.directions, strict=True)], np.int64)
    copy = compile_show(str(volume.dtype), str(out.dtype))
    copy(volume.reshape(-1), start, moves, within, np.float32(fill), steps, out)


@cache
def compile_show(kind: str, made: str) -> Callable[..., None]:
    """Compile what does it for types of values, or load what was compiled before, once in a process."""
    from numba import types

    from dalirefurb.kernels.llvm import kept

    volume, strides = types.Array(getattr(types, kind), 1, "C", readonly=True), types.int64[::1]
    steps, out = types.float32[:, ::1], getattr(types, made)[:, :, ::1]
    return kept(_show, types.void(volume, types.int64, strides, types.int64[:, ::1], types.float32, steps, out))


def _show(volume: Any, start: Any, strides: Any, within: Any, fill: Any, steps: Any, out: Any) -> None:
    """Copy voxels, see `show`.

    Args:
        volume: Values, one after the other.
        start: Where the first voxel of the result comes from; perhaps outside.
        strides: How much further the next one comes from, along each axis of the result, (3,).
        within: First voxel of the result along each axis that comes from inside, and the first behind these, (3, 2).
        fill: See `show`.
        steps: Likewise.
        out: Likewise.
    """
    depth, height, width = out.shape
    stride = strides[2]
    for z in range(depth):
        for y in range(height):
            line = out[z, y]
            inside = within[0, 0] <= z < within[0, 1] and within[1, 0] <= y < within[1, 1]
            begin, end = (within[2, 0], within[2, 1]) if inside else (width, width)
            for x in range(begin):
                line[x] = fill
            at = start + z * strides[0] + y * strides[1]
            if stride == 1:
                for x in range(begin, end):
                    line[np.uint64(x)] = volume[np.uint64(at + x)]
            else:
                for x in range(begin, end):
                    line[np.uint64(x)] = volume[np.uint64(at + x * stride)]
            for x in range(end, width):
                line[x] = fill
            for step in range(len(steps)):
                one, other = steps[step, 1], steps[step, 2]
                if steps[step, 0] == AFFINE:
                    for x in range(begin, end):
                        line[np.uint64(x)] = line[np.uint64(x)] * one + other
                else:
                    for x in range(begin, end):
                        line[np.uint64(x)] = min(max(line[np.uint64(x)], one), other)
