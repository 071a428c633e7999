"""Stand-ins for torchvision's and lightly's transforms: the names of their classes and modules, and their attributes.

`tests/augment/test_beside_torchvision.py` holds them to the real ones, where these are installed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Range = tuple[float, float]
MODULE = "torchvision.transforms.transforms"
POLICIES = "torchvision.transforms.autoaugment"


class InterpolationMode(enum.Enum):
    """torchvision's, in part."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    LANCZOS = "lanczos"


class AutoAugmentPolicy(enum.Enum):
    """torchvision's."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


NEAREST, BILINEAR = InterpolationMode.NEAREST, InterpolationMode.BILINEAR
MISSING = object()
WARP = {"interpolation": NEAREST, "fill": None}

# Arguments in their order, with defaults, which are attributes of the same names.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "Compose": {"transforms": MISSING},
    "RandomApply": {"transforms": MISSING, "p": 0.5},
    "RandomChoice": {"transforms": MISSING, "p": None},
    "RandomOrder": {"transforms": MISSING},
    "Resize": {"size": MISSING, "interpolation": BILINEAR, "max_size": None, "antialias": True},
    "CenterCrop": {"size": MISSING},
    "RandomResizedCrop": {
        "size": MISSING,
        "scale": (0.08, 1.0),
        "ratio": (3 / 4, 4 / 3),
        "interpolation": BILINEAR,
        "antialias": True,
    },
    "RandomCrop": {"size": MISSING, "padding": None, "pad_if_needed": False, "fill": 0, "padding_mode": "constant"},
    "Pad": {"padding": MISSING, "fill": 0, "padding_mode": "constant"},
    "RandomHorizontalFlip": {"p": 0.5},
    "RandomVerticalFlip": {"p": 0.5},
    "RandomRotation": {"degrees": MISSING, "interpolation": NEAREST, "expand": False, "center": None, "fill": 0},
    "RandomAffine": {
        "degrees": MISSING,
        "translate": None,
        "scale": None,
        "shear": None,
        "interpolation": NEAREST,
        "fill": 0,
        "center": None,
    },
    "RandomPerspective": {"distortion_scale": 0.5, "p": 0.5, "interpolation": BILINEAR, "fill": 0},
    "ColorJitter": {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0},
    "Grayscale": {"num_output_channels": 1},
    "RandomGrayscale": {"p": 0.1},
    "GaussianBlur": {"kernel_size": MISSING, "sigma": (0.1, 2.0)},
    "RandomInvert": {"p": 0.5},
    "RandomPosterize": {"bits": MISSING, "p": 0.5},
    "RandomSolarize": {"threshold": MISSING, "p": 0.5},
    "RandomAdjustSharpness": {"sharpness_factor": MISSING, "p": 0.5},
    "RandomAutocontrast": {"p": 0.5},
    "RandomEqualize": {"p": 0.5},
    "RandAugment": {"num_ops": 2, "magnitude": 9, "num_magnitude_bins": 31, **WARP},
    "TrivialAugmentWide": {"num_magnitude_bins": 31, **WARP},
    "AutoAugment": {"policy": AutoAugmentPolicy.IMAGENET, **WARP},
    "AugMix": {"severity": 3, "interpolation": BILINEAR},
    "ToTensor": {},
    "PILToTensor": {},
    "ToPILImage": {"mode": None},
    "ConvertImageDtype": {"dtype": MISSING},
    "Normalize": {"mean": MISSING, "std": MISSING},
    "RandomErasing": {"p": 0.5, "scale": (0.02, 0.33), "ratio": (0.3, 3.3), "value": 0},
    "Lambda": {"lambd": MISSING},
    "FiveCrop": {"size": MISSING},
}


def _around(change: Any, centre: float = 1.0) -> Any:
    low = max(0.0, centre - change) if centre else -change
    return None if change == 0 else (low, centre + change)


def _attribute(kind: str, name: str, value: Any) -> Any:
    """Return what torchvision keeps of an argument."""
    if isinstance(value, (tuple, list)):
        return value
    if name == "kernel_size" or (name == "size" and kind != "Resize"):
        return (value, value)
    if name in ("degrees", "shear") and value is not None:
        return [-value, value]
    if name == "sigma":
        return (value, value)
    if name in ("brightness", "contrast", "saturation", "hue"):
        return _around(value, 0.0 if name == "hue" else 1.0)
    return value


def stand_in(kind: str, module: str = MODULE, /, **attributes: Any) -> Any:
    """Return an object of a class of this name and module, with these attributes."""
    made = type(kind, (), {"__module__": module})()
    vars(made).update(attributes)
    return made


def _maker(kind: str) -> Callable[..., Any]:
    defaults = ARGUMENTS[kind]
    module = POLICIES if "Aug" in kind else MODULE

    def make(*args: Any, **kwargs: Any) -> Any:
        values = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
        assert values.keys() == defaults.keys()
        assert not any(value is MISSING for value in values.values())
        return stand_in(kind, module, **{name: _attribute(kind, name, value) for name, value in values.items()})

    return make


T: Any = SimpleNamespace(
    InterpolationMode=InterpolationMode,
    AutoAugmentPolicy=AutoAugmentPolicy,
    **{kind: _maker(kind) for kind in ARGUMENTS},
)
"""What `torchvision.transforms` has, as far as tests need it."""


def of_v2(kind: str, part: str, **attributes: Any) -> Any:
    """Return a stand-in for a transform of a part of `torchvision.transforms.v2`."""
    return stand_in(kind, f"torchvision.transforms.v2.{part}", **attributes)


def lightly_blur(prob: float, sigmas: Range = (0.1, 2.0)) -> Any:
    """Return a stand-in for lightly's blur."""
    return stand_in("GaussianBlur", "lightly.transforms.gaussian_blur", prob=prob, sigmas=sigmas)


def lightly_solarization(prob: float, threshold: int = 128) -> Any:
    """Return a stand-in for lightly's solarization."""
    return stand_in("RandomSolarization", "lightly.transforms.solarize", prob=prob, threshold=threshold)
