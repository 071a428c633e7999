"""Stages that resize: to a side, or a random window. A crop that follows is made of the window alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import Code, KernelCall, Numbers, Parameters, Write, columns
from dalirefurb.augment.maps import Maps, placed
from dalirefurb.augment.stage import Arrays, Node, Parameter, Size, SizedStage, Sizes, Stage, checked_size, sides_of
from dalirefurb.augment.stages.crop import CenterCrop, RandomCrop
from dalirefurb.checks import choice, require
from dalirefurb.rng import between

ResizeInterpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "random"]

RANDOM: tuple[ResizeInterpolation, ...] = ("bilinear", "bicubic")
"""Among which "random" chooses, each with the same probability, as timm."""

INTERPOLATION: Mapping[str, Parameter] = {"interpolation": Parameter("int32")}
"""What is drawn where an interpolation is "random": a place in `RANDOM`."""

REACH: Mapping[ResizeInterpolation, float] = {"nearest": 1, "bilinear": 1, "bicubic": 2, "lanczos": 3, "random": 2}
"""How far filters reach, at most, in pixels of the larger image."""


def draw_interpolation(uniforms: NDArray[np.float64]) -> Arrays:
    """Turn uniforms, shape (n,), into `INTERPOLATION`."""
    return {"interpolation": np.floor(uniforms * len(RANDOM)).astype(np.int32)}


def resize_type(interpolation: ResizeInterpolation, parameters: Mapping[str, Node]) -> Any:
    """Return DALI's name for an interpolation, or a node of such names if it is "random"."""
    from nvidia.dali import fn
    from nvidia.dali.types import DALIDataType, DALIInterpType

    types = {
        "nearest": DALIInterpType.INTERP_NN,
        "bilinear": DALIInterpType.INTERP_LINEAR,
        "bicubic": DALIInterpType.INTERP_CUBIC,
        "lanczos": DALIInterpType.INTERP_LANCZOS3,
    }
    if interpolation != "random":
        return types[interpolation]
    first, second = (int(types[each]) for each in RANDOM)
    number = parameters["interpolation"] * (second - first) + first
    return fn.reinterpret(fn.cast(number, dtype=DALIDataType.INT32), dtype=DALIDataType.INTERP_TYPE)


WHOLE_PIXELS = 2**24
"""Of a resized image that is cropped right after, at most, if DALI's operators make the whole of it first; of a larger
one they make the window alone, which can be a level off. Kernels always do, exactly."""

LONG_ROWS = 2**22
"""Rows of a window times those that it becomes from which on kernels find the nearest rows in double precision: sums in
single precision, as DALI's, can be a quarter of a row off there, and whole rows further on."""

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""What a random resized crop takes, as published: shares of the area, and width divided by height."""

WINDOW: Mapping[str, Parameter] = {"start": Parameter("int32", (2,)), "shape": Parameter("int32", (2,))}
"""First row and column of a window, height and width."""

_LONGEST_SIDE = 2**31 - 1
"""Where the window of a crop can begin, which is said in 32 bits."""


@dataclass(frozen=True)
class RandomResizedCrop(SizedStage):
    """Crop a window of random area and aspect ratio, resize it to one size, anti-aliased.

    The published procedure of torchvision's `RandomResizedCrop`: up to ten attempts, then a central crop.

    Attributes:
        size: Side of the result in pixels, or its height and width.
        scale: Least and greatest share of the image's area.
        ratio: Least and greatest width divided by height, drawn uniformly in its logarithm.
        interpolation: Interpolation, "nearest", "bilinear", "bicubic" or "lanczos"; "random": bilinear or bicubic, as
            timm.
    """

    scale: tuple[float, float] = SCALE
    ratio: tuple[float, float] = RATIO
    interpolation: ResizeInterpolation = "bilinear"
    name: str = "random_resized_crop"

    ATTEMPTS = 10

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """Area, ratio, row and column of each attempt, and one if the interpolation is drawn, too."""
        return 4 * self.ATTEMPTS + (self.interpolation == "random")

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return {**WINDOW, **INTERPOLATION} if self.interpolation == "random" else WINDOW

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(f"{self.name}: interpolation", self.interpolation, ResizeInterpolation)
        wanted, remedy = "two numbers with 0 < low <= high <= 1", "leave it out for the published one"
        self._interval("scale", wanted, lambda low, high: 0 < low <= high <= 1, remedy)
        wanted, most = "two finite numbers with 0 < low <= high", sys.float_info.max
        self._interval("ratio", wanted, lambda low, high: 0 < low <= high <= most, remedy)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw windows: of each image's attempts the first that lies within it; see `Stage.draw`."""
        attempts = uniforms[:, : 4 * self.ATTEMPTS].reshape(-1, self.ATTEMPTS, 4)
        area = (heights * widths)[:, None] * between(self.scale, attempts[..., 0])  # (n, ATTEMPTS)
        ratio = np.exp(between(np.log(self.ratio), attempts[..., 1]))
        width = np.rint(np.sqrt(area * ratio))
        height = np.rint(np.sqrt(area / ratio))
        fits = (width > 0) & (width <= widths[:, None]) & (height > 0) & (height <= heights[:, None])
        first = np.arange(len(attempts)), fits.argmax(axis=1)
        width, height = width[first], height[first]
        row = np.floor(attempts[..., 2][first] * (heights - height + 1))
        column = np.floor(attempts[..., 3][first] * (widths - width + 1))
        window = np.stack([row, column, height, width], axis=1)
        misfits = np.flatnonzero(~fits[first])
        if len(misfits):
            window[misfits] = self._central(heights[misfits], widths[misfits])
        return {
            "start": np.ascontiguousarray(window[:, :2], dtype=np.int32),
            "shape": np.ascontiguousarray(window[:, 2:], dtype=np.int32),
            **(draw_interpolation(uniforms[:, -1]) if self.interpolation == "random" else {}),
        }

    def _central(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the largest central window whose ratio is allowed, (n, 4); a pixel at least."""
        low, high = self.ratio
        ratio = widths / heights
        width = np.where(ratio > high, np.rint(heights * high).clip(1), widths)
        height = np.where(ratio < low, np.rint(widths / low).clip(1), heights)
        return np.stack([(heights - height) // 2, (widths - width) // 2, height, width], axis=1)

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        height, width = self.fixed_size
        return placed(parameters["start"][:, ::-1], parameters["shape"][:, ::-1] / (width, height))

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        return [_kernel_call(self.interpolation, columns(*WINDOW))]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn

        cut = fn.slice(images, start=parameters["start"], shape=parameters["shape"], axes=[0, 1])
        return self.apply_to_window(cut, parameters)

    def apply_to_window(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Resize windows that are cut already."""
        from nvidia.dali import fn

        return fn.resize(images, size=self.fixed_size, interp_type=resize_type(self.interpolation, parameters))


@dataclass(frozen=True)
class Resize(Stage):
    """Resize, anti-aliased, as torchvision's `Resize`.

    Attributes:
        size: Length of the shorter side in pixels, where the aspect ratio stays; or height and width, where it does
            not.
        interpolation: Interpolation, see `RandomResizedCrop`.
    """

    size: Size
    interpolation: ResizeInterpolation = "bilinear"
    name: str = "resize"

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        return int(self.interpolation == "random")

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Height and width of the result, and the interpolation if it is drawn."""
        return {"size": Parameter("float32", (2,)), **(INTERPOLATION if self.random else {})}

    @property
    def outcomes(self) -> NDArray[np.float64]:
        return np.full(len(RANDOM), 1 / len(RANDOM)) if self.num_uniforms else np.ones(1)

    def __post_init__(self) -> None:
        size = checked_size(f"{self.name}: size", self.size, side="the shorter side in pixels")
        # (64, 64) and 64 are not the same here: one side is given, or both are.
        object.__setattr__(self, "size", sides_of(size) if isinstance(self.size, tuple) else size)
        choice(f"{self.name}: interpolation", self.interpolation, ResizeInterpolation)

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        return None if isinstance(self.size, int) else self.size

    def output_sizes(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Sizes:
        """Scale the longer side and round it down, as torchvision."""
        if not isinstance(self.size, int):
            return super().output_sizes(heights, widths)
        shorter = np.minimum(heights, widths)
        return self.size * heights // shorter, self.size * widths // shorter

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image that would become so long that its pixels have no numbers; see `Stage.refusal`."""
        longer = np.maximum(*self.output_sizes(heights, widths)) > _LONGEST_SIDE
        must = f"become {_LONGEST_SIDE:,} pixels at most on the longer side"
        return self._first_unfit(longer, (heights, widths), must, "crop before it, or leave the image out")

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        size = np.stack(self.output_sizes(heights, widths), axis=1).astype(np.float32)
        return {"size": size, **(draw_interpolation(uniforms[:, 0]) if self.random else {})}

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        lines, columns = self.output_sizes(heights, widths)
        scales = np.stack([widths / columns, heights / lines], axis=1)
        return placed(np.zeros_like(scales), scales)

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:

        def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
            numbers[:, 2], numbers[:, 3] = sizes

        return [_kernel_call(self.interpolation, write)]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn

        return fn.resize(images, size=parameters["size"], interp_type=resize_type(self.interpolation, parameters))


def refuse_crops(stages: Sequence[Stage]) -> None:
    """Refuse a resize behind which images of any size are too small for a crop.

    Raises:
        ConfigurationError: If there is one.
    """
    resized: tuple[str, int] | None = None
    for stage in stages:
        if resized is not None and isinstance(stage, (CenterCrop, RandomCrop)):
            name, side = resized
            least = min(stage.fixed_size) - 2 * getattr(stage, "padding", 0)
            wanted = f"at least {least}, since {stage.name} is for images of no shorter sides"
            require(side >= least, f"{name}: size", wanted, side, "resize to more, or crop less")
        if isinstance(stage, Resize) and isinstance(stage.size, int):
            resized = stage.name, stage.size
        elif stage.fixed_size is not None or type(stage).output_sizes is not Stage.output_sizes:
            resized = None


_KERNELS = {
    "nearest": ("crop_flip.pick",),
    "bilinear": ("resize.bilinear",),
    "bicubic": ("resample.bicubic",),
    "lanczos": ("resample.lanczos",),
    "random": ("resize.bilinear", "resample.bicubic"),  # in the order of `RANDOM`
}


def _kernel_call(interpolation: ResizeInterpolation, write: Write) -> KernelCall:
    kernels = _KERNELS[interpolation]
    return KernelCall(kernels, write, itemgetter("interpolation") if len(kernels) > 1 else None, Code.RESIZE)


def window_of(stage: Stage, following: Sequence[Stage]) -> CenterCrop | None:
    """Return the crop right after a resize, before which the whole need not be made; None for any other stages."""
    crop = following[0] if following and type(stage) is Resize else None
    return crop if type(crop) is CenterCrop else None


def resized_window(resize: Stage, crop: CenterCrop, images: Node, parameters: Mapping[str, Node]) -> Node:
    """Resize and crop; of an image that would have more than `WHOLE_PIXELS`, make the window alone.

    Args:
        resize: A `Resize`.
        crop: The crop that comes right after the resize.
        images: See `Stage.apply`.
        parameters: Parameters of both stages.
    """
    size = parameters["size"]
    if size[0] * size[1] > WHOLE_PIXELS:
        made = _window_alone(resize, crop, images, parameters)
    else:
        made = crop.apply(resize.apply(images, parameters), parameters)
    return made


def _window_alone(resize: Stage, crop: CenterCrop, images: Node, parameters: Mapping[str, Node]) -> Node:
    """Make the pixels of a crop from those of the source that they depend on.

    Places are computed in double precision, and handed to DALI relative to these: it takes them in single precision.
    """
    from nvidia.dali import fn, math, types
    from nvidia.dali.types import DALIDataType

    assert isinstance(resize, Resize)

    def exact(node: Node) -> Node:
        return fn.cast(node, dtype=DALIDataType.FLOAT64)

    sides = images.shape(dtype=DALIDataType.INT64)[:2]
    if isinstance(resize.size, int):
        full = sides * resize.size // math.min(sides[0], sides[1])
    else:
        full = types.Constant(np.array(resize.size, np.int64))
    sides, scale, start = exact(sides), exact(sides) / exact(full), exact(parameters["start"])
    begin, end = start * scale, (start + types.Constant(np.array(crop.fixed_size, np.float64))) * scale
    reach = math.max(scale, 1.0) * REACH[resize.interpolation] + 1.0
    first = math.max(math.floor(begin - reach), 0.0)
    last = math.min(math.ceil(end + reach), sides)
    needed = fn.slice(
        images,
        start=fn.cast(first, dtype=DALIDataType.INT32),
        shape=fn.cast(last - first, dtype=DALIDataType.INT32),
        axes=[0, 1],
    )
    return fn.resize(
        needed,
        size=crop.fixed_size,
        roi_start=fn.cast(begin - first, dtype=DALIDataType.FLOAT),
        roi_end=fn.cast(end - first, dtype=DALIDataType.FLOAT),
        interp_type=resize_type(resize.interpolation, parameters),
    )
