"""Output: the size, type, layout and normalisation of what the model receives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dalirefurb.checks import positive, require
from dalirefurb.errors import ConfigurationError

IMAGENET_MEAN = (0.485, 0.456, 0.406)

IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Output:
    """What the model receives: float images, (B, 3, size, size), (pixel / 255 - mean) / std.

    Attributes:
        size: Side of the square images in pixels.
        dtype: Type of the pixels, "float32" or "float16".
        mean: Means of the red, green and blue channel, for pixels in 0..1; ImageNet's by default.
        std: Standard deviations of the three channels, for pixels in 0..1; ImageNet's by default.
        channels_last: Whether the images' memory is in NHWC order, as convolutions on a GPU like it in half precision;
            shape and values are the same.
    """

    size: int
    dtype: Literal["float32", "float16"] = "float32"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    channels_last: bool = False

    def __post_init__(self) -> None:
        positive("output: size", self.size, "pass the side in pixels")
        remedy = "cast on the model's side for others"
        require(self.dtype in ("float32", "float16"), "output: dtype", "'float32' or 'float16'", self.dtype, remedy)
        three = all(isinstance(each, (tuple, list)) and len(each) == 3 for each in (self.mean, self.std))
        if not three or not all(0 < std < math.inf for std in self.std):
            raise ConfigurationError(
                f"output: mean and std must be three numbers each, std positive, got {self.mean} and {self.std}: pass "
                f"one for each of red, green and blue"
            )
        within = all(0 <= mean <= 1 for mean in self.mean)
        remedy = "divide mean and std by 255 if they are of levels 0 .. 255"
        require(within, "output: mean", "of pixels in 0 .. 1", self.mean, remedy)
        largest = max(max(mean, 1 - mean) / std for mean, std in zip(self.mean, self.std, strict=True))
        most = float(np.finfo(self.dtype).max)
        if largest > most:
            raise ConfigurationError(
                f"output: (pixel - mean) / std must be at most {most:,.6g}, the most that {self.dtype} holds, but is "
                f"up to {largest:,.6g} for pixels in 0 .. 1 with mean {self.mean} and std {self.std}: pass a larger std"
                f"{', or dtype=' + repr('float32') if self.dtype == 'float16' else ''}"
            )

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides values, as JSON."""
        return {"size": self.size, "dtype": self.dtype, "mean": list(self.mean), "std": list(self.std)}
