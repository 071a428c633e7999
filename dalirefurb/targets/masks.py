"""Masks: labels of pixels, taken from source images to served ones, each from the source pixel that its centre is in.

Where there is a compiler compiled code does it, as exactly: the same arithmetic in double precision, in the same order.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KINDS = ("uint8", "uint16", "int32")
"""Types of labels."""

MADE = ("uint8", "int16", "int32", "int64")
"""Types that the labels of served images can have."""

_FEW = 16
"""Pixels of a run that are written at a time."""

Labels = NDArray[Any]
"""Labels of an image's pixels, (height, width), of one of `KINDS`."""

Matrix = NDArray[np.float64]
"""A map of coordinates, (3, 3), see `augment.maps`, or lines beyond which nothing is seen, (k, 3)."""


class Runs(NamedTuple):
    """A mask as it is kept: values, how often each comes, row after row, and the mask's shape.

    >>> Runs.of(np.array([[7, 7, 7], [7, 2, 2]], np.uint8))
    Runs(values=array([7, 2], dtype=uint8), lengths=array([4, 2], dtype=uint32), shape=(2, 3))
    """

    values: NDArray[Any]
    lengths: NDArray[np.uint32]
    shape: tuple[int, int]

    @classmethod
    def of(cls, mask: Labels) -> Runs:
        """Find the runs of a mask."""
        flat = mask.ravel()
        starts = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]) + 1])
        return cls(flat[starts], np.diff(starts, append=len(flat)).astype(np.uint32), mask.shape)

    def mask(self) -> Labels:
        """Return the mask."""
        return np.repeat(self.values, self.lengths).reshape(self.shape)


def warp_labels(labels: Labels, source_map: Matrix, lines: Matrix, fill: int, over: bool, out: Labels) -> None:
    """Show the labels of an image in a served one; plain NumPy, `warp_mask` does the same, sooner.

    Args:
        labels: Labels of the source image, shape (h, w), of one of `KINDS`.
        source_map: Map from the served image to the source, shape (3, 3), see `augment.maps`.
        lines: Lines in the served image beyond which nothing is seen, shape (k, 3), see `augment.geometry`.
        fill: Label of what is not seen, or outside of the source image, which `out` can have.
        over: Whether what is there stays there, in place of the fill.
        out: Labels of the served image, shape (H, W), of one of `MADE`, to be written.
    """
    (xx, xy, x0), (yx, yy, y0), (wx, wy, w0) = source_map
    u, v = np.arange(out.shape[1]) + 0.5, (np.arange(out.shape[0]) + 0.5)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        third = wx * u + wy * v + w0
        column, row = (xx * u + xy * v + x0) / third, (yx * u + yy * v + y0) / third
    inside = (column >= 0) & (column < labels.shape[1]) & (row >= 0) & (row < labels.shape[0])
    for a, b, c in lines:
        inside &= a * u + b * v + c >= 0
    if not over:
        out[...] = fill
    out[inside] = labels[row[inside].astype(np.int64), column[inside].astype(np.int64)]


def warp_mask(labels: Labels, source_map: Matrix, lines: Matrix, fill: int, out: Labels, *, over: bool = False) -> None:
    """Do what `warp_labels` does, by compiled code where there is a compiler."""
    warp = warp_of(str(labels.dtype), str(out.dtype))
    source_map, lines = (np.ascontiguousarray(each, np.float64) for each in (source_map, lines))
    warp(np.ascontiguousarray(labels), source_map, lines, fill, over, out)


def warp_runs(runs: Runs, source_map: Matrix, lines: Matrix, fill: int, out: Labels, *, over: bool = False) -> None:
    """Do what `warp_mask` does with the mask of some runs.

    It is not made where rows are of rows, and columns of columns: the runs of a row are runs there.
    """
    show = runs_of(str(runs.values.dtype), str(out.dtype))
    (_, xy, _), (yx, _, _), (wx, wy, _) = source_map.tolist()
    if show is None or xy or yx or wx or wy or len(lines):
        warp_mask(runs.mask(), source_map, lines, fill, out, over=over)
        return
    places, row = np.empty(runs.shape[1] + 1, np.int64), np.empty(out.shape[1] + _FEW, runs.values.dtype)
    show(*runs, np.ascontiguousarray(source_map), fill, over, places, row, out)


@cache
def runs_of(kind: str, made: str) -> Callable[..., None] | None:
    """Return what shows runs where rows stay rows: compiled, once in a process; None where there is no compiler."""
    if importlib.util.find_spec("numba") is None:
        return None
    from numba import types

    from dalirefurb.kernels.llvm import kept

    values, lengths = (types.Array(getattr(types, each), 1, "C", readonly=True) for each in (kind, "uint32"))
    shape, source_map = types.UniTuple(types.int64, 2), types.Array(types.float64, 2, "C", readonly=True)
    served = types.int64, types.boolean, types.int64[::1], getattr(types, kind)[::1], getattr(types, made)[:, ::1]
    return kept(_show, types.void(values, lengths, shape, source_map, *served))


def _show(
    values: Any, lengths: Any, shape: Any, source_map: Any, fill: Any, over: Any, places: Any, labels: Any, out: Any
) -> None:
    """Do what `_warp` does where rows are of rows, and columns of columns, with the mask that has these runs.

    The first three are its `Runs`. There is room for the width and one more number in `places`, and for a row of the
    served image and `_FEW` labels more in `labels`.
    """
    (height, width), (rows, columns) = shape, out.shape
    xx, x0, yy, y0, w0 = source_map[0, 0], source_map[0, 2], source_map[1, 1], source_map[1, 2], source_map[2, 2]
    first, stop = columns, 0  # of the columns that show some
    places[:] = 0
    for x in range(columns):
        column = (xx * (x + 0.5) + 0.0 + x0) / w0
        if 0 <= column < width:
            first, stop = min(first, x), x + 1
            places[np.int64(column) + 1] += 1
    for column in range(width):  # Then it is how many of them show what is before a column.
        places[column + 1] += places[column]
    backwards, upwards = xx / w0 < 0, yy / w0 < 0
    run, end, latest = 0, np.int64(lengths[0]), np.int64(-1)
    for line in range(rows):
        y = rows - 1 - line if upwards else line
        row = (0.0 + yy * (y + 0.5) + y0) / w0
        within = first < stop and 0 <= row < height
        if not over:
            for x in range(first if within else columns):
                out[y, x] = fill
            for x in range(stop if within else columns, columns):
                out[y, x] = fill
        if not within:
            continue
        start = np.int64(row) * width
        while end <= start:
            run += 1
            end += np.int64(lengths[run])
        place, until, done = run, end, np.int64(0)
        while done < stop - first and start != latest:
            reached = places[min(until - start, width)]
            while done < reached:
                # Always as many, which are few instructions: what is too much the next run covers.
                for pixel in range(_FEW):
                    labels[np.uint64(done + pixel)] = values[place]
                done += _FEW
            done, place = reached, place + 1
            if done < stop - first:
                until += np.int64(lengths[place])
        latest, shown = start, out[y]
        if backwards:
            for x in range(first, stop):
                shown[np.uint64(x)] = labels[np.uint64(stop - 1 - x)]
        else:
            for x in range(first, stop):
                shown[np.uint64(x)] = labels[np.uint64(x - first)]


@cache
def warp_of(kind: str, made: str) -> Callable[..., None]:
    """Return what does it for types of labels and of the result: compiled, once in a process, or plain NumPy."""
    if importlib.util.find_spec("numba") is None:
        return warp_labels
    from numba import types

    from dalirefurb.kernels.llvm import kept

    given = (types.Array(getattr(types, each), 2, "C", readonly=True) for each in (kind, "float64", "float64"))
    return kept(_warp, types.void(*given, types.int64, types.boolean, getattr(types, made)[:, ::1]))


def _warp(labels: Any, source_map: Any, lines: Any, fill: Any, over: Any, out: Any) -> None:
    """Do what `warp_labels` does, pixel by pixel."""
    height, width = labels.shape
    rows, columns = out.shape
    xx, xy, x0 = source_map[0, 0], source_map[0, 1], source_map[0, 2]
    yx, yy, y0 = source_map[1, 0], source_map[1, 1], source_map[1, 2]
    wx, wy, w0 = source_map[2, 0], source_map[2, 1], source_map[2, 2]
    if xy == 0 and yx == 0 and wx == 0 and wy == 0 and len(lines) == 0:
        # Rows are of rows, and columns of columns: what is added here is 0 below.
        picked = np.empty(columns, np.int64)
        first, stop = columns, 0  # of those that show some
        for x in range(columns):
            column = (xx * (x + 0.5) + x0) / w0
            picked[x] = np.int64(column) if 0 <= column < width else 0
            if 0 <= column < width:
                first, stop = min(first, x), x + 1
        for y in range(rows):
            row = (yy * (y + 0.5) + y0) / w0
            start, end = (first, stop) if 0 <= row < height else (columns, columns)
            if not over:
                for x in range(min(start, columns)):
                    out[y, x] = fill
                for x in range(end, columns):
                    out[y, x] = fill
            if start < end:
                shown, made = labels[np.int64(row)], out[y]
                for x in range(start, end):
                    made[np.uint64(x)] = shown[np.uint64(picked[x])]
        return
    for y in range(rows):
        v = y + 0.5
        for x in range(columns):
            u = x + 0.5
            third = wx * u + wy * v + w0
            column, row = (xx * u + xy * v + x0) / third, (yx * u + yy * v + y0) / third
            inside = 0 <= column < width and 0 <= row < height
            for place in range(len(lines)):
                inside = inside and lines[place, 0] * u + lines[place, 1] * v + lines[place, 2] >= 0
            if inside:
                out[y, x] = labels[np.int64(row), np.int64(column)]
            elif not over:
                out[y, x] = fill
