"""Is it AutoAugment's distribution, wherever the split?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from nvidia.dali.auto_aug.auto_augment import (
    get_reduced_cifar10_policy,
    get_reduced_image_net_policy,
    get_svhn_policy,
)
from scipy.stats import chisquare

from dalirefurb import Arrays, Loader, Output, Recipe, Refurbish, Standard, auto_augment
from dalirefurb.augment.policies.auto_augment import (
    POLICIES,
    AutoAugmentFirst,
    AutoAugmentSecond,
    Policy,
    policy_table_of,
)
from dalirefurb.augment.policies.operations import AUTO_AUGMENT_OPERATIONS, BinnedTable, Chosen, Group
from dalirefurb.augment.policies.sub_policies import Half, cumulative, halves_of, pick
from dalirefurb.augment.stage import Stage
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.errors import ConfigurationError
from dalirefurb.reading.reader import Samples
from dalirefurb.rng import uniforms

UNLIKELY = 1e-4
COUNT = 20_000
SIZE = 32
NAMES = [operation.name for operation in AUTO_AUGMENT_OPERATIONS]
PLAIN = ("Identity", "AutoContrast", "Equalize", "Invert")
UNSIGNED = (*PLAIN, "Posterize", "Solarize")
SPLITS = {"before both": "auto_augment_1", "between": "auto_augment_2", "after both": 4}

Key = bytes
"""What the graph gets for one operation: its group and its matrix."""

policies = pytest.mark.parametrize("policy", POLICIES)


@pytest.mark.parametrize(
    ("policy", "published"),
    [
        ("imagenet", get_reduced_image_net_policy),
        ("cifar10", get_reduced_cifar10_policy),
        ("svhn", get_svhn_policy),
    ],
)
def test_a_policy_is_the_one_that_dali_ships(policy: Policy, published: Any) -> None:
    """Dali leaves out what has probability 0, and the magnitudes that do not matter."""
    ours = [
        [(name, chance, None if name in PLAIN else bin_) for name, chance, bin_ in sub_policy if chance]
        for sub_policy in zip(*halves_of(POLICIES[policy]), strict=True)
    ]
    dalis = [
        [("".join(part.title() for part in each.name.split("_")), chance, bin_) for each, chance, bin_ in sub_policy]
        for sub_policy in published().sub_policies
    ]
    assert ours == dalis
    assert len(ours) == 25


def _keys(groups: NDArray[np.int32], matrices: NDArray[np.float32]) -> list[Key]:
    """Adding 0 makes -0 a 0."""
    return [group.tobytes() + matrix.tobytes() for group, matrix in zip(groups, matrices + np.float32(0), strict=True)]


def _chances(half: Half) -> dict[Key, float]:
    """The distribution of what the graph gets for half a sub-policy."""
    operation, probability, magnitude = half
    signs = (False,) if operation in UNSIGNED else (False, True)
    each = [("Identity", 0, False, 1 - probability)]
    each += [(operation, int(magnitude), negated, probability / len(signs)) for negated in signs]
    names, bins, negated, chances = zip(*each, strict=True)
    choice = Chosen(np.array([NAMES.index(name) for name in names]), np.array(bins), np.array(negated))
    sizes = np.full(len(each), SIZE)
    looked_up = BinnedTable(AUTO_AUGMENT_OPERATIONS, 10).parameters(choice, heights=sizes, widths=sizes)
    distribution: dict[Key, float] = {}
    for key, chance in zip(_keys(looked_up["group"], looked_up["matrix"]), chances, strict=True):
        distribution[key] = distribution.get(key, 0) + chance
    return distribution


@lru_cache
def _expected(policy: Policy) -> dict[tuple[Key, Key], float]:
    """The distribution of pairs: a sub-policy uniformly, then each of its operations with its probability."""
    pairs: dict[tuple[Key, Key], float] = {}
    for first, second in zip(*halves_of(POLICIES[policy]), strict=True):
        for (one, chance), (other, other_chance) in product(_chances(first).items(), _chances(second).items()):
            if chance * other_chance > 0:
                pairs[one, other] = pairs.get((one, other), 0) + chance * other_chance / len(POLICIES[policy])
    return pairs


def _serve(recipe: Recipe, reuse_factor: int, epochs: int) -> Iterator[tuple[list[tuple[Key, Key]], NDArray[np.int64]]]:
    """What each sample gets in each epoch, as the loader draws it: partial stages for misses, final ones for all.

    Yields:
        Pairs of operations, and the versions, by index.
    """
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    input_builder = InputBuilder(recipe, seed=5, entering=image.shape)
    cached: dict[str, NDArray[Any]] = {}
    for epoch in range(epochs):
        (plan,) = Refurbish(COUNT, batch_size=COUNT, reuse_factor=reuse_factor).epoch(epoch)
        rows = np.flatnonzero(plan.miss)
        samples = Samples([image] * len(rows), np.full(len(rows), SIZE), np.full(len(rows), SIZE), plan.indices[rows])
        feeds = input_builder.partial(plan.indices[rows], plan.version[rows], samples)[0] | input_builder.final(
            plan, [image] * COUNT, plan.indices
        )
        drawn = []
        for stage in ("auto_augment_1", "auto_augment_2"):
            computed = rows if stage in [each.name for each in recipe.partial] else np.arange(COUNT)
            for name in ("group", "matrix"):
                values = np.asarray(feeds[f"{stage}/{name}"])
                known = cached.setdefault(f"{stage}/{name}", np.empty_like(values))
                known[plan.indices[computed]] = values
            drawn.append(_keys(cached[f"{stage}/group"], cached[f"{stage}/matrix"]))
        yield list(zip(*drawn, strict=True)), plan.version[np.argsort(plan.indices)]


@pytest.mark.parametrize(
    ("policy", "split", "reuse_factor"),
    [
        # Each policy and each split is tried with each reuse factor; all triples weekly.
        pytest.param(
            policy,
            split,
            reuse_factor,
            id=f"{place}-{reuse_factor}-{policy}",
            marks=[] if (row + column) % 3 == reuse_factor // 2 else pytest.mark.weekly,
        )
        for row, policy in enumerate(POLICIES)
        for column, (place, split) in enumerate(SPLITS.items())
        for reuse_factor in (1, 3)
    ],
)
def test_pairs_of_operations_are_served_as_the_policy_says_wherever_the_split(
    policy: Policy, split: int | str, reuse_factor: int
) -> None:
    expected = _expected(policy)
    recipe = auto_augment(SIZE, policy=policy, raw=True, split=split)
    for pairs, _ in _serve(recipe, reuse_factor, epochs=reuse_factor + 1):
        counts = dict.fromkeys(expected, 0)
        for pair in pairs:
            counts[pair] += 1
        chances = np.array(list(expected.values()))
        assert min(chances) * COUNT > 5
        assert chisquare(list(counts.values()), COUNT * chances / chances.sum()).pvalue > UNLIKELY


@policies
def test_a_split_between_keeps_the_first_operation_and_draws_the_second_anew(policy: Policy) -> None:
    """Two servings of a version have the same second operation as often as two draws given the first one would."""
    expected = _expected(policy)
    firsts: dict[Key, float] = {}
    for (first, _), chance in expected.items():
        firsts[first] = firsts.get(first, 0) + chance
    agreeing = dict.fromkeys(firsts, 0.0)
    for (first, _), chance in expected.items():
        agreeing[first] += (chance / firsts[first]) ** 2
    recipe = auto_augment(SIZE, policy=policy, raw=True, split="auto_augment_2")
    (before, old), (after, new) = _serve(recipe, 3, epochs=2)
    same, chances = [], []
    for row in np.flatnonzero(old == new):
        assert before[row][0] == after[row][0]
        same.append(before[row][1] == after[row][1])
        chances.append(agreeing[before[row][0]])
    deviation = np.sqrt(np.sum(np.multiply(chances, np.subtract(1, chances))))
    assert abs(np.sum(same) - np.sum(chances)) < 4 * deviation
    assert np.mean([before[row][0] == after[row][0] for row in np.flatnonzero(old != new)]) < 0.5


@policies
def test_sub_policies_are_drawn_uniformly_and_anew_given_what_the_first_operation_did(policy: Policy) -> None:
    halves = policy_table_of(policy)
    numbers = uniforms(0, "test", np.arange(COUNT), np.zeros(COUNT, np.int64), 3).T
    sub_policies = halves.sub_policies(numbers[0])
    assert chisquare(np.bincount(sub_policies, minlength=len(POLICIES[policy]))).pvalue > UNLIKELY
    happened = halves.first.happen(sub_policies, numbers[1])
    anew = halves.sub_policies_given(happened, numbers[2])
    chances = halves.first.chances
    for drawn in (sub_policies, anew):
        counts = np.zeros_like(chances)
        np.add.at(counts, (drawn, happened), 1)
        assert counts[chances == 0].sum() == 0
        assert chisquare(counts[chances > 0], COUNT / len(POLICIES[policy]) * chances[chances > 0]).pvalue > UNLIKELY
    pairs = chances / len(POLICIES[policy])  # of a sub-policy and what its first operation did
    again = (pairs**2).sum(axis=0) / pairs.sum(axis=0)
    assert (anew == sub_policies).mean() == pytest.approx(again[pairs.any(axis=0)].sum(), abs=0.02)


@given(
    weights=st.lists(st.integers(0, 3) | st.floats(0, 1e-17) | st.floats(0, 1e6), min_size=1, max_size=30).filter(any),
    uniform=st.sampled_from([0.0, 0.5, 1 - 2.0**-53]) | st.floats(0, 1, exclude_max=True),
)
@example(weights=[1] * 10 + [0], uniform=1 - 2.0**-53)  # The sum of ten tenths is less than 1.
def test_what_is_picked_is_possible_and_as_wide_as_its_probability(weights: list[float], uniform: float) -> None:
    probabilities = np.array([weights]) / np.sum(weights)
    sums = cumulative(probabilities)
    (picked,) = pick(sums, np.array([uniform]))
    assert probabilities[0, picked] > 0
    assert np.allclose(np.diff(sums[0], prepend=0), probabilities[0], rtol=0, atol=1e-12)


@policies
def test_the_second_stages_outcomes_are_those_of_both_halves(policy: Policy) -> None:
    first, second = AutoAugmentFirst(policy=policy), AutoAugmentSecond(policy=policy)
    assert second.follows == first
    assert second.joint_outcomes.sum() == pytest.approx(1)
    assert second.joint_outcomes.sum(axis=1) == pytest.approx(first.outcomes)
    assert second.joint_outcomes.sum(axis=0) == pytest.approx(second.outcomes)


def test_a_policy_of_ones_own_is_a_list_of_sub_policies() -> None:
    """Those of a published one do what that does, under a fingerprint of their own."""
    rows = [list(row) for row in POLICIES["cifar10"]]
    published, own = (auto_augment(SIZE, policy=policy, raw=True) for policy in ("cifar10", rows))
    sides = np.full(1000, SIZE)
    for theirs, ours in zip(published.stages[-2:], own.stages[-2:], strict=True):
        uniforms = np.random.default_rng(0).random((1000, ours.num_uniforms + (2 if ours.follows else 0)))
        expected, drawn = theirs.draw(uniforms, sides, sides), ours.draw(uniforms, sides, sides)
        assert all(np.array_equal(drawn[name], expected[name]) for name in expected)
        assert json.loads(json.dumps(ours.fingerprint()))["policy"] == [list(row) for row in rows]
    assert own.diversity(3) == pytest.approx(published.diversity(3))


@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_a_policy_of_ones_own_may_do_nothing_by_name(probability: float) -> None:
    """Identity does nothing, whether it is applied or not."""
    rows = (("Identity", probability, 0, "Color", 1, 5), ("Rotate", 1, 5, "Color", 1, 5))
    first, second = AutoAugmentFirst(policy=rows), AutoAugmentSecond(policy=rows)
    assert sorted(first.outcomes.tolist()) == pytest.approx([0.25, 0.25, 0.5])
    assert second.joint_outcomes.sum() == pytest.approx(1)
    drawn, sides = np.random.default_rng(0).random((4000, 2)), np.full(4000, SIZE)
    groups = first.draw(drawn, sides, sides)["group"]
    assert (groups == Group.IDENTITY).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("kernels", ["dali", None])
def test_half_of_a_policy_may_do_nothing_at_all(kernels: Any) -> None:
    recipe = auto_augment(SIZE, policy=(("Rotate", 1, 9, "Identity", 0, 0),), raw=True)
    arrays = Arrays(np.random.default_rng(0).integers(0, 256, (8, SIZE, SIZE, 3), np.uint8), np.arange(8))
    with Loader(arrays, recipe, Standard(8, batch_size=8), kernels=kernels) as loader:
        ((images, _),) = loader
    assert images.shape == (8, 3, SIZE, SIZE)


FIRST, SECOND = AutoAugmentFirst(), AutoAugmentSecond()


@pytest.mark.parametrize(
    ("stages", "found"),
    [
        ([SECOND], "no such stage"),
        ([SECOND, FIRST], "no such stage"),
        ([AutoAugmentFirst(policy="cifar10"), SECOND], r"AutoAugmentFirst\(.*policy='cifar10'\)"),
        ([AutoAugmentFirst(name="first"), SECOND], r"AutoAugmentFirst\(name='first'.*"),
        ([AutoAugmentFirst(interpolation="bilinear"), SECOND], r"AutoAugmentFirst\(.*'bilinear'.*"),
        ([AutoAugmentFirst(fill=128), SECOND], r"AutoAugmentFirst\(.*fill=128.*"),
    ],
)
def test_a_second_stage_without_its_first_before_it_is_refused(stages: list[Stage], found: str) -> None:
    message = (
        rf"'auto_augment_2' must come after AutoAugmentFirst\(name='auto_augment_1'.*policy='imagenet'\), but before "
        rf"it there is {found}; put that stage before it, and give both the same settings"
    )
    with pytest.raises(ConfigurationError, match=message):
        Recipe(stages, Output(SIZE), 0)


def test_a_second_stage_can_follow_a_first_one_of_another_name() -> None:
    stages: list[Stage] = [AutoAugmentFirst(name="first"), AutoAugmentSecond(first="first")]
    assert Recipe(stages, Output(SIZE), 1).final[0].follows == stages[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "mnist"}, f"policy must be one of {', '.join(POLICIES)}, got 'mnist': choose one, or pass"),
        ({"policy": []}, r"policy must be one of .* got \(\): choose one, or pass such as \[\("),
        ({"policy": [("Rotate", 0.5, 1)]}, "a sub-policy of policy must be operation, .* twice, got .*: pass such as"),
        ({"policy": [("Rotate", 0.5, 1, "Turn", 1, 1)]}, "policy must be of Identity, ShearX, .* got 'Turn': choose"),
        ({"policy": [("Rotate", 2, 1, "Color", 1, 1)]}, r"a probability of policy must be a number in 0\.\.1, got 2"),
        ({"policy": [("Turn", 0.5, 1, "Rotate", 1, 1)]}, "policy must be of Identity, ShearX, .* got 'Turn': choose"),
        ({"policy": [("Rotate", -0.1, 1, "Color", 1, 1)]}, r"a probability of policy must be .* in 0\.\.1, got -0.1"),
        ({"policy": [("Rotate", 1, -1, "Color", 1, 1)]}, r"a magnitude of policy must be an int in 0\.\.9, got -1"),
        ({"policy": [("Rotate", 1, 10, "Color", 1, 1)]}, r"a magnitude of policy must be an int in 0\.\.9, got 10"),
        ({"policy": [("Rotate", 1, 1, "Color", 1, 10)]}, r"a magnitude of policy must be an int in 0\.\.9, got 10"),
        ({"order": "last"}, "order must be 'paper' or 'crop_last', got 'last'"),
        ({"interpolation": "cubic"}, 'interpolation must be "nearest" or "bilinear", got \'cubic\': choose one'),
        ({"split": "auto_augment_3"}, "no stage 'auto_augment_3' to split at"),
    ],
)
def test_arguments_that_cannot_work_are_refused_with_a_remedy(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        auto_augment(SIZE, **arguments)
