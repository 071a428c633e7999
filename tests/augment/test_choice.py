"""Stages that choose do to each sample what the chosen stages alone would do, as often as they say."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

from dalirefurb import Arrays, Loader, MemoryStore, Recipe, Refurbish
from dalirefurb.augment import (
    CenterCrop,
    HorizontalFlip,
    Invert,
    Parameter,
    RandAugmentLayer,
    RandomApply,
    RandomChoice,
    Stage,
    TrivialAugmentLayer,
)
from dalirefurb.augment.policies.auto_augment import AutoAugmentFirst, AutoAugmentSecond
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.stage import Arrays as Drawn
from dalirefurb.augment.stage import Node, draw
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.errors import ConfigurationError
from tests.one_batch import levels

COUNT, SIZE = 20_000, 24
UNLIKELY = 1e-4
KERNELS = ["dali", *(["numba"] if find_spec("numba") else [])]
MIRROR = HorizontalFlip(1.0)


class Inverted(Stage):
    """A stage of the user's own, which has no kernel."""

    name = "inverted"

    def apply(self, images: Node, parameters: Any) -> Node:
        return images ^ 255

    def fingerprint(self) -> dict[str, Any]:
        return {"stage": "Inverted"}


def drawn(stage: Stage, count: int = COUNT) -> Drawn:
    indices, sides = np.arange(count), np.full(count, SIZE)
    arrays, _, _ = draw((stage,), seed=1, indices=indices, numbers=0 * indices, heights=sides, widths=sides)
    return arrays[stage.name]


def served(stages: list[Stage], split: int, kernels: str, count: int = 60) -> NDArray[np.float32]:
    images = np.random.default_rng(0).integers(0, 256, (count, SIZE, SIZE, 3), np.uint8)
    recipe = Recipe(stages, levels(SIZE), split)
    planner = Refurbish(count, batch_size=20, reuse_factor=2, seed=1)
    source = Arrays(images, np.arange(count))
    with Loader(source, recipe, planner, MemoryStore(), kernels=kernels) as loader:  # type: ignore[arg-type]
        return np.concatenate([images.numpy().copy() for _ in range(3) for images, _ in loader])


# What is chosen


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_stages_are_applied_as_often_as_the_probability_says(probability: float) -> None:
    skipped = drawn(RandomApply(MIRROR, probability))["skipped"]
    counts = np.bincount(skipped, minlength=2)
    wanted = COUNT * np.array([probability, 1 - probability])
    possible = wanted > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], wanted[possible]).pvalue > UNLIKELY if possible.all() else counts.max() == COUNT


@pytest.mark.parametrize("probabilities", [None, (1, 2, 5), (0, 1, 0), (0.5, 0.5, 0)])
def test_each_choice_is_taken_as_often_as_its_share(probabilities: tuple[float, ...] | None) -> None:
    stage = RandomChoice([MIRROR, RandAugmentLayer(), []], probabilities)
    counts = np.bincount(drawn(stage)["choice"], minlength=3)
    wanted = np.array(probabilities or (1, 1, 1)) / np.sum(probabilities or (1, 1, 1)) * COUNT
    assert counts[wanted == 0].sum() == 0
    some = wanted > 0
    assert some.sum() == 1 or chisquare(counts[some], wanted[some]).pvalue > UNLIKELY


def test_choices_and_what_is_drawn_inside_are_independent() -> None:
    arrays = drawn(RandomApply(RandAugmentLayer(), 0.5))
    groups = arrays["rand_augment.group"]
    table = np.array([np.bincount(groups[arrays["skipped"] == each], minlength=len(Group)) for each in (0, 1)])
    some = table.sum(axis=0) > 0
    wanted = table.sum(axis=1)[:, None] * table.sum(axis=0)[some] / COUNT
    degrees = (some.sum() - 1) * 1
    assert chisquare(table[:, some].ravel(), wanted.ravel(), ddof=wanted.size - 1 - degrees).pvalue > UNLIKELY


# What becomes of images


@pytest.mark.parametrize("kernels", KERNELS)
def test_an_image_is_left_alone_or_is_what_the_stages_make_of_it(kernels: str) -> None:
    stage = RandomApply([MIRROR], 0.5)
    plain = served([], 0, kernels)
    mirrored, either = plain[..., ::-1], served([stage], 0, kernels)
    same, other = (np.array([(a == b).all() for a, b in zip(either, each, strict=True)]) for each in (plain, mirrored))
    assert (same ^ other).all()
    assert 0.3 < same.mean() < 0.7


@pytest.mark.parametrize("kernels", KERNELS)
def test_choices_inside_choices_are_taken_by_kernels_and_by_dali(kernels: str) -> None:
    """Flips only: each image is mirrored by as many of them as were drawn."""
    inner = RandomApply([HorizontalFlip(0.5, "one")], 0.5, "inner")
    stage = RandomChoice([[MIRROR, inner], [], HorizontalFlip(0.5, "two")], name="outer")
    plain, made = served([], 0, kernels), served([stage], 1, kernels)
    arrays = drawn(stage, 60)
    choice = arrays["choice"]
    first = 1 ^ (arrays["inner.one.mirror"] & (arrays["inner.skipped"] == 0))
    flips = np.select([choice == 0, choice == 1], [first, 0], arrays["two.mirror"])
    assert 0 < flips.sum() < 60
    originals = {image.tobytes() for image in plain}
    mirrored = {image[..., ::-1].tobytes() for image in plain}
    seen = [image.tobytes() in mirrored for image in made]
    assert all((image.tobytes() in originals) != flipped for image, flipped in zip(made, seen, strict=True))
    assert sum(seen[:60]) == flips.sum()


@pytest.mark.skipif("numba" not in KERNELS, reason="Numba is not installed")
@pytest.mark.parametrize(
    ("split", "inside"),
    [
        *((split, Invert()) for split in range(4)),
        (0, RandAugmentLayer(magnitude=0)),  # DALI's graph of it takes seconds to make.
        *(pytest.param(split, RandAugmentLayer(magnitude=0), marks=pytest.mark.weekly) for split in range(1, 4)),
    ],
    ids=str,
)
def test_kernels_serve_what_dali_serves_at_every_split(split: int, inside: Stage) -> None:
    stages = [
        RandomApply([HorizontalFlip(), inside], 0.6),
        RandomChoice([[RandomApply(HorizontalFlip(), 0.7, "inner")], HorizontalFlip(1.0, "always"), []]),
        RandomApply(HorizontalFlip(), name="last"),
    ]
    ours, theirs = (served(stages, split, kernels) for kernels in ("numba", "dali"))
    # Equalize alone differs, in pictures that small.
    assert (ours == theirs).all(axis=(1, 2, 3)).mean() > (0.8 if isinstance(inside, RandAugmentLayer) else 0.999)


def test_a_stage_without_a_kernel_inside_leaves_all_to_dali() -> None:
    from dalirefurb.kernels.lower import steps_of

    assert steps_of((RandomApply(Inverted()),)) is None
    assert (served([RandomApply(Inverted(), 1.0)], 0, "dali") == 255 - served([], 0, "dali")).all()


def test_the_first_image_that_a_stage_inside_cannot_take_is_named() -> None:
    stage = RandomChoice([[HorizontalFlip()], [CenterCrop(20)]])
    heights, widths = np.array([20, 20, 30]), np.array([20, 21, 20])
    assert stage.refusal(heights[:1], widths[:1]) is None
    refused = stage.refusal(heights, widths)
    assert refused is not None
    assert refused[0] == 1
    assert "one of 20 x 21 becomes 20 x 20: put it before" in refused[1]
    assert stage.refusal(heights - 1, widths) == (
        0,
        "center_crop: images must have at least 20 x 20 pixels, got 19 x 20; put a resize before it",
    )


# What is said of it


def test_outcomes_are_those_of_what_is_chosen() -> None:
    flip = HorizontalFlip()
    assert RandomApply(flip, 0.4).outcomes.tolist() == pytest.approx([0.2, 0.2, 0.6])
    assert RandomChoice([flip, []], (3, 1)).outcomes.tolist() == pytest.approx([0.375, 0.375, 0.25])


def test_what_is_without_number_is_left_out_of_the_sum() -> None:
    class Endless(Inverted):
        num_uniforms = 1
        parameters = {"number": Parameter("float32")}  # noqa: RUF012

    stage = RandomApply(Endless(), 0.25)
    assert stage.outcomes.tolist() == [0.75]
    recipe = Recipe([stage], levels(SIZE), 0)
    # Of three servings 0.75 are unlike all others; of the rest the same image comes again.
    assert recipe.diversity(3) == pytest.approx(1.0)
    split = Recipe([Endless(), stage], levels(SIZE), 1)
    assert split.diversity(3) == pytest.approx((3 * 0.25 + 1 - 0.25**3) / 3)


def test_names_say_what_is_inside_unless_they_are_given() -> None:
    assert RandomApply(MIRROR).name == "random_flip"
    assert RandomApply([MIRROR, RandAugmentLayer()]).name == "random_flip_and_rand_augment"
    assert RandomChoice([MIRROR, [], RandAugmentLayer()]).name == "either_flip_or_rand_augment"
    assert RandomApply([]).name == "random_nothing"
    assert RandomApply(MIRROR, name="mine").name == "mine"


def test_fingerprints_tell_stages_and_probabilities_apart() -> None:
    stages: list[Stage] = [
        RandomApply(MIRROR, 0.5),
        RandomApply(MIRROR, 0.4),
        RandomApply(HorizontalFlip(0.9), 0.5),
        RandomApply([MIRROR, TrivialAugmentLayer()], 0.5),
        RandomChoice([MIRROR, TrivialAugmentLayer()]),
        RandomChoice([[MIRROR, TrivialAugmentLayer()]]),
        RandomChoice([MIRROR, TrivialAugmentLayer()], (1, 2)),
    ]
    told = [Recipe([stage], levels(SIZE), 0).fingerprint() for stage in stages]
    assert all(one != other for place, one in enumerate(told) for other in told[:place])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RandomApply(3), "random_apply: stages must be stages of dalirefurb.augment, got 3"),  # type: ignore[arg-type]
        (lambda: RandomApply(MIRROR, 1.5), "random_flip: probability must be a number in 0..1, got 1.5"),
        (lambda: RandomApply([MIRROR, MIRROR]), "every stage must have a name of its own, but 'flip' occurs"),
        (lambda: RandomApply(Decode()), "stages must stand alone, but 'decode' depends on what comes before it"),
        (
            lambda: RandomChoice([AutoAugmentFirst("one"), AutoAugmentSecond("two", first="one")]),
            "stages must stand alone, but 'two' depends on what comes before it",
        ),
        (lambda: RandomChoice(MIRROR), "random_choice: stages must be a list of stages to choose from"),  # type: ignore[arg-type]
        (lambda: RandomChoice([]), "random_choice: stages must be a list of stages to choose from"),
        (lambda: RandomChoice([MIRROR], (1, 2)), "either_flip: probabilities must be 1 numbers"),
        (lambda: RandomChoice([MIRROR, []], (0, 0)), "either_flip: probabilities must be 2 numbers"),
        (lambda: RandomChoice([MIRROR, []], (-1, 2)), "either_flip: probabilities must be 2 numbers"),
        (lambda: RandomChoice([MIRROR, []], (float("inf"), 2)), "either_flip: probabilities must be 2 numbers"),
        (
            lambda: served([RandomApply(CenterCrop(20))], 0, "dali"),
            "random_center_crop: 'center_crop' must leave images as large as they enter, but one of 24 x 24 becomes 20",
        ),
        (lambda: drawn(RandomApply(CenterCrop((20, 24)))), "one of 24 x 24 becomes 20 x 24: put it before 'random_cen"),
        (
            lambda: RandomChoice([MIRROR, []], (True, False)),
            "either_flip: probabilities must be 2 numbers, one for eac",
        ),
        (lambda: RandomApply([], 2), "random_nothing: probability must be a number in 0..1, got 2"),
        (lambda: drawn(RandomApply(CenterCrop((24, 20)))), "one of 24 x 24 becomes 24 x 20: put it before 'random_cen"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
