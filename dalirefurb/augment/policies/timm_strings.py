"""timm's strings for augmentation policies, such as "rand-m9-mstd0.5-inc1", as stages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dalirefurb.augment.policies.aug_mix import UNIFORM, AugMix
from dalirefurb.augment.policies.timm_layers import (
    TimmPolicyFirst,
    TimmPolicySecond,
    TimmRandAugmentLayer,
    TimmWeightedFirst,
    TimmWeightedLayers,
    TimmWeightedSecond,
)
from dalirefurb.augment.policies.timm_operations import SETS, TIMM_POLICIES, UNEQUAL, MagnitudeNoise
from dalirefurb.augment.stage import Fill, Interpolation, Stage
from dalirefurb.calls import explains
from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError

TIMM_FILL = (124, 116, 104)
"""Mean colour of ImageNet, where timm's warps show no source."""

_UNIFORM = 100
"""Standard deviation above which timm draws magnitudes uniformly."""

Value = int | float | str


class _Key(NamedTuple):
    """What may follow a key in a string.

    Attributes:
        meaning: What the value is.
        read: Function that makes the value of text, or raises `ValueError`.
        holds: Whether a value is allowed.
        wanted: Words for which values are.
        example: What may be written.
    """

    meaning: str
    read: Callable[[str], Value]
    holds: Callable[[Value], bool]
    wanted: str
    example: str


def _from(least: float) -> Callable[[Value], bool]:
    return lambda value: not isinstance(value, str) and least <= value < math.inf


_SWITCH = _Key("", int, lambda value: value in (0, 1), "0 or 1", "1")
_NOISE = _Key("standard deviation of magnitudes", float, _from(0), "a number of at least 0", "0.5")

_RAND: Mapping[str, _Key] = {
    "m": _Key("magnitude", int, _from(0), "a whole number of at least 0", "9"),
    "n": _Key("operations for each image", int, _from(1), "a whole number of at least 1", "2"),
    "p": _Key(
        "probability of each", float, lambda value: not isinstance(value, str) and 0 <= value <= 1, "in 0..1", "0.5"
    ),
    "mstd": _NOISE._replace(meaning="standard deviation of magnitudes, uniform ones above 100"),
    "mmax": _Key("greatest magnitude", int, _from(1), "a whole number of at least 1", "10"),
    "inc": _SWITCH._replace(meaning="1: effects grow with the magnitude"),
    "t": _Key(
        "set of operations", str, lambda value: value in ("weights", "3a", "3aw"), "weights, 3a or 3aw", "weights"
    ),
    "w": _Key("weights of timm 0.9", int, lambda value: value == 0, "0", "0"),
}
_POLICY: Mapping[str, _Key] = {"mstd": _NOISE}
_AUG_MIX: Mapping[str, _Key] = {
    "m": _Key("severity", int, _from(0), "a whole number of at least 0", "3"),
    "w": _Key("chains", int, _from(1), "a whole number of at least 1", "3"),
    "d": _Key("operations of each chain, 0: one to three", int, _from(0), "a whole number of at least 0", "2"),
    "a": _Key(
        "parameter of the weights' distributions", float, lambda v: _from(0)(v) and v != 0, "a number above 0", "1"
    ),
    "b": _SWITCH._replace(meaning="1: blend chain by chain, which here is the same"),
    "mstd": _NOISE,
}

_SECTION = re.compile(r"([a-z]*)(.*)")


@explains
def timm_auto_augment(config: str, *, interpolation: Interpolation = "bilinear", fill: Fill = TIMM_FILL) -> list[Stage]:
    """Return the stages that a string of timm's `--aa` stands for, distributed as timm's.

    "rand-m9-n2-mstd0.5-inc1" is RandAugment: two operations of magnitude 9, each applied half of the time. "original",
    "originalr", "v0" and "v0r" are AutoAugment's policies as timm has them, and "3a" is DeiT III's 3-Augment, without
    the colour jitter that timm lets follow. "augmix-m5-w4-d2" is `AugMix` of severity 5 with four chains of two
    operations each. docs/policies.md has the keys of each, and their defaults.

    Args:
        config: The string.
        interpolation: Interpolation of shears, translations and rotations, "nearest" or "bilinear". timm draws
            "bilinear" or "bicubic" for each operation, unless told otherwise.
        fill: Level 0 .. 255, or one for each of 3 channels, where a warp shows no source: the mean of the channels, as
            timm does.

    Raises:
        ConfigurationError: If timm has no such string.
    """
    require(isinstance(config, str), "config", "a string", config, 'pass such as "rand-m9-mstd0.5-inc1"')
    policy, *sections = config.split("-")
    if policy == "auto" and sections and sections[0] in TIMM_POLICIES:
        policy, *sections = sections
    keys = {"rand": _RAND, "augmix": _AUG_MIX, **dict.fromkeys(TIMM_POLICIES, _POLICY)}
    require(policy in keys, "config", f"one that begins with {', '.join(keys)}", config, "choose one")
    values = _values(config, sections, keys[policy])
    if policy == "rand":
        return _rand(config, values, interpolation, fill)
    if policy == "augmix":
        return [_aug_mix(values, interpolation, fill)]
    noise = MagnitudeNoise(float(values.get("mstd", 0)))
    if policy == "3a":
        return [TimmPolicyFirst("three_augment", interpolation, fill, noise, policy)]
    first = TimmPolicyFirst("auto_augment_1", interpolation, fill, noise, policy)
    return [first, TimmPolicySecond("auto_augment_2", interpolation, fill, noise, first.name, policy)]


def _values(config: str, sections: list[str], keys: Mapping[str, _Key]) -> dict[str, Value]:
    """Return what a string says of each key."""
    values: dict[str, Value] = {}
    for section in sections:
        match = _SECTION.fullmatch(section)
        letters, text = match.groups() if match else ("", section)
        if letters not in keys and section[:1] == "t":
            letters, text = "t", section[1:]
        if letters not in keys:
            known = "; ".join(f"{name} ({key.meaning})" for name, key in keys.items())
            raise ConfigurationError(
                f"there is no {section!r} in {config!r}: after {config.split('-')[0]!r} come {known}"
            )
        if letters in values:
            raise ConfigurationError(f"{letters!r} must occur once in {config!r}: leave one out")
        key = keys[letters]
        try:
            value = key.read(text)
        except ValueError:
            value = math.nan
        name = f"{letters!r} of {config!r}"
        require(key.holds(value), name, key.wanted, text, f"write such as {letters + key.example!r}")
        values[letters] = value
    return values


def _rand(config: str, values: Mapping[str, Value], interpolation: Interpolation, fill: Fill) -> list[Stage]:
    """Return the stages of timm's RandAugment."""
    std, layers = float(values.get("mstd", 0)), int(values.get("n", 2))
    uniform = std > _UNIFORM
    noise = MagnitudeNoise(0.0 if uniform else std, float(values.get("mmax", 10)), uniform)
    operations = str(values.get("t", "increasing" if values.get("inc") else "decreasing"))
    if "w" in values:
        require("t" not in values, "config", "one with a set or with weights", config, "leave 't' or 'w' out")
        operations = "w0_increasing" if values.get("inc") else "w0"
    magnitude, probability = float(values.get("m", 10)), float(values.get("p", 0.5))
    names = [f"rand_augment_{layer}" for layer in range(1, layers + 1)]
    if operations not in UNEQUAL or layers == 1:
        of_each = interpolation, fill, operations, magnitude, noise, probability
        return [TimmRandAugmentLayer(name, *of_each) for name in names]
    most = len(SETS[operations])
    wanted = f"at most {most} with these weights, where no operation is applied twice"
    require(layers <= most, f"'n' of {config!r}", wanted, layers, "leave 'n' out")
    if layers > 2:
        rest = operations, layers, magnitude, noise, probability
        return [TimmWeightedLayers("rand_augment", interpolation, fill, *rest)]
    of_both = operations, magnitude, probability
    first = TimmWeightedFirst(names[0], interpolation, fill, noise, *of_both)
    return [first, TimmWeightedSecond(names[1], interpolation, fill, noise, first.name, *of_both)]


def _aug_mix(values: Mapping[str, Value], interpolation: Interpolation, fill: Fill) -> AugMix:
    """Return timm's AugMix."""
    noise = MagnitudeNoise(float(values["mstd"])) if "mstd" in values else UNIFORM
    width, depth = int(values.get("w", 3)), int(values.get("d", 0)) or -1
    return AugMix(
        "aug_mix", interpolation, fill, float(values.get("m", 3)), width, depth, float(values.get("a", 1)), noise
    )
