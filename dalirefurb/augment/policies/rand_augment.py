"""RandAugment and TrivialAugment: any operation for each sample, drawn on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.operation_layer import OperationLayer
from dalirefurb.augment.policies.operations import OPERATIONS, WIDE_OPERATIONS, BinnedTable, Chosen, Floats
from dalirefurb.checks import integer


@dataclass(frozen=True)
class RandAugmentLayer(OperationLayer):
    """A layer of RandAugment (Cubuk et al., 2019): one of 14 operations, uniformly; signed ones in either direction.

    Defaults are torchvision's.

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
    def table(self) -> BinnedTable:
        return BinnedTable(OPERATIONS, self.num_magnitude_bins)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each operation and sign; at weak magnitudes some look alike but still count as two."""
        signs = [1 + operation.signed for operation in OPERATIONS]
        return np.concatenate([np.full(count, 1 / len(OPERATIONS) / count) for count in signs])

    def choose(self, uniforms: Floats) -> Chosen:
        """Turn the first uniform into an operation and the second into a sign."""
        operations = (uniforms[:, 0] * len(OPERATIONS)).astype(np.int64)
        return Chosen(operations, self.magnitude, uniforms[:, 1] < 0.5)


@dataclass(frozen=True)
class TrivialAugmentLayer(OperationLayer):
    """TrivialAugment (Müller and Hutter, ICCV 2021): one of 14 operations at any magnitude, both uniformly.

    The ranges are the paper's wide ones.

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
    def table(self) -> BinnedTable:
        return BinnedTable(WIDE_OPERATIONS, self.num_magnitude_bins)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each operation, magnitude and sign; those that look alike still count as two."""
        share, bins = 1 / len(WIDE_OPERATIONS), self.num_magnitude_bins
        counts = [1 if not each.ranged else bins * (1 + each.signed) for each in WIDE_OPERATIONS]
        return np.concatenate([np.full(count, share / count) for count in counts])

    def choose(self, uniforms: Floats) -> Chosen:
        """Turn the first uniform into an operation, the second into a magnitude and the third into a sign."""
        operations = (uniforms[:, 0] * len(WIDE_OPERATIONS)).astype(np.int64)
        bins = (uniforms[:, 1] * self.num_magnitude_bins).astype(np.int64)
        return Chosen(operations, bins, uniforms[:, 2] < 0.5)
