"""Stages of torchvision's transforms, one transform at a time, and what pixels are between them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from dalirefurb.augment.importing.assembly import erasing_after, maybe, refuse, three
from dalirefurb.augment.output import Dtype, Output
from dalirefurb.augment.policies.auto_augment import AutoAugmentFirst, AutoAugmentSecond
from dalirefurb.augment.policies.layers import (
    AdjustSharpness,
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    RandAugmentLayer,
    Solarize,
    TrivialAugmentLayer,
)
from dalirefurb.augment.stage import Fill, Size, Stage
from dalirefurb.augment.stages.color import JITTERS, ColorJitter, GaussianBlur, RandomGrayscale
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, VerticalFlip
from dalirefurb.augment.stages.erasing import RandomErasing
from dalirefurb.augment.stages.geometry import RandomAffine, RandomPerspective, RandomRotation
from dalirefurb.augment.stages.resize import RandomResizedCrop, Resize

_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's numbers of interpolations, which older transforms hold."""

_RESIZES, _WARPS = ("nearest", "bilinear", "bicubic", "lanczos"), ("nearest", "bilinear")

_PILLOWS_KERNEL = 17
"""Side of a kernel that holds Pillow's blur of a standard deviation of 2, the most that is usual."""


def interpolation_of(transform: Any, *, warps: bool = False) -> Any:
    """Return the name of a transform's interpolation.

    Args:
        transform: A transform with `interpolation`.
        warps: Whether it is one of shears and rotations, not of a resize.
    """
    given = getattr(transform.interpolation, "value", transform.interpolation)
    name = {"nearest-exact": "nearest"}.get(named := _PILLOW.get(given, str(given)), named)
    allowed = _WARPS if warps else _RESIZES
    if name not in allowed:
        refuse(f"{kind(transform)}(interpolation={name!r})", f"choose one of {', '.join(allowed)}")
    return name


def kind(transform: Any) -> str:
    """Return the name of a transform's class."""
    return type(transform).__name__


def fill_of(transform: Any) -> Fill:
    """Return the levels that a transform puts where an image ends."""
    given: Any = getattr(transform, "fill", 0)
    given = 0 if given is None else given
    levels = list(given) if isinstance(given, (list, tuple)) else [given]
    whole = all(isinstance(level, (int, float)) and level == int(level) for level in levels)
    if not whole or len(levels) not in (1, 3):
        refuse(f"{kind(transform)}(fill={given!r})", "pass a level 0 .. 255, or one for each of 3 channels")
    red, *others = map(int, levels)
    return (red, *others) if others else red  # type: ignore[return-value]


def fills_black(transform: Any) -> bool:
    """Tell whether that is level 0, in one number or in three."""
    return fill_of(transform) in (0, (0, 0, 0))


def size_of(transform: Any) -> Any:
    """Return a side, or a height and a width."""
    size = transform.size
    if size is None:
        refuse(f"{kind(transform)}(size=None)", "pass the length of the shorter side, or height and width")
    if isinstance(size, (list, tuple)):
        return tuple(size) if len(size) == 2 else size[0]
    return size


def anti_aliased(transform: Any, *, image: bool) -> None:
    """Refuse a resize that is not anti-aliased, or picks other pixels.

    Args:
        transform: A resize.
        image: Whether it may be of Pillow's images, which are anti-aliased unless told otherwise.
    """
    given, name = getattr(transform, "antialias", True), interpolation_of(transform)
    if name == "nearest":
        if not image and getattr(transform.interpolation, "value", None) == "nearest":
            refuse(f"{kind(transform)} of tensors with NEAREST", "pass InterpolationMode.NEAREST_EXACT, Pillow's")
    elif given is not True and not (image and given in (None, "warn")):
        remedy = "resizes here are anti-aliased, as all of Pillow's images are: pass antialias=True"
        refuse(f"{kind(transform)}(antialias={given!r})", remedy)


def _resize(transform: Any) -> list[Stage]:
    if getattr(transform, "max_size", None) is not None:
        remedy = "pass the length of the shorter side alone, and crop after the resize"
        refuse(f"{kind(transform)}(max_size={transform.max_size!r})", remedy)
    return [Resize(size_of(transform), interpolation_of(transform))]


def _random_resized_crop(transform: Any) -> list[Stage]:
    limits = tuple(transform.scale), tuple(transform.ratio)
    return [RandomResizedCrop(size_of(transform), *limits, interpolation_of(transform))]


def _color_jitter(transform: Any) -> list[Stage]:
    ranges: dict[str, Any] = {name: getattr(transform, name) for name in JITTERS}
    changes: dict[str, Any] = {name: 0 if given is None else tuple(given) for name, given in ranges.items()}
    return [ColorJitter(**changes)]


def _blur(transform: Any) -> list[Stage]:
    sides = transform.kernel_size
    sides = list(sides) if isinstance(sides, (list, tuple)) else [sides]
    if len({*sides}) > 1:
        refuse(f"{kind(transform)}(kernel_size={tuple(sides)})", "pass one odd number for both sides")
    sigma = transform.sigma
    return [GaussianBlur(sides[0], tuple(sigma) if isinstance(sigma, (list, tuple)) else sigma)]


def _central(transform: Any) -> None:
    for name, none in (("center", None), ("expand", False)):
        if (given := getattr(transform, name, none)) not in (none, None):
            refuse(f"{kind(transform)}({name}={given!r})", f"leave {name} out: images are turned about their centres")


def _warp(transform: Any) -> tuple[Any, Fill]:
    """Return the interpolation and the fill of shears and rotations."""
    return interpolation_of(transform, warps=True), fill_of(transform)


def _rotation(transform: Any) -> list[Stage]:
    _central(transform)
    return [RandomRotation(tuple(transform.degrees), *_warp(transform))]


def _affine(transform: Any) -> list[Stage]:
    _central(transform)
    names = ("translate", "scale", "shear")
    limits: dict[str, Any] = {name: value and tuple(value) for name in names for value in (getattr(transform, name),)}
    interpolation, fill = _warp(transform)
    return [RandomAffine(tuple(transform.degrees), **limits, interpolation=interpolation, fill=fill)]


def _rand_augment(transform: Any) -> list[Stage]:
    of_each = *_warp(transform), transform.magnitude, transform.num_magnitude_bins
    return [RandAugmentLayer(f"rand_augment_{layer + 1}", *of_each) for layer in range(transform.num_ops)]


def _auto_augment(transform: Any) -> list[Stage]:
    of_both = *_warp(transform), getattr(transform.policy, "value", transform.policy)
    first = AutoAugmentFirst("auto_augment_1", *of_both)
    return [first, AutoAugmentSecond("auto_augment_2", *of_both, first.name)]


STAGES: Mapping[str, Callable[[Any], list[Stage]]] = {
    "Identity": lambda transform: [],
    "Resize": _resize,
    "RandomResizedCrop": _random_resized_crop,
    "CenterCrop": lambda transform: [CenterCrop(size_of(transform))],
    "RandomHorizontalFlip": lambda transform: [HorizontalFlip(transform.p)] if transform.p else [],
    "RandomVerticalFlip": lambda transform: [VerticalFlip(transform.p)] if transform.p else [],
    "RandomRotation": _rotation,
    "RandomAffine": _affine,
    "RandomPerspective": lambda transform: [
        RandomPerspective(transform.distortion_scale, transform.p, *_warp(transform))
    ],
    "ColorJitter": _color_jitter,
    "Grayscale": lambda transform: [RandomGrayscale(1.0, "grayscale")],
    "RandomGrayscale": lambda transform: [RandomGrayscale(transform.p)] if transform.p else [],
    "GaussianBlur": _blur,
    "RandomInvert": lambda transform: maybe(Invert(), transform.p),
    "RandomPosterize": lambda transform: maybe(Posterize(transform.bits), transform.p),
    "RandomSolarize": lambda transform: maybe(Solarize(transform.threshold), transform.p),
    "RandomAdjustSharpness": lambda transform: maybe(AdjustSharpness(transform.sharpness_factor), transform.p),
    "RandomAutocontrast": lambda transform: maybe(AutoContrast(), transform.p),
    "RandomEqualize": lambda transform: maybe(Equalize(), transform.p),
    "RandAugment": _rand_augment,
    "AutoAugment": _auto_augment,
    "TrivialAugmentWide": lambda transform: [
        TrivialAugmentLayer("trivial_augment", *_warp(transform), transform.num_magnitude_bins)
    ],
}
"""Stages of torchvision's transforms that are the same wherever they stand; all but those of sizes keep the size."""

LIGHTLY: Mapping[str, Callable[[Any], list[Stage]]] = {
    "GaussianBlur": lambda transform: maybe(GaussianBlur(_PILLOWS_KERNEL, tuple(transform.sigmas)), transform.prob),
    "RandomSolarization": lambda transform: maybe(Solarize(getattr(transform, "threshold", 128)), transform.prob),
}
"""Stages of lightly's own transforms."""


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
