"""Do timm's stages refuse what cannot work?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dalirefurb import Output, Recipe
from dalirefurb.augment import HorizontalFlip
from dalirefurb.augment.policies.timm_layers import (
    TimmPolicyFirst,
    TimmPolicySecond,
    TimmRandAugmentLayer,
    TimmWeightedFirst,
    TimmWeightedLayers,
    TimmWeightedSecond,
)
from dalirefurb.augment.policies.timm_operations import QUANTILES, SETS, MagnitudeNoise
from dalirefurb.augment.policies.timm_strings import timm_auto_augment
from dalirefurb.augment.stage import Stage
from dalirefurb.errors import ConfigurationError

LAYER, FIRST, WEIGHTED = TimmRandAugmentLayer, TimmPolicyFirst, TimmWeightedLayers


@pytest.mark.parametrize(
    ("stage", "arguments", "message"),
    [
        (
            LAYER,
            {"operations": "all"},
            "timm_rand_augment: operations must be one of decreasing, increasing, .* got 'all'",
        ),
        (
            LAYER,
            {"magnitude": -1},
            "timm_rand_augment: magnitude must be a number of at least 0, got -1: 10 is the end",
        ),
        (LAYER, {"probability": 2}, r"timm_rand_augment: probability must be a number in 0\.\.1, got 2: 0.5 is usual"),
        (LAYER, {"noise": 0.5}, "timm_rand_augment: noise must be a MagnitudeNoise, got 0.5: pass such as"),
        (LAYER, {"noise": MagnitudeNoise(-1)}, "timm_rand_augment: std must be a number of at least 0, got -1"),
        (LAYER, {"noise": MagnitudeNoise(most=0)}, "timm_rand_augment: most must be a number above 0, got 0"),
        (LAYER, {"noise": (math.inf, 10, False)}, "timm_rand_augment: std must be a number of at least 0, got inf"),
        (LAYER, {"noise": (0, math.inf, False)}, "timm_rand_augment: most must be a number above 0, got inf"),
        (LAYER, {"noise": (0, 10, 1)}, "timm_rand_augment: uniform must be True or False, got 1: False is usual"),
        (LAYER, {"noise": (0, 10)}, r"timm_rand_augment: noise must be a MagnitudeNoise, got \(0, 10\)"),
        (LAYER, {"magnitude": math.inf}, "timm_rand_augment: magnitude must be a number of at least 0, got inf"),
        (WEIGHTED, {"layers": 0}, r"timm_weighted: layers must be an int in 1\.\.15, got 0"),
        (LAYER, {"fill": 256}, r"fill must be a level in 0 \.\. 255"),
        (
            FIRST,
            {"policy": "imagenet"},
            "timm_policy_1: policy must be one of original, originalr, v0, .* got 'imagenet'",
        ),
        (TimmPolicySecond, {"policy": 3}, "timm_policy_2: policy must be one of .* got 3: choose one"),
        (
            WEIGHTED,
            {"layers": 16},
            r"timm_weighted: layers must be an int in 1\.\.15, got 16: 'weights' has 15 operations",
        ),
        (TimmWeightedFirst, {"operations": None}, "timm_weighted_1: operations must be one of .* got None"),
        (TimmWeightedSecond, {"probability": "half"}, "timm_weighted_2: probability must be a number .* got 'half'"),
    ],
)
def test_arguments_of_stages_that_cannot_work_are_refused_with_a_remedy(
    stage: Callable[..., Stage], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        stage(**arguments)


def test_a_second_stage_needs_its_first_before_it() -> None:
    first, second = timm_auto_augment("v0-mstd0.5")
    with pytest.raises(ConfigurationError, match=r"'auto_augment_2' must come after TimmPolicyFirst\(.*policy='v0'\)"):
        Recipe([second, first], Output(32), 0)
    with pytest.raises(
        ConfigurationError, match=r"there is TimmPolicyFirst.*put that stage before it, and give both the"
    ):
        Recipe([HorizontalFlip(), timm_auto_augment("v0")[0], second], Output(32), 0)


@pytest.mark.parametrize(
    "noise",
    [
        MagnitudeNoise(),
        MagnitudeNoise(3),
        MagnitudeNoise(3, 8.5),
        MagnitudeNoise(most=4),
        MagnitudeNoise(uniform=True),
        MagnitudeNoise(most=4, uniform=True),
    ],
)
def test_magnitudes_that_count_as_equally_likely_are_those_that_are_drawn(noise: MagnitudeNoise) -> None:
    drawn = noise.draw(np.full(200_000, 9.0), np.random.default_rng(0).random((200_000, 2)))
    assert drawn.max() <= noise.most
    assert noise.quantiles(9) == pytest.approx(np.quantile(drawn, (np.arange(QUANTILES) + 0.5) / QUANTILES), abs=0.05)


@pytest.mark.parametrize(
    "operations", [pytest.param(each, marks=pytest.mark.weekly if place % 3 else []) for place, each in enumerate(SETS)]
)
def test_the_outcomes_are_what_is_drawn_each_sign_of_an_operation_apart(operations: str) -> None:
    """Of one magnitude: what an operation does with its sign and against it, and what it does where it has none."""
    layer, count = LAYER(operations=operations, magnitude=5, probability=0.75), 100_000
    uniforms = np.random.default_rng(0).random((count, layer.num_uniforms))
    drawn = layer.draw(uniforms, np.full(count, 200), np.full(count, 300))
    rows = np.concatenate([values.reshape(count, -1) for values in drawn.values()], axis=1).astype(np.float64)
    _, seen = np.unique(rows, axis=0, return_counts=True)
    assert len(seen) == len(layer.outcomes)
    assert np.sort(seen / count) == pytest.approx(np.sort(layer.outcomes), abs=0.006)
    assert layer.outcomes.sum() == pytest.approx(1)
