"""Fill: outlines of objects, taken from source images to served ones and filled there, so that their edges are sharp.

A pixel is in an outline if its centre is: to the left of it an odd number of edges is crossed. What an object's
outlines cover together is the object. Where there is a compiler compiled code does it, else Python, slowly.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np


@cache
def filler() -> Callable[..., None]:
    """Return what fills: compiled, once in a process, or Python."""
    if importlib.util.find_spec("numba") is None:
        return _fill
    from numba import types

    from dalirefurb.kernels.llvm import compiled, kept, with_functions

    def given(kind: Any, dimensions: int) -> Any:
        return types.Array(kind, dimensions, "C", readonly=True)

    real, whole = types.float64, types.int64
    outlines = types.Tuple([given(real, 2), given(whole, 1)])
    scratch = types.Tuple([real[:, ::1], whole[:, ::1], whole[:, ::1], real[:, ::1]])
    image = given(whole, 2), given(real, 2), given(real, 2), given(real, 1), types.uint8[:, :, ::1]
    steps = {each.__name__: compiled(each) for each in (_see, _invert, _map, _join, _scan)}
    return kept(with_functions(_fill, "fill_outlines", **steps), types.void(outlines, *image, scratch))


def scratch_of(vertices: int, height: int) -> tuple[Any, ...]:
    """Return memory for outlines of so many vertices at most, in images of this height."""
    # The horizon cuts an edge in two.
    numbers, edges = np.empty((4, 2 * vertices)), np.empty((4, 2 * vertices), np.int64)
    return numbers, edges, np.empty((3, height), np.int64), np.empty((3, 3))


def _fill(outlines: Any, objects: Any, m: Any, lines: Any, sides: Any, out: Any, scratch: Any) -> None:
    """Fill the outlines of an image's objects; it takes no memory, and compiled never Python's lock.

    Args:
        outlines: Vertices of outlines, x and y, shape (v, 2), and where those of each begin, shape (p + 1,).
        objects: Where each object's outlines begin and end, shape (k, 2) or more.
        m: Map from the served image to the source, shape (3, 3), see `augment.maps`.
        lines: Lines in the served image beyond which nothing is seen, shape (l, 3), see `augment.geometry`.
        sides: Width and height of the source image in pixels, and pixels that x and y of a vertex count, shape (4,).
        out: Masks of the objects, (k, H, W), to be written: 1 where they are.
        scratch: See `scratch_of`.
    """
    (vertices, offsets), (numbers, edges, rows, inverse) = outlines, scratch
    # Of each row the edge that begins there, after which others follow, and its pixels that are seen, low .. high - 1.
    heads, low, high = rows[0], rows[1], rows[2]
    for y in range(len(low)):
        heads[y], low[y], high[y] = -1, 0, out.shape[2]
    for line in range(len(lines)):
        _see(lines[line, 0], lines[line, 1], lines[line, 2], out.shape[2], low, high)
    for axis in range(2):
        a, b, c = m[axis, 0], m[axis, 1], m[axis, 2]
        _see(a, b, c, out.shape[2], low, high)
        side = sides[axis]
        _see(side * m[2, 0] - a, side * m[2, 1] - b, side * m[2, 2] - c, out.shape[2], low, high)
    least = _invert(m, sides[2], sides[3], out.shape[1], out.shape[2], inverse)
    for number in range(len(objects)):
        out[number] = 0
        for outline in range(objects[number, 0], objects[number, 1]):
            start, stop = offsets[outline], offsets[outline + 1]
            count = _map(vertices, start, stop, inverse, least, numbers[0], numbers[1])
            top, bottom = _join(numbers, count, edges, heads)
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


def _invert(m: Any, scale_x: Any, scale_y: Any, height: Any, width: Any, inverse: Any) -> Any:
    """Write the map from vertices to the served image, times a number above 0; return the least third coordinate there.

    Nothing of less is in the image: it is behind the horizon, or beside the image.
    """
    for row in range(3):
        for column in range(3):
            one, other, i, j = (column + 1) % 3, (column + 2) % 3, (row + 1) % 3, (row + 2) % 3
            inverse[row, column] = m[one, i] * m[other, j] - m[one, j] * m[other, i]
    determinant = m[0, 0] * inverse[0, 0] + m[0, 1] * inverse[1, 0] + m[0, 2] * inverse[2, 0]
    for row in range(3):
        for column, scale in enumerate((scale_x, scale_y, 1.0)):
            inverse[row, column] *= scale * np.sign(determinant)
    # Third coordinates of a map and of its inverse, at the same place, have the determinant as their product.
    most = m[2, 2] + max(m[2, 0] * width, 0.0) + max(m[2, 1] * height, 0.0)
    return abs(determinant) / (2 * most) if most > 0 else np.inf


def _map(vertices: Any, start: Any, stop: Any, inverse: Any, least: Any, xs: Any, ys: Any) -> Any:
    """Map an outline's vertices, cut off where the third coordinate is too small, as Sutherland and Hodgman do."""
    count, last_x, last_y, last_third = 0, 0.0, 0.0, 0.0
    for place in range(start - 1, stop):
        vertex = place if place >= start else stop - 1
        u, v = vertices[vertex, 0], vertices[vertex, 1]
        x = inverse[0, 0] * u + inverse[0, 1] * v + inverse[0, 2]
        y = inverse[1, 0] * u + inverse[1, 1] * v + inverse[1, 2]
        third = inverse[2, 0] * u + inverse[2, 1] * v + inverse[2, 2]
        if place >= start and (third > least) != (last_third > least):  # The edge along the cut is beside the image.
            share = (last_third - least) / (last_third - third)
            xs[count] = (last_x + share * (x - last_x)) / least
            ys[count] = (last_y + share * (y - last_y)) / least
            count += 1
        if place >= start and third > least:
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
