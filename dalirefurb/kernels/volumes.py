"""Kernels of volumes: one copies what is shown, line by line, and changes values on the way; two look at neighbours.

Values are changed one step after the other, in single precision, so that they are the same whether all steps are done
in one go or some of them before, and cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.volumes.voxels import AFFINE, Voxels


def gather(volume: NDArray[Any], voxels: Voxels, fill: float, steps: NDArray[np.float32], out: NDArray[Any]) -> None:
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
    copy = compile_gather(str(volume.dtype), str(out.dtype))
    copy(volume.reshape(-1), start, moves, within, np.float32(fill), steps, out)


@cache
def compile_gather(kind: str, made: str) -> Callable[..., None]:
    """Compile what does it for types of values, or load what was compiled before, once in a process."""
    from numba import types

    from dalirefurb.kernels.llvm import kept

    volume, strides = types.Array(getattr(types, kind), 1, "C", readonly=True), types.int64[::1]
    steps, out = types.float32[:, ::1], getattr(types, made)[:, :, ::1]
    return kept(_gather, types.void(volume, types.int64, strides, types.int64[:, ::1], types.float32, steps, out))


def _gather(volume: Any, start: Any, strides: Any, within: Any, fill: Any, steps: Any, out: Any) -> None:
    """Copy voxels, see `gather`.

    Args:
        volume: Values, one after the other.
        start: Where the first voxel of the result comes from; perhaps outside.
        strides: How much further the next one comes from, along each axis of the result, (3,).
        within: First voxel of the result along each axis that comes from inside, and the first behind these, (3, 2).
        fill: See `gather`.
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


def resample(
    volume: NDArray[Any],
    begin: tuple[int, ...],
    full: tuple[int, ...],
    matrix: NDArray[np.float64],
    fill: float,
    out: NDArray[Any],
) -> None:
    """Take what a map leads to from one channel: values linearly between voxels, of labels those of the nearest.

    Args:
        volume: Values, or labels, C-contiguous (d, h, w): all of what is shown, or a part that has all that is needed.
        begin: Where the part begins.
        full: Shape of all of it.
        matrix: Map from voxels of the result to those of all of it, (3, 4).
        fill: Value where there is nothing; of labels it is 0.
        out: Values of the result, float32; or labels, of the type of the volume's, to be written.
    """
    compiled = compile_resample(str(volume.dtype), str(out.dtype))
    begins, sides = np.array([begin, full], np.int64)
    compiled(volume, begins, sides, np.ascontiguousarray(matrix), np.float32(fill), out)


@cache
def compile_resample(kind: str, made: str) -> Callable[..., None]:
    """Compile what does it, or load what was compiled before, once in a process."""
    from numba import types

    from dalirefurb.kernels.llvm import kept

    volume, sides = types.Array(getattr(types, kind), 3, "C", readonly=True), types.int64[::1]
    arguments = sides, sides, types.float64[:, ::1], types.float32, getattr(types, made)[:, :, ::1]
    return kept(_linear if made == "float32" else _nearest, types.void(volume, *arguments))


def _nearest(volume: Any, begin: Any, sides: Any, matrix: Any, fill: Any, out: Any) -> None:
    for z in range(out.shape[0]):
        for y in range(out.shape[1]):
            row_0 = matrix[0, 0] * z + matrix[0, 1] * y + matrix[0, 3]
            column_0 = matrix[1, 0] * z + matrix[1, 1] * y + matrix[1, 3]
            place_0 = matrix[2, 0] * z + matrix[2, 1] * y + matrix[2, 3]
            row_x, column_x, place_x = matrix[0, 2], matrix[1, 2], matrix[2, 2]
            for x in range(out.shape[2]):
                row, column, place = row_0 + row_x * x, column_0 + column_x * x, place_0 + place_x * x
                i, j, k = np.floor(row + 0.5), np.floor(column + 0.5), np.floor(place + 0.5)
                if 0 <= i < sides[0] and 0 <= j < sides[1] and 0 <= k < sides[2]:
                    out[z, y, x] = volume[np.int64(i) - begin[0], np.int64(j) - begin[1], np.int64(k) - begin[2]]
                else:
                    out[z, y, x] = 0


def _linear(volume: Any, begin: Any, sides: Any, matrix: Any, fill: Any, out: Any) -> None:
    depth, height, width = volume.shape
    flat = volume.reshape(volume.size)
    row_stride, plane_stride = np.uint64(width), np.uint64(height * width)
    for z in range(out.shape[0]):
        for y in range(out.shape[1]):
            row_0 = matrix[0, 0] * z + matrix[0, 1] * y + matrix[0, 3]
            column_0 = matrix[1, 0] * z + matrix[1, 1] * y + matrix[1, 3]
            place_0 = matrix[2, 0] * z + matrix[2, 1] * y + matrix[2, 3]
            row_x, column_x, place_x = matrix[0, 2], matrix[1, 2], matrix[2, 2]
            for x in range(out.shape[2]):
                row, column, place = row_0 + row_x * x, column_0 + column_x * x, place_0 + place_x * x
                first, second, third = np.floor(row), np.floor(column), np.floor(place)
                if not (-1 <= first < sides[0] and -1 <= second < sides[1] and -1 <= third < sides[2]):
                    out[z, y, x] = fill
                    continue
                i, j, k = np.int64(first) - begin[0], np.int64(second) - begin[1], np.int64(third) - begin[2]
                a, b, c, d, e, f, g, h = fill, fill, fill, fill, fill, fill, fill, fill
                upper, lower = 0 <= i < depth, -1 <= i < depth - 1
                near, far = 0 <= j < height, -1 <= j < height - 1
                left, right = 0 <= k < width, -1 <= k < width - 1
                one = np.uint64((i * height + j) * width + k)
                two, three = one + row_stride, one + plane_stride
                four, right_of = three + row_stride, np.uint64(1)
                if upper and near and left:
                    a = np.float32(flat[one])
                if upper and near and right:
                    b = np.float32(flat[one + right_of])
                if upper and far and left:
                    c = np.float32(flat[two])
                if upper and far and right:
                    d = np.float32(flat[two + right_of])
                if lower and near and left:
                    e = np.float32(flat[three])
                if lower and near and right:
                    f = np.float32(flat[three + right_of])
                if lower and far and left:
                    g = np.float32(flat[four])
                if lower and far and right:
                    h = np.float32(flat[four + right_of])
                down, along, across = np.float32(row - first), np.float32(column - second), np.float32(place - third)
                a, c = a + across * (b - a), c + across * (d - c)
                e, g = e + across * (f - e), g + across * (h - g)
                a, e = a + along * (c - a), e + along * (g - e)
                out[z, y, x] = a + down * (e - a)


_REACH = 4
"""Standard deviations where a Gaussian filter ends."""


def smooth(image: NDArray[np.float32], sigma: float) -> None:
    """Blur an image (C, D, H, W) in place, along one axis after the other; beyond its borders it is mirrored."""
    reach = int(_REACH * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights = (weights / weights.sum()).astype(np.float32)
    compiled, room = compile_smooth(), np.empty_like(image[0])
    for channel in image:
        for axis, side in enumerate(channel.shape):
            places = np.pad(np.arange(side), reach, mode="symmetric").astype(np.int64)
            # The one before is done with: what is blurred along an axis goes there.
            room[...] = channel
            rows = (math.prod(channel.shape[:axis]), side, math.prod(channel.shape[axis + 1 :]))
            compiled(room.reshape(rows), weights, places, channel.reshape(rows))


@cache
def compile_smooth() -> Callable[..., None]:
    """Compile what does it, or load what was compiled before, once in a process."""
    from numba import types

    from dalirefurb.kernels.llvm import kept

    whole = types.Array(types.float32, 3, "C", readonly=True)
    weights, places = (types.Array(each, 1, "C", readonly=True) for each in (types.float32, types.int64))
    return kept(_smooth, types.void(whole, weights, places, types.float32[:, :, ::1]))


def _smooth(image: Any, weights: Any, places: Any, out: Any) -> None:
    """Blur along the second axis; `places` has which element is where, the mirrored ones before and behind too."""
    first, side, rest = image.shape
    reach = weights.size // 2
    for i in range(first):
        if rest == 1:  # Elements lie side by side: but for those at the ends they need not be looked up.
            inner = min(reach, side), max(side - reach, min(reach, side))
            for j in range(side):
                out[i, j, 0] = 0
                for tap in range(0 if inner[0] <= j < inner[1] else weights.size):
                    out[i, j, 0] += weights[tap] * image[i, np.uint64(places[j + tap]), 0]
            for tap in range(weights.size):
                weight = weights[tap]
                for j in range(inner[0], inner[1]):
                    out[i, np.uint64(j), 0] += weight * image[i, np.uint64(j + tap - reach), 0]
            continue
        for j in range(side):
            line = out[i, j]
            for tap in range(weights.size):
                weight, source = weights[tap], image[i, np.uint64(places[j + tap])]
                if tap == 0:
                    for k in range(rest):
                        line[k] = weight * source[k]
                else:
                    for k in range(rest):
                        line[k] += weight * source[k]
