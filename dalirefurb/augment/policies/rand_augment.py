"""One layer of RandAugment (Cubuk et al., 2019): an operation for each sample, drawn on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.operation_layer import TableLayer
from dalirefurb.augment.policies.operations import OPERATIONS, Choice, OperationTable
from dalirefurb.checks import integer


@dataclass(frozen=True)
class RandAugmentLayer(TableLayer):
    """One of 14 operations, uniformly; signed ones in either direction. Defaults are torchvision's.

    Attributes:
        magnitude: Magnitude bin, 0 .. num_magnitude_bins - 1.
        num_magnitude_bins: Bins between no effect and the strongest, at least 2.
    """

    name: str = "rand_augment"
    magnitude: int = 9
    num_magnitude_bins: int = 31

    num_uniforms = 2  # operation and sign

    def __post_init__(self) -> None:
        super().__post_init__()
        bins = integer("num_magnitude_bins", self.num_magnitude_bins, 2, None, "the paper has 31")
        remedy = "lower it, or raise num_magnitude_bins"
        integer("magnitude", self.magnitude, 0, bins - 1, remedy)

    @cached_property
    def table(self) -> OperationTable:
        """The paper's operations, at every magnitude."""
        return OperationTable(OPERATIONS, self.num_magnitude_bins)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each operation and sign; at weak magnitudes some look alike but still count as two."""
        return np.concatenate(
            [np.full(2, 1 / 28) if operation.signed else np.full(1, 1 / 14) for operation in OPERATIONS]
        )

    def choose(self, uniforms: NDArray[np.float64]) -> Choice:
        """Turn the first uniform into an operation and the second into a sign."""
        operations = (uniforms[:, 0] * len(OPERATIONS)).astype(np.int64)
        return Choice(operations, self.magnitude, uniforms[:, 1] < 0.5)
