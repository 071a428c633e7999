"""VolumeOutput: the size, channels and type of the volumes that the model receives, and the type of their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from dalirefurb.augment.output import Channels, Dtype, Output
from dalirefurb.augment.volumes.stages import volume_shape
from dalirefurb.checks import choice, integer, number, require

MaskDtype = Literal["uint8", "int16", "int32", "int64"]

VolumeDtype = Literal["float32", "float16"]


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
        mean = number("output: mean", self.mean, "of values", math.isfinite, "pass one for all channels")
        std = number("output: std", self.std, "above 0", lambda each: 0 < each < math.inf, "pass one for all channels")
        object.__setattr__(self, "mean", (mean,))
        object.__setattr__(self, "std", (std,))

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
