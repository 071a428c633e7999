"""TrivialAugment (Müller and Hutter, ICCV 2021): an operation for each sample, drawn on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.operation_layer import OperationLayer
from dalirefurb.augment.operations import WIDE_OPERATIONS, Choice, OperationTable

_NUM_BINS = 31


@dataclass(frozen=True)
class TrivialAugmentLayer(OperationLayer):
    """One of 14 operations at one of 31 magnitudes, both uniformly; the paper's wide ranges."""

    name: str = "trivial_augment"

    num_uniforms = 3  # operation, magnitude and sign

    @cached_property
    def table(self) -> OperationTable:
        """The wide ranges, at every magnitude."""
        return OperationTable(WIDE_OPERATIONS, _NUM_BINS)

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each operation, magnitude and sign; those that look alike still count as two."""
        share = 1 / len(WIDE_OPERATIONS)
        counts = [1 if not each.ranged else _NUM_BINS * (1 + each.signed) for each in WIDE_OPERATIONS]
        return np.concatenate([np.full(count, share / count) for count in counts])

    def choose(self, uniforms: NDArray[np.float64]) -> Choice:
        """Turn the first uniform into an operation, the second into a magnitude and the third into a sign."""
        operations = (uniforms[:, 0] * len(WIDE_OPERATIONS)).astype(np.int64)
        bins = (uniforms[:, 1] * _NUM_BINS).astype(np.int64)
        return Choice(operations, bins, uniforms[:, 2] < 0.5)
