"""Sub-policies of two operations, drawn so that a cache may lie between the two.

A split between the two caches what the first operation did. The sub-policy is then no longer asked for: one is drawn
anew from those that could have led to the first one's outcome, each as likely as it is given that outcome. Together
the two operations are distributed as the policy says, wherever the split, and the second one stays as diverse as that
allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.auto_augment_tables import PolicyOperation, SubPolicy
from dalirefurb.augment.policies.operations import Choice


class Described(Protocol):
    """What is asked of an operation here; a table's first one does nothing."""

    @property
    def name(self) -> str:
        """Name that policies know it by."""

    @property
    def signed(self) -> bool:
        """Whether the magnitude is negated half of the time."""

    @property
    def ranged(self) -> bool:
        """Whether the magnitude matters."""


class Outcome(NamedTuple):
    """What an operation did to a picture: the same whichever sub-policy it came from."""

    operation: int
    magnitude: float
    negated: bool


NOTHING = Outcome(0, 0, False)


def _chances(half: PolicyOperation, operations: Sequence[Described]) -> dict[Outcome, float]:
    """Return the outcomes of half a sub-policy that are possible, with their probabilities."""
    row = [operation.name for operation in operations].index(half.operation)
    operation = operations[row]
    magnitude = half.magnitude if operation.ranged else 0
    signs = (False, True) if operation.signed else (False,)
    chances = {Outcome(row, magnitude, negated): half.probability / len(signs) for negated in signs}
    chances[NOTHING] = 1 - half.probability
    return {outcome: chance for outcome, chance in chances.items() if chance > 0}


class Half:
    """One of the two operations of every sub-policy of a policy.

    Attributes:
        outcomes: All outcomes that can happen.
        chances: Probability of each outcome given the sub-policy, shape (sub-policies, outcomes).
    """

    def __init__(self, halves: Sequence[PolicyOperation], operations: Sequence[Described]) -> None:
        each = [_chances(half, operations) for half in halves]
        self.outcomes = sorted({outcome for chances in each for outcome in chances})
        self.chances = np.array([[chances.get(outcome, 0.0) for outcome in self.outcomes] for chances in each])
        self._cumulative = cumulative(self.chances)
        self._columns = [np.array(column) for column in zip(*self.outcomes, strict=True)]

    def happen(self, sub_policies: NDArray[np.int64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return which outcome happens to each sample, shape (n,)."""
        return pick(self._cumulative[sub_policies], uniforms)

    def choice(self, happened: NDArray[np.int64]) -> Choice:
        """Look the operations up that make these outcomes."""
        return Choice(*(column[happened] for column in self._columns))


class Halves:
    """The two operations of a policy, and what the first one tells about the sub-policy.

    Args:
        policy: Sub-policies.
        operations: Table of operations; the first one does nothing.
        weights: How likely each sub-policy is, beside the others; None: all are equally likely.

    Attributes:
        first: The first operation of each sub-policy.
        second: The second operation of each sub-policy.
        joint: Probability of each pair of outcomes, shape (first's outcomes, second's outcomes).
    """

    def __init__(
        self, policy: Sequence[SubPolicy], operations: Sequence[Described], weights: NDArray[np.float64] | None = None
    ) -> None:
        self.first, self.second = (Half(halves, operations) for halves in zip(*policy, strict=True))
        weights = np.ones(len(policy)) if weights is None else weights
        posterior = self.first.chances.T * weights  # P(sub-policy | first outcome), but for a factor
        self.joint: NDArray[np.float64] = posterior @ self.second.chances / weights.sum()
        self._posterior = cumulative(posterior / posterior.sum(axis=1, keepdims=True))
        self._prior = cumulative(weights[None, :] / weights.sum())

    def sub_policies(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw sub-policies, shape (n,)."""
        return pick(self._prior, uniforms)

    def sub_policies_given(self, happened: NDArray[np.int64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draw sub-policies anew, given the first operation's outcome, shape (n,)."""
        return pick(self._posterior[happened], uniforms)


def cumulative(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum along rows; from the last possible column on, the sum is 1 exactly, so that no uniform falls beyond."""
    sums = probabilities.cumsum(axis=1)
    sums[sums >= sums[:, -1:]] = 1.0
    return sums


def pick(cumulative: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each uniform the column whose share of 0..1 it falls into, shape (n,)."""
    columns: NDArray[np.int64] = (uniforms[:, None] >= cumulative).sum(axis=1)
    return columns
