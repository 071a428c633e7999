"""Bases of all policies' layers: one operation for each sample, chosen on the host."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.operations import MOST_PIXELS, PARAMETERS, Choice, Group, OperationTable, groups_of
from dalirefurb.augment.stage import Arrays, Interpolation, Node, Stage, check_interpolation
from dalirefurb.checks import require

Fill = int | tuple[int, int, int]
"""A level for all channels, or one for each."""


def check_fill(name: str, fill: object, or_else: str = "or 3 of them", remedy: str = "use 0 for black") -> None:
    """Refuse what is neither a level nor a tuple of three.

    Raises:
        ConfigurationError: If it is something else.
    """
    levels = fill if isinstance(fill, tuple) else (fill,) * 3
    fits = len(levels) == 3 and all(type(level) is int and 0 <= level <= 255 for level in levels)
    require(fits, name, f"a level in 0 .. 255, {or_else}", fill, remedy)


def levels_of(fill: Fill) -> tuple[int, ...]:
    """Return the levels, one for each channel."""
    return (fill,) * 3 if isinstance(fill, int) else fill


@dataclass(frozen=True)
class OperationLayer(Stage):
    """One operation for each sample. Subclasses say which.

    Attributes:
        interpolation: Interpolation of shears, translations and rotations, "nearest" or "bilinear".
        fill: Level 0 .. 255, or one for each of 3 channels, where the source ends. torchvision's default,
            None, is black.
    """

    name: str
    interpolation: Interpolation = "nearest"
    fill: Fill = 0

    parameters = PARAMETERS

    def __post_init__(self) -> None:
        check_interpolation(self.name, self.interpolation)
        check_fill("fill", self.fill)

    @property
    def fill_levels(self) -> tuple[int, ...]:
        """The levels of `fill`, one for each channel."""
        return levels_of(self.fill)

    @property
    @abstractmethod
    def groups(self) -> Sequence[Group]:
        """Groups of the operations, in order; the first one is that which does nothing."""

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image whose pixels kernels cannot count; see `Stage.refusal`."""
        vast = heights * widths > MOST_PIXELS
        return self._first_unfit(vast, (heights, widths), f"have {MOST_PIXELS:,} pixels at most")

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Apply each sample's operation; call it where conditionals are enabled."""
        from dalirefurb.augment.policies.operation_graph import apply_operations

        return apply_operations(
            images, parameters, groups=self.groups, interpolation=self.interpolation, fill=self.fill_levels
        )


@dataclass(frozen=True)
class TableLayer(OperationLayer):
    """One operation of a table for each sample."""

    @property
    @abstractmethod
    def table(self) -> OperationTable:
        """The operations and their magnitudes."""

    @abstractmethod
    def choose(self, uniforms: NDArray[np.float64]) -> Choice:
        """Turn uniforms, shape (n, num_uniforms), into operations."""

    @property
    def groups(self) -> Sequence[Group]:
        """The table's, see `OperationLayer.groups`."""
        return groups_of(self.table.operations)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Choose, then look the operations' numbers up; see `Stage.draw`."""
        return self.table.parameters(self.choose(uniforms), heights=heights, widths=widths)
