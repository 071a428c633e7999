"""timm's operations, sets and policies; magnitudes are tenths of an operation's range, need not be whole, and may vary.

Names, ranges and sets are those of timm 1.0 (`timm/data/auto_augment.py`), and of 0.9 for the weights "w0". A magnitude
above 10 goes beyond the range, where that means something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from dalirefurb.augment.policies.auto_augment import POLICIES
from dalirefurb.augment.policies.operations import (
    BLUR_RADIUS,
    CENTRE,
    CENTRED,
    GREY,
    SCALAR,
    SHEARS,
    SMOOTH,
    TURNS,
    UNMOVED,
    Arguments,
    Floats,
    Group,
    Operation,
    numbers,
)
from dalirefurb.augment.policies.sub_policies import SubPolicy
from dalirefurb.checks import flag, number, require

FULL = 10.0
"""Magnitude at the end of an operation's range."""

QUANTILES = 32
"""Values that stand for all that a magnitude can be, where outcomes are counted."""


class MagnitudeNoise(NamedTuple):
    """Distribution of magnitudes, which are cut to 0 .. `most`.

    Attributes:
        std: Standard deviation of the normal distribution about the magnitude; 0: it does not vary.
        most: Greatest magnitude.
        uniform: Whether magnitudes are uniform between 0 and the one that is said instead.
    """

    std: float = 0.0
    most: float = 10.0
    uniform: bool = False

    def draw(self, magnitudes: Floats, uniforms: Floats) -> Floats:
        """Vary magnitudes.

        Args:
            magnitudes: Magnitudes that a policy says, shape (n,).
            uniforms: Uniform random numbers in [0, 1), shape (n, 2).
        """
        if self.uniform:
            magnitudes = magnitudes * uniforms[:, 0]
        elif self.std > 0:
            # Box and Muller's transform: exactly normal.
            radii = np.sqrt(-2 * np.log1p(-uniforms[:, 0]))
            magnitudes = magnitudes + self.std * radii * np.cos(2 * math.pi * uniforms[:, 1])
        cut: Floats = np.clip(magnitudes, 0, self.most)
        return cut

    def quantiles(self, magnitude: float) -> Floats:
        """Return magnitudes that are equally likely, shape (`QUANTILES`,)."""
        middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
        if self.uniform:
            magnitudes = magnitude * middles
        elif self.std > 0:
            magnitudes = np.array([NormalDist(magnitude, self.std).inv_cdf(middle) for middle in middles.tolist()])
        else:
            magnitudes = np.full(QUANTILES, float(magnitude))
        cut: Floats = np.clip(magnitudes, 0, self.most)
        return cut


STEADY = MagnitudeNoise()
"""None: magnitudes are those that are said."""


def checked_noise(name: str, noise: Any) -> MagnitudeNoise:
    """Return the noise of a stage's magnitudes as it is written down.

    Raises:
        ConfigurationError: If it is none.
    """
    given = isinstance(noise, tuple) and len(noise) == 3
    require(given, f"{name}: noise", "a MagnitudeNoise", noise, "pass such as MagnitudeNoise(std=0.5)")
    std, most, uniform = noise
    std = number(f"{name}: std", std, "of at least 0", lambda std: 0 <= std < math.inf, "0.5 is usual")
    most = number(f"{name}: most", most, "above 0", lambda most: 0 < most < math.inf, "10 is usual")
    return MagnitudeNoise(std, most, flag(f"{name}: uniform", uniform, "False is usual"))


def _turn(magnitudes: Floats, uniforms: Floats) -> tuple[Floats, Floats]:
    """Cosine and sine of an angle up to 30 degrees."""
    radians = np.radians(magnitudes / FULL * 30)
    return np.cos(radians), np.sin(radians)


def _cleared(bits: Floats) -> Floats:
    """Mask that keeps as many of the highest bits, of 8 at most."""
    mask: Floats = 256 - 2 ** (8 - np.clip(bits, 0, 8))
    return mask


def _threshold(magnitudes: Floats) -> Floats:
    threshold: Floats = np.minimum(256, np.trunc(magnitudes / FULL * 256))
    return threshold


_NONE = numbers()
_LESS_GREY = numbers((0, 0, 1), (1, 0, -1))
_SHARPER = CENTRE - SMOOTH
_CUT_OFF = numbers((0, 1, BLUR_RADIUS))


def _warp(name: str, arguments: Arguments, *slopes: Floats, constant: Floats = UNMOVED) -> Operation:
    return Operation(name, Group.WARP, arguments, constant, slopes, signed=True)


def _translations(share: float) -> tuple[Operation, ...]:
    """Return translations by up to a share of the side."""
    return tuple(
        _warp(f"Translate{axis}Rel", lambda m, _: m / FULL, numbers((row, 3 + row, share)))
        for row, axis in enumerate("XY")
    )


def _blends(name: str, group: Group, constant: Floats, slope: Floats) -> tuple[Operation, Operation]:
    """Return a blend from almost none of the picture to 0.9 more than all of it, and one away from it either way."""
    increasing = f"{name}Increasing"
    return (
        Operation(name, group, lambda m, _: m / FULL * 1.8 + 0.1, constant, (slope,)),
        Operation(increasing, group, lambda m, _: np.maximum(0.1, 1 + m / FULL * 0.9), constant, (slope,), signed=True),
    )


def _of_levels(name: str, group: Group, arguments: Arguments, constant: Floats = _NONE) -> Operation:
    return Operation(name, group, arguments, constant, (SCALAR,))


_ALL = (
    Operation("Identity", Group.IDENTITY),
    Operation("AutoContrast", Group.AUTO_CONTRAST),
    Operation("Equalize", Group.EQUALIZE),
    Operation("Invert", Group.SOLARIZE, constant=SCALAR),
    _warp("Rotate", _turn, *TURNS, constant=CENTRED),
    _of_levels("Posterize", Group.POSTERIZE, lambda m, _: _cleared(np.trunc(m / FULL * 4))),
    _of_levels("PosterizeIncreasing", Group.POSTERIZE, lambda m, _: _cleared(4 - np.trunc(m / FULL * 4))),
    _of_levels("PosterizeOriginal", Group.POSTERIZE, lambda m, _: _cleared(4 + np.trunc(m / FULL * 4))),
    # The highest level that stays as it is, negated; see `operations`.
    _of_levels("Solarize", Group.SOLARIZE, lambda m, _: 1 - _threshold(m)),
    _of_levels("SolarizeIncreasing", Group.SOLARIZE, lambda m, _: 1 - (256 - _threshold(m))),
    _of_levels(
        "SolarizeAdd",
        Group.SOLARIZE_ADD,
        lambda m, _: np.minimum(128, np.trunc(m / FULL * 110)),
        numbers((0, 1, 128)),
    ),
    *_blends("Color", Group.COLOR, GREY, _LESS_GREY),
    *_blends("Contrast", Group.CONTRAST, _NONE, SCALAR),
    *_blends("Brightness", Group.BRIGHTNESS, _NONE, SCALAR),
    *_blends("Sharpness", Group.SHARPNESS, SMOOTH, _SHARPER),
    *(_warp(f"Shear{axis}", lambda m, _: m / FULL * 0.3, slope) for axis, slope in SHEARS.items()),
    *_translations(0.45),
    Operation("Desaturate", Group.COLOR, lambda m, _: np.clip(0.5 - m / FULL * 0.5, 0, 0.5), GREY, (_LESS_GREY,)),
    _of_levels("GaussianBlur", Group.BLUR, lambda m, _: np.clip(0.1 + m / FULL * 1.9, 0.1, 2), _CUT_OFF),
    _of_levels("GaussianBlurRand", Group.BLUR, lambda m, u: 0.1 + (2 * np.clip(m / FULL, 0, 1) - 0.1) * u, _CUT_OFF),
)

OPERATIONS: Mapping[str, Operation] = {operation.name: operation for operation in _ALL}
"""All of them, by timm's names; translations are those of the policies and of RandAugment."""


def operations_of(names: Sequence[str]) -> tuple[Operation, ...]:
    """Return operations by their names, after the one that does nothing."""
    return tuple(OPERATIONS[name] for name in ("Identity", *names))


_PLAIN = ("AutoContrast", "Equalize", "Invert")
_WARPS = ("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
_BLENDS = ("Color", "Contrast", "Brightness", "Sharpness")
_LEVELS = ("Posterize", "Solarize")
_GROWING = tuple(f"{name}Increasing" for name in (*_BLENDS, *_LEVELS))


def _weights_0(suffix: str) -> dict[str, float]:
    """Weights of timm 0.9's "w0", of operations whose effect grows with the magnitude or not."""
    rare = dict.fromkeys((f"Solarize{suffix}", "SolarizeAdd", f"Contrast{suffix}", f"Brightness{suffix}"), 0.005)
    often = {f"Color{suffix}": 0.025, f"Sharpness{suffix}": 0.025, "AutoContrast": 0.025, "Equalize": 0.005}
    return {"Rotate": 0.3, "ShearX": 0.2, "ShearY": 0.2, "TranslateXRel": 0.1, "TranslateYRel": 0.1} | often | rare


SETS: Mapping[str, Mapping[str, float]] = {
    "decreasing": dict.fromkeys([*_PLAIN, *_WARPS, *_BLENDS, *_LEVELS, "SolarizeAdd"], 1),
    "increasing": dict.fromkeys([*_PLAIN, *_WARPS, *_GROWING, "SolarizeAdd"], 1),
    "3a": dict.fromkeys(["SolarizeIncreasing", "Desaturate", "GaussianBlur"], 1),
    "weights": {
        "Rotate": 3,
        **dict.fromkeys(["ShearX", "ShearY"], 2),
        **dict.fromkeys(["TranslateXRel", "TranslateYRel"], 1),
        **dict.fromkeys(["ColorIncreasing", "SharpnessIncreasing", "AutoContrast"], 0.25),
        **dict.fromkeys(["SolarizeIncreasing", "SolarizeAdd", "ContrastIncreasing", "BrightnessIncreasing"], 0.05),
        **dict.fromkeys(["Equalize", "PosterizeIncreasing", "Invert"], 0.05),
    },
    "3aw": {
        **dict.fromkeys([*_PLAIN, *_GROWING], 1),
        **dict.fromkeys(["SolarizeIncreasing", "Desaturate", "GaussianBlur"], 6),
        "Rotate": 3,
        **dict.fromkeys(["ShearX", "ShearY"], 2),
    },
    "w0": _weights_0(""),
    "w0_increasing": _weights_0("Increasing"),
}
"""RandAugment's operations, and how likely each is beside the others."""

UNEQUAL = ("weights", "3aw", "w0", "w0_increasing")
"""Sets of which an image gets no operation twice."""

AUG_MIX = (
    *operations_of(["AutoContrast", "Equalize", "Rotate", "ShearX", "ShearY", *_GROWING]),
    *_translations(0.3),
)
"""AugMix's operations, after the one that does nothing; translations go less far than RandAugment's."""


def _posterized(policy: Sequence[SubPolicy], name: str) -> tuple[SubPolicy, ...]:
    """Return a policy with another way to posterize."""
    names = {"Posterize": name}
    return tuple((names.get(row[0], row[0]), *row[1:3], names.get(row[3], row[3]), *row[4:]) for row in policy)


_V0: tuple[SubPolicy, ...] = (
    ("Equalize", 0.8, 1, "ShearY", 0.8, 4),
    ("Color", 0.4, 9, "Equalize", 0.6, 3),
    ("Color", 0.4, 1, "Rotate", 0.6, 8),
    ("Solarize", 0.8, 3, "Equalize", 0.4, 7),
    ("Solarize", 0.4, 2, "Solarize", 0.6, 2),
    ("Color", 0.2, 0, "Equalize", 0.8, 8),
    ("Equalize", 0.4, 8, "SolarizeAdd", 0.8, 3),
    ("ShearX", 0.2, 9, "Rotate", 0.6, 8),
    ("Color", 0.6, 1, "Equalize", 1.0, 2),
    ("Invert", 0.4, 9, "Rotate", 0.6, 0),
    ("Equalize", 1.0, 9, "ShearY", 0.6, 3),
    ("Color", 0.4, 7, "Equalize", 0.6, 0),
    ("Posterize", 0.4, 6, "AutoContrast", 0.4, 7),
    ("Solarize", 0.6, 8, "Color", 0.6, 9),
    ("Solarize", 0.2, 4, "Rotate", 0.8, 9),
    ("Rotate", 1.0, 7, "TranslateYRel", 0.8, 9),
    ("ShearX", 0.0, 0, "Solarize", 0.8, 4),
    ("ShearY", 0.8, 0, "Color", 0.6, 4),
    ("Color", 1.0, 0, "Rotate", 0.6, 2),
    ("Equalize", 0.8, 4, "Equalize", 0.0, 8),
    ("Equalize", 1.0, 4, "AutoContrast", 0.6, 2),
    ("ShearY", 0.4, 7, "SolarizeAdd", 0.6, 7),
    ("Posterize", 0.8, 2, "Solarize", 0.6, 10),
    ("Solarize", 0.6, 8, "Equalize", 0.6, 1),
    ("Color", 0.8, 6, "Rotate", 0.4, 5),
)

TIMM_POLICIES: Mapping[str, tuple[SubPolicy, ...]] = {
    "original": _posterized(POLICIES["imagenet"], "PosterizeOriginal"),
    "originalr": _posterized(POLICIES["imagenet"], "PosterizeIncreasing"),
    "v0": _V0,
    "v0r": _posterized(_V0, "PosterizeIncreasing"),
    "3a": (
        ("Solarize", 1.0, 5, "Identity", 0.0, 0),
        ("Desaturate", 1.0, 10, "Identity", 0.0, 0),
        ("GaussianBlurRand", 1.0, 10, "Identity", 0.0, 0),
    ),
}
"""Sub-policies of operations, probabilities and magnitudes, as timm has them: AutoAugment's for ImageNet with two ways
to posterize; "v0", which EfficientNet was trained with; and DeiT III's 3-Augment (Touvron et al., 2022)."""
