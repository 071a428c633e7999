"""Bases of stages that apply one of the two operations of a sub-policy, at magnitudes that vary; see `sub_policies`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.auto_augment_tables import SubPolicy
from dalirefurb.augment.policies.leveled import Floats, Leveled, LeveledTable
from dalirefurb.augment.policies.magnitude_noise import STEADY, MagnitudeNoise, checked_noise
from dalirefurb.augment.policies.operation_layer import Fill, OperationLayer
from dalirefurb.augment.policies.operations import Choice, Group
from dalirefurb.augment.policies.sub_policies import Half, Halves, Outcome
from dalirefurb.augment.policies.timm_rand_augment import chances_of, table_of
from dalirefurb.augment.stage import Arrays, Interpolation


class Tabled(NamedTuple):
    """Sub-policies, and the operations that they name."""

    table: LeveledTable
    halves: Halves


def tabled(policy: Sequence[SubPolicy], weights: Floats | None = None) -> Tabled:
    """Look a policy's operations up.

    Args:
        policy: Sub-policies.
        weights: How likely each is, beside the others; None: all are equally likely.
    """
    names = dict.fromkeys(
        half.operation for sub_policy in policy for half in sub_policy if half.operation != "Identity"
    )
    table = table_of(tuple(names))
    return Tabled(table, Halves(policy, table.operations, weights))


@dataclass(frozen=True)
class HalfLayer(OperationLayer):
    """One of the two operations of a sub-policy.

    Attributes:
        noise: How magnitudes vary.
    """

    interpolation: Interpolation = "bilinear"
    fill: Fill = 128
    noise: MagnitudeNoise = STEADY

    num_uniforms = 5  # sub-policy, what becomes of its operation, the magnitude's noise (two), the operation's own

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "noise", checked_noise(self.name, self.noise))

    @property
    @abstractmethod
    def tabled(self) -> Tabled:
        """Sub-policies, and the operations that they name."""

    @property
    @abstractmethod
    def half(self) -> Half:
        """This one of the two operations of each sub-policy."""

    @property
    def groups(self) -> Sequence[Group]:
        """See `OperationLayer.groups`."""
        operations = self.tabled.table.operations
        some = {operations[outcome.operation].group for outcome in self.half.outcomes}
        return sorted({Group.IDENTITY, *some})

    def _parameters(
        self, choice: Choice, uniforms: Floats, heights: NDArray[np.int64], widths: NDArray[np.int64]
    ) -> Arrays:
        """Vary magnitudes, with the last three uniforms, and compute the operations' numbers."""
        magnitudes = self.noise.draw(np.asarray(choice.bins, np.float64), uniforms[:, -3:-1])
        drawn = Leveled(choice.operations, magnitudes, choice.negated, uniforms[:, -1])
        return self.tabled.table.parameters(drawn, heights=heights, widths=widths)

    def _spread(self, joint: Floats, outcomes: Sequence[Outcome]) -> Floats:
        """Part the rows of a table of probabilities, each an outcome's, by what its magnitude may be."""
        operations = self.tabled.table.operations
        rows = [
            np.outer(chances_of(operations[outcome.operation], outcome.magnitude, self.noise), row)
            for outcome, row in zip(outcomes, joint, strict=True)
        ]
        return np.concatenate(rows)


@dataclass(frozen=True)
class First(HalfLayer):
    """The first operation of a sub-policy, applied with that operation's probability."""

    @property
    def half(self) -> Half:
        """The first operation of each sub-policy."""
        return self.tabled.halves.first

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """Some for each operation and sign, as many as their magnitudes are taken for, and one for doing nothing."""
        joint = self.tabled.halves.joint
        return self._spread(joint.sum(axis=1, keepdims=True), self.half.outcomes)[:, 0]

    def happen(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return each sample's outcome, but for the magnitude's noise, shape (n,)."""
        halves = self.tabled.halves
        return halves.first.happen(halves.sub_policies(uniforms[:, 0]), uniforms[:, 1])

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw a sub-policy, and what becomes of its first operation; see `Stage.draw`."""
        choice = self.half.choice(self.happen(uniforms))
        return self._parameters(choice, uniforms, heights, widths)


@dataclass(frozen=True)
class Second(HalfLayer):
    """The second operation of a sub-policy that could have led to what the first one did.

    Attributes:
        first: Name of the stage that applies the first operation.
    """

    first: str = ""

    @property
    @abstractmethod
    def follows(self) -> First:
        """The stage that applies the first operation."""

    @property
    def half(self) -> Half:
        """The second operation of each sub-policy."""
        return self.tabled.halves.second

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """As of the first operation, whatever that one did."""
        outcomes: NDArray[np.float64] = self.joint_outcomes.sum(axis=0)
        return outcomes

    @property
    def joint_outcomes(self) -> NDArray[np.float64]:
        """See `Stage.joint_outcomes`."""
        halves = self.tabled.halves
        return self._spread(self._spread(halves.joint, halves.first.outcomes).T, halves.second.outcomes).T

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Learn what the first stage did, then draw a sub-policy and what becomes of its second; see `Stage.draw`."""
        halves, taken = self.tabled.halves, self.follows.num_uniforms
        happened = self.follows.happen(uniforms[:, :taken])
        sub_policies = halves.sub_policies_given(happened, uniforms[:, taken])
        choice = self.half.choice(self.half.happen(sub_policies, uniforms[:, taken + 1]))
        return self._parameters(choice, uniforms, heights, widths)
