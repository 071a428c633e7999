"""Voxels: where each voxel of a result comes from, and what becomes of its value.

Crops, flips and turns by right angles are all one thing: a start, and for each axis of the result an axis of the source
with a direction. So any chain of them reads no more of a volume than what is shown, and copies it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import plain, require

AFFINE, CLIP = 0, 1
"""What a step does to values: multiply and add, or limit."""

AXES = 3

Shape = tuple[int, int, int]
"""Depth, height and width in voxels."""

Function = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Makes other values of those of an image, (C, D, H, W), which it may change; of the same shape."""


def three(name: str, given: object, least: int | None, wanted: str) -> Shape:
    """Return three ints; one stands for three of them.

    Args:
        name: Name of the argument.
        given: Its value.
        least: The least that each may be; None: any int.
        wanted: What it should be, for messages.

    Raises:
        ConfigurationError: If it is something else.
    """
    numbers = plain(given)
    numbers = numbers if isinstance(numbers, tuple) else (numbers,) * AXES
    holds = len(numbers) == AXES and all(type(each) is int and (least is None or each >= least) for each in numbers)
    require(holds, name, wanted, given, "pass whole numbers of voxels, such as 96, or (64, 128, 128)")
    return numbers


def volume_shape(name: str, given: object) -> Shape:
    """Return a shape as three ints; one stands for cubes.

    Raises:
        ConfigurationError: If it is not one or three positive integers.
    """
    return three(name, given, 1, "a positive integer, or three as (depth, height, width)")


class Voxels(ABC):
    """What is shown of a volume, to be changed by one stage after the other; axes are numbered 0, 1, 2.

    Nothing is computed before it must be: places and values are, at the end, one copy of what is shown.

    Args:
        source: Shape of the volume.

    Attributes:
        source: Shape of the volume.
        shape: Shape of what is shown.
        start: Where in the volume its first voxel comes from; perhaps outside.
        axes: Axis of the volume along which each of its axes goes.
        directions: 1, or -1 where it goes backwards.
        limits: Between which voxels of the volume, along each of its axes, all is that crops have left of it.
        fill: Value where there is no volume, when `filled_after` steps are done.
        filled_after: Number of steps that were there when it was said.
        single: Whether values are in single precision from here on, whatever they are in the volume.
        steps: What becomes of values, in single precision, one after the other: (`AFFINE`, factor, summand) or
            (`CLIP`, least, most).
    """

    def __init__(self, source: Shape) -> None:
        self._begin(source)

    def _begin(self, source: Shape) -> None:
        """Show all of a volume of this shape, as it is."""
        self.source, self.shape = source, [*source]
        self.start, self.axes, self.directions = [0] * AXES, [*range(AXES)], [1] * AXES
        self.limits = [(0, side) for side in source]
        self.fill, self.filled_after, self.single = 0.0, 0, False
        self.steps: list[tuple[int, float, float]] = []

    @property
    def moved(self) -> bool:
        """Whether anything was done to places."""
        here = self._shown() == self.limits == [(0, side) for side in self.source]
        return not here or self.axes != [*range(AXES)] or self.directions != [1] * AXES

    @property
    def padded(self) -> bool:
        """Whether anything is shown where there is no volume."""
        pairs = zip(self._shown(), self.limits, strict=True)
        return any(first < low or stop > high for (first, stop), (low, high) in pairs)

    def _shown(self) -> list[tuple[int, int]]:
        """Return between which voxels of the volume all is that is shown, along each of its axes; perhaps outside."""
        shown = [(0, 0)] * AXES
        for own, direction, side in zip(self.axes, self.directions, self.shape, strict=True):
            first, last = sorted((self.start[own], self.start[own] + direction * (side - 1)))
            shown[own] = first, last + 1
        return shown

    def crop(self, start: Sequence[int], shape: Any, fill: float = 0.0) -> None:
        """Show a window alone, which begins at `start`; beyond the volume, if it goes there, there is `fill`."""
        begins = three("crop: start", tuple(start), None, "three ints")
        sides = three("crop: shape", shape, 1, "three positive ints")
        if self.padded:  # There would be two fills.
            self.make()
        pairs = zip(self.limits, self._shown(), strict=True)
        self.limits = [(max(low, first), max(low, first, min(high, stop))) for (low, high), (first, stop) in pairs]
        for axis, begin in enumerate(begins):
            self.start[self.axes[axis]] += self.directions[axis] * begin
        self.shape, self.fill, self.filled_after = [*sides], fill, len(self.steps)

    def flip(self, axis: int) -> None:
        """Mirror along an axis."""
        require(axis in range(AXES), "flip: axis", "0, 1 or 2", axis, "pass 2 for the width")
        self.start[self.axes[axis]] += self.directions[axis] * (self.shape[axis] - 1)
        self.directions[axis] *= -1

    def turn(self, quarters: int, axes: tuple[int, int]) -> None:
        """Turn by right angles, from the first axis towards the second, as `numpy.rot90` does."""
        require(len({*axes} & {*range(AXES)}) == len(axes) == 2, "turn: axes", "two of 0, 1, 2", axes, "pass (1, 2)")
        first, second = axes
        for _ in range(quarters % 4):
            self.flip(second)
            for each in (self.shape, self.axes, self.directions):
                each[first], each[second] = each[second], each[first]

    def scale(self, factor: float, summand: float = 0.0) -> None:
        """Multiply the image's values by a number, and add another; 1 and 0 leave them, in single precision."""
        self.single = True
        if (factor, summand) != (1.0, 0.0):
            self.steps.append((AFFINE, factor, summand))

    def clip(self, least: float, most: float) -> None:
        """Limit the image's values."""
        self.single = True
        self.steps.append((CLIP, least, most))

    @abstractmethod
    def make(self) -> None:
        """Make all that is shown: from here on it is the volume."""

    @abstractmethod
    def foreground(self) -> NDArray[np.int32]:
        """List some voxels of what is shown whose label is above 0, int32 (k, 3)."""

    @abstractmethod
    def resample(self, matrix: NDArray[np.float64], shape: Shape, fill: float = 0.0) -> None:
        """Show what does not go along the axes: values linearly between voxels, and the nearest ones' labels.

        Args:
            matrix: Map from voxels of the result to those of what is shown, whose centres are whole numbers, (3, 4).
            shape: Shape of the result.
            fill: Value where there is nothing.
        """

    @abstractmethod
    def smooth(self, sigma: float) -> None:
        """Blur the image's values by a Gaussian filter of so many voxels; beyond the borders they are mirrored."""

    @abstractmethod
    def compute(self, function: Function) -> None:
        """Have a function make other values of the image's."""
