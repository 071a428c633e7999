"""Sub-policies of two operations, drawn so that a cache may lie between the two.

A split between the two caches what the first operation did. The sub-policy is then no longer asked for: one is drawn
anew from those that could have led to the first one's outcome, each as likely as it is given that outcome. Together
the two operations are distributed as the policy says, wherever the split, and the second one stays as diverse as that
allows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.layers import OperationLayer
from dalirefurb.augment.policies.operations import Chosen, Floats, Group, Operation, OperationTable

Half = tuple[str, float, float]
"""Name of an operation, probability that it is applied, and magnitude, as the table of operations means it, such as a
bin 0 .. 9; what that is does not matter to operations without a range."""

SubPolicy = tuple[str, float, float, str, float, float]
"""Two halves."""


def halves_of(policy: Sequence[SubPolicy]) -> tuple[list[Half], list[Half]]:
    """Return the first halves of sub-policies, and the second ones."""
    return [row[:3] for row in policy], [row[3:] for row in policy]


class Outcome(NamedTuple):
    """What an operation did to a picture: the same whichever sub-policy it came from."""

    operation: int
    magnitude: float
    negated: bool


NOTHING = Outcome(0, 0, False)


def _chances(half: Half, operations: Sequence[Operation]) -> dict[Outcome, float]:
    """Return the outcomes of half a sub-policy that are possible, with their probabilities."""
    name, probability, magnitude = half
    row = [operation.name for operation in operations].index(name)
    operation = operations[row]
    signs = (False, True) if operation.signed else (False,)
    magnitude = magnitude if operation.ranged else 0
    chances = {Outcome(row, magnitude, negated): probability / len(signs) for negated in signs}
    chances[NOTHING] = chances.get(NOTHING, 0.0) + 1 - probability
    return {outcome: chance for outcome, chance in chances.items() if chance > 0}


class PolicyColumn:
    """One of the two operations of every sub-policy of a policy.

    Attributes:
        outcomes: All outcomes that can happen.
        chances: Probability of each outcome given the sub-policy, shape (sub-policies, outcomes).
    """

    def __init__(self, halves: Sequence[Half], operations: Sequence[Operation]) -> None:
        each = [_chances(half, operations) for half in halves]
        self.outcomes = sorted({outcome for chances in each for outcome in chances})
        self.chances = np.array([[chances.get(outcome, 0.0) for outcome in self.outcomes] for chances in each])
        self._cumulative = cumulative(self.chances)
        self._columns = [np.array(column) for column in zip(*self.outcomes, strict=True)]

    def happen(self, sub_policies: NDArray[np.int64], uniforms: Floats) -> NDArray[np.int64]:
        """Return which outcome happens to each sample, shape (n,)."""
        return pick(self._cumulative[sub_policies], uniforms)

    def choice(self, happened: NDArray[np.int64]) -> Chosen:
        """Look the operations up that make these outcomes."""
        return Chosen(*(column[happened] for column in self._columns))


class PolicyTable:
    """The two operations of a policy, and what the first one tells about the sub-policy.

    Args:
        policy: Sub-policies.
        table: Operations; the first one does nothing.
        weights: How likely each sub-policy is, beside the others; None: all are equally likely.

    Attributes:
        table: Operations.
        first: The first operation of each sub-policy.
        second: The second operation of each sub-policy.
        joint: Probability of each pair of outcomes, shape (first's outcomes, second's outcomes).
    """

    def __init__(self, policy: Sequence[SubPolicy], table: OperationTable, weights: Floats | None = None) -> None:
        self.table = table
        self.first, self.second = (PolicyColumn(halves, table.operations) for halves in halves_of(policy))
        weights = np.ones(len(policy)) if weights is None else weights
        posterior = self.first.chances.T * weights  # P(sub-policy | first outcome), but for a factor
        self.joint: Floats = posterior @ self.second.chances / weights.sum()
        self._posterior = cumulative(posterior / posterior.sum(axis=1, keepdims=True))
        self._prior = cumulative(weights[None, :] / weights.sum())

    def sub_policies(self, uniforms: Floats) -> NDArray[np.int64]:
        """Draw sub-policies, shape (n,)."""
        return pick(self._prior, uniforms)

    def sub_policies_given(self, happened: NDArray[np.int64], uniforms: Floats) -> NDArray[np.int64]:
        """Draw sub-policies anew, given the first operation's outcome, shape (n,)."""
        return pick(self._posterior[happened], uniforms)


@dataclass(frozen=True)
class PolicyLayer(OperationLayer):
    """One of the two operations of a sub-policy. Subclasses say which policy."""

    num_uniforms = 2  # sub-policy, and what becomes of its operation

    @property
    @abstractmethod
    def policy_table(self) -> PolicyTable:
        """The policy."""

    @property
    @abstractmethod
    def column(self) -> PolicyColumn:
        """This one of the two operations of each sub-policy."""

    @property
    def table(self) -> OperationTable:
        return self.policy_table.table

    @property
    def groups(self) -> Sequence[Group]:
        """See `OperationLayer.groups`; all of the table's if a column does nothing, since every input must be used."""
        operations = self.table.operations
        some = {Group.IDENTITY, *(operations[outcome.operation].group for outcome in self.column.outcomes)}
        return sorted(some) if len(some) > 1 else self.table.groups

    def vary(self, choice: Chosen, uniforms: Floats) -> Chosen:
        """Vary magnitudes, with the uniforms after the first two; by default they are as the policy says."""
        return choice

    def chances_of(self, outcome: Outcome) -> Floats:
        """Return the probabilities of what an outcome can be, as its magnitude varies; by default one thing."""
        return np.ones(1)

    def spread(self, joint: Floats, outcomes: Sequence[Outcome]) -> Floats:
        """Part the rows of a table of probabilities, each an outcome's, by what its magnitude may be."""
        rows = [np.outer(self.chances_of(outcome), row) for outcome, row in zip(outcomes, joint, strict=True)]
        return np.concatenate(rows)


@dataclass(frozen=True)
class FirstOperation(PolicyLayer):
    """The first operation of a sub-policy, applied with that operation's probability."""

    @property
    def column(self) -> PolicyColumn:
        return self.policy_table.first

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each operation, magnitude and sign, and one for doing nothing."""
        return self.spread(self.policy_table.joint.sum(axis=1, keepdims=True), self.column.outcomes)[:, 0]

    def happen(self, uniforms: Floats) -> NDArray[np.int64]:
        """Return each sample's outcome, but for how its magnitude varies, shape (n,)."""
        return self.column.happen(self.policy_table.sub_policies(uniforms[:, 0]), uniforms[:, 1])

    def choose(self, uniforms: Floats) -> Chosen:
        """Draw a sub-policy and whether, and with which sign, its first operation is applied."""
        return self.vary(self.column.choice(self.happen(uniforms)), uniforms[:, 2:])


class SecondOperation(PolicyLayer):
    """The second operation of a sub-policy that could have led to what the first one did. Subclasses name that stage.

    Attributes:
        first: Name of the stage that applies the first operation.
    """

    FIRST: ClassVar[type[FirstOperation]]
    """Class of that stage."""
    first: str

    @property
    def column(self) -> PolicyColumn:
        return self.policy_table.second

    @cached_property
    def follows(self) -> FirstOperation:
        """The stage that applies the first operation of the same policy."""
        same = {each.name: getattr(self, each.name) for each in fields(self.FIRST)}
        return self.FIRST(**{**same, "name": self.first})

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """As of the first operation, whatever that one did."""
        outcomes: Floats = self.joint_outcomes.sum(axis=0)
        return outcomes

    @property
    def joint_outcomes(self) -> NDArray[np.float64]:
        halves = self.policy_table
        return self.spread(self.spread(halves.joint, halves.first.outcomes).T, halves.second.outcomes).T

    def choose(self, uniforms: Floats) -> Chosen:
        """Learn from the first stage's uniforms what it did, then draw a sub-policy and what becomes of its second."""
        follows = self.follows
        happened, own = follows.happen(uniforms), uniforms[:, follows.num_uniforms :]
        sub_policies = self.policy_table.sub_policies_given(happened, own[:, 0])
        return self.vary(self.column.choice(self.column.happen(sub_policies, own[:, 1])), own[:, 2:])


def cumulative(probabilities: Floats) -> Floats:
    """Sum along rows; from the last possible column on, the sum is 1 exactly, so that no uniform falls beyond."""
    sums = probabilities.cumsum(axis=1)
    sums[sums >= sums[:, -1:]] = 1.0
    return sums


def pick(cumulative: Floats, uniforms: Floats) -> NDArray[np.int64]:
    """Return for each uniform the column whose share of 0..1 it falls into, shape (n,)."""
    columns: NDArray[np.int64] = (uniforms[:, None] >= cumulative).sum(axis=1)
    return columns
