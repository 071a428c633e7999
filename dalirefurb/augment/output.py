"""Output: the size, channels, type, layout and normalisation of what the model receives, images or volumes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from dalirefurb.augment.stage import Size, checked_size, sides_of
from dalirefurb.augment.volumes.voxels import volume_shape
from dalirefurb.calls import TakesNumbers
from dalirefurb.checks import choice, flag, integer, number, require
from dalirefurb.errors import ConfigurationError

IMAGENET_MEAN = (0.485, 0.456, 0.406)

IMAGENET_STD = (0.229, 0.224, 0.225)

Dtype = Literal["float32", "float16", "bfloat16"]

MaskDtype = Literal["uint8", "int16", "int32", "int64"]

VolumeDtype = Literal["float32", "float16"]

Channels = tuple[float, ...] | float
"""One number for each channel, or one for all."""

_MOST = {
    "float32": float(np.finfo(np.float32).max),
    "float16": float(np.finfo(np.float16).max),
    "bfloat16": (2 - 2**-7) * 2.0**127,
}
"""The most that a type holds."""


@dataclass(frozen=True)
class Output(metaclass=TakesNumbers):
    """What the model receives: float images, (B, channels, height, width), (pixel / 255 - mean) / std.

    Attributes:
        size: Side of the square images in pixels, or their height and width.
        dtype: Type of the pixels, "float32", "float16" or "bfloat16".
        mean: Means of the red, green and blue channel, or one for all, for pixels in 0..1; ImageNet's by default. For
            one channel it is one number, of three the average.
        std: Standard deviations of the channels, likewise.
        channels_last: Whether the images' memory is in NHWC order, as convolutions on a GPU like it in half precision;
            shape and values are the same.
        channels: Number of channels: 3, or 1 for grey images, made of the colours when all stages are done, as
            torchvision's `Grayscale` does.
    """

    size: Size
    dtype: Dtype = "float32"
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    channels_last: bool = False
    channels: Literal[1, 3] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size("output: size", self.size))
        known = isinstance(self.dtype, str) and self.dtype in get_args(Dtype)
        remedy = "pass such a name as text; cast on the model's side for others"
        require(known, "output: dtype", "'float32', 'float16' or 'bfloat16'", self.dtype, remedy)
        fits = type(self.channels) is int and self.channels in (1, 3)
        require(fits, "output: channels", "3, or 1 for grey images", self.channels, "choose one")
        flag("output: channels_last", self.channels_last)
        for name in ("mean", "std"):
            object.__setattr__(self, name, self._of_channels(name, getattr(self, name)))
        mean, std = self.means, self.stds
        within = all(0 <= each <= 1 for each in mean)
        remedy = "divide mean and std by 255 if they are of levels 0 .. 255"
        require(within, "output: mean", "of pixels in 0 .. 1", mean, remedy)
        largest = max(max(each, 1 - each) / deviation for each, deviation in zip(mean, std, strict=True))
        most = _MOST[self.dtype]
        if largest > most:
            raise ConfigurationError(
                f"output: (pixel - mean) / std must be at most {most:,.6g}, the most that {self.dtype} holds, but is "
                f"up to {largest:,.6g} for pixels in 0 .. 1 with mean {mean} and std {std}: pass a larger std"
                f"{', or dtype=' + repr('float32') if self.dtype == 'float16' else ''}"
            )

    def _of_channels(self, name: str, given: Any) -> tuple[float, ...]:
        """Return one number for each channel."""
        numbers = given if isinstance(given, tuple) else (given,) * self.channels
        holds = len(numbers) in (3, self.channels)
        holds = holds and all(isinstance(each, Real) and not isinstance(each, bool) for each in numbers)
        if not holds or (name == "std" and not all(0 < std < math.inf for std in numbers)):
            needed = "three numbers each" if self.channels == 3 else "one number each"
            raise ConfigurationError(
                f"output: mean and std must be {needed}, std positive, got {self.mean} and {self.std}: pass "
                f"{'one for each of red, green and blue' if self.channels == 3 else 'such as 0.449 and 0.226'}"
            )
        return numbers if len(numbers) == self.channels else (sum(numbers) / 3,)

    @property
    def means(self) -> tuple[float, ...]:
        """The mean of each channel."""
        assert isinstance(self.mean, tuple)
        return self.mean

    @property
    def stds(self) -> tuple[float, ...]:
        """The standard deviation of each channel."""
        assert isinstance(self.std, tuple)
        return self.std

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return sides_of(self.size)

    @property
    def sides_text(self) -> str:
        """Height and width, for messages."""
        return "{} x {}".format(*self.sides)

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides values, as JSON."""
        values = {"size": self.size, "dtype": self.dtype, "mean": list(self.means), "std": list(self.stds)}
        return values if self.channels == 3 else {**values, "channels": self.channels}


@dataclass(frozen=True)
class VolumeOutput(Output):
    """What the model receives: volumes (B, channels, depth, height, width), (value - mean) / std.

    Attributes:
        size: Side of the volumes in voxels, or their depth, height and width.
        dtype: Type of the values, "float32" or "float16".
        mean: Subtracted from all values.
        std: What all values are divided by then.
        channels: Number of channels.
        mask_dtype: Type of the labels of voxels, if there are any; int64 is what `torch.nn.functional.cross_entropy`
            takes.
    """

    size: Any
    dtype: Dtype = "float32"
    mean: Channels = 0.0
    std: Channels = 1.0
    channels_last: bool = False
    channels: Any = 1
    mask_dtype: MaskDtype = "int64"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", volume_shape("output: size", self.size))
        choice("output: dtype", self.dtype, VolumeDtype)
        choice("output: mask_dtype", self.mask_dtype, MaskDtype)
        integer("output: channels", self.channels, 1, None, "pass as many as volumes have")
        last = self.channels_last
        require(last is False, "output: channels_last", "False for volumes", last, "leave it out")
        for name, limits, within in (
            ("mean", "of values", math.isfinite),
            ("std", "above 0", lambda each: 0 < each < math.inf),
        ):
            given: Any = getattr(self, name)
            given = given[0] if isinstance(given, tuple) and len(given) == 1 else given  # as it is written down
            value = number(f"output: {name}", given, limits, within, "pass one for all channels")
            object.__setattr__(self, name, (value,))

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of all slices of a channel, one below the other."""
        depth, height, width = self.size
        return depth * height, width

    @property
    def sides_text(self) -> str:
        """Depth, height and width, for messages."""
        return " x ".join(map(str, self.size))

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides values, as JSON."""
        of_masks = {"channels": self.channels, "mask_dtype": self.mask_dtype}
        return {"size": list(self.size), "dtype": self.dtype, "mean": self.means[0], "std": self.stds[0], **of_masks}
