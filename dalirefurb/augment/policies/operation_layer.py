"""Base of all policies' layers: operations for each sample, chosen on the host."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import UNTOUCHED, KernelCall, Parameters, matrix_and_fill
from dalirefurb.augment.policies.operations import GROUP_KERNELS, MOST_PIXELS, Chosen, Floats, Group, OperationTable
from dalirefurb.augment.stage import Arrays, Interpolation, Node, Parameter, Stage, check_interpolation
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
    """Operations of a table for each sample. Subclasses choose them.

    Attributes:
        interpolation: Interpolation of shears, translations and rotations, "nearest" or "bilinear".
        fill: Level 0 .. 255, or one for each of 3 channels, where the source ends. torchvision's default,
            None, is black.
    """

    name: str
    interpolation: Interpolation = "nearest"
    fill: Fill = 0

    def __post_init__(self) -> None:
        check_interpolation(self.name, self.interpolation)
        check_fill("fill", self.fill)

    @property
    @abstractmethod
    def table(self) -> OperationTable:
        """The operations that there are."""

    @abstractmethod
    def choose(self, uniforms: Floats) -> Chosen:
        """Turn uniforms, shape (n, num_uniforms), into n operations, or into n times as many as `places` has."""

    @property
    def groups(self) -> Sequence[Group]:
        """Groups of the operations that can be chosen, in order; the first one is that which does nothing."""
        return self.table.groups

    @property
    def places(self) -> tuple[int, ...]:
        """Shape of the operations of a sample, of which there is one by default."""
        return ()

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """The inputs of `operation_graph.apply_operations`, for each place."""
        return _parameters_of(self.places)

    @property
    def fill_levels(self) -> tuple[int, ...]:
        """The levels of `fill`, one for each channel."""
        return levels_of(self.fill)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Choose, then make the operations' numbers; see `Stage.draw`."""
        count, each = len(uniforms), math.prod(self.places)
        if self.places:
            heights, widths = np.repeat(heights, each), np.repeat(widths, each)
        made = self.table.parameters(self.choose(uniforms), heights=heights, widths=widths)
        return {name: values.reshape(count, *self.places, *values.shape[1:]) for name, values in made.items()}

    def refusal(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[int, str] | None:
        """Find an image whose pixels kernels cannot count; see `Stage.refusal`."""
        vast = heights * widths > MOST_PIXELS
        return self._first_unfit(vast, (heights, widths), f"have {MOST_PIXELS:,} pixels at most")

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """The operation of each place: its group chooses the kernel, its matrix is the numbers."""
        return [self._kernel_call(place) for place in np.ndindex(self.places)]

    def _kernel_call(self, place: tuple[int, ...]) -> KernelCall:
        names = {**GROUP_KERNELS, Group.WARP: f"warp.{self.interpolation}"}
        kernels = [names.get(group) if group in self.groups else None for group in Group]

        rows: Any = (slice(None), *place)

        def choose(parameters: Parameters) -> NDArray[np.int64]:
            groups = parameters["group"][rows]
            return np.where(groups == Group.IDENTITY, UNTOUCHED, groups)

        return KernelCall(kernels, matrix_and_fill(self.fill_levels, place), choose)

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Apply each sample's operations, one after the other; call it where conditionals are enabled."""
        for place in np.ndindex(self.places):
            images = self._apply_one(images, parameters, place)
        return images

    def _apply_one(self, images: Node, parameters: Mapping[str, Node], place: tuple[int, ...]) -> Node:
        """Apply each sample's operation of a place."""
        from dalirefurb.augment.policies.operation_graph import apply_operations

        own = {name: parameters[name][place] if place else parameters[name] for name in ("group", "matrix")}
        return apply_operations(
            images, own, groups=self.groups, interpolation=self.interpolation, fill=self.fill_levels
        )


@lru_cache
def _parameters_of(places: tuple[int, ...]) -> Mapping[str, Parameter]:
    return {"group": Parameter("int32", places), "matrix": Parameter("float32", (*places, 3, 3))}
