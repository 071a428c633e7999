"""Instance masks: a mask of each object, filled in the served image, or warped to it from run lengths.

A pixel is in an outline if its centre is: to the left of it an odd number of edges is crossed. What an object's
outlines cover together is the object. Where there is a compiler compiled code does it, else Python, slowly.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source.contract import digest_of
from dalirefurb.targets.kinds import ObjectTarget, Polygons
from dalirefurb.targets.masks import Labels, Matrix, warp_mask
from dalirefurb.targets.ragged import Ragged, check_listed


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


_FIRST, _MORE, _VALUE, _SIGN = 48, 0x20, 0x1F, 0x10
"""Of a character of compressed run lengths: what stands for 0, whether others follow, its bits, and a number's sign."""


class InstanceMasks(ObjectTarget):
    """A mask of each object. A batch has them as (k, H, W) uint8, of the served images' size, 1 where the object is.

    Outlines are mapped and filled in the served image, by the even-odd rule, and run lengths warped to the nearest
    pixel: docs/how-to/targets.md says which pixels are an object's. Where `Boxes` drops one its mask goes, too.

    Args:
        masks: For each sample its objects. Each is a list of outlines, see `Polygons`; or run lengths of a mask of the
            image's size, upright, as COCO has them: {"size": [height, width], "counts": ...}, a list or a compressed
            text.
        normalized: Whether outlines are shares of the image's width and height, as in YOLO's files, not pixels.

    Attributes:
        rows: For each object where its outlines begin and end among all, and the number of its run lengths, -1 if it
            has none, (m, 3).
        polygons: The outlines of all objects.
        runs: The run lengths of objects that have some, column by column, the first one of pixels that are 0.
        run_sizes: Heights and widths of their masks in pixels, (r, 2).

    Raises:
        ConfigurationError: If they are no such masks.
    """

    def __init__(self, masks: Sequence[Sequence[Any]], *, normalized: bool = False) -> None:
        check_listed(masks, "masks of objects")
        for sample, objects in enumerate(masks):
            check_listed(objects, f"masks of objects of sample {sample}")
        arrays = (np.asarray(each) for its in masks for each in its if getattr(each, "ndim", 0) > 1 and len(each))
        # Also of 0 and 1 in another type, which as vertices would all be corners of the first pixel.
        if any(each.dtype.kind in "bu" or (not normalized and np.isin(each, (0, 1)).all()) for each in arrays):
            raise ConfigurationError(
                "masks of objects must be outlines, or run lengths as COCO has them, but some are arrays of pixels: "
                'pass pycocotools.mask.encode(numpy.asfortranarray(mask)), or {"size": [height, width], "counts": ...}'
            )
        by_outlines = [[[] if isinstance(each, Mapping) else each for each in objects] for objects in masks]
        self.polygons = Polygons(by_outlines, normalized=normalized)
        coded = np.array([isinstance(each, Mapping) for objects in masks for each in objects], np.bool_)
        runs = [
            _run_lengths(each, sample) for sample, its in enumerate(masks) for each in its if isinstance(each, Mapping)
        ]
        self.runs = Ragged.of([lengths for lengths, _ in runs], "run lengths, by their number,", (), "uint32")
        self.run_sizes = np.array([size for _, size in runs], np.int64).reshape(-1, 2)
        numbers = np.where(coded, np.cumsum(coded, dtype=np.int64) - 1, -1)
        own = self.polygons.rows
        self.rows = Ragged(np.column_stack([own.values, numbers]), own.offsets)

    @classmethod
    def of_polygons(cls, polygons: Polygons) -> InstanceMasks:
        """Return the masks of objects whose outlines are another target already."""
        made = cls([])
        rows = np.column_stack([polygons.rows.values, np.full(len(polygons.rows.values), -1)])
        return made._with(rows=Ragged(rows, polygons.rows.offsets), polygons=polygons)

    def joined(self, others: Sequence[Any]) -> InstanceMasks:
        parts = [self, *others]
        rows, outlines, runs = list[Ragged](), 0, 0
        for each in parts:
            values = each.rows.values + np.array([outlines, outlines, runs])
            values[each.rows.values[:, 2] < 0, 2] = -1
            rows.append(Ragged(values, each.rows.offsets))
            outlines, runs = outlines + len(each.polygons.outlines), runs + len(each.runs)
        return self._with(
            rows=Ragged.joined(rows),
            polygons=self.polygons.joined([each.polygons for each in others]),
            runs=Ragged.joined([each.runs for each in parts]),
            run_sizes=np.concatenate([each.run_sizes for each in parts]),
        )

    def setting(self) -> tuple[Any, ...]:
        return "InstanceMasks", self.polygons.normalized

    def one(self, sample: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        if (misfit := self.misfit(sample, size)) is not None:
            raise SampleError(sample, f"sample {sample}", misfit, lasting=True)
        objects = self.rows.take(np.array([sample])).values
        made = np.empty((len(objects), *size), np.uint8)
        self.draw(objects, np.eye(3), np.empty((0, 3)), size, made)
        return made

    def misfit(self, sample: int, size: tuple[int, int]) -> str | None:
        """Say why a sample's masks cannot be used with its image, of such a height and width; None if they can."""
        numbers = self.rows.values[slice(*self.rows.offsets[sample : sample + 2]), 2]
        other = next((its for its in self.run_sizes[numbers[numbers >= 0]].tolist() if tuple(its) != size), None)
        return other and (
            f"run lengths of its masks must be of the size of the image, {size[0]} x {size[1]}, EXIF orientation "
            f"applied, but are of {other[0]} x {other[1]}"
        )

    def draw(
        self, objects: NDArray[np.int64], source_map: Matrix, lines: Matrix, size: tuple[int, int], out: Labels
    ) -> None:
        """Draw the masks of an image's objects.

        Args:
            objects: The objects, rows of `rows`, (k, 3).
            source_map: Map from the served image to the source, shape (3, 3), see `augment.maps`.
            lines: Lines in the served image beyond which nothing is seen, shape (l, 3), see `augment.geometry`.
            size: Height and width of the source image in pixels.
            out: Masks, (k, H, W), to be written.
        """
        outlines, sides = self.polygons.outlines, size[::-1]
        if len(objects):
            own = outlines.offsets[objects[:, 0].min() : objects[:, 1].max() + 1]
            scratch = scratch_of(int(np.diff(own).max(initial=1)), out.shape[1])
            scales = np.array([sides, sides if self.polygons.normalized else (1, 1)], np.float64).ravel()
            given = map(np.ascontiguousarray, (objects, source_map, lines, scales))
            filler()((outlines.values, outlines.offsets), *given, out, scratch)
        for place in np.flatnonzero(objects[:, 2] >= 0).tolist():
            (lengths,) = self.runs.take(objects[place : place + 1, 2]).parts()
            mask = np.repeat((np.arange(len(lengths)) % 2).astype(np.uint8), lengths)
            warp_mask(mask.reshape(sides).T, source_map, lines, 0, out[place])

    def digest(self) -> str:
        return digest_of(super().digest(), self.polygons.digest(), self.runs.values, self.runs.offsets, self.run_sizes)


def _run_lengths(given: Mapping[str, Any], sample: int) -> tuple[NDArray[np.uint32], tuple[int, int]]:
    """Return run lengths of a mask, and its height and width."""
    try:
        height, width = (int(side) for side in given["size"])
        counts = given["counts"]
        lengths = _decoded(counts) if isinstance(counts, (str, bytes)) else np.asarray(counts)
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
            raise ValueError("counts must be whole numbers of at least 0")
        if min(height, width) < 1 or lengths.sum() != height * width:
            raise ValueError(f"counts must be of {height} x {width} pixels together, but are of {lengths.sum()}")
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f'run lengths must be as COCO has them, {{"size": [height, width], "counts": ...}}, but some of sample '
            f"{sample} are not ({type(error).__name__}: {error})"
        ) from error
    return lengths.astype(np.uint32), (height, width)


def _decoded(text: str | bytes) -> NDArray[np.int64]:
    """Return the counts that COCO's compressed text has.

    A character has 5 bits of a number, the least ones first, and whether others follow; a number's last bit is its
    sign. From the fourth one on numbers are differences from the one two before.

    >>> _decoded("52203").tolist()
    [5, 2, 2, 2, 5]
    """
    codes = np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8).astype(np.int64) - _FIRST
    last = codes & _MORE == 0
    if not len(codes) or not last[-1] or codes.min() < 0 or codes.max() > _MORE | _VALUE:
        raise ValueError(f"counts must be a compressed text, or a list, got {text[:40]!r}")
    firsts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    sizes = np.diff(firsts, append=len(codes))
    places = 5 * (np.arange(len(codes)) - np.repeat(firsts, sizes))
    if sizes.max() > 7:  # more bits than any image has pixels
        raise ValueError(f"a count has {sizes.max()} characters")
    numbers = np.add.reduceat((codes & _VALUE) << places, firsts)
    numbers -= np.where(codes[last] & _SIGN, np.int64(1) << (5 * sizes), 0)
    for start in (1, 2):
        numbers[start::2] = np.cumsum(numbers[start::2])
    return numbers
