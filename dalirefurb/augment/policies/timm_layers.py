"""timm's policies as stages: operations that are left out at random, at magnitudes that vary.

RandAugment has one operation of a set, or, where the set has weights, several different ones; AutoAugment's policies
have two, see `sub_policies`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.layers import OperationLayer
from dalirefurb.augment.policies.operations import Chosen, Floats, Operation, OperationTable
from dalirefurb.augment.policies.sub_policies import (
    FirstOperation,
    Outcome,
    PolicyLayer,
    PolicyTable,
    SecondOperation,
    SubPolicy,
    cumulative,
    pick,
)
from dalirefurb.augment.policies.timm_operations import (
    FULL,
    QUANTILES,
    SETS,
    STEADY,
    TIMM_POLICIES,
    MagnitudeNoise,
    checked_noise,
    operations_of,
)
from dalirefurb.augment.stage import Fill, Interpolation
from dalirefurb.checks import integer, require


@lru_cache
def table_of(names: tuple[str, ...]) -> OperationTable:
    """Return a table of timm's operations, after the one that does nothing."""
    return OperationTable(operations_of(names))


def chances_of(operation: Operation, magnitude: float, noise: MagnitudeNoise) -> Floats:
    """Return the probabilities of what an operation can do, of one sign, at magnitudes that vary.

    Where these are countless, each stands for as many that are as likely together.
    """
    if operation.arguments is None:
        return np.ones(1)
    middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
    arguments = np.atleast_2d(operation.arguments(noise.quantiles(magnitude), middles))  # (arguments, quantiles)
    _, counts = np.unique(arguments, axis=1, return_counts=True)
    return counts / QUANTILES


@dataclass(frozen=True)
class TimmLayer(OperationLayer):
    """What timm's stages share, and the checks of all fields that some of them have."""

    interpolation: Interpolation = "bilinear"
    fill: Fill = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        given = vars(self)
        object.__setattr__(self, "noise", checked_noise(self.name, given["noise"]))
        for field, known in {"operations": SETS, "policy": TIMM_POLICIES}.items():
            there = field not in given or (isinstance(given[field], str) and given[field] in known)
            require(there, f"{self.name}: {field}", f"one of {', '.join(known)}", given.get(field), "choose one")
        if "magnitude" in given:
            remedy = "10 is the end of an operation's range"
            self._number("magnitude", "of at least 0", lambda m: 0 <= m < math.inf, remedy)
        if "probability" in given:
            self._share(remedy="0.5 is usual, 1 applies every operation")


@dataclass(frozen=True)
class _OfSet(TimmLayer):
    """RandAugment's operations, one of a set each.

    Attributes:
        operations: Set of operations: "decreasing", "increasing" (operations whose effect grows with the magnitude),
            "weights", "3a", "3aw", "w0" or "w0_increasing"; see `timm_operations.SETS`.
    """

    operations: str = "decreasing"

    @property
    def table(self) -> OperationTable:
        """The set's operations, after the one that does nothing."""
        return table_of(tuple(SETS[self.operations]))

    @property
    def weights(self) -> Floats:
        """How likely each operation of the set is, beside the others."""
        return np.array(list(SETS[self.operations].values()), np.float64)


@dataclass(frozen=True)
class TimmRandAugmentLayer(_OfSet):
    """One operation of a set, applied with a probability, at a magnitude that varies. Defaults are timm's.

    Attributes:
        magnitude: Magnitude of the operations; 10 is the end of their range.
        noise: How the magnitude varies.
        probability: Probability that the operation is applied.
    """

    name: str = "timm_rand_augment"
    magnitude: float = FULL
    noise: MagnitudeNoise = STEADY
    probability: float = 0.5

    num_uniforms = 6  # operation, whether it is applied, sign, the magnitude's noise (two), the operation's own

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for doing nothing, and some for each operation and sign, as many as their magnitudes are taken for."""
        shares, chances = self.weights / self.weights.sum(), [np.array([1 - self.probability])]
        for share, operation in zip(shares, self.table.operations[1:], strict=True):
            signs = 1 + operation.signed
            each = share * self.probability / signs * chances_of(operation, self.magnitude, self.noise)
            chances += [each] * signs
        return np.concatenate(chances)

    def choose(self, uniforms: Floats) -> Chosen:
        """Draw an operation, whether it is applied, and its magnitude and sign."""
        shares = self.weights / self.weights.sum()
        picked = 1 + pick(cumulative(shares[None, :]), uniforms[:, 0])
        applied = np.where(uniforms[:, 1] < self.probability, picked, 0)
        magnitudes = self.noise.draw(np.full(len(uniforms), self.magnitude), uniforms[:, 3:5])
        return Chosen(applied, magnitudes, uniforms[:, 2] < 0.5, uniforms[:, 5])


@dataclass(frozen=True)
class TimmWeightedLayers(_OfSet):
    """Different operations of a set, one after the other, each applied with a probability: timm's, by weights.

    It is for three and more: each depends on all before it.

    Attributes:
        layers: Number of operations, at most as many as the set has.
        magnitude: Magnitude of the operations; 10 is the end of their range.
        noise: How the magnitude varies.
        probability: Probability that an operation is applied.
    """

    name: str = "timm_weighted"
    operations: str = "weights"
    layers: int = 3
    magnitude: float = FULL
    noise: MagnitudeNoise = STEADY
    probability: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        most = len(SETS[self.operations])
        integer(f"{self.name}: layers", self.layers, 1, most, f"{self.operations!r} has {most} operations")

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """One for each operation of the set; and for each layer whether it is applied, a sign, and noise (two)."""
        return len(SETS[self.operations]) + 4 * self.layers

    @property
    def places(self) -> tuple[int, ...]:
        return (self.layers,)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for doing nothing; all others are taken for too many to be counted."""
        return np.array([(1 - self.probability) ** self.layers])

    def choose(self, uniforms: Floats) -> Chosen:
        """Let exponential times, shorter ones of likelier operations, say which come first."""
        weights = self.weights
        times = -np.log1p(-uniforms[:, : len(weights)]) / weights
        picked = 1 + np.argsort(times, axis=1)[:, : self.layers].ravel()  # (n * layers,)
        each = uniforms[:, len(weights) :].reshape(-1, 4)
        applied = np.where(each[:, 0] < self.probability, picked, 0)
        magnitudes = self.noise.draw(np.full(len(each), self.magnitude), each[:, 2:])
        return Chosen(applied, magnitudes, each[:, 1] < 0.5)


def _policy_table(policy: Sequence[SubPolicy], weights: Floats | None = None) -> PolicyTable:
    """Return the two operations of sub-policies, which are likely by weights; None: all are equally likely."""
    names = dict.fromkeys(name for row in policy for name in (row[0], row[3]))
    return PolicyTable(policy, table_of(tuple(name for name in names if name != "Identity")), weights)


@lru_cache
def _of_policy(policy: str) -> PolicyTable:
    return _policy_table(TIMM_POLICIES[policy])


@lru_cache
def _of_set(operations: str, magnitude: float, probability: float) -> PolicyTable:
    """Return pairs of different operations: the second is drawn from those that the first one is not."""
    weights = SETS[operations]
    total, pairs = sum(weights.values()), list(permutations(weights, 2))
    likely = [weights[first] * weights[second] / (total - weights[first]) for first, second in pairs]
    policy = [(first, probability, magnitude, second, probability, magnitude) for first, second in pairs]
    return _policy_table(policy, np.array(likely))


@dataclass(frozen=True)
class _TimmPolicyLayer(TimmLayer, PolicyLayer):
    """One of the two operations of a sub-policy, at a magnitude that varies.

    Attributes:
        noise: How magnitudes vary.
    """

    noise: MagnitudeNoise = STEADY

    num_uniforms = 5  # sub-policy, what becomes of its operation, the magnitude's noise (two), the operation's own

    def vary(self, choice: Chosen, uniforms: Floats) -> Chosen:
        magnitudes = self.noise.draw(np.asarray(choice.magnitudes, np.float64), uniforms[:, :2])
        return choice._replace(magnitudes=magnitudes, uniforms=uniforms[:, 2])

    def chances_of(self, outcome: Outcome) -> Floats:
        """Return what the magnitude's values are taken for; see `PolicyLayer.chances_of`."""
        return chances_of(self.table.operations[outcome.operation], outcome.magnitude, self.noise)


@dataclass(frozen=True)
class TimmPolicyFirst(_TimmPolicyLayer, FirstOperation):
    """The first operation of one of timm's policies.

    Attributes:
        policy: Name of the policy, see `TIMM_POLICIES`.
    """

    name: str = "timm_policy_1"
    policy: str = "original"

    @property
    def policy_table(self) -> PolicyTable:
        return _of_policy(self.policy)


@dataclass(frozen=True)
class TimmPolicySecond(_TimmPolicyLayer, SecondOperation):
    """The second operation of one of timm's policies, whose first one an earlier stage applied.

    Attributes:
        first: Name of that stage.
        policy: Name of the policy, see `TIMM_POLICIES`.
    """

    name: str = "timm_policy_2"
    first: str = "timm_policy_1"
    policy: str = "original"

    FIRST = TimmPolicyFirst

    @property
    def policy_table(self) -> PolicyTable:
        return _of_policy(self.policy)


@dataclass(frozen=True)
class TimmWeightedFirst(_TimmPolicyLayer, FirstOperation):
    """The first of two different operations of a set, applied with a probability.

    Attributes:
        operations: Set of operations, see `TimmRandAugmentLayer`.
        magnitude: Magnitude of the operations; 10 is the end of their range.
        probability: Probability that the operation is applied.
    """

    name: str = "timm_weighted_1"
    operations: str = "weights"
    magnitude: float = FULL
    probability: float = 0.5

    @property
    def policy_table(self) -> PolicyTable:
        return _of_set(self.operations, self.magnitude, self.probability)


@dataclass(frozen=True)
class TimmWeightedSecond(_TimmPolicyLayer, SecondOperation):
    """The second of two different operations of a set, of which an earlier stage applied the first.

    Attributes:
        first: Name of that stage.
        operations: Set of operations, see `TimmRandAugmentLayer`.
        magnitude: Magnitude of the operations; 10 is the end of their range.
        probability: Probability that the operation is applied.
    """

    name: str = "timm_weighted_2"
    first: str = "timm_weighted_1"
    operations: str = "weights"
    magnitude: float = FULL
    probability: float = 0.5

    FIRST = TimmWeightedFirst

    @property
    def policy_table(self) -> PolicyTable:
        return _of_set(self.operations, self.magnitude, self.probability)
