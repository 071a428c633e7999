"""What do RandAugment's operations do to a picture, and with which numbers?

The operations and their ranges are those of Cubuk et al., "RandAugment: Practical automated data augmentation with
a reduced search space" (2019), as torchvision publishes them; the pixels are Pillow's, to within one level where
`Group` does not say otherwise. Operations that are the same computation with other numbers share a `Group`, so that
few branches stand in a graph. All numbers of a sample travel as one 3x3 matrix: an affine map, a filter's kernel,
or scalars.

`OperationTable` is the host's half: it looks matrices up. `apply_operations` is the graph's half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Arrays, Interpolation, Node, Parameter, interpolation_type

PARAMETERS: Mapping[str, Parameter] = {
    "group": Parameter("int32"),
    "matrix": Parameter("float32", (3, 3)),
}
"""The inputs of `apply_operations`."""

# Pillow truncates where DALI rounds: subtracting just less than a half first makes rounding truncate, and leaves
# whole numbers that a float represents a little too low where they are.
_TRUNCATE = 0.498


class Group(IntEnum):
    """Which computation an operation is, and how far from Pillow's it may come (in levels of 0 .. 255)."""

    IDENTITY = 0
    """Exact."""
    POSTERIZE = 1
    """Clears low bits. Exact."""
    SOLARIZE = 2
    """Inverts the levels from a threshold on. Exact."""
    BRIGHTNESS = 3
    """Blends with black. Exact."""
    CONTRAST = 4
    """Blends with the mean of the grey picture. Within 1 (the mean may round to its neighbour)."""
    COLOR = 5
    """Blends with the grey picture. Within 1 (rounded, not truncated)."""
    SHARPNESS = 6
    """Blends with a smoothed picture; the outermost pixels stay. Within 1 (rounded once, not twice)."""
    WARP = 7
    """Nearest: a pixel whose source lies on the border of two may take the other. Bilinear: see `apply_operations`."""
    EQUALIZE = 8
    """OpenCV's formula, which differs from Pillow's in how the cumulative histogram is rounded to levels."""
    AUTO_CONTRAST = 9
    """Stretches each channel to 0 .. 255. Within 1 (Pillow's own rounding can land one below)."""


@dataclass(frozen=True)
class Operation:
    """One row of a table of operations.

    Attributes:
        name: torchvision's name.
        group: The computation.
        first: Magnitude at bin 0.
        last: Magnitude at the last bin; those between are spaced evenly.
        signed: Whether the magnitude is negated half of the time.
        matrix: Maps a magnitude to the 3x3 matrix that `group` takes.
        shares: Maps a magnitude to what the picture's sides add to a warp's offset, shape (2, 2): rows x and y,
            columns width and height.
        whole: Whether offsets are cut to whole pixels.
    """

    name: str
    group: Group
    first: float = 0.0
    last: float = 0.0
    signed: bool = False
    matrix: Callable[[float], NDArray[np.float64]] = lambda magnitude: np.eye(3)
    shares: Callable[[float], NDArray[np.float64]] = lambda magnitude: np.zeros((2, 2))
    whole: bool = False


def _shear(*, x: float = 0.0, y: float = 0.0) -> NDArray[np.float64]:
    return np.array([[1, x, 0], [y, 1, 0], [0, 0, 1]])


def _rotation(degrees: float) -> NDArray[np.float64]:
    """Turn counterclockwise as seen on a screen, whose y axis points down."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]])


def _about_centre(degrees: float) -> NDArray[np.float64]:
    """Keep the picture's centre (width / 2, height / 2) where it is: centre - rotation @ centre."""
    return (np.eye(2) - _rotation(degrees)[:2, :2]) / 2


def _factor(magnitude: float) -> NDArray[np.float64]:
    return np.diag([1 + magnitude, 0, 0])


def _color(magnitude: float) -> NDArray[np.float64]:
    """Weights of the picture and of the grey picture, in column 0."""
    return np.array([[1 + magnitude, 0, 0], [-magnitude, 0, 0], [0, 0, 0]])


def _sharpness(magnitude: float) -> NDArray[np.float64]:
    """Blend the picture with what Pillow's SMOOTH kernel makes of it."""
    smooth = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    return (1 + magnitude) * np.diag([0, 1, 0]) - magnitude * smooth


def _posterize(magnitude: float) -> NDArray[np.float64]:
    """Mask that clears the lowest `round(magnitude)` bits."""
    return np.diag([256.0 - 2 ** round(magnitude), 0, 0])


def _solarize(magnitude: float) -> NDArray[np.float64]:
    """The highest level that stays as it is, negated."""
    return np.diag([1.0 - math.ceil(magnitude), 0, 0])


# A warp maps a destination's coordinates to its source's. The corner of the picture is the origin, so that the
# centre of the first pixel is at (.5, .5).
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
    Operation("Sharpness", Group.SHARPNESS, 0.0, 0.9, True, _sharpness),
    Operation("Posterize", Group.POSTERIZE, 0.0, 4.0, False, _posterize),
    Operation("Solarize", Group.SOLARIZE, 255.0, 0.0, False, _solarize),
    Operation("AutoContrast", Group.AUTO_CONTRAST),
    Operation("Equalize", Group.EQUALIZE),
)
"""RandAugment's operations with torchvision's magnitudes."""


class OperationTable:
    """The matrices of every operation at every magnitude and sign, ready to be looked up.

    Args:
        operations: The rows.
        num_bins: Magnitudes per operation, at least 2.
    """

    def __init__(self, operations: Sequence[Operation], num_bins: int) -> None:
        self._num_bins = num_bins
        # The last axis of the keys is the sign: 0 as it is, 1 negated.
        keys = [
            (operation, -magnitude if negated and operation.signed else magnitude)
            for operation in operations
            for magnitude in np.linspace(operation.first, operation.last, num_bins).tolist()
            for negated in (False, True)
        ]
        self._groups = np.array([operation.group for operation, _ in keys], np.int32)
        self._matrices = np.array([operation.matrix(magnitude) for operation, magnitude in keys], np.float32)
        self._shares = np.array([operation.shares(magnitude) for operation, magnitude in keys])
        self._whole = np.array([[operation.whole] for operation, _ in keys])

    def parameters(
        self,
        *,
        operations: NDArray[np.int64],
        bins: NDArray[np.int64] | int,
        negated: NDArray[np.bool_],
        heights: NDArray[np.int64],
        widths: NDArray[np.int64],
    ) -> Arrays:
        """Look up the inputs of `apply_operations`.

        Args:
            operations: Rows of the table, shape (n,).
            bins: Magnitude bins, shape (n,), or one for all.
            negated: Whether a signed operation is negated, shape (n,).
            heights: Heights in pixels, shape (n,).
            widths: Widths in pixels, shape (n,).

        Returns:
            One array for each of `PARAMETERS`.
        """
        keys = (operations * self._num_bins + bins) * 2 + negated
        sizes = np.stack([widths, heights], axis=1)  # (n, 2)
        offsets = np.einsum("nij,nj->ni", self._shares.take(keys, axis=0), sizes)  # (n, 2)
        # An offset that floating point puts just below a whole number is that number.
        np.copyto(offsets, np.trunc(offsets * (1 + 1e-9)), where=self._whole.take(keys, axis=0))
        matrices = self._matrices.take(keys, axis=0)  # (n, 3, 3)
        matrices[:, :2, 2] += offsets
        return {"group": self._groups.take(keys), "matrix": matrices}


def apply_operations(
    images: Node, parameters: Mapping[str, Node], *, interpolation: Interpolation, fill: Sequence[int]
) -> Node:
    """Apply to each image the operation that its parameters describe; call it where conditionals are enabled.

    Args:
        images: HWC uint8 with 3 channels, on "cpu" or "gpu".
        parameters: `PARAMETERS` as CPU nodes.
        interpolation: "nearest", or "bilinear": OpenCV's, whose coordinates are multiples of 1/32 pixel and which
            blends the outermost pixels with `fill`, where Pillow repeats them.
        fill: Levels of the channels where a warp shows no source.
    """
    warp = partial(_warp, interpolation=interpolation, fill=[float(level) for level in fill])
    branches = {**_BRANCHES, Group.WARP: warp}
    in_order = [branches[group] for group in Group]
    return _choose(in_order, 0, parameters["group"], images, parameters["matrix"])


def _choose(
    branches: Sequence[Callable[[Node, Node], Node]], first: int, group: Node, images: Node, matrix: Node
) -> Node:
    """Halve the branches until one is left: a sample passes about log2 of them."""
    if len(branches) == 1:
        return branches[0](images, matrix)
    half = len(branches) // 2
    if group < first + half:
        chosen = _choose(branches[:half], first, group, images, matrix)
    else:
        chosen = _choose(branches[half:], first + half, group, images, matrix)
    return chosen


def _scalar(matrix: Node) -> Node:
    """Give the one number of a group that takes one."""
    return matrix[0, 0]


def _identity(images: Node, matrix: Node) -> Node:
    return images


def _posterize_levels(images: Node, matrix: Node) -> Node:
    from nvidia.dali import fn, types

    mask = fn.cast(_scalar(matrix), dtype=types.UINT8)
    return images & (mask.gpu() if images.device == "gpu" else mask)


def _solarize_levels(images: Node, matrix: Node) -> Node:
    """Flip all bits where the level exceeds -scalar: 255 * (level - scalar) saturates to 0 or to 255."""
    from nvidia.dali import fn

    return images ^ fn.brightness_contrast(images, brightness=255.0, brightness_shift=_scalar(matrix))


def _brightness(images: Node, matrix: Node) -> Node:
    from nvidia.dali import fn

    return fn.brightness_contrast(images, brightness=_scalar(matrix), brightness_shift=-_TRUNCATE / 255)


def _grey(images: Node) -> Node:
    from nvidia.dali import fn, types

    return fn.color_space_conversion(images, image_type=types.RGB, output_type=types.GRAY)


def _contrast(images: Node, matrix: Node) -> Node:
    from nvidia.dali import fn, math, types

    factor = _scalar(matrix)
    mean = math.floor(fn.reductions.mean(_grey(images)) + 0.5)
    if images.device == "gpu":
        # The mean is on the device, where an operator takes no named arguments from.
        return fn.cast((images - mean) * factor.gpu() + (mean - _TRUNCATE), dtype=types.UINT8)
    return fn.brightness_contrast(
        images, contrast=factor, contrast_center=mean, brightness_shift=-_TRUNCATE / 255
    )


def _size(images: Node) -> Node:
    from nvidia.dali import types

    return images.shape(dtype=types.INT32)[:2]


def _color_blend(images: Node, matrix: Node) -> Node:
    """Let a filter two rows high blend each row with its grey one, laid below it; keep every other row."""
    from nvidia.dali import fn, types

    grey = fn.color_space_conversion(_grey(images), image_type=types.GRAY, output_type=types.RGB)
    size = _size(images)
    # (height, 2 * width) is (2 * height, width) with rows and grey rows in turn.
    pairs = fn.multi_paste(
        images,
        grey,
        out_anchors_rel=types.Constant(np.array([[0, 0], [0, 0.5]], np.float32)),
        output_size=size * types.Constant(np.array([1, 2], np.int32)),
    )
    kernel = matrix[:2, :1]
    kernel = kernel.gpu() if images.device == "gpu" else kernel
    blended = fn.filter(fn.reshape(pairs, rel_shape=[2.0, 0.5, 1.0]), kernel, anchor=[0, 0])
    return fn.multi_paste(
        fn.reshape(blended, rel_shape=[0.5, 2.0, 1.0]),
        shapes_rel=types.Constant(np.array([[1, 0.5]], np.float32)),
        output_size=size,
    )


def _sharpness_blend(images: Node, matrix: Node) -> Node:
    """Filter, then put the inner pixels on the images."""
    from nvidia.dali import fn, math, types

    size = _size(images)
    inner = math.max(size - types.Constant(2, dtype=types.INT32), types.Constant(0, dtype=types.INT32))
    anchors = types.Constant(np.array([[0, 0], [1, 1]], np.int32))
    return fn.multi_paste(
        images,
        fn.filter(images, matrix.gpu() if images.device == "gpu" else matrix),
        in_anchors=anchors,
        out_anchors=anchors,
        shapes=fn.stack(size, inner),
        output_size=size,
    )


def _warp(images: Node, matrix: Node, *, interpolation: Interpolation, fill: Sequence[float]) -> Node:
    """Warp by OpenCV's perspective, a third of the time of `fn.warp_affine` and a tenth if bilinear."""
    from nvidia.dali import fn

    mode = interpolation_type(interpolation)
    return fn.experimental.warp_perspective(images, matrix=matrix, interp_type=mode, fill_value=fill)


def _equalize(images: Node, matrix: Node) -> Node:
    from nvidia.dali import fn

    return fn.equalize(images)


def _auto_contrast(images: Node, matrix: Node) -> Node:
    from nvidia.dali import fn, math, types

    low = fn.reductions.min(images, axes=[0, 1], keep_dims=True)
    extent = fn.reductions.max(images, axes=[0, 1], keep_dims=True) - low
    # A channel of a single level has extent 0 and stays: low 0, extent 255.
    scaled = extent * 255.0
    low = math.min(low, scaled)
    extent = math.max(extent, 255.0 - scaled)
    low = low + extent * (_TRUNCATE / 255)
    if images.device == "gpu":
        return fn.cast((images - low) * (255.0 / extent), dtype=types.UINT8)
    # Floats around 1.5 * 2**23 are whole numbers, so adding that rounds, and the level is the last byte of the
    # float's bits: half the time of a cast, which rounds and saturates one number after the other.
    levels = fn.normalize(images, mean=low, stddev=extent, axes=[0, 1], scale=255.0, shift=1.5 * 2**23)
    bits = fn.reinterpret(levels, dtype=types.INT32)
    return fn.cast(bits & types.Constant(255, dtype=types.INT32), dtype=types.UINT8)


_BRANCHES: dict[Group, Callable[[Node, Node], Node]] = {
    Group.IDENTITY: _identity,
    Group.POSTERIZE: _posterize_levels,
    Group.SOLARIZE: _solarize_levels,
    Group.BRIGHTNESS: _brightness,
    Group.CONTRAST: _contrast,
    Group.COLOR: _color_blend,
    Group.SHARPNESS: _sharpness_blend,
    Group.EQUALIZE: _equalize,
    Group.AUTO_CONTRAST: _auto_contrast,
}
