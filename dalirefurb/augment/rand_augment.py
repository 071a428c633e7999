"""One layer of RandAugment (Cubuk et al., 2019): an operation for each sample, drawn on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.operation_layer import OperationLayer
from dalirefurb.augment.operations import OPERATIONS, Choice, OperationTable
from dalirefurb.errors import ConfigurationError


@dataclass(frozen=True)
class RandAugmentLayer(OperationLayer):
    """One of 14 operations, uniformly; signed ones in either direction. Defaults are torchvision's.

    Attributes:
        magnitude: Magnitude bin, 0 .. num_magnitude_bins - 1.
        num_magnitude_bins: Bins between no effect and the strongest, at least 2.
    """

    name: str = "rand_augment"
    magnitude: int = 9
    num_magnitude_bins: int = 31

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_magnitude_bins < 2:
            raise ConfigurationError(
                f"num_magnitude_bins must be at least 2, got {self.num_magnitude_bins}: the paper has 31"
            )
        if not 0 <= self.magnitude < self.num_magnitude_bins:
            raise ConfigurationError(
                f"magnitude must be in 0 .. {self.num_magnitude_bins - 1}, got {self.magnitude}: "
                "lower it, or raise num_magnitude_bins"
            )

    @cached_property
    def table(self) -> OperationTable:
        """The paper's operations, at every magnitude."""
        return OperationTable(OPERATIONS, self.num_magnitude_bins)

    @property
    def num_uniforms(self) -> int:
        """Operation and sign."""
        return 2

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
