"""Instance masks: a mask of each object, made in the served image of outlines, or warped to it from run lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.source.contract import digest_of
from dalirefurb.targets.fill import filler, scratch_of
from dalirefurb.targets.kinds import ObjectTarget, Polygons
from dalirefurb.targets.masks import Labels, Matrix, warp_mask
from dalirefurb.targets.ragged import Ragged, check_listed

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
