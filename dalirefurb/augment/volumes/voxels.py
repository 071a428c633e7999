"""Voxels: where each voxel of a result comes from, and what becomes of its value.

Crops, flips and turns by right angles are all one thing: a start, and for each axis of the result an axis of the source
with a direction. So any chain of them reads no more of a volume than what is shown, and copies it once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError

AFFINE, CLIP = 0, 1
"""What a step does to values: multiply and add, or limit."""

Shape = tuple[int, int, int]
"""Depth, height and width in voxels."""


Function = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Makes other values of those of an image, (C, D, H, W), which it may change; of the same shape."""


@dataclass(frozen=True)
class Resampling:
    """What is shown where it does not go along the axes.

    Attributes:
        matrix: Map from voxels of the result to those of what is shown, whose centres are whole numbers, (3, 4).
        shape: Shape of the result.
        fill: Value where there is nothing.
    """

    matrix: NDArray[np.float64]
    shape: Shape
    fill: float


@dataclass(frozen=True)
class Smoothing:
    """What is shown as through a Gaussian filter.

    Attributes:
        sigma: Its standard deviation in voxels.
    """

    sigma: float


@dataclass
class Voxels:
    """What is shown of a volume, to be changed by one stage after the other; axes are numbered 0, 1, 2.

    Attributes:
        source: Shape of the volume.
        foreground: Function that lists some voxels of the volume whose label is above 0, int32 (k, 3).
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
        then: What is done with all that is shown, before any other stage goes on; None: nothing.
    """

    source: Shape
    foreground: Callable[[], NDArray[np.int32]]
    shape: list[int] = field(init=False)
    start: list[int] = field(default_factory=lambda: [0, 0, 0])
    axes: list[int] = field(default_factory=lambda: [0, 1, 2])
    directions: list[int] = field(default_factory=lambda: [1, 1, 1])
    limits: list[tuple[int, int]] = field(init=False)
    fill: float = 0.0
    filled_after: int = 0
    single: bool = False
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    then: Resampling | Smoothing | Function | None = None

    def __post_init__(self) -> None:
        self.shape, self.limits = [*self.source], [(0, side) for side in self.source]

    @property
    def moved(self) -> bool:
        """Whether anything was done to places."""
        here = self._shown() == self.limits == [(0, side) for side in self.source]
        return not here or self.axes != [0, 1, 2] or self.directions != [1, 1, 1]

    @property
    def padded(self) -> bool:
        """Whether anything is shown where there is no volume."""
        return any(
            first < low or stop > high for (first, stop), (low, high) in zip(self._shown(), self.limits, strict=True)
        )

    def _shown(self) -> list[tuple[int, int]]:
        """Return between which voxels of the volume all is that is shown, along each of its axes; perhaps outside."""
        shown = [(0, 0)] * 3
        for own, direction, side in zip(self.axes, self.directions, self.shape, strict=True):
            first, last = sorted((self.start[own], self.start[own] + direction * (side - 1)))
            shown[own] = first, last + 1
        return shown

    def crop(self, start: tuple[int, ...], shape: Shape, fill: float = 0.0) -> None:
        """Show a window alone, which begins at `start`; beyond the volume, if it goes there, there is `fill`."""
        self.limits = [
            (max(low, first), max(low, first, min(high, stop)))
            for (low, high), (first, stop) in zip(self.limits, self._shown(), strict=True)
        ]
        for axis, begin in enumerate(start):
            self.start[self.axes[axis]] += self.directions[axis] * begin
        self.shape, self.fill, self.filled_after = [*shape], fill, len(self.steps)

    def flip(self, axis: int) -> None:
        """Mirror along an axis."""
        self.start[self.axes[axis]] += self.directions[axis] * (self.shape[axis] - 1)
        self.directions[axis] *= -1

    def turn(self, quarters: int, axes: tuple[int, int]) -> None:
        """Turn by right angles, from the first axis towards the second, as `numpy.rot90` does."""
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

    def resample(self, matrix: NDArray[np.float64], shape: Shape, fill: float = 0.0) -> None:
        """Show what a map leads to: values linearly between voxels, labels of the nearest ones; see `Resampling`."""
        self._do(Resampling(np.asarray(matrix, np.float64), shape, fill))

    def smooth(self, sigma: float) -> None:
        """Blur the image's values; beyond the borders they are mirrored."""
        self._do(Smoothing(sigma))

    def compute(self, function: Function) -> None:
        """Have a function make other values of the image's."""
        self._do(function)

    def _do(self, what: Resampling | Smoothing | Function) -> None:
        if self.then is not None:
            raise ConfigurationError(
                "a stage of volumes must resample, smooth or compute once at most, and as the last thing that it does: "
                "make two stages of it"
            )
        self.single, self.then = True, what

    def clip(self, least: float, most: float) -> None:
        """Limit the image's values."""
        self.single = True
        self.steps.append((CLIP, least, most))
