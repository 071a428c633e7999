"""timm's operations: what its magnitudes mean, in tenths of the range of an operation, which need not be whole.

Names, ranges and sets are those of timm 1.0 (`timm/data/auto_augment.py`), and of 0.9 for the weights "w0". A magnitude
above 10 goes beyond the range, where that means something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dalirefurb.augment.policies.leveled import Floats, LeveledOperation, numbers
from dalirefurb.augment.policies.operations import BLUR_RADIUS, Group

FULL = 10.0
"""Magnitude at the end of an operation's range."""

_UNMOVED = numbers((0, 0, 1), (1, 1, 1), (2, 2, 1))


def _slope(magnitudes: Floats, uniforms: Floats) -> Floats:
    return magnitudes / FULL * 0.3


def _turn(magnitudes: Floats, uniforms: Floats) -> tuple[Floats, Floats]:
    """Cosine and sine of an angle up to 30 degrees."""
    radians = np.radians(magnitudes / FULL * 30)
    return np.cos(radians), np.sin(radians)


def _share(magnitudes: Floats, uniforms: Floats) -> Floats:
    return magnitudes / FULL


def _factor(magnitudes: Floats, uniforms: Floats) -> Floats:
    """From almost none of the picture to 0.9 more than all of it."""
    return magnitudes / FULL * 1.8 + 0.1


def _farther(magnitudes: Floats, uniforms: Floats) -> Floats:
    """Away from the picture in either direction."""
    factors: Floats = np.maximum(0.1, 1 + magnitudes / FULL * 0.9)
    return factors


def _fainter(magnitudes: Floats, uniforms: Floats) -> Floats:
    """Share of the picture beside the grey one, from a half to none."""
    return np.clip(0.5 - magnitudes / FULL * 0.5, 0, 0.5)


def _cleared(bits: Floats) -> Floats:
    """Mask that keeps as many of the highest bits, of 8 at most."""
    mask: Floats = 256 - 2 ** (8 - np.clip(bits, 0, 8))
    return mask


def _keep_more(magnitudes: Floats, uniforms: Floats) -> Floats:
    return _cleared(np.trunc(magnitudes / FULL * 4))


def _keep_fewer(magnitudes: Floats, uniforms: Floats) -> Floats:
    return _cleared(4 - np.trunc(magnitudes / FULL * 4))


def _keep_half(magnitudes: Floats, uniforms: Floats) -> Floats:
    return _cleared(4 + np.trunc(magnitudes / FULL * 4))


def _threshold(magnitudes: Floats) -> Floats:
    threshold: Floats = np.minimum(256, np.trunc(magnitudes / FULL * 256))
    return threshold


def _unsolarized(magnitudes: Floats, uniforms: Floats) -> Floats:
    """The highest level that stays as it is, negated; see `operations`."""
    return 1 - _threshold(magnitudes)


def _solarized(magnitudes: Floats, uniforms: Floats) -> Floats:
    return 1 - (256 - _threshold(magnitudes))


def _addition(magnitudes: Floats, uniforms: Floats) -> Floats:
    added: Floats = np.minimum(128, np.trunc(magnitudes / FULL * 110))
    return added


def _sigma(magnitudes: Floats, uniforms: Floats) -> Floats:
    return np.clip(0.1 + magnitudes / FULL * 1.9, 0.1, 2)


def _sigma_below(magnitudes: Floats, uniforms: Floats) -> Floats:
    return 0.1 + (2 * np.clip(magnitudes / FULL, 0, 1) - 0.1) * uniforms


_FIRST = numbers((0, 0, 1))
_SMOOTH = numbers(*((row, column, (5 if row == column == 1 else 1) / 13) for row in range(3) for column in range(3)))
_SHARPER = numbers((1, 1, 1)) - _SMOOTH
_CUT_OFF = numbers((0, 1, BLUR_RADIUS))
_GREY, _LESS_GREY = numbers((1, 0, 1)), numbers((0, 0, 1), (1, 0, -1))
# The centre of the picture, half of its width and height, stays where it is.
_CENTRED = numbers((2, 2, 1), (0, 3, 0.5), (1, 4, 0.5))
_COSINE = numbers((0, 0, 1), (1, 1, 1), (0, 3, -0.5), (1, 4, -0.5))
_SINE = numbers((0, 1, -1), (1, 0, 1), (0, 4, 0.5), (1, 3, -0.5))


def _translations(share: float) -> tuple[LeveledOperation, LeveledOperation]:
    """Return translations by up to a share of the side."""
    across, down = numbers((0, 3, share)), numbers((1, 4, share))
    return (
        LeveledOperation("TranslateXRel", Group.WARP, _share, _UNMOVED, (across,), signed=True),
        LeveledOperation("TranslateYRel", Group.WARP, _share, _UNMOVED, (down,), signed=True),
    )


_ALL = (
    LeveledOperation("Identity", Group.IDENTITY),
    LeveledOperation("AutoContrast", Group.AUTO_CONTRAST),
    LeveledOperation("Equalize", Group.EQUALIZE),
    LeveledOperation("Invert", Group.SOLARIZE, constant=_FIRST),
    LeveledOperation("Rotate", Group.WARP, _turn, _CENTRED, (_COSINE, _SINE), signed=True),
    LeveledOperation("Posterize", Group.POSTERIZE, _keep_more, slopes=(_FIRST,)),
    LeveledOperation("PosterizeIncreasing", Group.POSTERIZE, _keep_fewer, slopes=(_FIRST,)),
    LeveledOperation("PosterizeOriginal", Group.POSTERIZE, _keep_half, slopes=(_FIRST,)),
    LeveledOperation("Solarize", Group.SOLARIZE, _unsolarized, slopes=(_FIRST,)),
    LeveledOperation("SolarizeIncreasing", Group.SOLARIZE, _solarized, slopes=(_FIRST,)),
    LeveledOperation("SolarizeAdd", Group.SOLARIZE_ADD, _addition, numbers((0, 1, 128)), (_FIRST,)),
    LeveledOperation("Color", Group.COLOR, _factor, _GREY, (_LESS_GREY,)),
    LeveledOperation("ColorIncreasing", Group.COLOR, _farther, _GREY, (_LESS_GREY,), signed=True),
    LeveledOperation("Contrast", Group.CONTRAST, _factor, slopes=(_FIRST,)),
    LeveledOperation("ContrastIncreasing", Group.CONTRAST, _farther, slopes=(_FIRST,), signed=True),
    LeveledOperation("Brightness", Group.BRIGHTNESS, _factor, slopes=(_FIRST,)),
    LeveledOperation("BrightnessIncreasing", Group.BRIGHTNESS, _farther, slopes=(_FIRST,), signed=True),
    LeveledOperation("Sharpness", Group.SHARPNESS, _factor, _SMOOTH, (_SHARPER,)),
    LeveledOperation("SharpnessIncreasing", Group.SHARPNESS, _farther, _SMOOTH, (_SHARPER,), signed=True),
    LeveledOperation("ShearX", Group.WARP, _slope, _UNMOVED, (numbers((0, 1, 1)),), signed=True),
    LeveledOperation("ShearY", Group.WARP, _slope, _UNMOVED, (numbers((1, 0, 1)),), signed=True),
    *_translations(0.45),
    LeveledOperation("Desaturate", Group.COLOR, _fainter, _GREY, (_LESS_GREY,)),
    LeveledOperation("GaussianBlur", Group.BLUR, _sigma, _CUT_OFF, (_FIRST,)),
    LeveledOperation("GaussianBlurRand", Group.BLUR, _sigma_below, _CUT_OFF, (_FIRST,)),
)

OPERATIONS: Mapping[str, LeveledOperation] = {operation.name: operation for operation in _ALL}
"""All of them, by timm's names; translations are those of the policies and of RandAugment."""


def operations_of(names: Sequence[str]) -> tuple[LeveledOperation, ...]:
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
