"""Which operation does each sample get? One layer of RandAugment (Cubuk et al., 2019), drawn on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.operations import OPERATIONS, PARAMETERS, OperationTable
from dalirefurb.augment.stage import Arrays, Interpolation, Node, Parameter, Stage
from dalirefurb.errors import ConfigurationError


@dataclass(frozen=True)
class RandAugmentLayer(Stage):
    """One of 14 operations, uniformly; signed ones in either direction. Defaults are torchvision's.

    Attributes:
        magnitude: Magnitude bin, 0 .. num_magnitude_bins - 1.
        num_magnitude_bins: Bins between no effect and the strongest, at least 2.
        interpolation: "nearest" or "bilinear"; of shears, translations and rotations.
        fill: Level 0 .. 255, or one for each of 3 channels, where the source ends. torchvision's default,
            None, is black.
    """

    name: str = "rand_augment"
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: int | tuple[int, int, int] = 0

    def __post_init__(self) -> None:
        if self.num_magnitude_bins < 2:
            raise ConfigurationError(
                f"num_magnitude_bins must be at least 2, got {self.num_magnitude_bins}: the paper has 31"
            )
        if not 0 <= self.magnitude < self.num_magnitude_bins:
            raise ConfigurationError(
                f"magnitude must be in 0 .. {self.num_magnitude_bins - 1}, got {self.magnitude}: "
                "lower it, or raise num_magnitude_bins"
            )
        if self.interpolation not in ("nearest", "bilinear"):
            raise ConfigurationError(
                f'interpolation must be "nearest" or "bilinear", got {self.interpolation!r}: choose one'
            )
        levels = self._fill_levels
        if len(levels) != 3 or not all(0 <= level <= 255 for level in levels):
            raise ConfigurationError(
                f"fill must be a level in 0 .. 255, or 3 of them, got {self.fill}: use 0 for black"
            )

    @property
    def _fill_levels(self) -> tuple[int, ...]:
        return (self.fill,) * 3 if isinstance(self.fill, int) else tuple(self.fill)

    @cached_property
    def _table(self) -> OperationTable:
        return OperationTable(OPERATIONS, self.num_magnitude_bins)

    @property
    def num_uniforms(self) -> int:
        """Operation and sign."""
        return 2

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The group of the operation and its 3x3 matrix."""
        return PARAMETERS

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for each operation and sign; at weak magnitudes some look alike but still count as two."""
        return np.concatenate(
            [np.full(2, 1 / 28) if operation.signed else np.full(1, 1 / 14) for operation in OPERATIONS]
        )

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Turn the first uniform into an operation and the second into a sign; see `Stage.draw`."""
        return self._table.parameters(
            operations=(uniforms[:, 0] * len(OPERATIONS)).astype(np.int64),
            bins=self.magnitude,
            negated=uniforms[:, 1] < 0.5,
            heights=heights,
            widths=widths,
        )

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Apply each sample's operation; call it where conditionals are enabled."""
        from dalirefurb.augment.operation_graph import apply_operations

        return apply_operations(images, parameters, interpolation=self.interpolation, fill=self._fill_levels)
