"""TrivialAugment (Müller and Hutter, ICCV 2021): an operation for each sample, drawn on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.operation_layer import TableLayer
from dalirefurb.augment.policies.operations import WIDE_OPERATIONS, Choice, OperationTable
from dalirefurb.checks import integer


@dataclass(frozen=True)
class TrivialAugmentLayer(TableLayer):
    """One of 14 operations at one of several magnitudes, both uniformly; the paper's wide ranges.

    Attributes:
        num_magnitude_bins: Magnitudes between no effect and the strongest, at least 2.
    """

    name: str = "trivial_augment"
    num_magnitude_bins: int = 31

    code_version = 2
    num_uniforms = 3  # operation, magnitude and sign

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("num_magnitude_bins", self.num_magnitude_bins, 2, None, "the paper has 31")

    @cached_property
    def table(self) -> OperationTable:
        """The wide ranges, at every magnitude."""
        return OperationTable(WIDE_OPERATIONS, self.num_magnitude_bins)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each operation, magnitude and sign; those that look alike still count as two."""
        share, bins = 1 / len(WIDE_OPERATIONS), self.num_magnitude_bins
        counts = [1 if not each.ranged else bins * (1 + each.signed) for each in WIDE_OPERATIONS]
        return np.concatenate([np.full(count, share / count) for count in counts])

    def choose(self, uniforms: NDArray[np.float64]) -> Choice:
        """Turn the first uniform into an operation, the second into a magnitude and the third into a sign."""
        operations = (uniforms[:, 0] * len(WIDE_OPERATIONS)).astype(np.int64)
        bins = (uniforms[:, 1] * self.num_magnitude_bins).astype(np.int64)
        return Choice(operations, bins, uniforms[:, 2] < 0.5)
