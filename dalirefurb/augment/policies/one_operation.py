"""Stages that do the same operation of `operations` to every image; `RandomApply` leaves some images out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall, same_numbers
from dalirefurb.augment.policies.operations import GROUP_KERNELS, Group, sharpness_weights
from dalirefurb.augment.stage import Node, Stage
from dalirefurb.checks import number


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
