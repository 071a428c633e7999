"""Layers of policies: any operation for each sample, chosen on the host; and stages of one operation for all."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import UNTOUCHED, KernelCall, Parameters, matrix_and_fill, same_numbers
from dalirefurb.augment.maps import Maps, chained
from dalirefurb.augment.policies.operations import (
    GROUP_KERNELS,
    OPERATIONS,
    WIDE_OPERATIONS,
    BinnedTable,
    Chosen,
    Floats,
    Group,
    OperationTable,
    sharpness_weights,
)
from dalirefurb.augment.stage import Arrays, Fill, Interpolation, Node, Parameter, Stage, WarpingStage
from dalirefurb.checks import integer, number


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


@dataclass(frozen=True)
class OneOperation(Stage):
    """One operation of a group of `operations`, which says how far its pixels may be from Pillow's."""

    group: ClassVar[Group]

    keeps_place = True

    @property
    def matrix(self) -> NDArray[np.float32]:
        """Numbers of the operation, shape (3, 3), see `operations`; 0 where it takes none."""
        return _scalar(0)

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        return [KernelCall([GROUP_KERNELS[self.group]], same_numbers(self.matrix.ravel()))]

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        from nvidia.dali import types

        from dalirefurb.augment.policies.operation_graph import BRANCHES

        return BRANCHES[self.group](images, types.Constant(self.matrix))


def _scalar(value: float) -> NDArray[np.float32]:
    return np.diag([value, 0, 0]).astype(np.float32)


@dataclass(frozen=True)
class Solarize(OneOperation):
    """Invert the levels from a threshold on, exactly as torchvision and Pillow.

    Attributes:
        threshold: Least level 0 .. 255 that is inverted; with 256 none is.
    """

    threshold: float = 128
    name: str = "solarize"

    group = Group.SOLARIZE

    def __post_init__(self) -> None:
        remedy = "levels are 0 .. 255"
        number(f"{self.name}: threshold", self.threshold, "in 0..256", lambda level: 0 <= level <= 256, remedy)

    @property
    def matrix(self) -> NDArray[np.float32]:
        """The highest level that stays as it is, negated."""
        return _scalar(1 - np.ceil(self.threshold))


@dataclass(frozen=True)
class Invert(OneOperation):
    """Invert all levels: what was black is white."""

    name: str = "invert"

    group = Group.SOLARIZE

    @property
    def matrix(self) -> NDArray[np.float32]:
        """As if from level 0 on."""
        return _scalar(1)


@dataclass(frozen=True)
class Posterize(OneOperation):
    """Keep the highest bits of every level, exactly as torchvision and Pillow.

    Attributes:
        bits: Number of bits that are kept, 0 .. 8: with 8 all are.
    """

    bits: int
    name: str = "posterize"

    group = Group.POSTERIZE

    def __post_init__(self) -> None:
        self._integer("bits", 0, 8, "a level has 8 bits")

    @property
    def matrix(self) -> NDArray[np.float32]:
        """Mask of the bits that are kept."""
        return _scalar(256 - 2 ** (8 - self.bits))


@dataclass(frozen=True)
class Equalize(OneOperation):
    """Spread the histogram of each channel, exactly as Pillow; DALI's operator does small images otherwise."""

    name: str = "equalize"

    group = Group.EQUALIZE


@dataclass(frozen=True)
class AutoContrast(OneOperation):
    """Stretch the levels of each channel to 0 .. 255, as torchvision and Pillow, within 1 level."""

    name: str = "auto_contrast"

    group = Group.AUTO_CONTRAST


@dataclass(frozen=True)
class AdjustSharpness(OneOperation):
    """Blend with a smoothed image, as torchvision and Pillow, within `abs(factor - 1) / 2 + 1.5` levels; borders stay.

    Attributes:
        factor: Share of the image: 0 smooths, 1 changes nothing, 2 sharpens.
    """

    factor: float
    name: str = "adjust_sharpness"

    group = Group.SHARPNESS

    def __post_init__(self) -> None:
        self._number("factor", "of at least 0", lambda f: 0 <= f < np.inf, "1 changes nothing, 2 sharpens")

    @property
    def matrix(self) -> NDArray[np.float32]:
        """Weights of a pixel and its neighbours."""
        return sharpness_weights(self.factor - 1).astype(np.float32)


@lru_cache
def _narrow_table(num_bins: int) -> BinnedTable:
    return BinnedTable(OPERATIONS, num_bins)


@lru_cache
def _wide_table(num_bins: int) -> BinnedTable:
    return BinnedTable(WIDE_OPERATIONS, num_bins)


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

    @property
    def table(self) -> BinnedTable:
        return _narrow_table(self.num_magnitude_bins)

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

    @property
    def table(self) -> BinnedTable:
        return _wide_table(self.num_magnitude_bins)

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
