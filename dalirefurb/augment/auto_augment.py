"""AutoAugment's sub-policies of two operations (Cubuk et al., CVPR 2019), as two stages.

A split between the two caches what the first operation did. The sub-policy is then no longer asked for: the second
stage draws one anew from those that could have led to the first one's outcome, each as likely as it is given that
outcome. Together the two operations are distributed as AutoAugment says, wherever the split, and the second one stays
as diverse as that allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.operation_layer import OperationLayer
from dalirefurb.augment.operations import AUTO_AUGMENT_OPERATIONS, Choice, OperationTable
from dalirefurb.checks import require

Policy = Literal["imagenet", "cifar10"]

NUM_BINS = 10


class PolicyOperation(NamedTuple):
    """Half of a sub-policy.

    Attributes:
        operation: Name of the operation in `AUTO_AUGMENT_OPERATIONS`.
        probability: Probability that the operation is applied.
        magnitude: Magnitude bin, 0 .. 9; what it is does not matter to operations without a range.
    """

    operation: str
    probability: float
    magnitude: int


SubPolicy = tuple[PolicyOperation, PolicyOperation]


def _sub_policies(*rows: tuple[str, float, int, str, float, int]) -> tuple[SubPolicy, ...]:
    return tuple((PolicyOperation(*row[:3]), PolicyOperation(*row[3:])) for row in rows)


# Operation, probability and magnitude, twice: appendix tables 7 (CIFAR-10) and 9 (ImageNet) of the paper.
POLICIES: Mapping[Policy, tuple[SubPolicy, ...]] = {
    "imagenet": _sub_policies(
        ("Posterize", 0.4, 8, "Rotate", 0.6, 9),
        ("Solarize", 0.6, 5, "AutoContrast", 0.6, 5),
        ("Equalize", 0.8, 8, "Equalize", 0.6, 3),
        ("Posterize", 0.6, 7, "Posterize", 0.6, 6),
        ("Equalize", 0.4, 7, "Solarize", 0.2, 4),
        ("Equalize", 0.4, 4, "Rotate", 0.8, 8),
        ("Solarize", 0.6, 3, "Equalize", 0.6, 7),
        ("Posterize", 0.8, 5, "Equalize", 1.0, 2),
        ("Rotate", 0.2, 3, "Solarize", 0.6, 8),
        ("Equalize", 0.6, 8, "Posterize", 0.4, 6),
        ("Rotate", 0.8, 8, "Color", 0.4, 0),
        ("Rotate", 0.4, 9, "Equalize", 0.6, 2),
        ("Equalize", 0.0, 7, "Equalize", 0.8, 8),
        ("Invert", 0.6, 4, "Equalize", 1.0, 8),
        ("Color", 0.6, 4, "Contrast", 1.0, 8),
        ("Rotate", 0.8, 8, "Color", 1.0, 2),
        ("Color", 0.8, 8, "Solarize", 0.8, 7),
        ("Sharpness", 0.4, 7, "Invert", 0.6, 8),
        ("ShearX", 0.6, 5, "Equalize", 1.0, 9),
        ("Color", 0.4, 0, "Equalize", 0.6, 3),
        ("Equalize", 0.4, 7, "Solarize", 0.2, 4),
        ("Solarize", 0.6, 5, "AutoContrast", 0.6, 5),
        ("Invert", 0.6, 4, "Equalize", 1.0, 8),
        ("Color", 0.6, 4, "Contrast", 1.0, 8),
        ("Equalize", 0.8, 8, "Equalize", 0.6, 3),
    ),
    "cifar10": _sub_policies(
        ("Invert", 0.1, 7, "Contrast", 0.2, 6),
        ("Rotate", 0.7, 2, "TranslateX", 0.3, 9),
        ("Sharpness", 0.8, 1, "Sharpness", 0.9, 3),
        ("ShearY", 0.5, 8, "TranslateY", 0.7, 9),
        ("AutoContrast", 0.5, 8, "Equalize", 0.9, 2),
        ("ShearY", 0.2, 7, "Posterize", 0.3, 7),
        ("Color", 0.4, 3, "Brightness", 0.6, 7),
        ("Sharpness", 0.3, 9, "Brightness", 0.7, 9),
        ("Equalize", 0.6, 5, "Equalize", 0.5, 1),
        ("Contrast", 0.6, 7, "Sharpness", 0.6, 5),
        ("Color", 0.7, 7, "TranslateX", 0.5, 8),
        ("Equalize", 0.3, 7, "AutoContrast", 0.4, 8),
        ("TranslateY", 0.4, 3, "Sharpness", 0.2, 6),
        ("Brightness", 0.9, 6, "Color", 0.2, 8),
        ("Solarize", 0.5, 2, "Invert", 0.0, 3),
        ("Equalize", 0.2, 0, "AutoContrast", 0.6, 0),
        ("Equalize", 0.2, 8, "Equalize", 0.6, 4),
        ("Color", 0.9, 9, "Equalize", 0.6, 6),
        ("AutoContrast", 0.8, 4, "Solarize", 0.2, 8),
        ("Brightness", 0.1, 3, "Color", 0.7, 0),
        ("Solarize", 0.4, 5, "AutoContrast", 0.9, 3),
        ("TranslateY", 0.9, 9, "TranslateY", 0.7, 9),
        ("AutoContrast", 0.9, 2, "Solarize", 0.8, 3),
        ("Equalize", 0.8, 8, "Invert", 0.1, 3),
        ("TranslateY", 0.7, 9, "AutoContrast", 0.9, 1),
    ),
}

_ROWS = {operation.name: row for row, operation in enumerate(AUTO_AUGMENT_OPERATIONS)}


class Outcome(NamedTuple):
    """What an operation did to a picture: the same whichever sub-policy it came from."""

    operation: int
    bin: int
    negated: bool


NOTHING = Outcome(_ROWS["Identity"], 0, False)


def _chances(half: PolicyOperation) -> dict[Outcome, float]:
    """Return the outcomes of half a sub-policy that are possible, with their probabilities."""
    row = _ROWS[half.operation]
    operation = AUTO_AUGMENT_OPERATIONS[row]
    magnitude = half.magnitude if operation.ranged else 0
    signs = (False, True) if operation.signed else (False,)
    chances = {Outcome(row, magnitude, negated): half.probability / len(signs) for negated in signs}
    chances[NOTHING] = 1 - half.probability
    return {outcome: chance for outcome, chance in chances.items() if chance > 0}


class _Half:
    """One of the two operations of every sub-policy of a policy.

    Attributes:
        outcomes: All outcomes that can happen.
        chances: Probability of each outcome given the sub-policy, shape (sub-policies, outcomes).
    """

    def __init__(self, halves: Sequence[PolicyOperation]) -> None:
        each = [_chances(half) for half in halves]
        self.outcomes = sorted({outcome for chances in each for outcome in chances})
        self.chances = np.array([[chances.get(outcome, 0.0) for outcome in self.outcomes] for chances in each])
        self._cumulative = _cumulative(self.chances)
        self._columns = [np.array(column) for column in zip(*self.outcomes, strict=True)]

    def happen(self, sub_policies: NDArray[np.int64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return which outcome happens to each sample, shape (n,)."""
        return _pick(self._cumulative[sub_policies], uniforms)

    def choice(self, happened: NDArray[np.int64]) -> Choice:
        """Look the operations up that make these outcomes."""
        return Choice(*(column[happened] for column in self._columns))


class _Halves:
    """The two operations of a policy, and what the first one tells about the sub-policy.

    Attributes:
        first: The first operation of each sub-policy.
        second: The second operation of each sub-policy.
        joint: Probability of each pair of outcomes, shape (first's outcomes, second's outcomes).
    """

    def __init__(self, policy: Policy) -> None:
        self.first, self.second = (_Half(halves) for halves in zip(*POLICIES[policy], strict=True))
        count = len(POLICIES[policy])
        self.joint: NDArray[np.float64] = self.first.chances.T @ self.second.chances / count
        # P(sub-policy | first outcome): all sub-policies are equally likely beforehand.
        posterior = self.first.chances.T
        self._posterior = _cumulative(posterior / posterior.sum(axis=1, keepdims=True))
        self._prior = _cumulative(np.full((1, count), 1 / count))

    def sub_policies(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw sub-policies, shape (n,)."""
        return _pick(self._prior, uniforms)

    def sub_policies_given(self, happened: NDArray[np.int64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw sub-policies anew, given the first operation's outcome, shape (n,)."""
        return _pick(self._posterior[happened], uniforms)


def _cumulative(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum along rows; from the last possible column on, the sum is 1 exactly, so that no uniform falls beyond."""
    cumulative = probabilities.cumsum(axis=1)
    cumulative[cumulative >= cumulative[:, -1:]] = 1.0
    return cumulative


def _pick(cumulative: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each uniform the column whose share of 0..1 it falls into, shape (n,)."""
    columns: NDArray[np.int64] = (uniforms[:, None] >= cumulative).sum(axis=1)
    return columns


_halves = lru_cache(_Halves)


@dataclass(frozen=True)
class _AutoAugmentHalf(OperationLayer):
    """What both stages share.

    Attributes:
        policy: Name of the policy, "imagenet" or "cifar10".
    """

    policy: Policy = "imagenet"

    num_uniforms = 2  # sub-policy, and what becomes of its operation

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.policy in POLICIES, "policy", f"one of {', '.join(POLICIES)}", self.policy, "choose one")

    @cached_property
    def table(self) -> OperationTable:
        """The paper's operations, at every magnitude."""
        return OperationTable(AUTO_AUGMENT_OPERATIONS, NUM_BINS)


@dataclass(frozen=True)
class AutoAugmentFirst(_AutoAugmentHalf):
    """The first operation of a sub-policy, applied with that operation's probability."""

    name: str = "auto_augment_1"

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each operation, magnitude and sign, and one for doing nothing."""
        outcomes: NDArray[np.float64] = _halves(self.policy).joint.sum(axis=1)
        return outcomes

    def happen(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return each sample's outcome, shape (n,)."""
        halves = _halves(self.policy)
        return halves.first.happen(halves.sub_policies(uniforms[:, 0]), uniforms[:, 1])

    def choose(self, uniforms: NDArray[np.float64]) -> Choice:
        """Draw a sub-policy and whether, and with which sign, its first operation is applied."""
        return _halves(self.policy).first.choice(self.happen(uniforms))


@dataclass(frozen=True)
class AutoAugmentSecond(_AutoAugmentHalf):
    """The second operation of a sub-policy that could have led to what the first one did.

    Attributes:
        first: Name of the stage that applies the first operation.
    """

    name: str = "auto_augment_2"
    first: str = "auto_augment_1"

    @property
    def follows(self) -> AutoAugmentFirst:
        """The stage that applies the first operation."""
        return AutoAugmentFirst(self.first, self.interpolation, self.fill, self.policy)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each operation, magnitude and sign, and one for doing nothing, whatever the first one did."""
        outcomes: NDArray[np.float64] = self.joint_outcomes.sum(axis=0)
        return outcomes

    @property
    def joint_outcomes(self) -> NDArray[np.float64]:
        """See `Stage.joint_outcomes`."""
        return _halves(self.policy).joint

    def choose(self, uniforms: NDArray[np.float64]) -> Choice:
        """Learn from the first stage's uniforms what it did, then draw a sub-policy and what becomes of its second."""
        halves, taken = _halves(self.policy), self.follows.num_uniforms
        happened = self.follows.happen(uniforms[:, :taken])
        sub_policies = halves.sub_policies_given(happened, uniforms[:, taken])
        return halves.second.choice(halves.second.happen(sub_policies, uniforms[:, taken + 1]))
