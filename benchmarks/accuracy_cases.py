"""Cases that are trained when the accuracy of reuse is measured: the full comparison, and one for a CPU.

A group has one network, one augmentation and one learning rate. A case of reuse is compared with the control of reuse
factor 3 in its group and its order of stages: where its reuse factor is 3, too, it differs from that in reuse alone.
(A control has the same tensors wherever its recipe is split.) Others are compared with standard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loaders import STANDARD
from sources import MEAN, SIDE, STD

from dalirefurb import Echo, Recipe, Refurbish, Standard, auto_augment, rand_augment
from dalirefurb.augment.presets import Order, simplified
from dalirefurb.planning import Fresh, Frozen
from dalirefurb.planning.planner import Planner

REUSE = "reuse factor"
ECHO = "echo after augmentation"
FROZEN = "frozen"
CONTROL_FACTOR = 3
"""Reuse factor of the plans whose rows controls serve."""

AUGMENTATIONS = "rand_augment", "auto_augment"


@dataclass(frozen=True)
class Case:
    """What is trained with every seed.

    Attributes:
        network: One of `networks.NETWORKS`.
        augmentation: "rand_augment", of two layers, or "auto_augment" with CIFAR-10's policy.
        learning_rate: The highest of the schedule.
        technique: `STANDARD`, `REUSE`, `ECHO` or `FROZEN`.
        factor: The reuse factor or echoing factor; 1 for others.
        order: Of the stages, "paper" or "crop_last".
        removed: Layers that are left out.
        split: How many stages are partial; None for what the preset says. Echo has all.
        control: Whether each row is a version of its own instead (`Fresh`): nothing is reused.
        least_seeds: Seeds at least. Cases that have the most of them come first.
        most_seeds: Seeds at most; as many as the difference needs to be sure.
    """

    network: str
    augmentation: str
    learning_rate: float
    technique: str = STANDARD
    factor: int = 1
    order: Order = "paper"
    removed: int = 0
    split: int | None = None
    control: bool = False
    least_seeds: int = 5
    most_seeds: int = 5

    @property
    def group(self) -> str:
        """Who is compared with whom."""
        return f"{self.network}, {self.augmentation}, learning rate {self.learning_rate:g}"

    @property
    def name(self) -> str:
        """What distinguishes it in its group."""
        name = f"simplified by {self.removed}" if self.removed else self.technique
        name += f" {self.factor}" if self.factor > 1 else ""
        name = f"control of {name}" if self.control else name
        name += f", {self.split} stages partial" if self.split is not None else ""
        return name + (", crop last" if self.order == "crop_last" else "")

    @property
    def is_baseline(self) -> bool:
        """Whether others of its group are compared with it."""
        return self.control or self.name == STANDARD

    def is_baseline_of(self, other: Case) -> bool:
        """Whether another case of the group is compared with it."""
        if other.is_baseline:
            return False
        if other.technique == REUSE:
            return self.control and self.order == other.order
        return self.name == STANDARD

    def recipe(self) -> Recipe:
        """Return what is done to an image, and where that is split."""
        output: dict[str, Any] = {"mean": MEAN, "std": STD, "channels_last": True}
        if self.augmentation == "rand_augment":
            recipe = rand_augment(SIDE, raw=True, order=self.order, **output)
        else:
            recipe = auto_augment(SIDE, policy="cifar10", raw=True, order=self.order, **output)
        if self.removed:
            recipe = simplified(recipe, self.removed)
        if self.technique == ECHO:
            return recipe.at(len(recipe.stages))
        return recipe if self.split is None else recipe.at(self.split)


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set.
        train_per_class: Images to train on, of each of the 10 classes.
        test_per_class: Images to test with.
        batch_size: Samples of a step.
        epochs: Of as many steps as standard needs to serve each sample once: all cases take equally many steps.
        momentum: Nesterov's.
        weight_decay: Of all weights.
        warm_up: Share of the steps in which the learning rate rises; then it falls to 0.
        buffer_batches: Batches in the shuffle buffer of echo.
        checkpoints: Last epochs after which the network is tested; its accuracy is the mean over them.
        half_width: Of the 95 % interval of a difference that is sure enough, in percentage points.
        first_seed: Of those that are used, one after the other.
        margin: Of accuracy, in percentage points: differences within it do not matter. Chosen before any run.
        least_accuracy: Of standard with ResNet-18, in percent; a lower one says nothing about training as it is done.
        timed_batches: Of a slice in which loading is timed alone.
        rounds: Slices of each case.
        cases: In the order in which they are run.
    """

    data: str = ""
    train_per_class: int = 5000
    test_per_class: int = 1000
    batch_size: int = 250
    epochs: int = 30
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warm_up: float = 0.2
    buffer_batches: int = 20
    checkpoints: int = 3
    half_width: float = 0.15
    first_seed: int = 0
    margin: float = 0.2
    least_accuracy: float = 93.0
    timed_batches: int = 200
    rounds: int = 5
    cases: tuple[Case, ...] = field(default_factory=lambda: full_cases())

    def __post_init__(self) -> None:
        for group in self.groups:
            for case in group:
                if not (case.is_baseline or any(each.is_baseline_of(case) for each in group)):
                    raise ValueError(f"a case must have a baseline, but {case.name} of {case.group} has none")

    @property
    def groups(self) -> list[list[Case]]:
        """Cases that are compared with each other."""
        groups: dict[str, list[Case]] = {}
        for case in self.cases:
            groups.setdefault(case.group, []).append(case)
        return list(groups.values())

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch of standard."""
        return 10 * self.train_per_class // self.batch_size

    @property
    def steps(self) -> int:
        """Steps of a run."""
        return self.epochs * self.epoch_steps

    def planner(self, case: Case, seed: int) -> Planner:
        """Return what a case serves when."""
        samples = 10 * self.train_per_class
        options: dict[str, Any] = {"batch_size": self.batch_size, "seed": seed, "drop_last": True}
        if case.technique == REUSE:
            refurbish = Refurbish(samples, reuse_factor=case.factor, **options)
            return Fresh(refurbish) if case.control else refurbish
        if case.technique == FROZEN:
            return Frozen(samples, **options)
        standard = Standard(samples, **options)
        if case.technique == ECHO:
            buffer_size = self.buffer_batches * self.batch_size
            return Echo(standard, echoing_factor=case.factor, buffer_size=buffer_size)
        return standard


def full_cases() -> tuple[Case, ...]:
    """List the comparison for a GPU: the techniques, then where to split, then the learning rate."""
    rate = 0.2
    cases: list[Case] = []
    for network in ("resnet18", "resnet8"):
        for augmentation in AUGMENTATIONS:
            standard = Case(network, augmentation, rate, most_seeds=20)
            crop_last = replace(standard, order="crop_last")
            cases += [
                standard,
                *_reused(standard, (2, 3)),
                *(replace(standard, technique=ECHO, factor=factor) for factor in (2, 3)),
                *(replace(standard, removed=layers) for layers in (1, 2)),
                replace(standard, technique=FROZEN),
                crop_last,
                *_reused(crop_last, (2, 3)),
            ]
    split = Case("resnet18", "rand_augment", rate, REUSE, CONTROL_FACTOR)
    cases += [replace(split, split=stages) for stages in (1, 2, 4)]
    for factor in (0.25, 0.5, 2, 4):
        standard = Case("resnet18", "rand_augment", factor * rate)
        cases += [standard, *_reused(standard, (2, 3))]
    return tuple(cases)


def reduced_cases() -> tuple[Case, ...]:
    """List the comparison for a CPU: the pairs, then what the curve is made of."""
    standard = Case("resnet8", "rand_augment", 0.2)
    pair = _reused(replace(standard, least_seeds=12, most_seeds=49), (CONTROL_FACTOR,))
    curve = replace(standard, least_seeds=3, most_seeds=3)
    crop_last = _reused(replace(curve, order="crop_last"), (CONTROL_FACTOR,))
    return (
        *pair,
        standard,
        replace(standard, technique=ECHO, factor=3),
        replace(standard, technique=FROZEN),
        *_reused(curve, (2, 5, 10))[1:],
        *(replace(curve, technique=REUSE, factor=CONTROL_FACTOR, split=stages) for stages in (1, 2, 4)),
        *crop_last,
        replace(crop_last[1], split=3),
    )


def _reused(standard: Case, factors: Sequence[int]) -> list[Case]:
    """List a control, then reuse at some factors."""
    control = replace(standard, technique=REUSE, factor=CONTROL_FACTOR, control=True)
    return [control, *(replace(standard, technique=REUSE, factor=factor) for factor in factors)]


def reduced() -> Config:
    """Configure the comparison for a CPU."""
    return Config(
        train_per_class=250,
        batch_size=100,
        epochs=24,
        buffer_batches=10,
        half_width=0.3,
        margin=0.5,
        timed_batches=40,
        cases=reduced_cases(),
    )
