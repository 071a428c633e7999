"""AutoAugment's sub-policies of two operations (Cubuk et al., CVPR 2019), as two stages; see `sub_policies`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from dalirefurb.augment.policies.operations import AUTO_AUGMENT_OPERATIONS, BinnedTable
from dalirefurb.augment.policies.sub_policies import (
    FirstOperation,
    PolicyLayer,
    PolicyTable,
    SecondOperation,
    SubPolicy,
)
from dalirefurb.checks import integer, number, require

Named = Literal["imagenet", "cifar10", "svhn"]
Policy = Named | tuple[SubPolicy, ...]
"""A policy of `POLICIES`, or sub-policies: operation, probability and magnitude 0 .. 9, twice each."""

NUM_BINS = 10

_NAMES = tuple(operation.name for operation in AUTO_AUGMENT_OPERATIONS)
_EXAMPLE = '[("Rotate", 0.7, 2, "TranslateX", 0.3, 9)]'

# Operation, probability and magnitude, twice: appendix tables 7 (CIFAR-10), 8 (SVHN) and 9 (ImageNet) of the paper.
POLICIES: Mapping[Named, tuple[SubPolicy, ...]] = {
    "imagenet": (
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
    "cifar10": (
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
    "svhn": (
        ("ShearX", 0.9, 4, "Invert", 0.2, 0),
        ("ShearY", 0.9, 8, "Invert", 0.7, 0),
        ("Equalize", 0.6, 0, "Solarize", 0.6, 6),
        ("Invert", 0.9, 0, "Equalize", 0.6, 0),
        ("Equalize", 0.6, 0, "Rotate", 0.9, 3),
        ("ShearX", 0.9, 4, "AutoContrast", 0.8, 0),
        ("ShearY", 0.9, 8, "Invert", 0.4, 0),
        ("ShearY", 0.9, 5, "Solarize", 0.2, 6),
        ("Invert", 0.9, 0, "AutoContrast", 0.8, 0),
        ("Equalize", 0.6, 0, "Rotate", 0.9, 3),
        ("ShearX", 0.9, 4, "Solarize", 0.3, 3),
        ("ShearY", 0.8, 8, "Invert", 0.7, 0),
        ("Equalize", 0.9, 0, "TranslateY", 0.6, 6),
        ("Invert", 0.9, 0, "Equalize", 0.6, 0),
        ("Contrast", 0.3, 3, "Rotate", 0.8, 4),
        ("Invert", 0.8, 0, "TranslateY", 0.0, 2),
        ("ShearY", 0.7, 6, "Solarize", 0.4, 8),
        ("Invert", 0.6, 0, "Rotate", 0.8, 4),
        ("ShearY", 0.3, 7, "TranslateX", 0.9, 3),
        ("ShearX", 0.1, 6, "Invert", 0.6, 0),
        ("Solarize", 0.7, 2, "TranslateY", 0.6, 7),
        ("ShearY", 0.8, 4, "Invert", 0.8, 0),
        ("ShearX", 0.7, 9, "TranslateY", 0.8, 3),
        ("ShearY", 0.8, 5, "AutoContrast", 0.7, 0),
        ("ShearX", 0.7, 2, "Invert", 0.1, 0),
    ),
}


_TABLE = BinnedTable(AUTO_AUGMENT_OPERATIONS, NUM_BINS)


def sub_policies_of(policy: Policy) -> tuple[SubPolicy, ...]:
    """Return a policy's sub-policies."""
    return POLICIES[policy] if isinstance(policy, str) else policy


@lru_cache
def policy_table_of(policy: Policy) -> PolicyTable:
    """Return the two operations of a policy's sub-policies."""
    return PolicyTable(sub_policies_of(policy), _TABLE)


def _check_policy(policy: Any) -> None:
    """Refuse what is neither a policy's name nor sub-policies.

    Raises:
        ConfigurationError: If it is something else.
    """
    remedy = f"pass such as {_EXAMPLE}"
    if not isinstance(policy, tuple) or not policy:
        known = isinstance(policy, str) and policy in POLICIES
        require(known, "policy", f"one of {', '.join(POLICIES)}", policy, f"choose one, or {remedy}")
        return
    for row in policy:
        whole = isinstance(row, tuple) and len(row) == 6
        require(whole, "a sub-policy of policy", "operation, probability and magnitude, twice", row, remedy)
        for name, probability, magnitude in (row[:3], row[3:]):
            require(name in _NAMES, "policy", f"of {', '.join(_NAMES)}", name, "choose one")
            number("a probability of policy", probability, "in 0..1", lambda share: 0 <= share <= 1, remedy)
            integer("a magnitude of policy", magnitude, 0, NUM_BINS - 1, remedy)


@dataclass(frozen=True)
class _AutoAugmentLayer(PolicyLayer):
    """What both stages share.

    Attributes:
        policy: Name of a policy, such as "imagenet"; or sub-policies, each of operation, probability and magnitude
            0 .. 9, twice.
    """

    policy: Policy = "imagenet"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_policy(self.policy)

    @property
    def table(self) -> BinnedTable:
        return _TABLE

    @property
    def policy_table(self) -> PolicyTable:
        return policy_table_of(self.policy)


@dataclass(frozen=True)
class AutoAugmentFirst(_AutoAugmentLayer, FirstOperation):
    """The first operation of a sub-policy, applied with that operation's probability."""

    name: str = "auto_augment_1"


@dataclass(frozen=True)
class AutoAugmentSecond(_AutoAugmentLayer, SecondOperation):
    """The second operation of a sub-policy that could have led to what the first one did.

    Attributes:
        first: Name of the stage that applies the first operation.
    """

    name: str = "auto_augment_2"
    first: str = "auto_augment_1"

    FIRST = AutoAugmentFirst
