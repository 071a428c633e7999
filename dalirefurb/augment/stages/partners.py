"""Stages of several images of a batch: Mosaic puts some into one, MixUp blends two, CopyPaste pastes objects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, Numbers, Parameters, Sizes, columns
from dalirefurb.augment.maps import Maps, placed
from dalirefurb.augment.stage import Arrays, Fill, Node, Parameter, SizedStage, Stage, check_fill
from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError
from dalirefurb.rng import BETA_DRAWS, beta, generator

_STEPS = 2**16
"""Shares are multiples of one of so many, with which a blend is exact in integers."""


class PartnerStage(Stage):
    """A stage that is given a row's partial image, and those of other rows of its batch, its partners; see `Mosaic`.

    One of its parameters is "partners", numbers in [0, 1) that choose them, float64 of shape (n, partners), in whose
    place kernels are given address, height and width of each partner's image.
    """

    def present(self, parameters: Arrays, others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which partners there is something of in each image, with what belongs to them, (n, partners).

        Args:
            parameters: What `draw` returned for the rows of a batch.
            others: The partners' rows, (n, partners); a row is its own partner where there is no other one.
        """
        return np.ones(others.shape, np.bool_)

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Refuse: an operator of DALI has no other images of its batch.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"stage {self.name!r} takes several images of a batch, which kernels on the CPU alone do: leave kernels "
            f"and devices out, install numba, and use no stage without a kernel, such as Custom"
        )


@dataclass(frozen=True)
class Mosaic(PartnerStage, SizedStage):
    """Put images around a random point: the sample's own, and three or eight others of its batch.

    Each keeps its size, and is cut off where the result ends; where none is there is `fill`. The point is in the middle
    half of either side. So it is made in many a detector's training, at twice the side of what a crop, or an affine map
    and a crop, leave of it (A. Bochkovskiy et al., YOLOv4, 2020).

    Of four images each touches the point with a corner, the own one from above on the left. Of nine the own one has the
    point in its middle, and the others are around it, in three rows and three columns. The row in the middle is as high
    as the highest image in it, and the column as wide as the widest: images there have their middles on the point's
    line, and those beyond touch it.

    It is the first stage behind the split. The others are drawn anew at each use, among the other rows of the batch (of
    the sample's shard, where there are several), and one may come twice. Boxes, masks and other targets of all images
    are the row's; labels are those of its own one. It is done by kernels, on the CPU.

    Attributes:
        size: Side of the result in pixels, or its height and width.
        fill: Level 0 .. 255, or one for each of 3 channels, where there is no image.
        images: Number of images, 4 or 9.
    """

    fill: Fill = 114
    images: int = 4
    name: str = "mosaic"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fill(f"{self.name}: fill", self.fill)
        fits = type(self.images) is int and self.images in (4, 9)
        require(fits, f"{self.name}: images", "4 or 9", self.images, "4 is usual")

    @property
    def partners(self) -> int:  # type: ignore[override]
        return self.images - 1

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        return 2 + self.partners

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Row and column of the point; numbers that choose the others."""
        return {"centre": Parameter("int32", (2,)), "partners": Parameter("float64", (self.partners,))}

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        centres = np.floor((0.25 + 0.5 * uniforms[:, :2]) * self.fixed_size).astype(np.int32)
        return {"centre": centres, "partners": np.ascontiguousarray(uniforms[:, 2:])}

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """Images are copied; what is given of partners is found by its address, so it must be kept until then."""

        def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
            others = parameters["partners"]
            every = np.concatenate([np.stack(sizes, axis=1)[:, None], others[..., 1:]], axis=1)
            numbers[:, :2], numbers[:, 5:7], _ = self._middle_and_starts(parameters["centre"][:, None], every)
            numbers[:, 2:5], numbers[:, 7] = self.fill, self._side
            numbers[:, 8] = others.__array_interface__["data"][0] + others.strides[0] * np.arange(len(others))

        return [KernelCall(["partners.mosaic"], write)]

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        """Say where the sample's own image is; see `Stage.matrices`."""
        return self.part_matrices(1, parameters, heights, widths)

    def part_matrices(
        self, parts: int, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> Maps:
        """Return the maps of images, as `Stage.matrices`.

        Args:
            parts: How many images of each result there are, one after the other: 1, the sample's own, or all. They are
                in the order of lines of text that begins with the own one, and goes on at the first one.
            parameters: What `draw` returned, for each of the images.
            heights: Heights of these images in pixels, (n,).
            widths: Widths of these images in pixels, (n,).
        """
        sizes = np.stack([heights, widths], axis=1, dtype=np.float64).reshape(-1, parts, 2)
        *_, starts = self._middle_and_starts(parameters["centre"].reshape(-1, parts, 2)[:, :1], sizes)
        return placed(-starts[..., ::-1].reshape(-1, 2))

    @property
    def _side(self) -> int:
        """How many images are above each other."""
        return math.isqrt(self.images)

    def _middle_and_starts(self, centres: NDArray[Any], sizes: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Return where row and column in the middle begin, and where they end, (n, 2), and where images do, (n, k, 2).

        Args:
            centres: The points, (n, 1, 2).
            sizes: Heights and widths of the first images of each result, (n, k, 2).
        """
        side = self._side
        places = (np.arange(sizes.shape[1]) + 4 * (side - 2)) % self.images
        # -1 is before the middle, 0 in it, 1 beyond; of four images none is in it.
        bands = np.stack(np.divmod(places, side), axis=1) * (4 - side) - 1
        middle = np.where(bands == 0, sizes, 0).max(axis=1, keepdims=True)
        first = centres - middle // 2
        starts = np.where(bands < 0, first - sizes, np.where(bands > 0, first + middle, centres - sizes // 2))
        return first[:, 0], (first + middle)[:, 0], starts


class PairStage(PartnerStage):
    """A stage of two images of one size, in which everything stays where it is, done with a probability.

    The first uniform chooses the partner, the second one says whether anything is done. The kernel is given the
    partner's image, and one more number, a parameter of that name.
    """

    probability: float

    KERNEL: ClassVar[str]
    GIVEN: ClassVar[str]
    SHARES: ClassVar[Sequence[str]] = ("probability",)
    keeps_place: ClassVar[bool] = True
    partners: ClassVar[int] = 1
    parameters: ClassVar[Mapping[str, Parameter]] = {"done": Parameter("int32"), "partners": Parameter("float64", (1,))}

    def __post_init__(self) -> None:
        for name in self.SHARES:
            self._share(name, f"{getattr(type(self), name)} is usual")

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Nothing done; all else is too much to be counted."""
        return np.array([1 - self.probability]) if self.probability < 1 else np.empty(0)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        done = (uniforms[:, 1] < self.probability).astype(np.int32)
        return {"done": done, "partners": np.ascontiguousarray(uniforms[:, :1])}

    def present(self, parameters: Arrays, others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell where it is done, and there is another image; see `PartnerStage.present`."""
        there: NDArray[np.bool_] = (parameters["done"] > 0)[:, None] & (others != np.arange(len(others))[:, None])
        return there

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        return [KernelCall([f"partners.{self.KERNEL}"], columns("partners", self.GIVEN))]


@dataclass(frozen=True)
class MixUp(PairStage):
    """Blend an image with another one of its batch, as detectors are trained: the objects of both are the row's.

    Each level is share * own + (1 - share) * other, rounded to the nearest one, halves up. The share is drawn for each
    image from Beta(alpha, alpha), in steps of 2 ** -16. With 32, as YOLOX and Ultralytics have it, both are seen about
    equally (Z. Zhang et al., Bag of Freebies for Training Object Detection Neural Networks, 2019). An object counts as
    a whole, whatever its image's share.

    It is the first stage behind the split, and partial images are of one size; how others are drawn, see `Mosaic`. An
    image that is alone in its batch stays as it is. Labels of images are not blended: `dalirefurb.Mix` does that, and a
    source without objects is refused. It is done by kernels, on the CPU.

    Attributes:
        alpha: Both parameters of the Beta distribution of shares, above 0.
        probability: Probability that an image is blended.
    """

    alpha: float = 32.0
    probability: float = 1.0
    name: str = "mix_up"

    KERNEL, GIVEN = "mix_up", "share"
    num_uniforms: ClassVar[int] = 2 + BETA_DRAWS
    parameters: ClassVar[Mapping[str, Parameter]] = {**PairStage.parameters, "share": Parameter("float64")}
    """Whether an image is blended, what chooses the other one, and the own image's share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("alpha", "above 0", lambda alpha: 0 < alpha < math.inf, "32 is usual")

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw shares, 1 where nothing is blended, and numbers that choose the others; see `Stage.draw`."""
        drawn = super().draw(uniforms, heights, widths)
        shares = np.array([beta(self.alpha, row) for row in uniforms[:, 2:]], np.float64)
        shares = np.where(drawn["done"] > 0, np.rint(_STEPS * shares) / _STEPS, 1.0)
        return {**drawn, "done": (shares < 1).astype(np.int32), "share": shares}


@dataclass(frozen=True)
class CopyPaste(PairStage):
    """Paste objects of another image of the batch over an image, where they are in theirs.

    It is Simple Copy-Paste (G. Ghiasi et al., CVPR 2021). Shapes are those of the first target of `InstanceMasks` or
    `Polygons`, filled in the partial image, with sharp edges: pixels there are the other image's. The pasted objects
    come after the image's own ones. Of these, masks lose what is covered, and boxes of which something is covered
    become those of what is left in the partial image, in whole pixels. Keypoints and outlines stay as they are.

    It is the first stage behind the split, and partial images are of one size; how others are drawn, see `Mosaic`.
    Into an image that is alone in its batch nothing is pasted. It is done by kernels, on the CPU.

    Attributes:
        share: Probability 0 .. 1 with which each object of the other image is pasted, if it has a pixel in it.
        probability: Probability that anything is pasted into an image.
        min_visible: Share 0 .. 1 of an object's pixels that are left, below which it is dropped with all that is known
            of it; one without any pixel left always is.
    """

    share: float = 0.5
    probability: float = 1.0
    min_visible: float = 0.1
    name: str = "copy_paste"

    KERNEL, GIVEN, SHARES = "copy_paste", "objects", ("share", "probability", "min_visible")
    num_uniforms: ClassVar[int] = 4
    parameters: ClassVar[Mapping[str, Parameter]] = {**PairStage.parameters, "objects": Parameter("float64", (2,))}
    """Whether something is pasted, and what chooses the other image, and its objects.

    Kernels are given the address of the shape in place of the last: uint8, a byte a pixel, above 0 where it is.
    """

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        return {**super().draw(uniforms, heights, widths), "objects": np.ascontiguousarray(uniforms[:, 2:])}

    def chosen(self, drawn: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
        """Tell which of so many objects are pasted, (count,), by a row of the parameter "objects", (2,)."""
        return generator(drawn).random(count) < self.share


def partner_rows(uniforms: NDArray[np.float64], lengths: Sequence[int], slice_rows: int) -> NDArray[np.int64]:
    """Choose for each row of consecutive batches others of its slice of its batch; itself where it is alone.

    Args:
        uniforms: Numbers in [0, 1), one for each other row that is chosen, shape (n, k).
        lengths: Numbers of rows of the batches, n together.
        slice_rows: Number of rows of a slice, all of whose samples are of one shard.

    Returns:
        Rows, int64 of shape (n, k).

    >>> partner_rows(np.array([[0.0, 0.9]] * 7), [4, 3], slice_rows=2).tolist()
    [[1, 1], [0, 0], [3, 3], [2, 2], [5, 5], [4, 4], [6, 6]]
    """
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    ends = np.repeat(np.cumsum(lengths), lengths)
    rows = np.arange(len(starts))
    first = starts + (rows - starts) // slice_rows * slice_rows
    counts = (np.minimum(first + slice_rows, ends) - first)[:, None]
    steps = 1 + np.floor(uniforms * (counts - 1)).astype(np.int64)
    chosen: NDArray[Any] = first[:, None] + ((rows - first)[:, None] + steps) % counts
    return chosen
