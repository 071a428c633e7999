"""What pixels are between torchvision's transforms: levels of images or tensors, numbers in 0..1, normalised ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from dalirefurb.augment.importing.assembly import erasing_after, refuse, three
from dalirefurb.augment.importing.torchvision_stages import kind
from dalirefurb.augment.output import Dtype, Output
from dalirefurb.augment.stage import Size
from dalirefurb.augment.stages.erasing import RandomErasing


class Given(IntEnum):
    """What a transform is given."""

    IMAGE = 0
    """Pillow's images."""
    LEVELS = 1
    """Tensors of levels."""
    UNIT = 2
    """Tensors of numbers in 0..1."""
    NORMALIZED = 3
    """Normalised tensors."""


class Pixels:
    """Pixels after the transforms that were read.

    Attributes:
        given: What the next transform is given.
        channels: Number of channels, 3 or 1.
    """

    def __init__(self, channels: int) -> None:
        self.given = Given.IMAGE
        self.channels = channels
        self._mean, self._std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        self._dtype: Dtype = "float32"

    def output(self, size: Size) -> Output:
        """Return what the model receives, of images of a size.

        Raises:
            ConfigurationError: If it receives levels.
        """
        if self.given < Given.UNIT:
            refuse("a transform that makes levels", "end it with ToTensor() or ToDtype(torch.float32, scale=True)")
        mean, std = self._mean[: self.channels], self._std[: self.channels]
        return Output(size, self._dtype, mean, std, channels=3 if self.channels == 3 else 1)

    def to_tensor(self, transform: Any) -> None:
        """Divide levels by 255, as `ToTensor`."""
        self.given = max(self.given, Given.UNIT)

    def to_levels(self, transform: Any) -> None:
        """Make a tensor of an image, as `PILToTensor` and `ToImage`."""
        self.given = max(self.given, Given.LEVELS)

    def to_image(self, transform: Any) -> None:
        """Make an image, as `ToPILImage`."""
        if self.given == Given.NORMALIZED:
            refuse("ToPILImage after Normalize", "leave it out")
        self.given, self._dtype = Given.IMAGE, "float32"

    def convert(self, transform: Any) -> None:
        """Change the type, as `ToDtype` and `ConvertImageDtype`."""
        name, whole = str(transform.dtype).rpartition(".")[2], self.given < Given.UNIT
        types: dict[str, Dtype] = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}
        if name == "uint8" and whole:
            return
        if name not in types or isinstance(transform.dtype, dict):
            refuse(f"{kind(transform)}({transform.dtype})", f"pass one type: torch.{' or torch.'.join(types)}")
        if whole and not getattr(transform, "scale", True):
            refuse(f"{kind(transform)}({transform.dtype}, scale=False)", "pass scale=True, for pixels in 0..1")
        self._dtype = types[name]
        self.to_tensor(transform)

    def normalize(self, transform: Any) -> None:
        """Subtract the mean and divide by the deviation, as `Normalize`."""
        if self.given != Given.UNIT:
            remedy = "put ToTensor or ToDtype(torch.float32, scale=True) before it, and have it once"
            refuse("Normalize of what is not in 0..1", remedy)
        mean, std = (np.ravel(each).tolist() for each in (transform.mean, transform.std))
        if not {len(mean), len(std)} <= {1, 3}:
            refuse(f"Normalize(mean={mean}, std={std})", "pass one number for each of 3 channels, or one for all")
        if self.channels < max(len(mean), len(std)):
            if len(mean) == 1 or not type(transform).__module__.startswith("torchvision.transforms.v2"):
                refuse("Normalize of one channel by three numbers", "pass one mean and std, or Grayscale(3) before it")
            self.channels = 3
        self._mean, self._std = three(mean), three(std)
        self.given = Given.NORMALIZED

    def erasing(self, transform: Any) -> RandomErasing:
        """Return the stage of a `RandomErasing` that stands here."""
        if self.given == Given.IMAGE:
            refuse("RandomErasing of an image", "put it after ToTensor or ToImage, where torchvision takes it")
        arguments = {"probability": transform.p, "scale": tuple(transform.scale), "ratio": tuple(transform.ratio)}
        value, normalized = transform.value, self.given == Given.NORMALIZED
        coloured = value is None or isinstance(value, str) or (isinstance(value, (list, tuple)) and len(value) == 3)
        if coloured and self.channels == 1:
            refuse(f"RandomErasing(value={value!r}) of one channel", "pass one number: noise and colours have three")
        if value is None or isinstance(value, str):
            if not normalized:
                refuse(
                    "RandomErasing(value='random') before Normalize", "put it after, where noise has the deviation 1"
                )
            return erasing_after(self._mean, self._std, "pixel", **arguments)
        values = three(value if isinstance(value, (list, tuple)) else [value])
        if normalized and not any(values):
            return erasing_after(self._mean, self._std, "mean", **arguments)
        one = 1 / 255 if self.given == Given.LEVELS else 1.0
        mean, std = (self._mean, self._std) if normalized else (three([0.0]), three([one]))
        levels = [round(255 * (m + each * s)) for each, m, s in zip(values, mean, std, strict=True)]
        if not all(0 <= level <= 255 for level in levels):
            refuse(f"RandomErasing(value={value!r})", f"pass another value: of levels 0 .. 255 it is {levels}")
        return RandomErasing(value=(levels[0], levels[1], levels[2]), **arguments)


CONVERSIONS: Mapping[str, Callable[[Pixels, Any], None]] = {
    "ToTensor": Pixels.to_tensor,
    "PILToTensor": Pixels.to_levels,
    "ToImage": Pixels.to_levels,
    "ToPureTensor": Pixels.to_levels,
    "ToPILImage": Pixels.to_image,
    "ToDtype": Pixels.convert,
    "ConvertImageDtype": Pixels.convert,
    "Normalize": Pixels.normalize,
}
"""Transforms that change what pixels are, and nothing else."""


_OF_TENSORS = {"repeat", "expand", "repeat_interleave", "cat", "stack", "squeeze", "shape", "size", "torch", "dim"}
_OF_IMAGES = {"convert", "mode", "isinstance", "Image", "PIL"}
"""All that a function may name, so that what it does to noise it does to any image, always."""


def channels_after(transform: Any, channels: int, *, image: bool) -> int | None:
    """Return how many channels a function makes, each like that which was there; None where it does anything else.

    Args:
        transform: A function, an object that is called or whose `forward` is, or a `Lambda` of it.
        channels: Number of channels of what it is given, 1 or 3.
        image: Whether that is Pillow's image, not a tensor.
    """
    function = getattr(transform, "lambd", transform)
    call: Any = function if inspect.isroutine(function) else getattr(function, "forward", function.__call__)
    code = getattr(call, "__code__", None)
    if code is None or not {*code.co_names} <= (_OF_IMAGES if image else _OF_TENSORS):
        return None
    if code.co_freevars or call.__defaults__ or call.__kwdefaults__ or any(map(inspect.iscode, code.co_consts)):
        return None
    noise = np.random.default_rng(0).integers(0, 256, (6, 7, channels), np.uint8)
    try:
        if image:
            from PIL import Image

            levels = np.atleast_3d(call(Image.fromarray(noise.squeeze())))
        else:
            import torch

            levels = np.moveaxis(np.asarray(call(torch.from_numpy(np.moveaxis(noise, 2, 0)))), 0, 2)
    except Exception:  # Whatever a user's function raises.
        return None
    made = levels.shape[-1]
    alike = made in (1, 3) and levels.shape == (6, 7, made) and levels.dtype == np.uint8 and (levels == noise).all()
    return made if alike else None
