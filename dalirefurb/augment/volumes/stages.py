"""Stages of volumes: what is shown of them, and what becomes of their values; see `Voxels`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import KernelCall
from dalirefurb.augment.stage import Node
from dalirefurb.augment.stages.custom import GivenUniforms
from dalirefurb.augment.volumes.voxels import Shape, Voxels, volume_shape
from dalirefurb.checks import integer, interval, number, require
from dalirefurb.errors import ConfigurationError

_MOST = 3e38
"""Single precision has no larger numbers."""


class VolumeStage(GivenUniforms):
    """A stage of volumes. Subclasses say in `change` what it does, and how many numbers are drawn for that."""

    @abstractmethod
    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        """Go on from what the stages before show of a volume.

        Args:
            voxels: What they show, to be changed by its methods.
            uniforms: Random numbers of the sample, uniform in [0, 1), shape (num_uniforms,).
        """

    def leaves(self, shape: Shape | None) -> Shape | None:
        """Return the shape of what it shows of volumes of a shape, None: of any; None if that is not known.

        Raises:
            ConfigurationError: If it cannot take such volumes.
        """
        return None

    @property
    def kernel_calls(self) -> Sequence[KernelCall]:
        """None, since the kernels of volumes are called otherwise."""
        return ()

    def apply(self, images: Node, parameters: Mapping[str, Node]) -> Node:
        """Refuse.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(f"stage {self.name!r} is of volumes, which DALI's operators do not make: use a Loader")


def _check_fill(stage: Any) -> None:
    number(f"{stage.name}: fill", stage.fill, "in single precision", lambda each: abs(each) < _MOST, "0 is usual")


def check_probability(stage: Any, name: str = "probability") -> None:
    """Refuse what is no probability.

    Raises:
        ConfigurationError: If it is none.
    """
    number(f"{stage.name}: {name}", getattr(stage, name), "in 0..1", lambda p: 0 <= p <= 1, "pass a share")


@dataclass(frozen=True)
class CenterCrop3D(VolumeStage):
    """Cut a window out of the middle; a volume that is smaller is in the middle of it.

    Attributes:
        size: Side of the window in voxels, or its depth, height and width.
        fill: Value around volumes that are smaller; labels are 0 there.
    """

    size: Any
    fill: float = 0.0
    name: str = "center_crop"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", volume_shape(f"{self.name}: size", self.size))
        _check_fill(self)

    def leaves(self, shape: Shape | None) -> Shape | None:
        """Return the window's."""
        return self.size  # type: ignore[no-any-return]

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        """Show the window."""
        starts = [(there - side) // 2 for there, side in zip(voxels.shape, self.size, strict=True)]
        voxels.crop(tuple(starts), self.size, self.fill)


@dataclass(frozen=True)
class RandomCrop3D(VolumeStage):
    """Cut a window out at random; a volume that is smaller is in the middle of it.

    Where there are labels some windows are drawn around a voxel of the foreground, which has a label above 0: around
    one of 4,096 that are spread over it. The window is moved, if need be, so that it lies inside. Without foreground
    all are drawn alike. MONAI's `RandCropByPosNegLabel` with pos=1 and neg=1 is `foreground=0.5`, but that its other
    half is drawn around voxels of the background; nnU-Net's is 0.33.

    Attributes:
        size: Side of the window in voxels, or its depth, height and width.
        foreground: Probability that it is drawn around a voxel of the foreground.
        fill: Value around volumes that are smaller; labels are 0 there.
    """

    size: Any
    foreground: float = 0.0
    fill: float = 0.0
    name: str = "crop"

    num_uniforms: ClassVar[int] = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", volume_shape(f"{self.name}: size", self.size))
        check_probability(self, "foreground")
        _check_fill(self)

    def leaves(self, shape: Shape | None) -> Shape | None:
        """Return the window's."""
        return self.size  # type: ignore[no-any-return]

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        """Show the window."""
        voxels.crop(self.drawn_start(voxels, uniforms), self.size, self.fill)

    def drawn_start(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> tuple[int, ...]:
        """Return where the window begins, by the first four of some uniforms; below 0 where a volume is smaller."""
        rooms = [there - side for there, side in zip(voxels.shape, self.size, strict=True)]
        starts = [int(place * (room + 1)) for place, room in zip(uniforms[1:4].tolist(), rooms, strict=True)]
        if uniforms[0] < self.foreground and len(foreground := voxels.foreground()):
            centre = foreground[int(uniforms[1] * len(foreground))].tolist()
            starts = [place - side // 2 for place, side in zip(centre, self.size, strict=True)]
        pairs = zip(starts, rooms, strict=True)
        return tuple(min(max(start, 0), room) if room >= 0 else room // 2 for start, room in pairs)


@dataclass(frozen=True)
class RandomFlip3D(VolumeStage):
    """Mirror along each of some axes, or not.

    Attributes:
        axes: Numbers of the axes: 0 of the depth, 1 of the height, 2 of the width.
        probability: Probability for each of them.
    """

    axes: tuple[int, ...] = (0, 1, 2)
    probability: float = 0.5
    name: str = "flip"

    def __post_init__(self) -> None:
        given = self.axes if isinstance(self.axes, tuple) else (self.axes,)
        known = {*given} <= {0, 1, 2} and 0 < len(given) == len({*given}) and all(type(each) is int for each in given)
        require(known, f"{self.name}: axes", "some of 0, 1, 2", self.axes, "pass such as (0, 1)")
        object.__setattr__(self, "axes", given)
        check_probability(self)

    def leaves(self, shape: Shape | None) -> Shape | None:
        """Return the same."""
        return shape

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """One for each axis."""
        return len(self.axes)

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        """Mirror along those that are drawn."""
        for axis, drawn in zip(self.axes, uniforms.tolist(), strict=True):
            if drawn < self.probability:
                voxels.flip(axis)


@dataclass(frozen=True)
class RandomRotate90(VolumeStage):
    """Turn by one, two or three right angles, or not; all windows should be as long along one axis as along the other.

    Attributes:
        probability: Probability that it is turned.
        axes: The two axes that it turns, from the first towards the second, as `numpy.rot90` does.
        max_quarters: The most quarters, 1 .. 3, of which each is as likely.
    """

    probability: float = 0.1
    axes: tuple[int, int] = (0, 1)
    max_quarters: int = 3
    name: str = "rotate90"

    num_uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        known = isinstance(self.axes, tuple) and len(self.axes) == 2 == len({*self.axes} & {0, 1, 2})
        require(known, f"{self.name}: axes", "two of 0, 1, 2", self.axes, "pass such as (1, 2)")
        integer(f"{self.name}: max_quarters", self.max_quarters, 1, 3, "pass 3 for any of them")
        check_probability(self)

    def leaves(self, shape: Shape | None) -> Shape | None:
        """Return the same, unless what it turns is longer one way, so that some would have another shape."""
        first, second = self.axes
        if shape is not None and shape[first] != shape[second] and self.probability > 0:
            raise ConfigurationError(
                f"{self.name}: what is turned must be as long along axis {first} as along axis {second}, got "
                f"{' x '.join(map(str, shape))}: pass axes= of equal length, such as axes=(1, 2)"
            )
        return shape

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        """Turn it, if that is drawn."""
        if uniforms[0] < self.probability:
            voxels.turn(1 + int(uniforms[1] * self.max_quarters), self.axes)


class ValueStage(VolumeStage):
    """A stage of values alone."""

    def leaves(self, shape: Shape | None) -> Shape | None:
        """Return the same."""
        return shape


@dataclass(frozen=True)
class IntensityWindow(ValueStage):
    """Make 0 of a value and 1 of another, and limit what is beyond: a window of Hounsfield units, such as (-57, 164).

    Attributes:
        low: Value that becomes 0.
        high: Value that becomes 1, above `low`.
    """

    low: float
    high: float
    name: str = "window"

    def __post_init__(self) -> None:
        wanted, remedy = "two numbers, low < high", "pass such as IntensityWindow(-57, 164)"
        low, high = interval(f"{self.name}", (self.low, self.high), wanted, lambda a, b: -1e38 < a < b < 1e38, remedy)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        """Scale, then limit."""
        voxels.scale(1 / (self.high - self.low), -self.low / (self.high - self.low))
        voxels.clip(0.0, 1.0)


class SometimesStage(ValueStage):
    """A stage that changes the values of some images, in single precision. The first uniform says of which."""

    probability: float

    num_uniforms: ClassVar[int] = 2

    def change(self, voxels: Voxels, uniforms: NDArray[np.float64]) -> None:
        """Change them, if that is drawn."""
        voxels.scale(1.0)
        if uniforms[0] < self.probability:
            self._change(voxels, uniforms[1:].tolist())

    @abstractmethod
    def _change(self, voxels: Voxels, drawn: list[float]) -> None:
        """Change the values, by the other uniforms."""


@dataclass(frozen=True)
class RandomScaleIntensity(SometimesStage):
    """Multiply all values of an image by 1 + f, f uniform in -factor .. factor.

    Attributes:
        factor: The largest f.
        probability: Probability that it is done.
    """

    factor: float = 0.1
    probability: float = 0.5
    name: str = "scale_intensity"

    def __post_init__(self) -> None:
        number(f"{self.name}: factor", self.factor, "above 0", lambda each: 0 < each < 1e6, "0.1 is usual")
        check_probability(self)

    def _change(self, voxels: Voxels, drawn: list[float]) -> None:
        voxels.scale(1 + self.factor * (2 * drawn[0] - 1))


@dataclass(frozen=True)
class RandomShiftIntensity(SometimesStage):
    """Add a number to all values of an image, uniform in -offset .. offset.

    Attributes:
        offset: The largest number.
        probability: Probability that it is done.
    """

    offset: float = 0.1
    probability: float = 0.5
    name: str = "shift_intensity"

    def __post_init__(self) -> None:
        number(f"{self.name}: offset", self.offset, "above 0", lambda each: 0 < each < 1e6, "0.1 is usual for 0 .. 1")
        check_probability(self)

    def _change(self, voxels: Voxels, drawn: list[float]) -> None:
        voxels.scale(1.0, self.offset * (2 * drawn[0] - 1))
