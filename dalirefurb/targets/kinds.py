"""Kinds of targets: what belongs to an image beside its pixels, and whether it moves with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.calls import Explained
from dalirefurb.checks import flag, number, require
from dalirefurb.errors import ConfigurationError
from dalirefurb.source.contract import digest_of
from dalirefurb.source.labels import as_array, check_int64
from dalirefurb.targets.ragged import Ragged, check_listed

if TYPE_CHECKING:
    from typing_extensions import Self

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
"""Corners; a corner, width and height; or centre, width and height. The names are torchvision's."""


_MOST_SHARE = 2
"""Of an image's side, that a box which reaches out of it may have."""

_CORNERS = 3
"""Of an outline, at least."""


class Target(ABC):
    """Something that each sample has beside its image."""

    @abstractmethod
    def __len__(self) -> int:
        """Count the samples."""

    @abstractmethod
    def take(self, samples: NDArray[np.int64]) -> Self:
        """Return that of some samples, shape (k,), in any order."""

    @abstractmethod
    def joined(self, others: Sequence[Any]) -> Self:
        """Return it followed by others, which have the same `setting`."""

    @abstractmethod
    def setting(self) -> tuple[Any, ...]:
        """Tell what it is beside values: with what is of another setting it cannot be put together."""

    @abstractmethod
    def one(self, sample: int, size: tuple[int, int]) -> Any:
        """Return that of one sample, whose image has this height and width, to look at: in pixels of that image.

        Raises:
            SampleError: If it cannot be used with that image.
        """

    @abstractmethod
    def digest(self) -> str:
        """Tell it from others."""

    def _with(self, **changed: Any) -> Self:
        """Return it with other attributes, unchecked."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **changed)
        return made


class ObjectTarget(Target, metaclass=Explained):
    """Something of each object, any number of which a sample has.

    Attributes:
        rows: What it is, for all objects of all samples.
    """

    rows: Ragged

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, samples: NDArray[np.int64]) -> Self:
        return self._with(rows=self.rows.take(samples))

    def joined(self, others: Sequence[Any]) -> Self:
        return self._with(rows=Ragged.joined([each.rows for each in (self, *others)]))

    def setting(self) -> tuple[Any, ...]:
        own = {name: each for name, each in self.__dict__.items() if name not in ("rows", "outlines")}
        values = self.rows.values
        row = (str(values.dtype), values.shape[1:]) if len(values) else ()
        return type(self).__name__, own, row

    def one(self, sample: int, size: tuple[int, int]) -> Any:
        return self.in_pixels(self.rows.take(np.array([sample])).values, np.array(size))

    def in_pixels(self, values: NDArray[Any], sizes: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows, (k, ...), in pixels of images of these heights and widths, (k, 2) or (2,)."""
        return values

    def digest(self) -> str:
        return digest_of(type(self).__name__, self.rows.values, self.rows.offsets)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.rows.values):,} objects of {len(self):,} samples)"


class Boxes(ObjectTarget):
    """A box around each object. A batch has them as (k, 4) float32, xyxy, in pixels of the served image.

    A turned box is the smallest upright one around it, as torchvision's is; it is clipped to the image. Objects of
    which little is left are dropped, with all that is known of them.

    Args:
        boxes: For each sample its objects' boxes, (k, 4), in pixels of the source's image, upright, from its outer
            corner; an empty list where there are none.
        format: What the four numbers are: "xyxy", corners, the second one not above or left of the first one; "xywh", a
            corner, width and height; or "cxcywh", centre, width and height.
        normalized: Whether the numbers are shares of the image's width and height, as in YOLO's files, not pixels.
        min_area: Pixels of the served image that a clipped box must have at least.
        min_visible: Share 0..1 of its area, once it is mapped, that must be inside of the served image at least.

    Raises:
        ConfigurationError: If they are no such boxes.
    """

    def __init__(
        self,
        boxes: Sequence[Any],
        format: BoxFormat = "xyxy",
        *,
        normalized: bool = False,
        min_area: float = 1.0,
        min_visible: float = 0.0,
    ) -> None:
        known = isinstance(format, str) and format in get_args(BoxFormat)
        require(known, "format", "xyxy, xywh or cxcywh", format, "say what the four numbers of a box are")
        self.min_area = number("min_area", min_area, "at least 0", lambda area: area >= 0, "1 pixel is usual")
        shown = "in 0..1"
        self.min_visible = number("min_visible", min_visible, shown, lambda share: 0 <= share <= 1, "0.3 is usual")
        self.normalized = flag("normalized", normalized)
        rows = Ragged.of(boxes, "boxes", (4,), "float64")
        values = rows.values
        if format != "xyxy":
            sides = values[:, 2:]
            first = values[:, :2] - (sides / 2 if format == "cxcywh" else 0)
            values = np.concatenate([first, first + sides], axis=1)
        if (wrong := np.flatnonzero((values[:, 2:] < values[:, :2]).any(axis=1))).size:
            sample = int(np.searchsorted(rows.offsets, wrong[0], side="right")) - 1
            raise ConfigurationError(
                f"boxes must have their second corner right of and below the first one, but one of sample {sample} is "
                f"{rows.values[wrong[0]].tolist()} in format={format!r}: name the format that they are in"
            )
        self.rows = Ragged(values, rows.offsets)
        _check_shares(values, self.normalized, "boxes")

    def in_pixels(self, values: NDArray[Any], sizes: NDArray[np.int64]) -> NDArray[Any]:
        return values * np.tile(sizes[..., ::-1], 2) if self.normalized else values

    def digest(self) -> str:
        return digest_of(super().digest(), np.array([self.min_area, self.min_visible, self.normalized]))


class Keypoints(ObjectTarget):
    """Points of each object. A batch has them as (k, points, 2) or (k, points, 3) float32, in the image's pixels.

    Args:
        keypoints: For each sample its objects' points, (k, points, 2), x and y in pixels of the source's image,
            upright, or (k, points, 3) with their visibility as COCO has it: 0 not labelled, 1 hidden, 2 visible. A
            point that leaves the image becomes (0, 0, 0) then, and without visibility stays where it is, outside.
        swapped: Which point takes each one's place in an image that is mirrored, such as (1, 0) for a left and a right
            eye; None: each stays what it is.
        pixel_centres: Whether whole numbers are pixels' centres, as in COCO's files, both here and in batches; else a
            pixel's centre is at a half, and whole numbers are corners of pixels, as with boxes.
        normalized: Whether x and y are shares of the image's width and height, as in YOLO's files, not pixels.

    Raises:
        ConfigurationError: If they are no such points.
    """

    def __init__(
        self,
        keypoints: Sequence[Any],
        *,
        swapped: Sequence[int] | None = None,
        pixel_centres: bool = False,
        normalized: bool = False,
    ) -> None:
        self.rows = Ragged.of(keypoints, "keypoints", (None, None), "float64")
        order = tuple(swapped) if isinstance(swapped, Iterable) else None
        if not len(self.rows.values):
            self.rows = Ragged(np.empty((0, len(order or ()), 3)), self.rows.offsets)
        _, points, numbers = self.rows.values.shape
        if numbers not in (2, 3):
            raise ConfigurationError(f"keypoints must have x and y, or x, y and visibility, got {numbers} numbers each")
        self.centre = 0.5 if flag("pixel_centres", pixel_centres) else 0.0
        self.swapped = order
        if swapped is not None:
            places = list(range(points))
            comes_back = order is not None and sorted(order) == places and [order[each] for each in order] == places
            wanted = f"each of the places 0..{points - 1} once, two by two or staying"
            remedy = "say for each point whose place it takes, its own if it stays"
            require(comes_back, "swapped", wanted, swapped, remedy)
        self.normalized = flag("normalized", normalized)
        _check_shares(self.rows.values[..., :2], self.normalized, "keypoints")

    def in_pixels(self, values: NDArray[Any], sizes: NDArray[np.int64]) -> NDArray[Any]:
        if not self.normalized:
            return values
        scaled = values.copy()
        scaled[..., :2] *= sizes[..., None, ::-1]
        return scaled

    def digest(self) -> str:
        own = [np.array(self.swapped or ()), np.array(self.centre)]
        return digest_of(super().digest(), *own, *([np.array(True)] if self.normalized else []))


class Polygons(ObjectTarget):
    """Outlines of each object, any number of them. A batch has them as lists of (v, 2) float32, not clipped.

    Args:
        polygons: For each sample its objects, each a list of outlines, which are (v, 2), or flat as COCO has them,
            (2 v,): x and y in pixels of the source's image, upright. An object may have none.
        normalized: Whether the numbers are shares of the image's width and height, as in YOLO's files, not pixels.

    Attributes:
        rows: For each object where its outlines begin and end among all, (m, 2).
        outlines: The vertices of all outlines, (v, 2) each.

    Raises:
        ConfigurationError: If they are no such polygons.
    """

    def __init__(self, polygons: Sequence[Sequence[Sequence[ArrayLike]]], *, normalized: bool = False) -> None:
        self.normalized = flag("normalized", normalized)
        check_listed(polygons, "polygons")
        try:
            polygons = [[list(each) for each in sample] for sample in polygons]
            outlines = [outline for sample in polygons for each in sample for outline in each]
            vertices = [np.reshape(np.asarray(each, np.float64), (-1, 2)) for each in outlines]
            if (few := next((each for each in vertices if len(each) < _CORNERS), None)) is not None:
                raise ValueError(f"an outline has {len(few)} vertices, {few.tolist()}")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"polygons must be x and y of each vertex, for each sample a list of objects, for each object a list "
                f"of outlines: {error}"
            ) from error
        self.outlines = Ragged.of(vertices, "vertices of outlines, by their number,", (2,), "float64")
        _check_shares(self.outlines.values, self.normalized, "polygons")
        ends = np.cumsum([len(each) for sample in polygons for each in sample], dtype=np.int64)
        ranges = np.stack([np.concatenate([[0], ends[:-1]])[: len(ends)], ends], axis=1)
        offsets = np.concatenate([[0], np.cumsum([len(sample) for sample in polygons])])
        self.rows = Ragged(ranges, offsets.astype(np.int64))

    def joined(self, others: Sequence[Any]) -> Self:
        parts = [self, *others]
        starts = np.cumsum([0, *(len(each.outlines) for each in parts[:-1])])
        rows = [Ragged(each.rows.values + start, each.rows.offsets) for each, start in zip(parts, starts, strict=True)]
        outlines = Ragged.joined([each.outlines for each in parts])
        return self._with(rows=Ragged.joined(rows), outlines=outlines)

    def one(self, sample: int, size: tuple[int, int]) -> list[list[NDArray[np.float64]]]:
        ranges, scale = self.rows.take(np.array([sample])).values.tolist(), size[::-1] if self.normalized else (1, 1)
        return [[part * scale for part in self.outlines.take(np.arange(*its)).parts()] for its in ranges]

    def digest(self) -> str:
        return digest_of(super().digest(), self.outlines.values, self.outlines.offsets, np.array(self.normalized))


class Objects(ObjectTarget):
    """What is known of each object beside where it is: its class, an id, whether it is a crowd. It does not change.

    A batch has whole numbers as int64 and others as float32, so ids must be integers, and no floats above 2 ** 24.

    Args:
        values: For each sample a list or an array of its objects' values, (k,) or (k, ...).

    Raises:
        ConfigurationError: If they are no numbers.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        rows = Ragged.of(values, "values of objects", None)
        kind = {"i": np.int64, "u": np.int64, "f": np.float32}.get(rows.values.dtype.kind, rows.values.dtype)
        self.rows = Ragged(rows.values.astype(kind, copy=False), rows.offsets)


class Values(Target, metaclass=Explained):
    """What belongs to the image as a whole: a class, an id, a weight. It does not change.

    A batch has whole numbers as int64 and others as float32, see `Objects`.

    Args:
        values: A number, or an array, for each sample, (num_samples, ...).

    Raises:
        ConfigurationError: If they are no such numbers.
    """

    def __init__(self, values: ArrayLike) -> None:
        array = as_array(values, "values")
        wanted, remedy = "numbers, one row for each sample", "pass such as source.labels"
        require(array.ndim > 0 and array.dtype.kind in "biuf", "values", wanted, array.dtype, remedy)
        kept = {"i": np.int64, "u": np.int64, "f": np.float32}.get(array.dtype.kind, array.dtype)
        check_int64(array, "values", "number them from 0 on")
        self.values = array.astype(kept, copy=False)

    def __len__(self) -> int:
        return len(self.values)

    def take(self, samples: NDArray[np.int64]) -> Values:
        return Values(self.values[samples])

    def joined(self, others: Sequence[Any]) -> Values:
        return Values(np.concatenate([self.values, *(each.values for each in others)]))

    def setting(self) -> tuple[Any, ...]:
        return "Values", (str(self.values.dtype), self.values.shape[1:])

    def one(self, sample: int, size: tuple[int, int]) -> NDArray[Any]:
        return np.array(self.values[sample])

    def digest(self) -> str:
        return digest_of("Values", self.values)

    def __repr__(self) -> str:
        return f"Values({self.values.dtype} of shape {self.values.shape})"


def _check_shares(values: NDArray[np.float64], normalized: bool, what: str) -> None:
    """Refuse pixels that are given as shares of an image's sides, and shares that are given as pixels.

    None of the former are far outside of the image; the latter would all be parts of its first pixel.
    """
    if not values.size:
        return
    least, most = float(values.min()), float(values.max())
    if normalized and not -1 <= least <= most <= _MOST_SHARE:
        raise ConfigurationError(
            f"{what} must be shares 0..1 of the image's sides where normalized=True, but go from {least:g} to "
            f"{most:g}: leave normalized out for pixels"
        )
    if not normalized and 0 <= least <= most <= 1 and (values % 1).any():
        raise ConfigurationError(
            f"{what} must be in pixels, but go from {least:g} to {most:g}, as shares of the image's sides do: pass "
            f"normalized=True, or multiply them by these"
        )
