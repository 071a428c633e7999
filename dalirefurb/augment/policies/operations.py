"""The operations of augmentation policies: what they do to an image, and with which numbers.

The operations and their ranges are the papers', as torchvision publishes them; the pixels are Pillow's, as
closely as `Group` says. Operations that are one computation with different numbers share a group, so that few
branches stand in a graph. All numbers of a sample travel as one 3x3 matrix: an affine map, a filter's kernel,
or a scalar.

This is the host's half: `OperationTable` looks matrices up. `operation_graph` applies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Arrays, Parameter

PARAMETERS: Mapping[str, Parameter] = {
    "group": Parameter("int32"),
    "matrix": Parameter("float32", (3, 3)),
}
"""The inputs of `operation_graph.apply_operations`."""

MOST_PIXELS = (2**31 - 1) // 3
"""Of an image, at most: kernels have 32 bits for where a pixel's levels are."""

BLUR_RADIUS = 6
"""Pixels; three standard deviations of the widest blur of a policy."""

# Pillow truncates where we round. Subtracting just less than a half makes rounding truncate, and leaves whole numbers
# that a float represents a little too low where they are.
TRUNCATE = 0.498


class Group(IntEnum):
    """Which computation an operation is, and how far its pixels may be from Pillow's, in levels 0 .. 255."""

    IDENTITY = 0
    """Exact."""
    POSTERIZE = 1
    """Clear low bits. Exact."""
    SOLARIZE = 2
    """Invert the levels from a threshold on. Exact."""
    BRIGHTNESS = 3
    """Blend with black. Within 1, where a float lies next to a whole number; else exact."""
    CONTRAST = 4
    """Blend with the mean of the grey picture. Within 1, where the mean lies next to a half; else exact."""
    COLOR = 5
    """Blend with the grey picture. Within 1, as it rounds where Pillow truncates; rarely (1 in 1000) 2."""
    SHARPNESS = 6
    """Blend with a smoothed picture but for the outermost pixels. Within 1, as it rounds once, not twice."""
    WARP = 7
    """Map coordinates. Nearest: exact, but where a source lies between two pixels either may be taken."""
    EQUALIZE = 8
    """Spread each channel's histogram. Compiled kernels: exact. DALI's: within 2 from 224 x 224 pixels on. Pillow cuts
    the pixels per level to a whole number, which shows in small pictures, by 4.6 levels in the mean of CIFAR-10's test
    images and by 209 at most, and leaves those of fewer than 255 pixels as they are."""
    AUTO_CONTRAST = 9
    """Stretch each channel to 0 .. 255. Within 1, where Pillow puts a whole number one lower; else exact."""
    SOLARIZE_ADD = 10
    """Add to the levels below a threshold: the matrix has what is added, then the threshold. Exact."""
    BLUR = 11
    """Blur with a Gaussian, cut off at `BLUR_RADIUS`: the matrix has the standard deviation, then that radius. Within
    some levels, as Pillow averages over boxes three times."""


@dataclass(frozen=True)
class Operation:
    """One row of a table of operations.

    Attributes:
        name: torchvision's name of the operation.
        group: The computation that the operation belongs to.
        first: Magnitude at bin 0.
        last: Magnitude at the last bin; those between are spaced evenly.
        signed: Whether the magnitude is negated half of the time.
        matrix: Maps a magnitude to the 3x3 matrix that `group` takes.
        shares: Maps a magnitude to the shares of the picture's sides in a warp's offset, shape (2, 2): rows x
            and y, columns width and height.
        whole: Whether offsets are cut to whole pixels.
        spaced: Makes magnitudes of the first one, the last one, and their number.
    """

    name: str
    group: Group
    first: float = 0.0
    last: float = 0.0
    signed: bool = False
    matrix: Callable[[float], NDArray[np.float64]] = lambda magnitude: np.eye(3)
    shares: Callable[[float], NDArray[np.float64]] = lambda magnitude: np.zeros((2, 2))
    whole: bool = False
    spaced: Callable[[float, float, int], NDArray[Any]] = np.linspace

    @property
    def ranged(self) -> bool:
        """Whether the magnitude matters."""
        return self.first != self.last


def _shear(*, x: float = 0.0, y: float = 0.0) -> NDArray[np.float64]:
    return np.array([[1, x, 0], [y, 1, 0], [0, 0, 1]])


def _rotation(degrees: float) -> NDArray[np.float64]:
    """Turn counterclockwise as seen on a screen, whose y axis points down."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])


def _about_centre(degrees: float) -> NDArray[np.float64]:
    """Keep the picture's centre (width / 2, height / 2) where it is: centre - rotation @ centre."""
    return (np.eye(2) - _rotation(degrees)[:2, :2]) / 2


def _whole_pixels(*, x: float = 0.0, y: float = 0.0) -> NDArray[np.float64]:
    return np.array([[1, 0, -math.trunc(x)], [0, 1, -math.trunc(y)], [0, 0, 1]])


def _in_single_precision(first: float, last: float, count: int) -> NDArray[np.float32]:
    """Space numbers as PyTorch's `linspace`, from both ends, so that 15.999999 is in the middle of 0 .. 32."""
    bins, step = np.arange(count), np.float64((np.float32(last) - np.float32(first)) / np.float32(count - 1))
    early = bins < count // 2
    return (np.where(early, first, last) + step * np.where(early, bins, bins - (count - 1))).astype(np.float32)


def _factor(magnitude: float) -> NDArray[np.float64]:
    return np.diag([1 + magnitude, 0, 0])


def _color(magnitude: float) -> NDArray[np.float64]:
    """Weights of the picture and of the grey picture, in column 0."""
    return np.array([[1 + magnitude, 0, 0], [-magnitude, 0, 0], [0, 0, 0]])


def sharpness_weights(magnitude: float) -> NDArray[np.float64]:
    """Blend the picture with what Pillow's SMOOTH kernel makes of it."""
    smooth = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    return (1 + magnitude) * np.diag([0, 1, 0]) - magnitude * smooth


def _posterize(magnitude: float) -> NDArray[np.float64]:
    """Mask that clears the lowest `round(magnitude)` bits."""
    return np.diag([256.0 - 2 ** round(magnitude), 0, 0])


def _solarize(magnitude: float) -> NDArray[np.float64]:
    """The highest level that stays as it is, negated."""
    return np.diag([1.0 - math.ceil(magnitude), 0, 0])


# A warp maps a destination's coordinates to its source's. The corner of the picture is the origin: the centre
# of the first pixel is at (.5, .5).
OPERATIONS: tuple[Operation, ...] = (
    Operation("Identity", Group.IDENTITY),
    Operation("ShearX", Group.WARP, 0.0, 0.3, True, lambda m: _shear(x=m)),
    Operation("ShearY", Group.WARP, 0.0, 0.3, True, lambda m: _shear(y=m)),
    Operation("TranslateX", Group.WARP, 0.0, 150 / 331, True, shares=lambda m: np.diag([-m, 0]), whole=True),
    Operation("TranslateY", Group.WARP, 0.0, 150 / 331, True, shares=lambda m: np.diag([0, -m]), whole=True),
    Operation("Rotate", Group.WARP, 0.0, 30.0, True, _rotation, _about_centre),
    Operation("Brightness", Group.BRIGHTNESS, 0.0, 0.9, True, _factor),
    Operation("Color", Group.COLOR, 0.0, 0.9, True, _color),
    Operation("Contrast", Group.CONTRAST, 0.0, 0.9, True, _factor),
    Operation("Sharpness", Group.SHARPNESS, 0.0, 0.9, True, sharpness_weights),
    Operation("Posterize", Group.POSTERIZE, 0.0, 4.0, False, _posterize),
    Operation("Solarize", Group.SOLARIZE, 255.0, 0.0, False, _solarize),
    Operation("AutoContrast", Group.AUTO_CONTRAST),
    Operation("Equalize", Group.EQUALIZE),
)
"""RandAugment's (Cubuk et al. 2019) with torchvision's magnitudes."""

AUTO_AUGMENT_OPERATIONS: tuple[Operation, ...] = (
    *OPERATIONS,
    Operation("Invert", Group.SOLARIZE, matrix=lambda m: _solarize(0.0)),
)
"""AutoAugment's (Cubuk et al., CVPR 2019): the same ranges, and one operation more."""

WIDE_OPERATIONS: tuple[Operation, ...] = (
    Operation("Identity", Group.IDENTITY),
    Operation("ShearX", Group.WARP, 0.0, 0.99, True, lambda m: _shear(x=m)),
    Operation("ShearY", Group.WARP, 0.0, 0.99, True, lambda m: _shear(y=m)),
    Operation("TranslateX", Group.WARP, 0.0, 32.0, True, lambda m: _whole_pixels(x=m), spaced=_in_single_precision),
    Operation("TranslateY", Group.WARP, 0.0, 32.0, True, lambda m: _whole_pixels(y=m), spaced=_in_single_precision),
    Operation("Rotate", Group.WARP, 0.0, 135.0, True, _rotation, _about_centre),
    Operation("Brightness", Group.BRIGHTNESS, 0.0, 0.99, True, _factor),
    Operation("Color", Group.COLOR, 0.0, 0.99, True, _color),
    Operation("Contrast", Group.CONTRAST, 0.0, 0.99, True, _factor),
    Operation("Sharpness", Group.SHARPNESS, 0.0, 0.99, True, sharpness_weights),
    Operation("Posterize", Group.POSTERIZE, 0.0, 6.0, False, _posterize),
    Operation("Solarize", Group.SOLARIZE, 255.0, 0.0, False, _solarize),
    Operation("AutoContrast", Group.AUTO_CONTRAST),
    Operation("Equalize", Group.EQUALIZE),
)
"""TrivialAugment's wide ranges (Müller and Hutter, ICCV 2021); translations are in pixels, whatever the size."""


def groups_of(operations: Sequence[Operation]) -> tuple[Group, ...]:
    """Return the groups of operations in order, each once; the first one is that which does nothing."""
    return tuple(sorted({Group.IDENTITY, *(operation.group for operation in operations)}))


class Choice(NamedTuple):
    """What n samples get.

    Attributes:
        operations: Rows of a table, shape (n,).
        bins: Magnitude bins, shape (n,), or one for all.
        negated: Whether a signed operation is negated, shape (n,).
    """

    operations: NDArray[np.int64]
    bins: NDArray[np.int64] | int
    negated: NDArray[np.bool_]


class OperationTable:
    """The matrices of every operation at every magnitude and sign, ready to be looked up.

    Attributes:
        operations: The rows of the table, one for each operation.
        num_bins: Number of magnitudes per operation, at least 2.
    """

    def __init__(self, operations: Sequence[Operation], num_bins: int) -> None:
        self.operations = tuple(operations)
        self.num_bins = num_bins
        # The last axis of the keys is the sign: 0 as it is, 1 negated.
        keys = [
            (operation, -magnitude if negated and operation.signed else magnitude)
            for operation in operations
            for magnitude in operation.spaced(operation.first, operation.last, num_bins).tolist()
            for negated in (False, True)
        ]
        self._groups = np.array([operation.group for operation, _ in keys], np.int32)
        self._matrices = np.array([operation.matrix(magnitude) for operation, magnitude in keys], np.float32)
        self._shares = np.array([operation.shares(magnitude) for operation, magnitude in keys])
        self._whole = np.array([[operation.whole] for operation, _ in keys])
        # All matrices for the width and height that were asked for last: batches of one size are what there is mostly.
        self._last: tuple[tuple[int, ...], NDArray[np.float32]] = (), self._matrices

    def parameters(self, choice: Choice, *, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Look up the numbers of each sample.

        Args:
            choice: What each of n samples gets.
            heights: Heights of the images in pixels, shape (n,).
            widths: Widths of the images in pixels, shape (n,).

        Returns:
            One array for each of `PARAMETERS`.
        """
        keys = (choice.operations * self.num_bins + choice.bins) * 2 + choice.negated
        sizes = np.stack([widths, heights], axis=1)  # (n, 2)
        if len(sizes) and (sizes == sizes[0]).all():
            matrices = self._all_at(sizes[0]).take(keys, axis=0)
        else:
            matrices = self._at(keys, sizes)
        return {"group": self._groups.take(keys), "matrix": matrices}

    def _all_at(self, size: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the matrices of all keys for images of one width and height, shape (keys, 3, 3)."""
        last, matrices = self._last
        if last != tuple(size):
            keys = np.arange(len(self._groups))
            matrices = self._at(keys, np.broadcast_to(size, (len(keys), 2)))
            self._last = tuple(size), matrices
        return matrices

    def _at(self, keys: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Look up the matrices for n images of these widths and heights, (n, 2)."""
        offsets = np.einsum("nij,nj->ni", self._shares.take(keys, axis=0), sizes)  # (n, 2)
        # An offset that floating point puts just below a whole number is that number.
        np.copyto(offsets, np.trunc(offsets * (1 + 1e-9)), where=self._whole.take(keys, axis=0))
        matrices = self._matrices.take(keys, axis=0)  # (n, 3, 3)
        matrices[:, :2, 2] += offsets
        return matrices
