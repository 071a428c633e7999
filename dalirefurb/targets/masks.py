"""Masks: labels of pixels, taken from source images to served ones, each from the source pixel that its centre is in.

Where there is a compiler compiled code does it, as exactly: the same arithmetic in double precision, in the same order.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.maps import Maps
from dalirefurb.checks import require

KINDS = ("uint8", "uint16", "int32")
"""Types of labels."""

Labels = NDArray[Any]
"""Labels of an image's pixels, (height, width), of one of `KINDS`."""


def warp_labels(labels: Labels, source_map: NDArray[np.float64], size: tuple[int, int], fill: int) -> Labels:
    """Return the labels of a served image's pixels; `warp_batch` does the same, sooner.

    Args:
        labels: Labels of the source image, shape (h, w).
        source_map: Map from the served image to the source, shape (3, 3), see `augment.maps`.
        size: Height and width of the served image in pixels.
        fill: Label of what lies outside of the source image.
    """
    (xx, xy, x0), (yx, yy, y0), (wx, wy, w0) = source_map
    u, v = np.arange(size[1]) + 0.5, (np.arange(size[0]) + 0.5)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        third = wx * u + wy * v + w0
        column, row = (xx * u + xy * v + x0) / third, (yx * u + yy * v + y0) / third
    inside = (column >= 0) & (column < labels.shape[1]) & (row >= 0) & (row < labels.shape[0])
    made = np.full(size, fill, labels.dtype)
    made[inside] = labels[row[inside].astype(np.int64), column[inside].astype(np.int64)]
    return made


def warp_batch(
    labels: Sequence[Labels], maps: Maps, size: tuple[int, int], fill: int, *, pool: Executor | None = None
) -> Labels:
    """Show the labels of a batch's images in the served ones.

    Args:
        labels: Labels of each of n source images, of any sizes and one type.
        maps: Maps from served images to these, shape (n, 3, 3).
        size: Height and width of served images in pixels.
        fill: Label of what lies outside of a source image.
        pool: Threads that do it, an image each; None: the calling one does.

    Returns:
        Labels of the served images, shape (n, H, W), of the same type.

    Raises:
        ConfigurationError: If the labels are of a type that masks do not have, or of several, or do not include `fill`.
    """
    kinds = sorted({str(each.dtype) for each in labels}) or ["uint8"]
    require(
        len(kinds) == 1 and kinds[0] in KINDS, "labels", f"of one type of {', '.join(KINDS)}", kinds, "convert them"
    )
    limits = np.iinfo(kinds[0])
    require(limits.min <= fill <= limits.max, "fill", f"a label of {kinds[0]}", fill, f"pass one up to {limits.max}")
    made = np.empty((len(labels), *size), kinds[0])
    warp = _compiled(kinds[0]) if importlib.util.find_spec("numba") else _warp_by_numpy
    # Compiled code is for arrays without gaps.
    rows = [np.ascontiguousarray(each) for each in labels], np.ascontiguousarray(maps, np.float64), [fill] * len(made)
    list((map if pool is None else pool.map)(warp, *rows, made))
    return made


def _warp_by_numpy(labels: Labels, source_map: NDArray[np.float64], fill: int, out: Labels) -> None:
    out[...] = warp_labels(labels, source_map, (out.shape[0], out.shape[1]), fill)


@cache
def _compiled(kind: str) -> Callable[..., None]:
    """Compile `_warp` for a type of labels, or load what was compiled before, once in a process."""
    from numba import types

    from dalirefurb.kernels.llvm import kept

    labels = getattr(types, kind)
    given = types.Array(labels, 2, "C", readonly=True), types.Array(types.float64, 2, "C", readonly=True)
    return kept(_warp, types.void(*given, types.int64, labels[:, ::1]))


def _warp(labels: Any, source_map: Any, fill: Any, out: Any) -> None:
    """Do what `warp_labels` does, pixel by pixel."""
    height, width = labels.shape
    lines, columns = out.shape
    xx, xy, x0 = source_map[0, 0], source_map[0, 1], source_map[0, 2]
    yx, yy, y0 = source_map[1, 0], source_map[1, 1], source_map[1, 2]
    wx, wy, w0 = source_map[2, 0], source_map[2, 1], source_map[2, 2]
    if xy == 0 and yx == 0 and wx == 0 and wy == 0:
        # Rows are of rows, and columns of columns: what is added here is 0 below.
        picked = np.empty(columns, np.int64)
        for x in range(columns):
            column = (xx * (x + 0.5) + x0) / w0
            picked[x] = np.int64(column) if 0 <= column < width else -1
        for y in range(lines):
            row = (yy * (y + 0.5) + y0) / w0
            for x in range(columns):
                out[y, x] = labels[np.int64(row), picked[x]] if 0 <= row < height and picked[x] >= 0 else fill
        return
    for y in range(lines):
        v = y + 0.5
        for x in range(columns):
            u = x + 0.5
            third = wx * u + wy * v + w0
            column, row = (xx * u + xy * v + x0) / third, (yx * u + yy * v + y0) / third
            inside = 0 <= column < width and 0 <= row < height
            out[y, x] = labels[np.int64(row), np.int64(column)] if inside else fill
