"""AutoAugment's sub-policies of two operations (Cubuk et al., CVPR 2019), as two stages; see `sub_policies`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.auto_augment_tables import POLICIES, Policy
from dalirefurb.augment.policies.operation_layer import TableLayer
from dalirefurb.augment.policies.operations import AUTO_AUGMENT_OPERATIONS, Choice, OperationTable
from dalirefurb.augment.policies.sub_policies import Halves
from dalirefurb.checks import require

NUM_BINS = 10


@lru_cache
def halves_of(policy: Policy) -> Halves:
    """Return the two operations of a policy's sub-policies."""
    return Halves(POLICIES[policy], AUTO_AUGMENT_OPERATIONS)


@dataclass(frozen=True)
class _AutoAugmentHalf(TableLayer):
    """What both stages share.

    Attributes:
        policy: Name of the policy, "imagenet", "cifar10" or "svhn".
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
        outcomes: NDArray[np.float64] = halves_of(self.policy).joint.sum(axis=1)
        return outcomes

    def happen(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return each sample's outcome, shape (n,)."""
        halves = halves_of(self.policy)
        return halves.first.happen(halves.sub_policies(uniforms[:, 0]), uniforms[:, 1])

    def choose(self, uniforms: NDArray[np.float64]) -> Choice:
        """Draw a sub-policy and whether, and with which sign, its first operation is applied."""
        return halves_of(self.policy).first.choice(self.happen(uniforms))


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
        return halves_of(self.policy).joint

    def choose(self, uniforms: NDArray[np.float64]) -> Choice:
        """Learn from the first stage's uniforms what it did, then draw a sub-policy and what becomes of its second."""
        halves, taken = halves_of(self.policy), self.follows.num_uniforms
        happened = self.follows.happen(uniforms[:, :taken])
        sub_policies = halves.sub_policies_given(happened, uniforms[:, taken])
        return halves.second.choice(halves.second.happen(sub_policies, uniforms[:, taken + 1]))
