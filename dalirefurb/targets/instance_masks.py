"""Instance masks: a mask of each object, made in the served image of outlines, or warped to it from run lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.geometry import Geometry
from dalirefurb.augment.maps import unmoved
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.targets.fill import Placing, Scratch, fill_outlines, filler
from dalirefurb.targets.kinds import ObjectTarget, Polygons, digest_of
from dalirefurb.targets.masks import warp_mask, warp_of
from dalirefurb.targets.ragged import Ragged

_FIRST, _MORE, _VALUE, _SIGN = 48, 0x20, 0x1F, 0x10
"""Of a character of compressed run lengths: what stands for 0, whether others follow, its bits, and a number's sign."""


class InstanceMasks(ObjectTarget):
    """A mask of each object. A batch has them as (k, H, W) uint8, of the served images' size, 1 where the object is.

    Outlines are mapped and filled in the served image, so their edges are sharp whatever the recipe does. A pixel is in
    an outline if its centre is, by the even-odd rule, and in an object if it is in one of its outlines, as COCO has it:
    an outline within another one is no hole. Run lengths are warped once, each pixel to that of the nearest one. Where
    nothing of the source's image is seen masks are 0, also where an outline reaches out of it.

    Masks stay together with boxes: where `Boxes` drops an object its mask goes, and one that is not dropped keeps its
    mask even if no pixel's centre is in it any more.

    Args:
        masks: For each sample its objects. Each is a list of outlines, see `Polygons`; or run lengths, as COCO has
            them, {"size": [height, width], "counts": ...}, a list or a compressed text; or a bool array (height,
            width). The latter are of the size of the sample's image, upright. An object without outlines has an empty
            mask.
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
        outlines, runs, sizes, numbers = list[list[Any]](), list[Any](), list[tuple[int, int]](), list[int]()
        for sample, objects in enumerate(masks):
            outlines.append([])
            for each in objects:
                coded = _run_lengths(each, sample)
                numbers.append(-1 if coded is None else len(runs))
                outlines[-1].append(each if coded is None else [])
                if coded is not None:
                    runs.append(coded[0])
                    sizes.append(coded[1])
        self.polygons = Polygons(outlines, normalized=normalized)
        self.runs = Ragged.of(runs, "run lengths, by their number,", (), "uint32")
        self.run_sizes = np.array(sizes, np.int64).reshape(-1, 2)
        own = self.polygons.rows
        self.rows = Ragged(np.insert(own.values, 2, np.array(numbers, np.int64), axis=1), own.offsets)

    def one(self, sample: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Return the masks of one sample's objects, (k, height, width).

        Raises:
            SampleError: If run lengths are of another size than the image.
        """
        if (misfit := self.misfit(sample, size)) is not None:
            raise SampleError(sample, f"sample {sample}", misfit, lasting=True)
        objects = self.rows.take(np.array([sample])).values
        made = np.zeros((len(objects), *size), np.uint8)
        placing = self.placing(Geometry(unmoved(1), np.empty((1, 0, 3))), np.array([size]), size)
        self.draw(objects, placing, 0, made, self.scratch(size[0]))
        return made

    def misfit(self, sample: int, size: tuple[int, int]) -> str | None:
        """Say why a sample's masks cannot be used with its image, of such a height and width; None if they can."""
        start, stop = self.rows.offsets[sample : sample + 2]
        numbers = self.rows.values[start:stop, 2]
        for height, width in self.run_sizes[numbers[numbers >= 0]].tolist():
            if (height, width) != size:
                return (
                    f"run lengths of its masks must be of the size of the image, {size[0]} x {size[1]}, EXIF "
                    f"orientation applied, but are of {height} x {width}"
                )
        return None

    def prepare(self) -> None:
        """Compile what is needed."""
        filler()
        if len(self.runs):
            warp_of("uint8", "uint8")

    def placing(self, geometry: Geometry, sizes: NDArray[np.int64], size: tuple[int, int]) -> Placing:
        """Return where outlines go in the served images of a batch, see `Placing.of`."""
        return Placing.of(geometry, sizes, size, normalized=self.polygons.normalized)

    def scratch(self, height: int) -> Scratch:
        """Return what a thread needs that draws in images of this height."""
        return Scratch(int(self.polygons.outlines.counts.max(initial=1)), height)

    def draw(
        self, objects: NDArray[np.int64], placing: Placing, row: int, out: NDArray[np.uint8], scratch: Scratch
    ) -> None:
        """Draw the masks of an image's objects.

        Args:
            objects: The objects, rows of `rows`, (k, 3).
            placing: Where they go in the images of a batch.
            row: Row of the image in that batch.
            out: Masks, (k, H, W), of zeros.
            scratch: Memory, which no other thread uses meanwhile.
        """
        fill_outlines(self.polygons.outlines, objects, placing, row, out, scratch)
        for place in np.flatnonzero(objects[:, 2] >= 0).tolist():
            (lengths,) = self.runs.take(objects[place : place + 1, 2]).parts()
            height, width = self.run_sizes[objects[place, 2]]
            mask = np.repeat((np.arange(len(lengths)) % 2).astype(np.uint8), lengths)
            warp_mask(mask.reshape(width, height).T, placing.maps[row], placing.seen[row], 0, out[place])

    def digest(self) -> str:
        """Hash all outlines and run lengths, and which objects they are of."""
        return digest_of(super().digest(), self.polygons.digest(), self.runs.values, self.runs.offsets, self.run_sizes)


def _run_lengths(given: Any, sample: int) -> tuple[NDArray[np.uint32], tuple[int, int]] | None:
    """Return run lengths of a mask, and its height and width; None if it is given by outlines."""
    if getattr(given, "ndim", 0) == 2 and str(given.dtype).endswith("bool"):
        columns = np.asarray(given).T.ravel()
        changes = np.flatnonzero(np.diff(columns, prepend=False))
        return np.diff(changes, prepend=0, append=columns.size).astype(np.uint32), np.asarray(given).shape
    if not isinstance(given, Mapping):
        return None
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
