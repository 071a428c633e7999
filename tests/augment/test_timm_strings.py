"""Are timm's strings distributed as timm's, and do wrong ones say what is right?"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from nvidia.dali.auto_aug.auto_augment import get_image_net_policy
from scipy.stats import chi2_contingency, kstest, norm

from dalirefurb import Output, Recipe
from dalirefurb.augment.policies.aug_mix import AugMix
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.policies.timm_layers import TimmRandAugmentLayer, TimmWeightedLayers
from dalirefurb.augment.policies.timm_operations import SETS, TIMM_POLICIES, MagnitudeNoise
from dalirefurb.augment.policies.timm_strings import timm_auto_augment
from dalirefurb.augment.stage import Stage, draw
from dalirefurb.errors import ConfigurationError
from dalirefurb.rng import uniforms
from tests.in_turn import EACH_CHANGE

COUNT = 5_000 if EACH_CHANGE else 20_000
"""Each change is tested with fewer, which tell a share from one that differs by 2.5 points rather than 1.5."""

SIZE = 100
UNLIKELY = 1e-3

Argument = tuple[str, float]
"""What is done to an image, and how much."""

Matrix = tuple[tuple[float, float, float], ...]
"""Three rows, in Python's own numbers: hundreds of thousands are looked at one by one."""

EYE: Matrix = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))

Done = tuple[Argument, ...]
"""What is done to an image, operation by operation."""


def _either(rng: random.Random, value: float) -> float:
    return -value if rng.random() > 0.5 else value


def _blend(name: str) -> Callable[[random.Random, float], Argument]:
    return lambda rng, share: (name, 0.1 + 1.8 * share)


def _blend_increasing(name: str) -> Callable[[random.Random, float], Argument]:
    return lambda rng, share: (name, max(0.1, 1 + _either(rng, 0.9 * share)))


WARPS = ("rotate", "shear x", "shear y", "right", "down")
BLENDS = ("Color", "Contrast", "Brightness", "Sharpness")

# What a magnitude, as a share of the range, means for each of timm's operations: written from its documentation.
MEANINGS: Mapping[str, Callable[[random.Random, float], Argument]] = {
    "AutoContrast": lambda rng, share: ("auto contrast", 0),
    "Equalize": lambda rng, share: ("equalize", 0),
    "Invert": lambda rng, share: ("solarize", 0),
    "Rotate": lambda rng, share: ("rotate", _either(rng, 30 * share)),
    "Posterize": lambda rng, share: ("bits", int(4 * share)),
    "PosterizeIncreasing": lambda rng, share: ("bits", max(4 - int(4 * share), 0)),
    "PosterizeOriginal": lambda rng, share: ("bits", min(4 + int(4 * share), 8)),
    "Solarize": lambda rng, share: ("solarize", min(int(256 * share), 256)),
    "SolarizeIncreasing": lambda rng, share: ("solarize", 256 - min(int(256 * share), 256)),
    "SolarizeAdd": lambda rng, share: ("add", min(int(110 * share), 128)),
    **{name: _blend(name) for name in BLENDS},
    **{f"{name}Increasing": _blend_increasing(name) for name in BLENDS},
    "ShearX": lambda rng, share: ("shear x", _either(rng, 0.3 * share)),
    "ShearY": lambda rng, share: ("shear y", _either(rng, 0.3 * share)),
    "TranslateXRel": lambda rng, share: ("right", _either(rng, 0.45 * share) * SIZE),
    "TranslateYRel": lambda rng, share: ("down", _either(rng, 0.45 * share) * SIZE),
    "Desaturate": lambda rng, share: ("Color", 1 - (0.5 + 0.5 * share)),
    "GaussianBlur": lambda rng, share: ("blur", 0.1 + 1.9 * share),
    "GaussianBlurRand": lambda rng, share: ("blur", rng.uniform(0.1, 2 * share)),
    "Identity": lambda rng, share: ("nothing", 0),
}

PLAIN = ["AutoContrast", "Equalize", "Invert", "Rotate", "SolarizeAdd", "ShearX", "ShearY"]
PLAIN += ["TranslateXRel", "TranslateYRel"]
VARIED = ["Posterize", "Solarize", *BLENDS]
INCREASING = [*PLAIN, *(f"{name}Increasing" for name in VARIED)]
WEIGHTS = {"Rotate": 3, "ShearX": 2, "ShearY": 2, "TranslateXRel": 1, "TranslateYRel": 1, "AutoContrast": 0.25}
WEIGHTS |= dict.fromkeys(["ColorIncreasing", "SharpnessIncreasing"], 0.25)
WEIGHTS |= {name: 0.05 for name in INCREASING if name not in WEIGHTS}


class Published:
    """timm's procedure: random operations, each left out at random, with a magnitude that may be random.

    Args:
        magnitude: The magnitude that is said.
        std: Its standard deviation.
        uniform: Whether it is uniform instead.
        most: The greatest magnitude.
    """

    def __init__(self, magnitude: float = 10, std: float = 0, most: float = 10, *, uniform: bool = False) -> None:
        self.magnitude, self.std, self.most, self.uniform = magnitude, std, most, uniform
        self.rng = random.Random(1)

    def operate(self, name: str, probability: float, magnitude: float | None = None) -> Argument:
        """Do one operation."""
        if self.rng.random() > probability:
            return "nothing", 0
        magnitude = self.magnitude if magnitude is None else magnitude
        if self.uniform:
            magnitude = self.rng.uniform(0, magnitude)
        elif self.std:
            magnitude = self.rng.gauss(magnitude, self.std)
        done = MEANINGS[name](self.rng, min(max(magnitude, 0), self.most) / 10)
        return ("unmoved", 0) if done[0] in WARPS and done[1] == 0 else done

    def rand(self, names: Sequence[str], layers: int = 2, probability: float = 0.5) -> Done:
        """RandAugment."""
        return tuple(self.operate(self.rng.choice(names), probability) for _ in range(layers))

    def weighted(self, weights: Mapping[str, float], layers: int = 2) -> Done:
        """RandAugment by weights: operations that were taken are not taken again."""
        left, done = dict(weights), []
        for _ in range(layers):
            (name,) = self.rng.choices(list(left), list(left.values()))
            del left[name]
            done.append(self.operate(name, 0.5))
        return tuple(done)

    def policy(self, name: str) -> Done:
        """One of the policies' sub-policies."""
        row = self.rng.choice(TIMM_POLICIES[name])
        return tuple(self.operate(*half) for half in (row[:3], row[3:]))


def _argument(group: Group, matrix: Matrix) -> Argument:
    """What the graph gets, as `MEANINGS` says it."""
    (first, second, third), (fourth, _, sixth), _ = matrix
    match group:
        case Group.IDENTITY:
            return "nothing", 0
        case Group.POSTERIZE:
            return "bits", int(first).bit_count()
        case Group.SOLARIZE:
            return "solarize", 1 - first
        case Group.SOLARIZE_ADD:
            assert second == 128
            return "add", first
        case Group.BRIGHTNESS:
            return "Brightness", first
        case Group.CONTRAST:
            return "Contrast", first
        case Group.COLOR:
            assert abs(fourth - (1 - first)) <= 1e-6
            return "Color", first
        case Group.SHARPNESS:
            return "Sharpness", 1 - 13 * first
        case Group.BLUR:
            return "blur", first
        case Group.EQUALIZE:
            return "equalize", 0
        case Group.AUTO_CONTRAST:
            return "auto contrast", 0
    if matrix == EYE:
        return "unmoved", 0
    if second * fourth < 0:
        return "rotate", math.degrees(math.asin(fourth))
    if second or fourth:
        return ("shear x", second) if second else ("shear y", fourth)
    return ("down", sixth) if sixth else ("right", third)


def _drawn(
    stages: Sequence[Stage], versions: int = 0, servings: int = 0, split: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Draw for COUNT samples, the stages before the split as partial ones: groups and matrices, in order."""
    indices, sides = np.arange(COUNT), np.full(COUNT, SIZE)
    numbers = {"partial": np.full(COUNT, versions), "final": np.full(COUNT, servings)}
    arrays: dict[str, Any] = {}
    for part, some in (("partial", tuple(stages[:split])), ("final", tuple(stages[split:]))):
        given = {"indices": indices, "numbers": numbers[part], "versions": numbers["partial"]}
        arrays |= draw(some, seed=3, heights=sides, widths=sides, **given)[0]
    groups = np.concatenate([each["group"].reshape(COUNT, -1) for each in arrays.values()], axis=1)
    matrices = np.concatenate([each["matrix"].reshape(COUNT, -1, 3, 3) for each in arrays.values()], axis=1)
    return groups, matrices


def _done(stages: Sequence[Stage], servings: int = 0, split: int = 0) -> list[Done]:
    """What is done to COUNT samples."""
    groups, matrices = _drawn(stages, servings=servings, split=split)
    named = [[Group(each) for each in row] for row in groups.tolist()]
    frozen = [[tuple(map(tuple, each)) for each in row] for row in matrices.tolist()]
    return [tuple(map(_argument, *each)) for each in zip(named, frozen, strict=True)]


def _agree(ours: Sequence[Done], theirs: Sequence[Done]) -> None:
    """Compare what was done: each operation by itself, and all together, in ranges of how much."""
    for bins in (1, 8):
        for place in range(len(ours[0])):
            _agree_about(*([done[place : place + 1] for done in each] for each in (ours, theirs)), bins=bins)
    for bins in (1, 3):
        _agree_about(ours, theirs, bins=bins)


def _agree_about(ours: Sequence[Done], theirs: Sequence[Done], *, bins: int) -> None:
    """Compare how often what was done, with how much of it in which of a few ranges; rare cells are put together."""
    edges: dict[str, list[float]] = {}
    for name, each in itertools.groupby(sorted(itertools.chain(*theirs)), lambda argument: argument[0]):
        values = np.array([value for _, value in each])
        edges[name] = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]).round(4)).tolist()

    def cell(done: Done) -> tuple[tuple[str, int], ...]:
        return tuple((name, bisect_left(edges.get(name, ()), round(value, 4))) for name, value in done)

    counts = [Counter(map(cell, each)) for each in (ours, theirs)]
    cells = set(counts[0]) | set(counts[1])
    common = [each for each in cells if sum(count[each] for count in counts) >= 20]
    table = [[count[each] for each in common] for count in counts]
    for row, count in zip(table, counts, strict=True):
        row.append(10 + sum(count[each] for each in cells) - sum(row))
    assert chi2_contingency(table).pvalue > UNLIKELY


DECREASING = [*PLAIN, *VARIED]
STRINGS: Mapping[str, tuple[Published, Callable[[Published], Done]]] = {
    "rand-m9-mstd0.5-inc1": (Published(9, 0.5), lambda p: p.rand(INCREASING)),
    "rand-m9-mstd0.5": (Published(9, 0.5), lambda p: p.rand(DECREASING)),
    "rand": (Published(), lambda p: p.rand(DECREASING)),
    "rand-m6-n1-p0.9-mstd101-inc1": (Published(6, uniform=True), lambda p: p.rand(INCREASING, 1, 0.9)),
    "rand-m14-n1-mstd4-mmax15": (Published(14, 4, 15), lambda p: p.rand(DECREASING, 1)),
    "rand-m15-n1": (Published(15), lambda p: p.rand(DECREASING, 1)),
    "rand-mstd1-tweights": (Published(10, 1), lambda p: p.weighted(WEIGHTS)),
    "rand-mstd1-tweights-n3": (Published(10, 1), lambda p: p.weighted(WEIGHTS, 3)),
    "rand-m5-tweights-n1": (Published(5), lambda p: p.weighted(WEIGHTS, 1)),
    "rand-m4-t3a": (Published(4), lambda p: p.rand(["SolarizeIncreasing", "Desaturate", "GaussianBlur"])),
    "original": (Published(), lambda p: p.policy("original")),
    "originalr-mstd0.5": (Published(std=0.5), lambda p: p.policy("originalr")),
    "auto-v0": (Published(), lambda p: p.policy("v0")),
    "v0r-mstd1": (Published(std=1), lambda p: p.policy("v0r")),
    "3a": (Published(), lambda p: p.policy("3a")[:1]),
}


ALIKE = {"rand-m9-mstd0.5", "rand", "rand-m15-n1", "rand-mstd1-tweights", "rand-m5-tweights-n1", "original"}
"""Those whose every number and every letter is in others, with more: only weekly."""

strings = pytest.mark.parametrize(
    "config", [pytest.param(each, marks=pytest.mark.weekly if each in ALIKE else []) for each in STRINGS]
)


@cache
def _published(config: str) -> Sequence[Done]:
    """What timm's procedure does to COUNT samples."""
    published, serve = STRINGS[config]
    return [serve(published) for _ in range(COUNT)]


@strings
def test_what_is_drawn_is_distributed_as_timms_procedure(config: str) -> None:
    _agree(_done(timm_auto_augment(config)), _published(config))


def test_weights_that_no_string_above_has_are_timms() -> None:
    names = ("Color", "Sharpness", "AutoContrast", "Solarize", "SolarizeAdd", "Contrast", "Brightness", "Equalize")
    rare = dict(zip(names, (*[0.025] * 3, *[0.005] * 5), strict=True))
    warps = {"Rotate": 0.3, "ShearX": 0.2, "ShearY": 0.2, "TranslateXRel": 0.1, "TranslateYRel": 0.1}
    growing = {f"{name}Increasing" if f"{name}Increasing" in INCREASING else name: rare[name] for name in rare}
    assert (SETS["w0"], SETS["w0_increasing"]) == (warps | rare, warps | growing)
    often = {"SolarizeIncreasing": 6, "Desaturate": 6, "GaussianBlur": 6, "Rotate": 3, "ShearX": 2, "ShearY": 2}
    once = ("Posterize", "Color", "Sharpness", "Contrast", "Brightness")
    plain = dict.fromkeys([*(f"{name}Increasing" for name in once), "AutoContrast", "Equalize", "Invert"], 1)
    assert SETS["3aw"] == often | plain


def test_policies_are_the_published_ones() -> None:
    """DALI ships "v0" as its policy for ImageNet, without what has probability 0 and magnitudes that do not matter."""
    plain = ("AutoContrast", "Equalize", "Invert")
    halves = [[row[:3], row[3:]] for row in TIMM_POLICIES["v0"]]
    ours = [[(name, p, None if name in plain else m) for name, p, m in row if p] for row in halves]
    named = {"TranslateX": "TranslateXRel", "TranslateY": "TranslateYRel"}
    theirs = [
        [("".join(part.title() for part in each.name.split("_")), p, m) for each, p, m in row]
        for row in get_image_net_policy().sub_policies
    ]
    assert ours == [[(named.get(name, name), p, m) for name, p, m in row] for row in theirs]
    once = [("Solarize", 1.0, 5), ("Desaturate", 1.0, 10), ("GaussianBlurRand", 1.0, 10)]
    assert [*TIMM_POLICIES["3a"]] == [(*each, "Identity", 0.0, 0) for each in once]


def test_magnitudes_are_uniform_above_a_deviation_of_100() -> None:
    for deviation, noise in ((100, MagnitudeNoise(100.0)), (101, MagnitudeNoise(uniform=True))):
        (layer,) = timm_auto_augment(f"rand-n1-mstd{deviation}")
        assert isinstance(layer, TimmRandAugmentLayer)
        assert layer.noise == noise


@pytest.mark.parametrize(
    "config",
    [
        "originalr-mstd0.5",
        pytest.param("rand-mstd1-tweights", marks=pytest.mark.weekly),
        pytest.param("auto-v0", marks=pytest.mark.weekly),
    ],
)
def test_a_split_between_two_operations_keeps_the_distribution(config: str) -> None:
    """Partial images of one version, in two servings: first operations are the same, pairs are as published."""
    stages = timm_auto_augment(config)
    before, after = (_done(stages, serving, split=1) for serving in (5, 6))
    assert [first for first, _ in before] == [first for first, _ in after]
    assert 0.2 < np.mean([one[1] == other[1] for one, other in zip(before, after, strict=True)]) < 0.8
    _agree(after, _published(config))


def test_magnitudes_are_normal_and_cut() -> None:
    numbers = uniforms(0, "test", np.arange(COUNT), np.zeros(COUNT, np.int64), 2)
    drawn = MagnitudeNoise(std=0.5, most=100).draw(np.full(COUNT, 9.0), numbers)
    assert kstest(drawn, norm(9, 0.5).cdf).pvalue > UNLIKELY
    cut = MagnitudeNoise(std=0.5).draw(np.full(COUNT, 9.0), numbers)
    assert np.array_equal(cut, np.minimum(drawn, 10))
    assert kstest(MagnitudeNoise(uniform=True).draw(np.full(COUNT, 9.0), numbers) / 9, "uniform").pvalue > UNLIKELY


def _different(
    one: tuple[NDArray[np.int32], NDArray[np.float32]], other: tuple[NDArray[np.int32], NDArray[np.float32]]
) -> NDArray[np.bool_]:
    """Tell which samples were drawn something else, (n,)."""
    groups, matrices = (before != after for before, after in zip(one, other, strict=True))
    different: NDArray[np.bool_] = groups.any(axis=1) | matrices.any(axis=(1, 2, 3))
    return different


@pytest.mark.parametrize(
    ("config", "split"),
    [
        # Each at one of the two places, those of one stage before it.
        pytest.param(config, split, marks=[] if split == min(place % 2, stages - 1) else pytest.mark.weekly)
        for place, config in enumerate([*STRINGS, "rand-w0-inc1"])
        for stages in [len(timm_auto_augment(config))]
        for split in (0, 1)
    ],
)
def test_the_diversity_is_the_one_that_is_drawn(config: str, split: int) -> None:
    """Outcomes that are countless are drawn apart; those that look alike count as two, so a magnitude of 0 is out."""
    stages = timm_auto_augment(config)
    if split == len(stages):
        return
    servings = [_drawn(stages, servings=serving, split=split) for serving in (7, 8)]
    standard = [_drawn(stages, versions=version, servings=version, split=split) for version in (1, 2)]
    shares = [1 + _different(*each).mean() for each in (servings, standard)]
    # Three operations of which no two are the same are not counted, but for doing nothing.
    error = 0.01 if "-n3" not in config else 0.02
    assert Recipe(stages, Output(SIZE), split).diversity(2) == pytest.approx(shares[0] / shares[1], abs=error)


@pytest.mark.parametrize("config", STRINGS)
def test_outcomes_are_probabilities(config: str) -> None:
    for stage in timm_auto_augment(config):
        if isinstance(stage, TimmWeightedLayers):
            assert stage.outcomes.tolist() == [0.125]
            continue
        assert stage.outcomes.sum() == pytest.approx(1)
        assert stage.joint_outcomes.sum() == pytest.approx(1)
        assert stage.joint_outcomes.sum(axis=0) == pytest.approx(stage.outcomes)


def test_augmix_has_timms_defaults_and_keys() -> None:
    uniform = MagnitudeNoise(uniform=True)
    fill = {"fill": (124, 116, 104)}
    assert timm_auto_augment("augmix") == [AugMix(**fill, noise=uniform)]
    (given,) = timm_auto_augment("augmix-m5-w4-d2-a0.5-b1-mstd0.5", interpolation="nearest", fill=9)
    assert given == AugMix("aug_mix", "nearest", 9, 5, 4, 2, 0.5, MagnitudeNoise(0.5))
    assert timm_auto_augment("augmix-d0") == timm_auto_augment("augmix")


NAMES = {
    "rand-n3": ["rand_augment_1", "rand_augment_2", "rand_augment_3"],
    "rand-tweights": ["rand_augment_1", "rand_augment_2"],
    "rand-tweights-n1": ["rand_augment_1"],
    "rand-t3aw-n3": ["rand_augment"],
    "original": ["auto_augment_1", "auto_augment_2"],
    "3a": ["three_augment"],
    "augmix": ["aug_mix"],
}


@pytest.mark.parametrize("config", NAMES)
def test_every_stage_has_its_name_and_warps_and_fills_as_is_said(config: str) -> None:
    stages: list[Any] = timm_auto_augment(config, interpolation="nearest", fill=9)
    assert [stage.name for stage in stages] == NAMES[config]
    assert [(stage.interpolation, stage.fill) for stage in stages] == [("nearest", 9)] * len(stages)
    usual: list[Any] = timm_auto_augment(config)
    assert [(stage.interpolation, stage.fill) for stage in usual] == [("bilinear", (124, 116, 104))] * len(stages)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            "rand-x3",
            r"there is no 'x3' in 'rand-x3': after 'rand' come m \(magnitude\); n \(operations for each image\)",
        ),
        ("rand-", "there is no '' in 'rand-': after 'rand' come m"),
        ("rand-m", "'m' of 'rand-m' must be a whole number of at least 0, got '': write such as 'm9'"),
        ("rand-m9.5", "'m' of 'rand-m9.5' must be a whole number of at least 0, got '9.5'"),
        ("rand-n0", "'n' of 'rand-n0' must be a whole number of at least 1, got '0': write such as 'n2'"),
        ("rand-p2", r"'p' of 'rand-p2' must be in 0\.\.1, got '2': write such as 'p0.5'"),
        ("rand-inc", "'inc' of 'rand-inc' must be 0 or 1, got '': write such as 'inc1'"),
        ("rand-m9-m8", "'m' must occur once in 'rand-m9-m8': leave one out"),
        ("rand-tall", "'t' of 'rand-tall' must be weights, 3a or 3aw, got 'all': write such as 'tweights'"),
        ("rand-w0-t3a", "config must be one with a set or with weights, got 'rand-w0-t3a': leave 't' or 'w' out"),
        ("rand-w1", "'w' of 'rand-w1' must be 0, got '1': write such as 'w0'"),
        (
            "rand-tweights-n16",
            "'n' of 'rand-tweights-n16' must be at most 15 with these weights.*, got 16: leave 'n' out",
        ),
        ("augmix-w0", "'w' of 'augmix-w0' must be a whole number of at least 1, got '0': write such as 'w3'"),
        ("augmix-a0", "'a' of 'augmix-a0' must be a number above 0, got '0': write such as 'a1'"),
        ("augmix-b2", "'b' of 'augmix-b2' must be 0 or 1, got '2'"),
        ("augmix-d", "'d' of 'augmix-d' must be a whole number of at least 0, got '': write such as 'd2'"),
        ("rand-mmax0", "'mmax' of 'rand-mmax0' must be a whole number of at least 1, got '0': write such as 'mmax10'"),
        ("rand-mstd1e999", "'mstd' of 'rand-mstd1e999' must be a number of at least 0, got '1e999': write such as 'm"),
        ("v0-t3a", r"there is no 't3a' in 'v0-t3a': after 'v0' come mstd"),
        ("augmix-n2", r"there is no 'n2' in 'augmix-n2': after 'augmix' come m \(severity\); w \(chains\)"),
        ("auto", "config must be one that begins with rand, .* got 'auto': choose one"),
        ("auto-rand-m9", "config must be one that begins with rand, .* got 'auto-rand-m9': choose one"),
        ("v0-m9", r"there is no 'm9' in 'v0-m9': after 'v0' come mstd \(standard deviation of magnitudes\)"),
        (
            "imagenet",
            "config must be one that begins with rand, augmix, original, originalr, v0, v0r, 3a, got 'imagenet'",
        ),
        (None, 'config must be a string, got None: pass such as "rand-m9-mstd0.5-inc1"'),
    ],
)
def test_a_string_that_is_wrong_is_answered_with_what_is_right(config: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        timm_auto_augment(config)
