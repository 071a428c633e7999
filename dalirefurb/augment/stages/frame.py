"""Stages that resize an image and show it in a frame of one size, part of it or with a fill around.

The aspect ratio stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, Numbers, Parameters
from dalirefurb.augment.maps import Maps, placed
from dalirefurb.augment.stage import Arrays, Fill, Node, Parameter, SizedStage, Sizes, check_fill, fill_levels
from dalirefurb.augment.stages.resize import resize_type
from dalirefurb.checks import choice, flag
from dalirefurb.rng import between

FrameInterpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

Place = Literal["corner", "center", "random"]
"""Where an image is in a frame that is larger: at its upper left corner, at its centre, or anywhere."""

FRAME_FILL, FRAME_START = 9, 12
"""Which numbers of a frame's kernel, beside those of a resize, are the fill; and row and column of the image in it."""

_MOST_PIXELS = 2**28
"""Of what an image is resized to, at most: DALI's operators make the whole of it before they cut."""


class _Framed(SizedStage):
    """Resizes an image and shows it in a frame. Subclasses are dataclasses that say to which size, and where."""

    interpolation: FrameInterpolation
    fill: Fill
    place: Place
    scale: tuple[float, float] = (1.0, 1.0)

    parameters: ClassVar[Mapping[str, Parameter]] = {
        "size": Parameter("float32", (2,)),
        "start": Parameter("int32", (2,)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(f"{self.name}: interpolation", self.interpolation, FrameInterpolation)
        choice(f"{self.name}: place", self.place, Place)
        check_fill(f"{self.name}: fill", self.fill)

    def fitting(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the factors with which images just fit into the frame, (n,)."""
        height, width = self.fixed_size
        return np.minimum(height / heights, width / widths)

    def _placed(self, sides: NDArray[np.float64], uniforms: NDArray[np.float64]) -> Arrays:
        """Return the parameters, given the resized sides and what a place is drawn by, each (n, 2).

        Args:
            sides: Heights and widths of the resized images, whole numbers.
            uniforms: Where a crop begins, or an image of a "random" place.
        """
        margins = sides - self.fixed_size
        cropped = np.floor(uniforms * (margins + 1))
        around = {
            "corner": np.zeros_like(margins),
            "center": -np.floor(-margins / 2),
            "random": -np.floor(uniforms * (1 - margins)),
        }[self.place]
        start = np.where(margins > 0, cropped, around)
        return {"size": sides.astype(np.float32), "start": np.ascontiguousarray(start, np.int32)}

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        scales = np.stack([widths, heights], axis=1) / parameters["size"][:, ::-1]
        return placed(parameters["start"][:, ::-1] * scales, scales)

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """What of the resized image is seen, and where."""

        def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
            numbers[:, 2], numbers[:, 3] = sizes
            numbers[:, 5:7], numbers[:, 7:9] = np.maximum(parameters["start"], 0), parameters["size"]
            numbers[:, FRAME_FILL:FRAME_START] = self.fill
            numbers[:, FRAME_START : FRAME_START + 2] = np.maximum(-parameters["start"], 0)

        def most(sizes: Sizes, numbers: Numbers) -> None:
            least = self.fitting(*sizes) * self.scale[0]
            numbers[:, 2], numbers[:, 3] = sizes
            numbers[:, 7], numbers[:, 8] = (np.maximum(np.floor(least * each), 1) for each in sizes)

        name = "pick" if self.interpolation == "nearest" else self.interpolation
        return [KernelCall([f"frame.{name}"], write, most=most)]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn

        resized = fn.resize(images, size=parameters["size"], interp_type=resize_type(self.interpolation, parameters))
        return fn.slice(
            resized,
            start=parameters["start"],
            shape=[*self.fixed_size],
            axes=[0, 1],
            out_of_bounds_policy="pad",
            fill_values=[*fill_levels(self.fill)],
        )


@dataclass(frozen=True)
class Letterbox(_Framed):
    """Resize so that the whole image just fits into one size, with a fill around, as detectors take images.

    Sides are rounded to the nearest pixel, and the image is at the centre, its odd pixel of fill below and on the
    right, as in YOLOv5 and Ultralytics' `LetterBox`; their resize is not anti-aliased.

    Attributes:
        size: Side of the result in pixels, or its height and width.
        fill: Level 0 .. 255, or one for each channel, around the image.
        enlarge: Whether images that are smaller are enlarged.
        place: "center"; "corner": at the upper left; "random": anywhere.
        interpolation: Interpolation, "nearest", "bilinear", "bicubic" or "lanczos".
    """

    fill: Fill = 114
    enlarge: bool = True
    place: Place = "center"
    interpolation: FrameInterpolation = "bilinear"
    name: str = "letterbox"

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        return 2 * (self.place == "random")

    def __post_init__(self) -> None:
        super().__post_init__()
        flag(f"{self.name}: enlarge", self.enlarge)

    def fitting(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return factors, of 1 at most where nothing is enlarged."""
        fitting = super().fitting(heights, widths)
        return fitting if self.enlarge else np.minimum(fitting, 1.0)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        sides = np.stack([heights, widths], axis=1)
        resized = np.clip(np.rint(sides * self.fitting(heights, widths)[:, None]), 1, self.fixed_size)
        return self._placed(resized, uniforms if self.num_uniforms else np.zeros((len(heights), 2)))


@dataclass(frozen=True)
class ScaleJitter(_Framed):
    """Resize by a random factor, then crop, where the image is larger than one size, and fill around, where smaller.

    With factors of 0.1 .. 2 it is large scale jitter (Ghiasi et al., "Simple Copy-Paste", CVPR 2021), as torchvision's
    `ScaleJitter` and `FixedSizeCrop`. With `cover=True` a factor is one on the shorter side instead, as segmentation
    is trained: `ScaleJitter(480, (260 / 480, 1040 / 480), cover=True)` is torchvision's reference, which resizes the
    shorter side to 260 .. 1040 pixels and crops 480. Sides are rounded down.

    Attributes:
        size: Side of the result in pixels, or its height and width.
        scale: Least and greatest factor, drawn uniformly, on the size at which the image just fits.
        cover: Whether "fits" is that it covers all of the result, not that all of it is inside.
        fill: Level 0 .. 255, or one for each channel, around an image that is smaller.
        place: "corner": a smaller image is at the upper left; "center" or "random".
        interpolation: Interpolation, "nearest", "bilinear", "bicubic" or "lanczos".
    """

    scale: tuple[float, float] = (0.1, 2.0)
    cover: bool = False
    fill: Fill = 0
    place: Place = "corner"
    interpolation: FrameInterpolation = "bilinear"
    name: str = "scale_jitter"

    num_uniforms = 3  # factor, row and column

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted, remedy = "two finite numbers with 0 < low <= high", "pass such as (0.5, 2.0)"
        self._interval("scale", wanted, lambda low, high: 0 < low <= high < np.inf, remedy)
        flag(f"{self.name}: cover", self.cover)

    def fitting(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return factors, with which images just cover the frame where that is meant."""
        height, width = self.fixed_size
        return np.maximum(height / heights, width / widths) if self.cover else super().fitting(heights, widths)

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image that would become too large; see `Stage.refusal`."""
        factors = self.fitting(heights, widths) * self.scale[1]
        vast = factors * heights * factors * widths > _MOST_PIXELS
        must = f"become {_MOST_PIXELS:,} pixels at most"
        return self._first_unfit(vast, (heights, widths), must, "leave out what is so long and narrow")

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        factors = self.fitting(heights, widths) * between(self.scale, uniforms[:, 0])
        # A side that is to be a whole number of pixels is, whatever its product is rounded to.
        sides = np.floor(np.stack([heights, widths], axis=1) * factors[:, None] + 1e-9)
        return self._placed(np.maximum(sides, 1), uniforms[:, 1:])
