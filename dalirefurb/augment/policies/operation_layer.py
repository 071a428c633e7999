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
from dalirefurb.augment.maps import Maps, chained
from dalirefurb.augment.policies.operations import GROUP_KERNELS, Chosen, Floats, Group, OperationTable
from dalirefurb.augment.stage import Arrays, Fill, Interpolation, Node, Parameter, WarpingStage


@dataclass(frozen=True)
class OperationLayer(WarpingStage):
    """Operations of a table for each sample. Subclasses choose them.

    Attributes:
        interpolation: Interpolation of shears, translations and rotations, "nearest" or "bilinear".
        fill: Level 0 .. 255, or one for each of 3 channels, where the source ends. torchvision's default,
            None, is black.
    """

    name: str
    interpolation: Interpolation = "nearest"
    fill: Fill = 0

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
        """The group and the matrix of the operation of each place."""
        return _parameters_of(self.places)

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        count, each = len(uniforms), math.prod(self.places)
        sizes = {"heights": np.repeat(heights, each), "widths": np.repeat(widths, each)}
        made = self.table.parameters(self.choose(uniforms), **sizes)
        return {name: values.reshape(count, *self.places, *values.shape[1:]) for name, values in made.items()}

    def matrices(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Maps:
        return chained(self.steps(parameters, heights, widths), len(heights))

    def steps(self, parameters: Arrays, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> list[Maps]:
        """Return what warps have drawn, for each place."""
        warped = (parameters["group"] == Group.WARP)[..., None, None]
        maps = np.where(warped, parameters["matrix"], np.eye(3))
        return [*maps.reshape(len(heights), math.prod(self.places), 3, 3).transpose(1, 0, 2, 3)]

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

        return KernelCall(kernels, matrix_and_fill(self.fill, place), choose)

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        for place in np.ndindex(self.places):
            images = self._apply_one(images, parameters, place)
        return images

    def _apply_one(self, images: Node, parameters: Mapping[str, Node], place: tuple[int, ...]) -> Node:
        """Apply each sample's operation of a place: a branch for each group."""
        from dalirefurb.augment.policies.operation_graph import BRANCHES, choose

        own = {name: parameters[name][place] if place else parameters[name] for name in ("group", "matrix")}
        branches = {int(group): self.warp if group is Group.WARP else BRANCHES[group] for group in self.groups}
        return choose(branches, own["group"], images, own["matrix"])


@lru_cache
def _parameters_of(places: tuple[int, ...]) -> Mapping[str, Parameter]:
    return {"group": Parameter("int32", places), "matrix": Parameter("float32", (*places, 3, 3))}
