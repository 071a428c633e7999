"""timm's policies of two operations, as two stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dalirefurb.augment.policies.auto_augment_tables import POLICIES, PolicyOperation, SubPolicy, sub_policies
from dalirefurb.augment.policies.timm_halves import First, Second, Tabled, tabled
from dalirefurb.checks import require


def _posterized(policy: Sequence[SubPolicy], name: str) -> tuple[SubPolicy, ...]:
    """Return a policy with another way to posterize."""

    def renamed(half: PolicyOperation) -> PolicyOperation:
        return half._replace(operation=name) if half.operation == "Posterize" else half

    return tuple((renamed(first), renamed(second)) for first, second in policy)


_V0 = sub_policies(
    ("Equalize", 0.8, 1, "ShearY", 0.8, 4),
    ("Color", 0.4, 9, "Equalize", 0.6, 3),
    ("Color", 0.4, 1, "Rotate", 0.6, 8),
    ("Solarize", 0.8, 3, "Equalize", 0.4, 7),
    ("Solarize", 0.4, 2, "Solarize", 0.6, 2),
    ("Color", 0.2, 0, "Equalize", 0.8, 8),
    ("Equalize", 0.4, 8, "SolarizeAdd", 0.8, 3),
    ("ShearX", 0.2, 9, "Rotate", 0.6, 8),
    ("Color", 0.6, 1, "Equalize", 1.0, 2),
    ("Invert", 0.4, 9, "Rotate", 0.6, 0),
    ("Equalize", 1.0, 9, "ShearY", 0.6, 3),
    ("Color", 0.4, 7, "Equalize", 0.6, 0),
    ("Posterize", 0.4, 6, "AutoContrast", 0.4, 7),
    ("Solarize", 0.6, 8, "Color", 0.6, 9),
    ("Solarize", 0.2, 4, "Rotate", 0.8, 9),
    ("Rotate", 1.0, 7, "TranslateYRel", 0.8, 9),
    ("ShearX", 0.0, 0, "Solarize", 0.8, 4),
    ("ShearY", 0.8, 0, "Color", 0.6, 4),
    ("Color", 1.0, 0, "Rotate", 0.6, 2),
    ("Equalize", 0.8, 4, "Equalize", 0.0, 8),
    ("Equalize", 1.0, 4, "AutoContrast", 0.6, 2),
    ("ShearY", 0.4, 7, "SolarizeAdd", 0.6, 7),
    ("Posterize", 0.8, 2, "Solarize", 0.6, 10),
    ("Solarize", 0.6, 8, "Equalize", 0.6, 1),
    ("Color", 0.8, 6, "Rotate", 0.4, 5),
)

TIMM_POLICIES: Mapping[str, tuple[SubPolicy, ...]] = {
    "original": _posterized(POLICIES["imagenet"], "PosterizeOriginal"),
    "originalr": _posterized(POLICIES["imagenet"], "PosterizeIncreasing"),
    "v0": _V0,
    "v0r": _posterized(_V0, "PosterizeIncreasing"),
    "3a": sub_policies(
        ("Solarize", 1.0, 5, "Identity", 0.0, 0),
        ("Desaturate", 1.0, 10, "Identity", 0.0, 0),
        ("GaussianBlurRand", 1.0, 10, "Identity", 0.0, 0),
    ),
}
"""Sub-policies of operations, probabilities and magnitudes, as timm has them: AutoAugment's for ImageNet with two ways
to posterize; "v0", which EfficientNet was trained with; and DeiT III's 3-Augment (Touvron et al., 2022)."""


@lru_cache
def _of_policy(policy: str) -> Tabled:
    return tabled(TIMM_POLICIES[policy])


def _check_policy(name: str, policy: object) -> None:
    known = isinstance(policy, str) and policy in TIMM_POLICIES
    require(known, f"{name}: policy", f"one of {', '.join(TIMM_POLICIES)}", policy, "choose one")


@dataclass(frozen=True)
class TimmPolicyFirst(First):
    """The first operation of one of timm's policies.

    Attributes:
        policy: Name of the policy, see `TIMM_POLICIES`.
    """

    name: str = "timm_policy_1"
    policy: str = "original"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_policy(self.name, self.policy)

    @property
    def tabled(self) -> Tabled:
        """The policy."""
        return _of_policy(self.policy)


@dataclass(frozen=True)
class TimmPolicySecond(Second):
    """The second operation of one of timm's policies, whose first one an earlier stage applied.

    Attributes:
        policy: Name of the policy, see `TIMM_POLICIES`.
    """

    name: str = "timm_policy_2"
    first: str = "timm_policy_1"
    policy: str = "original"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_policy(self.name, self.policy)

    @property
    def tabled(self) -> Tabled:
        """The policy."""
        return _of_policy(self.policy)

    @property
    def follows(self) -> TimmPolicyFirst:
        """The stage that applies the first operation."""
        return TimmPolicyFirst(self.first, self.interpolation, self.fill, self.noise, self.policy)
