"""Stages of torchvision's transforms of images, one transform at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dalirefurb.augment.importing.assembly import maybe, refuse
from dalirefurb.augment.policies.auto_augment import AutoAugmentFirst, AutoAugmentSecond
from dalirefurb.augment.policies.one_operation import (
    AdjustSharpness,
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    Solarize,
)
from dalirefurb.augment.policies.rand_augment import RandAugmentLayer, TrivialAugmentLayer
from dalirefurb.augment.stage import Fill, Stage
from dalirefurb.augment.stages.blur import GaussianBlur
from dalirefurb.augment.stages.color import JITTERS, ColorJitter, RandomGrayscale
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, VerticalFlip
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
        refuse(f"{kind(transform)}(max_size={transform.max_size!r})", "leave it out, and crop after the resize")
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
