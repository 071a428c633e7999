"""Is the printed diversity what would be seen?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dalirefurb import Output, Recipe, auto_augment, evaluate, rand_augment, simple, trivial_augment
from dalirefurb.augment import HorizontalFlip
from dalirefurb.augment.diversity import diversity
from dalirefurb.augment.policies.layers import OperationLayer
from dalirefurb.augment.policies.operations import AUTO_AUGMENT_OPERATIONS
from dalirefurb.augment.stage import Arrays, Node, Stage, draw
from dalirefurb.errors import ConfigurationError

COUNT = 3000
RECIPES = {
    "rand_augment": rand_augment(),
    "rand_augment of one layer": rand_augment(layers=1),
    "rand_augment, both layers final": rand_augment(split="rand_augment_1"),
    "rand_augment crop_last": rand_augment(order="crop_last"),
    "rand_augment raw": rand_augment(32, raw=True, layers=1),
    "rand_augment raw crop_last": rand_augment(32, raw=True, layers=1, order="crop_last"),
    "auto_augment, split between": auto_augment(),
    "auto_augment, both final": auto_augment(split="auto_augment_1"),
    "auto_augment cifar10": auto_augment(policy="cifar10"),
    "auto_augment cifar10 raw, split at the start": auto_augment(32, policy="cifar10", raw=True, split=0),
    "trivial_augment": trivial_augment(),
    "trivial_augment raw": trivial_augment(32, raw=True),
    "simple": simple(),
    "simple raw": simple(32, raw=True),
    "simple, empty final part": simple(split=3),
    "auto_augment raw, empty final part": auto_augment(32, raw=True, split=4),
    "evaluate": evaluate(),
}


@pytest.fixture
def outcomes_in_place_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operation layers draw what counts as an outcome: the operation, its magnitude and sign where it has these."""
    names = [operation.name for operation in AUTO_AUGMENT_OPERATIONS]
    ranged = np.array([name not in ("Identity", "AutoContrast", "Equalize", "Invert") for name in names])
    signed = ranged & np.array([name not in ("Posterize", "Solarize") for name in names])

    def outcome(layer: OperationLayer, uniforms: NDArray[np.float64], *_: Any) -> Arrays:
        operations, bins, negated, _ = layer.choose(uniforms)
        magnitudes = bins * ranged[operations]
        return {"outcome": np.stack([operations, magnitudes, negated & signed[operations]], axis=1)}

    monkeypatch.setattr(OperationLayer, "draw", outcome)


def _serve(recipe: Recipe, *, seed: int, version: int, serving: int) -> list[NDArray[np.float64]]:
    """Return what the partial and what the final part draw for each sample, two arrays of shape (COUNT, numbers)."""
    heights, widths = (np.full(COUNT, side) for side in ((375, 500) if recipe.encoded else (recipe.output.size,) * 2))
    versions, rows = np.full(COUNT, version), []
    for stages, number in ((recipe.partial, version), (recipe.final, serving)):
        drawn, heights, widths = draw(
            stages,
            seed=seed,
            indices=np.arange(COUNT),
            numbers=np.full(COUNT, number),
            heights=heights,
            widths=widths,
            versions=versions,
        )
        arrays = [values.reshape(COUNT, -1) for named in drawn.values() for values in named.values()]
        rows.append(np.concatenate([np.zeros((COUNT, 1)), *arrays], axis=1))
    return rows


def _different(servings: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """How many of several servings are different, for each sample."""
    _, identities = np.unique(np.concatenate(servings), axis=0, return_inverse=True)
    ordered = np.sort(identities.reshape(len(servings), COUNT), axis=0)
    different: NDArray[np.int64] = 1 + (np.diff(ordered, axis=0) > 0).sum(axis=0)
    return different


@pytest.mark.usefixtures("outcomes_in_place_of_parameters")
@pytest.mark.parametrize("reuse_factor", [2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_the_printed_diversity_is_the_simulated_one(name: str, reuse_factor: int) -> None:
    recipe = RECIPES[name]
    servings = range(reuse_factor)
    reused = _different([_serve(recipe, seed=0, version=0, serving=serving)[1] for serving in servings])
    standard = _different(
        [np.concatenate(_serve(recipe, seed=1, version=serving, serving=serving), axis=1) for serving in servings]
    )
    ratio = reused.mean() / standard.mean()
    error = np.hypot(reused.std(), ratio * standard.std()) / standard.mean() / COUNT**0.5
    assert abs(ratio - recipe.diversity(reuse_factor)) <= 4 * error + 1e-9


@pytest.mark.parametrize(
    ("recipe", "kept"),
    [
        ("simple, empty final part", 1 / 3),
        ("simple", 1.75 / 3),
        ("rand_augment of one layer", 0.952),
        ("rand_augment crop_last", 0.994),
        ("auto_augment, split between", 0.684),
        ("auto_augment cifar10", 0.699),
        ("evaluate", 1.0),
    ],
)
def test_the_diversity_of_well_known_recipes_at_reuse_factor_3(recipe: str, kept: float) -> None:
    assert RECIPES[recipe].diversity(3) == pytest.approx(kept, abs=5e-4)


@pytest.mark.parametrize("name", RECIPES)
def test_without_reuse_all_diversity_is_kept(name: str) -> None:
    assert RECIPES[name].diversity(1) == pytest.approx(1, abs=1e-12)


def test_a_recipe_prints_what_each_split_keeps() -> None:
    assert str(auto_augment()).splitlines() == [
        "stage                      part     random  outcomes  kept at 2  kept at 3",
        "decode                     partial  no             1       1.00       1.00",
        "random_resized_crop        partial  yes         many       1.00       1.00",
        "flip                       partial  yes            2       0.99       0.97",
        "auto_augment_1             partial  yes           24       0.97       0.95",
        "auto_augment_2             final    yes           18       0.80       0.68",
        "output 224 x 224, float32  final    no             1       0.50       0.33",
        "kept: of standard training's different images, at a reuse factor, if the final part begins there;",
        "this split keeps 0.80 at 2 and 0.68 at 3",
    ]


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_a_recipe_prints_that_what_is_done_always_or_never_is_not_random(probability: float) -> None:
    recipe = Recipe([HorizontalFlip(probability)], Output(32), 0)
    (line,) = (line for line in str(recipe).splitlines() if line.startswith("flip"))
    assert line.split() == ["flip", "final", "no", "1", "1.00", "1.00"]


def test_a_recipe_prints_height_and_width_of_its_output() -> None:
    (line,) = (line for line in str(simple((20, 30))).splitlines() if line.startswith("output"))
    assert line.startswith("output 20 x 30, float32")


@pytest.mark.parametrize("reuse_factor", [0, -1, 1.5, True])
def test_a_reuse_factor_that_is_no_positive_integer_is_refused(reuse_factor: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"reuse_factor must be an int of at least 1, got {reuse_factor}"):
        simple().diversity(reuse_factor)


@dataclass(frozen=True)
class Dice(Stage):
    """A stage of known outcomes."""

    name: str
    probabilities: tuple[float, ...]

    num_uniforms = 1

    @property
    def outcomes(self) -> NDArray[np.float64]:
        return np.array(self.probabilities)

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        return images


@dataclass(frozen=True)
class Loaded(Dice):
    """Dice whose outcomes depend on those of other dice."""

    before: Dice
    joint: tuple[tuple[float, ...], ...]

    @property
    def follows(self) -> Dice:
        return self.before

    @property
    def joint_outcomes(self) -> NDArray[np.float64]:
        return np.array(self.joint)


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    normalised: NDArray[np.float64] = weights / weights.sum()
    return normalised


def _expected(distributions: Sequence[NDArray[np.float64]], servings: int) -> float:
    """How many of so many servings of independent stages are different: the formula, outcome by outcome."""
    joint = reduce(np.multiply.outer, distributions, np.ones(()))
    return float((1 - (1 - joint) ** servings).sum())


weights = st.floats(0.01, 1) | st.just(0.0) | st.just(1.0)
distributions = st.lists(weights, min_size=1, max_size=5).filter(any).map(np.array).map(_normalised)


@given(st.lists(distributions, max_size=4), st.integers(0, 4), st.integers(1, 5))
def test_independent_stages_keep_what_the_formula_says(
    dice: list[NDArray[np.float64]], split: int, reuse_factor: int
) -> None:
    stages = [Dice(f"dice {place}", tuple(each.tolist())) for place, each in enumerate(dice)]
    kept = diversity(stages, split, reuse_factor)
    assert kept == pytest.approx(_expected(dice[split:], reuse_factor) / _expected(dice, reuse_factor))
    assert 1 / reuse_factor - 1e-9 <= kept <= 1 + 1e-9


@given(
    st.lists(st.lists(weights, min_size=3, max_size=3), min_size=1, max_size=4).filter(
        lambda rows: any(map(any, rows))
    ),
    distributions,
    st.integers(1, 5),
)
def test_a_stage_that_follows_another_keeps_what_each_outcome_of_that_leaves_open(
    rows: list[list[float]], between: NDArray[np.float64], reuse_factor: int
) -> None:
    joint = _normalised(np.array(rows))
    first = Dice("first", tuple(joint.sum(axis=1).tolist()))
    loaded = Loaded("second", tuple(joint.sum(axis=0).tolist()), first, tuple(map(tuple, joint.tolist())))
    stages = [first, Dice("between", tuple(between.tolist())), loaded]
    standard = _expected([joint, between], reuse_factor)
    possible = joint[joint.any(axis=1)]
    given_first = sum(row.sum() * _expected([row / row.sum(), between], reuse_factor) for row in possible)
    assert diversity(stages, 0, reuse_factor) == pytest.approx(1)
    assert diversity(stages, 1, reuse_factor) == pytest.approx(given_first / standard)


@pytest.mark.parametrize("count", [10, 30])
def test_outcomes_too_unlikely_to_be_seen_twice_keep_everything(count: int) -> None:
    stages = [Dice(f"dice {place}", (1 / 28,) * 28) for place in range(count)]
    for split in (0, 1, count // 2):
        assert diversity(stages, split, 3) == pytest.approx(1)
    assert diversity(stages, count, 3) == pytest.approx(1 / 3)
