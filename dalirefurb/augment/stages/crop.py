"""Stages that move pixels unchanged: crops and flips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import Code, KernelCall, columns, where_drawn
from dalirefurb.augment.maps import Maps, placed
from dalirefurb.augment.stage import Arrays, Node, Parameter, SizedStage, Stage
from dalirefurb.checks import choice, integer
from dalirefurb.errors import ConfigurationError

PaddingMode = Literal["constant", "reflect"]


@dataclass(frozen=True)
class RandomCrop(SizedStage):
    """Crop a window at a random place.

    Attributes:
        size: Side of the result in pixels, or its height and width.
        margin: Pixels by which each side of the image, padding included, exceeds `size`; there are (margin + 1)^2
            places, and images of another size are refused. None: images may be of any size from `size` on, padding
            included.
        padding: Pixels that are added to each side first.
        padding_mode: "constant": what is added is 0. "reflect": it mirrors the image, whose outermost pixels are not
            repeated.
    """

    margin: int | None = None
    padding: int = 0
    name: str = "random_crop"
    padding_mode: PaddingMode = "constant"

    num_uniforms = 2  # row and column
    parameters: ClassVar[Mapping[str, Parameter]] = {"start": Parameter("int32", (2,))}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("margin", "padding") if self.margin is not None else ("padding",):
            integer(f"{self.name}: {name}", getattr(self, name), 0, None, "pass a count of pixels")
        choice(f"{self.name}: padding_mode", self.padding_mode, PaddingMode)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each place; of images of any size they are not counted."""
        if self.margin is None:
            return np.empty(0)
        places = (self.margin + 1) ** 2
        return np.full(places, 1 / places)

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image that does not have `size`, `margin` and `padding`'s size; see `Stage.refusal`."""
        sizes, size, padding = (heights, widths), f"size {self.size}", self.padding
        if self.margin is None:
            height, width = (max(side - 2 * padding, 1) for side in self.fixed_size)
            must = f"have at least {height} x {width} pixels ({size} - 2 * padding {padding})"
            refusal = self._first_unfit((heights < height) | (widths < width), sizes, must)
        else:
            height, width = (side + self.margin - 2 * padding for side in self.fixed_size)
            must = f"be {height} x {width} pixels ({size} + margin {self.margin} - 2 * padding {padding})"
            remedy = (
                "put a resize before it or change its margin; for arrays of various sizes take a recipe "
                "that begins with a resize, such as rand_augment(224).for_arrays()"
            )
            refusal = self._first_unfit((heights != height) | (widths != width), sizes, must, remedy)
        if refusal is None and self.padding_mode == "reflect":
            must = f"have sides of more than {padding} pixels, the padding that mirrors them"
            refusal = self._first_unfit(np.minimum(heights, widths) <= padding, sizes, must)
        return refusal

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        if refusal := self.refusal(heights, widths):
            raise ConfigurationError(refusal[1])
        margins = np.stack([heights, widths], axis=1) + 2 * self.padding - self.fixed_size  # (n, 2)
        return {"start": (np.floor(uniforms * (margins + 1)) - self.padding).astype(np.int32)}

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps | None:
        """Go to the window's first pixel; what padding mirrors would be at two places. See `Stage.matrices`."""
        mirrors = self.padding > 0 and self.padding_mode == "reflect"
        return None if mirrors else placed(parameters["start"][:, ::-1])

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        kernel = "crop_flip.crop" if self.padding_mode == "constant" else "crop_flip.crop_reflected"
        return [KernelCall([kernel], columns("start"), code=Code.CROP)]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn

        start = parameters["start"]
        if self.padding and self.padding_mode == "reflect":
            return _reflected(images, start, self.fixed_size)
        arguments: dict[str, Any] = {"out_of_bounds_policy": "pad", "fill_values": [0]} if self.padding else {}
        return fn.slice(images, start=start, shape=[*self.fixed_size], axes=[0, 1], **arguments)

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides the pixels; the padding's mode only if it is not the usual one."""
        values = super().fingerprint()
        if self.padding_mode == "constant":
            del values["padding_mode"]
        return values


def _reflected(images: Node, start: Node, size: tuple[int, int]) -> Node:
    """Cut windows of images that are mirrored at their outermost pixels, given the first row and column, int32 (2,)."""
    from nvidia.dali import fn, types
    from nvidia.dali.types import DALIDataType, DALIInterpType

    row, column = (fn.cast(start[axis], dtype=DALIDataType.FLOAT) for axis in (0, 1))
    zero, one = types.Constant(np.float32(0)), types.Constant(np.float32(1))
    matrix = fn.reshape(fn.stack(one, zero, column, zero, one, row, zero, zero, one), shape=[3, 3])
    return fn.experimental.warp_perspective(
        images, matrix=matrix, size=size, interp_type=DALIInterpType.INTERP_NN, border_mode="reflect_101"
    )


@dataclass(frozen=True)
class CenterCrop(SizedStage):
    """Crop a window from the centre.

    Attributes:
        size: Side of the result in pixels, or its height and width.
    """

    name: str = "center_crop"

    parameters: ClassVar[Mapping[str, Parameter]] = {"start": Parameter("int32", (2,))}

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image smaller than `size`; see `Stage.refusal`."""
        height, width = self.fixed_size
        unfit = (heights < height) | (widths < width)
        return self._first_unfit(unfit, (heights, widths), f"have at least {height} x {width} pixels")

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        if refusal := self.refusal(heights, widths):
            raise ConfigurationError(refusal[1])
        # Halves are rounded to even, as torchvision does.
        return {"start": np.rint((np.stack([heights, widths], axis=1) - self.fixed_size) / 2).astype(np.int32)}

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        return placed(parameters["start"][:, ::-1])

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        return [KernelCall(["crop_flip.crop"], columns("start"), code=Code.CROP)]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import fn

        return fn.slice(images, start=parameters["start"], shape=[*self.fixed_size], axes=[0, 1])


class _Flip(Stage):
    """Mirror with a probability. Subclasses say which way."""

    probability: float
    name: str
    VERTICAL: ClassVar[bool]
    """Whether top and bottom are mirrored, not left and right."""

    num_uniforms = 1
    parameters: ClassVar[Mapping[str, Parameter]] = {"mirror": Parameter("int32")}

    def __post_init__(self) -> None:
        self._share()

    @property
    def outcomes(self) -> NDArray[np.float64]:
        return np.array([self.probability, 1 - self.probability])

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        return {"mirror": (uniforms[:, 0] < self.probability).astype(np.int32)}

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        """Count from the other side where it is drawn; see `Stage.matrices`."""
        mirror = np.zeros((len(heights), 2), np.int64)
        mirror[:, int(self.VERTICAL)] = parameters["mirror"]
        return placed(mirror * np.stack([widths, heights], axis=1), 1 - 2 * mirror)

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """Mirrored where it is drawn; left and right also on the way through another kernel."""
        mirrored = where_drawn("mirror")
        if self.VERTICAL:
            return [KernelCall(["crop_flip.flip_over"], choose=mirrored)]
        return [KernelCall(["crop_flip.flip"], choose=mirrored, code=Code.FLIP)]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Mirror the samples drawn; the others are not even copied."""
        from nvidia.dali import fn

        mirror = parameters["mirror"]
        if mirror:  # noqa: SIM108 - DALI traces statements
            flipped = fn.flip(images, horizontal=int(not self.VERTICAL), vertical=int(self.VERTICAL))
        else:
            flipped = images
        return flipped


@dataclass(frozen=True)
class HorizontalFlip(_Flip):
    """Mirror left and right with a probability."""

    probability: float = 0.5
    name: str = "flip"

    VERTICAL = False


@dataclass(frozen=True)
class VerticalFlip(_Flip):
    """Mirror top and bottom with a probability."""

    probability: float = 0.5
    name: str = "vertical_flip"

    VERTICAL = True
