"""Fill: outlines of objects, taken from source images to served ones, and filled there, so that edges are sharp.

A pixel is in an outline if its centre is: if to the left of it an odd number of edges is crossed in its row. What an
object's outlines cover together is the object. Where there is a compiler, compiled code does it; else Python, slowly.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.geometry import Geometry, borders
from dalirefurb.augment.maps import Maps, inverted
from dalirefurb.targets.ragged import Ragged


@dataclass(frozen=True)
class Placing:
    """Where outlines of the source's images go in the served ones of a batch.

    Attributes:
        maps: Maps from the served images to the source's, (n, 3, 3).
        seen: Lines in the served images beyond which nothing is seen, (n, l, 3), see `Geometry`.
        inverses: Maps from the source's images to the served ones, (n, 3, 3).
        least: Third coordinate of what is mapped, (n,), below which nothing is in a served image: the horizon, and
            what is so near to it that it is outside.
        lines: The same lines, and the borders of the source's images, (n, k, 3).
    """

    maps: Maps
    seen: NDArray[np.float64]
    inverses: Maps
    least: NDArray[np.float64]
    lines: NDArray[np.float64]

    @classmethod
    def of(cls, geometry: Geometry, sizes: NDArray[np.int64], size: tuple[int, int], *, normalized: bool) -> Placing:
        """Return where outlines go.

        Args:
            geometry: Where the served images come from.
            sizes: Heights and widths of the source's images in pixels, shape (n, 2).
            size: Height and width of served images in pixels.
            normalized: Whether vertices are shares of the source image's sides.
        """
        height, width = size
        corners = np.array([[0, 0, 1], [width, 0, 1], [0, height, 1], [width, height, 1]], np.float64)
        # The third coordinates of a map and of its inverse, at the same place, have the determinant as their product.
        most = (geometry.maps[:, 2] @ corners.T).max(axis=1, initial=0)
        least = np.full(len(most), np.inf)
        np.divide(np.abs(np.linalg.det(geometry.maps)), 2 * most, out=least, where=most > 0)
        lines = np.concatenate([geometry.lines, borders(geometry.maps, sizes[:, 0], sizes[:, 1])], axis=1)
        scale = np.insert(sizes[:, ::-1], 2, 1, axis=1) if normalized else np.ones((1, 3))
        return cls(geometry.maps, geometry.lines, inverted(geometry.maps) * scale[:, None], least, lines)


class Scratch:
    """What filling needs beside images, of one thread.

    Args:
        vertices: Most vertices that an outline has.
        height: Height of served images in pixels.
    """

    def __init__(self, vertices: int, height: int) -> None:
        # The horizon cuts an edge, so that there is a vertex more for each.
        self.numbers = np.empty((4, 2 * vertices))
        self.edges = np.empty((4, 2 * vertices), np.int64)
        self.rows = np.empty((3, height), np.int64)


def fill_outlines(
    outlines: Ragged, objects: NDArray[np.int64], placing: Placing, row: int, out: NDArray[np.uint8], scratch: Scratch
) -> None:
    """Fill the outlines of an image's objects.

    Args:
        outlines: Vertices of outlines, x and y in the source's image, of the first outline first.
        objects: Where each object's outlines begin and end among all, shape (k, 2).
        placing: Where outlines go in the images of a batch.
        row: Row of the image in that batch.
        out: Masks of the objects, (k, H, W), in which 1 is written where they are.
        scratch: Memory for outlines of so many vertices, and images of that height.
    """
    given = outlines.values, outlines.offsets, np.ascontiguousarray(objects)
    places = placing.inverses[row], placing.lines[row], placing.least[row]
    filler()(*given, *places, out, scratch.numbers, scratch.edges, scratch.rows)


@cache
def filler() -> Callable[..., None]:
    """Return what fills: compiled, once in a process, or Python."""
    if importlib.util.find_spec("numba") is None:
        return _fill
    from numba import types

    from dalirefurb.kernels.llvm import compiled, kept, with_functions

    real, whole, levels = types.float64, types.int64, types.uint8
    given = [(real, 2), (whole, 1), (whole, 2), (real, 2), (real, 2)]
    outlines = [types.Array(kind, dimensions, "C", readonly=True) for kind, dimensions in given]
    written = levels[:, :, ::1], real[:, ::1], whole[:, ::1], whole[:, ::1]
    steps = {each.__name__: compiled(each) for each in (_see, _map, _join, _scan)}
    return kept(with_functions(_fill, "fill_outlines", **steps), types.void(*outlines, real, *written))


def _fill(
    vertices: Any,
    offsets: Any,
    objects: Any,
    inverse: Any,
    lines: Any,
    least: Any,
    out: Any,
    numbers: Any,
    edges: Any,
    rows: Any,
) -> None:
    """Do what `fill_outlines` does; it takes no memory, and compiled never Python's lock."""
    for y in range(out.shape[1]):
        rows[0, y], rows[1, y], rows[2, y] = -1, 0, out.shape[2]
    for line in range(len(lines)):
        _see(lines[line, 0], lines[line, 1], lines[line, 2], out.shape[2], rows[1], rows[2])
    for number in range(len(objects)):
        for outline in range(objects[number, 0], objects[number, 1]):
            count = _map(vertices, offsets[outline], offsets[outline + 1], inverse, least, numbers[0], numbers[1])
            top, bottom = _join(numbers, count, edges, rows[0])
            _scan(top, bottom, numbers, edges, rows, out[number])


def _see(a: Any, b: Any, c: Any, width: Any, low: Any, high: Any) -> None:
    """Leave those pixels low .. high - 1 of each row where a x + b y + c is at least 0."""
    right, bottom = width - 0.5, len(low) - 0.5
    upper = min(a * 0.5 + b * 0.5 + c, a * right + b * 0.5 + c)
    if min(upper, min(a * 0.5 + b * bottom + c, a * right + b * bottom + c)) >= 0:
        return
    for y in range(len(low)):
        begin, end = low[y], high[y]
        while begin < end:  # Along a row the sum only grows, or only falls, also as it is rounded.
            middle = (begin + end) // 2
            if (a * (middle + 0.5) + b * (y + 0.5) + c >= 0) == (a > 0):
                end = middle
            else:
                begin = middle + 1
        if a > 0:
            low[y] = begin
        else:
            high[y] = begin


def _map(vertices: Any, start: Any, stop: Any, inverse: Any, least: Any, xs: Any, ys: Any) -> Any:
    """Map an outline's vertices, cut off where the third coordinate is too small, as Sutherland and Hodgman do."""
    count, last_x, last_y, last_third = 0, 0.0, 0.0, 0.0
    for place in range(start - 1, stop):
        vertex = place if place >= start else stop - 1
        u, v = vertices[vertex, 0], vertices[vertex, 1]
        x = inverse[0, 0] * u + inverse[0, 1] * v + inverse[0, 2]
        y = inverse[1, 0] * u + inverse[1, 1] * v + inverse[1, 2]
        third = inverse[2, 0] * u + inverse[2, 1] * v + inverse[2, 2]
        if place >= start:
            if (third > least) != (last_third > least):  # The edge along the cut is outside of the image.
                share = (last_third - least) / (last_third - third)
                xs[count] = (last_x + share * (x - last_x)) / least
                ys[count] = (last_y + share * (y - last_y)) / least
                count += 1
            if third > least:
                xs[count], ys[count] = x / third, y / third
                count += 1
        last_x, last_y, last_third = x, y, third
    return count


def _join(numbers: Any, count: Any, edges: Any, heads: Any) -> Any:
    """Note each edge at the first row whose centre it crosses; return the first such row, and the one after the last.

    An edge is the number of the vertex that it ends at.
    """
    xs, ys, slopes = numbers[0], numbers[1], numbers[2]
    uppers, ends, following = edges[0], edges[1], edges[2]
    height = float(len(heads))
    top, bottom = len(heads), 0
    for point in range(count):
        other = point - 1 if point > 0 else count - 1
        upper, lower = (other, point) if ys[other] < ys[point] else (point, other)
        first = np.int64(min(max(np.ceil(ys[upper] - 0.5), 0.0), height))
        end = np.int64(min(max(np.ceil(ys[lower] - 0.5), 0.0), height))
        if first < end:
            uppers[point], ends[point] = upper, end
            slopes[point] = (xs[lower] - xs[upper]) / (ys[lower] - ys[upper])
            following[point], heads[first] = heads[first], point
            top, bottom = min(top, int(first)), max(bottom, int(end))
    return top, bottom


def _scan(top: Any, bottom: Any, numbers: Any, edges: Any, rows: Any, out: Any) -> None:
    """Fill from each odd crossing of a row to the next one, and leave no edge noted."""
    xs, ys, slopes, crossings = numbers[0], numbers[1], numbers[2], numbers[3]
    uppers, ends, following, active = edges[0], edges[1], edges[2], edges[3]
    heads, low, high = rows[0], rows[1], rows[2]
    width, count = float(out.shape[1]), 0
    for y in range(top, bottom):
        edge, heads[y] = heads[y], -1
        while edge >= 0:
            active[count] = edge
            count += 1
            edge = following[edge]
        there = 0
        for place in range(count):  # Edges that end are left out; the others are sorted by where they cross the row.
            edge = active[place]
            if ends[edge] > y:
                crossing = xs[uppers[edge]] + (y + 0.5 - ys[uppers[edge]]) * slopes[edge]
                to = there
                while to > 0 and crossings[to - 1] > crossing:
                    crossings[to], active[to] = crossings[to - 1], active[to - 1]
                    to -= 1
                crossings[to], active[to] = crossing, edge
                there += 1
        count = there
        for place in range(0, count - 1, 2):
            begin = np.int64(min(max(np.ceil(crossings[place] - 0.5), 0.0), width))
            end = np.int64(min(max(np.ceil(crossings[place + 1] - 0.5), 0.0), width))
            out[y, max(begin, low[y]) : min(end, high[y])] = 1
