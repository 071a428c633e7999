"""The operations of augmentation policies: what they do to an image, and with which numbers.

The operations and their ranges are the papers', as torchvision publishes them; the pixels are Pillow's, as
closely as `Group` says. Operations that are one computation with different numbers share a group, so that few
branches stand in a graph. All numbers of a sample travel as one 3x3 matrix: an affine map, a filter's kernel,
or a scalar.

A matrix is a sum: one that is constant, and others times arguments that depend on the magnitude. So the matrices of a
batch are computed at once, and only arguments are an operation's own.

This is the host's half: `OperationTable` makes matrices. `operation_graph` applies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Arrays

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


GROUP_KERNELS = {
    Group.POSTERIZE: "levels.posterize",
    Group.SOLARIZE: "levels.solarize",
    Group.BRIGHTNESS: "levels.brightness",
    Group.CONTRAST: "levels.contrast",
    Group.COLOR: "color.blend",
    Group.SHARPNESS: "color.sharpness",
    Group.EQUALIZE: "levels.equalize",
    Group.AUTO_CONTRAST: "levels.auto_contrast",
    Group.SOLARIZE_ADD: "color.solarize_add",
    Group.BLUR: "blur.gaussian",
}
"""The compiled kernel of each group, but for warps, which have one for each interpolation."""

Floats = NDArray[np.float64]

Arguments = Callable[[Floats, Floats], Floats | tuple[Floats, ...]]
"""From magnitudes, (n,), negated where the operation is, and uniforms, (n,), to the arguments, (n,) each."""


def numbers(*entries: tuple[int, int, float]) -> Floats:
    """Return a matrix of zeros but for entries, each a row, a column and a value.

    Returns:
        Shape (3, 5): the 3x3 matrix of a group, and the shares of the picture's width and height in the offset of a
        warp, its third column.
    """
    matrix = np.zeros((3, 5))
    for row, column, value in entries:
        matrix[row, column] = value
    return matrix


@dataclass(frozen=True)
class Operation:
    """One operation, at any magnitude.

    Attributes:
        name: Name of the operation.
        group: The computation that the operation belongs to.
        arguments: What the magnitude means; None: nothing.
        constant: Matrix without the arguments, shape (3, 5), see `numbers`.
        slopes: Matrices that are multiplied by the arguments.
        signed: Whether the magnitude is negated half of the time.
        whole: Whether offsets that are shares of the sides are cut to whole pixels.
    """

    name: str
    group: Group
    arguments: Arguments | None = None
    constant: Floats = field(default_factory=numbers)
    slopes: Sequence[Floats] = ()
    signed: bool = False
    whole: bool = False

    @property
    def ranged(self) -> bool:
        """Whether the magnitude matters."""
        return self.arguments is not None

    def matrices(self, magnitudes: Floats, uniforms: Floats) -> Floats:
        """Compute the matrices at magnitudes, (n,), negated where the operation is, shape (n, 3, 5)."""
        made = np.repeat(self.constant[None], len(magnitudes), axis=0)
        if self.arguments is not None:
            values = np.atleast_2d(self.arguments(magnitudes, uniforms))
            for value, slope in zip(values, self.slopes, strict=True):
                made = made + value[:, None, None] * slope
        return made


class Chosen(NamedTuple):
    """What n samples get.

    Attributes:
        operations: Rows of a table, shape (n,).
        magnitudes: Magnitudes, at least 0, shape (n,), or one for all; bins of a `BinnedTable`.
        negated: Whether a signed operation is negated, shape (n,).
        uniforms: Uniform numbers for operations that are random beside their magnitude, shape (n,); None: zeros.
    """

    operations: NDArray[np.int64]
    magnitudes: NDArray[Any] | float
    negated: NDArray[np.bool_]
    uniforms: Floats | None = None


class OperationTable:
    """Operations, and the matrices of a batch.

    Attributes:
        operations: The rows of the table, one for each operation; the first one does nothing.
        groups: Groups of the operations, in order.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = tuple(operations)
        self.groups = tuple(sorted({operation.group for operation in operations}))
        self._groups = np.array([operation.group for operation in operations], np.int32)
        self._whole = np.array([operation.whole for operation in operations])

    def parameters(self, choice: Chosen, *, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Compute the numbers of each sample.

        Args:
            choice: What each of n samples gets.
            heights: Heights of the images in pixels, shape (n,).
            widths: Widths of the images in pixels, shape (n,).

        Returns:
            The groups, (n,) int32, and the matrices, (n, 3, 3) float32, by the names of `OperationLayer.parameters`.
        """
        matrices = self._matrices(choice)
        offsets = matrices[:, :, 3] * widths[:, None] + matrices[:, :, 4] * heights[:, None]  # (n, 3)
        # An offset that floating point puts just below a whole number is that number.
        np.copyto(offsets, np.trunc(offsets * (1 + 1e-9)), where=self._whole.take(choice.operations)[:, None])
        matrices[:, :, 2] += offsets
        return {"group": self._groups.take(choice.operations), "matrix": matrices[:, :, :3].astype(np.float32, "C")}

    def _matrices(self, choice: Chosen) -> Floats:
        """Compute the matrices for images of any size, shape (n, 3, 5)."""
        count = len(choice.operations)
        matrices = np.empty((count, 3, 5))
        magnitudes = np.broadcast_to(np.asarray(choice.magnitudes, np.float64), (count,))
        uniforms = np.zeros(count) if choice.uniforms is None else choice.uniforms
        for number, operation in enumerate(self.operations):
            rows = np.flatnonzero(choice.operations == number)
            negated = choice.negated[rows] & operation.signed
            given = np.where(negated, -magnitudes[rows], magnitudes[rows])
            matrices[rows] = operation.matrices(given, uniforms[rows])
        return matrices


@dataclass(frozen=True)
class RangedOperation(Operation):
    """One operation at evenly spaced magnitudes.

    Attributes:
        first: Magnitude at bin 0.
        last: Magnitude at the last bin.
        spaced: Makes magnitudes of the first one, the last one, and their number.
    """

    first: float = 0.0
    last: float = 0.0
    spaced: Callable[[float, float, int], NDArray[Any]] = np.linspace


class BinnedTable(OperationTable):
    """Operations at evenly spaced magnitudes, whose matrices are looked up.

    Attributes:
        num_bins: Number of magnitudes per operation, at least 2.
    """

    operations: tuple[RangedOperation, ...]

    def __init__(self, operations: Sequence[RangedOperation], num_bins: int) -> None:
        super().__init__(operations)
        self.num_bins = num_bins
        # A key has an operation, a bin, and the sign: 0 as it is, 1 negated.
        magnitudes = [operation.spaced(operation.first, operation.last, num_bins) for operation in operations]
        rows = np.repeat(np.arange(len(operations)), 2 * num_bins)
        keys = Chosen(rows, np.repeat(np.concatenate(magnitudes), 2), np.arange(len(rows)) % 2 == 1)
        self._of_keys = super()._matrices(keys)

    def _matrices(self, choice: Chosen) -> Floats:
        keys = (choice.operations * self.num_bins + choice.magnitudes) * 2 + choice.negated
        return self._of_keys.take(keys, axis=0)


# A warp maps a destination's coordinates to its source's. The corner of the picture is the origin: the centre
# of the first pixel is at (.5, .5).
UNMOVED = numbers((0, 0, 1), (1, 1, 1), (2, 2, 1))
SHEARS = {"X": numbers((0, 1, 1)), "Y": numbers((1, 0, 1))}
CENTRED = numbers((2, 2, 1), (0, 3, 0.5), (1, 4, 0.5))
"""A rotation but for the angle: the centre of the picture, half of its width and height, stays where it is."""
TURNS = (
    numbers((0, 0, 1), (1, 1, 1), (0, 3, -0.5), (1, 4, -0.5)),
    numbers((0, 1, -1), (1, 0, 1), (0, 4, 0.5), (1, 3, -0.5)),
)
"""What a rotation has of an angle's cosine and sine; it is counterclockwise on a screen, whose y axis points down."""
SCALAR = numbers((0, 0, 1))
GREY = numbers((1, 0, 1))
SMOOTH = numbers(*((row, column, (5 if row == column == 1 else 1) / 13) for row in range(3) for column in range(3)))
"""What Pillow's SMOOTH kernel makes of a picture."""
CENTRE = numbers((1, 1, 1))


def _turn(degrees: Floats, uniforms: Floats) -> tuple[Floats, Floats]:
    """Return the cosine and the sine, the same by every NumPy, which `TURNS` are multiplied by."""
    radians = [math.radians(each) for each in degrees.tolist()]
    return np.array([math.cos(each) for each in radians]), np.array([math.sin(each) for each in radians])


def _in_single_precision(first: float, last: float, count: int) -> NDArray[np.float32]:
    """Space numbers as PyTorch's `linspace`, from both ends, so that 15.999999 is in the middle of 0 .. 32."""
    bins, step = np.arange(count), np.float64((np.float32(last) - np.float32(first)) / np.float32(count - 1))
    early = bins < count // 2
    return (np.where(early, first, last) + step * np.where(early, bins, bins - (count - 1))).astype(np.float32)


def sharpness_weights(magnitude: float) -> Floats:
    """Blend the picture with what Pillow's SMOOTH kernel makes of it, shape (3, 3)."""
    return ((1 + magnitude) * CENTRE - magnitude * SMOOTH)[:, :3]


def _published(
    *, slope: float, share: float = 0.0, pixels: float = 0.0, degrees: float, blend: float, bits: float
) -> tuple[RangedOperation, ...]:
    """Return the operations that all policies have, given their greatest magnitudes; the first one does nothing."""
    warp = partial(RangedOperation, group=Group.WARP, arguments=lambda m, _: m, constant=UNMOVED, signed=True)
    if pixels:
        translation = partial(warp, arguments=lambda m, _: np.trunc(m), last=pixels, spaced=_in_single_precision)
    else:
        translation = partial(warp, last=share, whole=True)
    blended = partial(RangedOperation, signed=True, last=blend)
    of_levels = partial(RangedOperation, slopes=(SCALAR,))
    return (
        RangedOperation("Identity", Group.IDENTITY, constant=UNMOVED),
        *(warp(f"Shear{axis}", slopes=(sheared,), last=slope) for axis, sheared in SHEARS.items()),
        *(
            translation(f"Translate{axis}", slopes=(numbers((row, 2 if pixels else 3 + row, -1)),))
            for row, axis in enumerate("XY")
        ),
        warp("Rotate", arguments=_turn, constant=CENTRED, slopes=TURNS, last=degrees),
        blended("Brightness", Group.BRIGHTNESS, lambda m, _: 1 + m, slopes=(SCALAR,)),
        blended("Color", Group.COLOR, lambda m, _: (1 + m, -m), slopes=(SCALAR, GREY)),
        blended("Contrast", Group.CONTRAST, lambda m, _: 1 + m, slopes=(SCALAR,)),
        blended("Sharpness", Group.SHARPNESS, lambda m, _: (1 + m, -m), slopes=(CENTRE, SMOOTH)),
        of_levels("Posterize", Group.POSTERIZE, lambda m, _: 256 - 2 ** np.round(m), last=bits),
        of_levels("Solarize", Group.SOLARIZE, lambda m, _: 1 - np.ceil(m), first=255.0),
        RangedOperation("AutoContrast", Group.AUTO_CONTRAST, constant=UNMOVED),
        RangedOperation("Equalize", Group.EQUALIZE, constant=UNMOVED),
    )


OPERATIONS = _published(slope=0.3, share=150 / 331, degrees=30.0, blend=0.9, bits=4.0)
"""RandAugment's (Cubuk et al. 2019) with torchvision's magnitudes."""

AUTO_AUGMENT_OPERATIONS = (*OPERATIONS, RangedOperation("Invert", Group.SOLARIZE, constant=SCALAR))
"""AutoAugment's (Cubuk et al., CVPR 2019): the same ranges, and one operation more."""

WIDE_OPERATIONS = _published(slope=0.99, pixels=32.0, degrees=135.0, blend=0.99, bits=6.0)
"""TrivialAugment's wide ranges (Müller and Hutter, ICCV 2021); translations are in pixels, whatever the size."""
