"""timm's RandAugment by weights: two different operations of a set, as two stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dalirefurb.augment.policies.auto_augment_tables import PolicyOperation
from dalirefurb.augment.policies.timm_halves import First, Second, Tabled, tabled
from dalirefurb.augment.policies.timm_operations import FULL, SETS
from dalirefurb.augment.policies.timm_rand_augment import check_set, checked_magnitude, checked_probability


@lru_cache
def _of_set(operations: str, magnitude: float, probability: float) -> Tabled:
    """Return pairs of different operations: the second is drawn from those that the first one is not."""
    weights = SETS[operations]
    total, pairs, likely = sum(weights.values()), [], []
    for first, weight in weights.items():
        for second, other in weights.items():
            if first != second:
                names = first, second
                pairs.append(tuple(PolicyOperation(name, probability, magnitude) for name in names))
                likely.append(weight * other / (total - weight))
    return tabled(pairs, np.array(likely))  # type: ignore[arg-type]


@dataclass(frozen=True)
class TimmWeightedFirst(First):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)

    @property
    def tabled(self) -> Tabled:
        """Pairs of operations."""
        return _of_set(self.operations, self.magnitude, self.probability)


@dataclass(frozen=True)
class TimmWeightedSecond(Second):
    """The second of two different operations of a set, of which an earlier stage applied the first.

    Attributes:
        operations: Set of operations, see `TimmRandAugmentLayer`.
        magnitude: Magnitude of the operations; 10 is the end of their range.
        probability: Probability that the operation is applied.
    """

    name: str = "timm_weighted_2"
    first: str = "timm_weighted_1"
    operations: str = "weights"
    magnitude: float = FULL
    probability: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)

    @property
    def tabled(self) -> Tabled:
        """Pairs of operations."""
        return _of_set(self.operations, self.magnitude, self.probability)

    @property
    def follows(self) -> TimmWeightedFirst:
        """The stage that applies the first operation."""
        return TimmWeightedFirst(
            self.first, self.interpolation, self.fill, self.noise, self.operations, self.magnitude, self.probability
        )


def _check(stage: TimmWeightedFirst | TimmWeightedSecond) -> None:
    check_set(stage.name, stage.operations)
    object.__setattr__(stage, "magnitude", checked_magnitude(stage.name, stage.magnitude))
    object.__setattr__(stage, "probability", checked_probability(stage.name, stage.probability))
