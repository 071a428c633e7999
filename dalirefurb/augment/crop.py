"""Stages that move pixels unchanged: crops and a flip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Arrays, Node, Parameter, SizedStage, Stage
from dalirefurb.checks import integer, number
from dalirefurb.errors import ConfigurationError


@dataclass(frozen=True)
class RandomCrop(SizedStage):
    """Crop a window at a random place.

    Attributes:
        size: Side of the result in pixels, or its height and width.
        margin: Pixels by which each side of the image, padding included, exceeds `size`; there are (margin + 1)^2
            places. Images of another size are refused.
        padding: Pixels of 0 added to each side first.
    """

    margin: int
    padding: int = 0
    name: str = "random_crop"

    num_uniforms = 2  # row and column

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("margin", "padding"):
            pixels = integer(f"{self.name}: {name}", getattr(self, name), 0, None, "pass a count of pixels")
            object.__setattr__(self, name, pixels)

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The first row and column or, without padding, how far between the first place (0) and the last (1)."""
        if self.padding:
            return {"start": Parameter("int32", (2,))}
        return {"row_position": Parameter("float32"), "column_position": Parameter("float32")}

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each place."""
        places = (self.margin + 1) ** 2
        return np.full(places, 1 / places)

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image that does not have `size`, `margin` and `padding`'s size; see `Stage.refusal`."""
        height, width = (side + self.margin - 2 * self.padding for side in self.fixed_size)
        unfit = (heights != height) | (widths != width)
        summands = f"size {self.size} + margin {self.margin} - 2 * padding {self.padding}"
        must, remedy = f"be {height} x {width} pixels ({summands})", "put a resize before it or change its margin"
        return self._first_unfit(unfit, (heights, widths), must, remedy)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw places; see `Stage.draw`.

        Raises:
            ConfigurationError: If an image does not have `size`, `margin` and `padding`'s size.
        """
        if refusal := self.refusal(heights, widths):
            raise ConfigurationError(refusal[1])
        if self.padding:
            return {"start": (np.floor(uniforms * (self.margin + 1)) - self.padding).astype(np.int32)}
        rows, columns = (
            (np.floor(each * (self.margin + 1)) / max(self.margin, 1)).astype(np.float32) for each in uniforms.T
        )
        return {"row_position": rows, "column_position": columns}

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Cut the window; what lies outside the image is 0."""
        from nvidia.dali import fn

        if self.padding:
            return fn.slice(
                images,
                start=parameters["start"],
                shape=[*self.fixed_size],
                axes=[0, 1],
                out_of_bounds_policy="pad",
                fill_values=[0],
            )
        return fn.crop(images, **self.crop_arguments(parameters))

    def crop_arguments(self, parameters: Mapping[str, Node]) -> dict[str, Any]:
        """Return the window as arguments of DALI's cropping operators; without padding only."""
        return {
            "crop": self.fixed_size,
            "crop_pos_y": parameters["row_position"],
            "crop_pos_x": parameters["column_position"],
        }


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
        """Compute the places; see `Stage.draw`.

        Raises:
            ConfigurationError: If an image is smaller than `size`.
        """
        if refusal := self.refusal(heights, widths):
            raise ConfigurationError(refusal[1])
        # Halves are rounded to even, as torchvision does.
        return {"start": np.rint((np.stack([heights, widths], axis=1) - self.fixed_size) / 2).astype(np.int32)}

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Cut the window."""
        from nvidia.dali import fn

        return fn.slice(images, start=parameters["start"], shape=[*self.fixed_size], axes=[0, 1])


@dataclass(frozen=True)
class HorizontalFlip(Stage):
    """Mirror left and right with a probability."""

    probability: float = 0.5
    name: str = "flip"

    num_uniforms = 1
    parameters: ClassVar[Mapping[str, Parameter]] = {"mirror": Parameter("int32")}

    def __post_init__(self) -> None:
        number(f"{self.name}: probability", self.probability, "in 0..1", lambda p: 0 <= p <= 1, "0.5 is usual")

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Mirrored or not."""
        return np.array([self.probability, 1 - self.probability])

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw whether to mirror; see `Stage.draw`."""
        return {"mirror": (uniforms[:, 0] < self.probability).astype(np.int32)}

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Mirror the samples drawn; the others are not even copied."""
        from nvidia.dali import fn

        mirror = parameters["mirror"]
        if mirror:  # noqa: SIM108 - DALI traces statements
            flipped = fn.flip(images, horizontal=1)
        else:
            flipped = images
        return flipped
