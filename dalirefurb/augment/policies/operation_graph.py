"""The DALI operators that make the operations' pixels: the graph's half of `operations`.

Each group of operations is one branch. The formulas suit a CPU: operators that go from uint8 to uint8 (blends
by `filter`, scaling by `brightness_contrast`, copying by `multi_paste`, warps by OpenCV) in place of
arithmetic in floating point, whose way back to uint8 takes five times as long as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from nvidia.dali import fn, math, types

from dalirefurb.augment.policies.operations import BLUR_RADIUS, TRUNCATE, Group
from dalirefurb.augment.stage import Node

Branch = Callable[[Node, Node], Node]
"""From images and matrices to images."""


def choose(branches: Mapping[int, Branch], number: Node, images: Node, matrix: Node) -> Node:
    """Apply to each image the branch of its number, which must be one of theirs; they are in order.

    The branches are halved until one is left: a sample passes about log2 of them.
    """
    numbers, half = list(branches), len(branches) // 2
    if not half:
        return branches[numbers[0]](images, matrix)
    lower, upper = ({each: branches[each] for each in some} for some in (numbers[:half], numbers[half:]))
    if number < numbers[half]:  # noqa: SIM108 - DALI traces statements
        chosen = choose(lower, number, images, matrix)
    else:
        chosen = choose(upper, number, images, matrix)
    return chosen


def beside(images: Node, numbers: Node) -> Node:
    """Return numbers on the images' device."""
    return numbers.gpu() if images.device == "gpu" else numbers


def _identity(images: Node, matrix: Node) -> Node:
    return images


def _posterize_levels(images: Node, matrix: Node) -> Node:
    return images & beside(images, fn.cast(matrix[0, 0], dtype=types.UINT8))


def _solarize_levels(images: Node, matrix: Node) -> Node:
    """Flip all bits where the level exceeds -scalar: 255 * (level - scalar) saturates to 0 or to 255."""
    return images ^ fn.brightness_contrast(images, brightness=255.0, brightness_shift=matrix[0, 0])


def _brightness(images: Node, matrix: Node) -> Node:
    return fn.brightness_contrast(images, brightness=matrix[0, 0], brightness_shift=-TRUNCATE / 255)


def _grey(images: Node) -> Node:
    return fn.color_space_conversion(images, image_type=types.RGB, output_type=types.GRAY)


def grey_picture(images: Node) -> Node:
    """Return the grey picture, in three equal channels."""
    return fn.color_space_conversion(_grey(images), image_type=types.GRAY, output_type=types.RGB)


def _contrast(images: Node, matrix: Node) -> Node:
    factor = matrix[0, 0]
    mean = math.floor(fn.reductions.mean(_grey(images)) + 0.5)
    if images.device == "gpu":
        # The mean is on the device, and operators take named arguments from the host alone.
        return fn.cast((images - mean) * factor.gpu() + (mean - TRUNCATE), dtype=types.UINT8)
    return fn.brightness_contrast(images, contrast=factor, contrast_center=mean, brightness_shift=-TRUNCATE / 255)


def _size(images: Node) -> Node:
    return images.shape(dtype=types.INT32)[:2]


def _color_blend(images: Node, matrix: Node) -> Node:
    """Let a filter two rows high blend each row with its grey one, laid below it; keep every other row."""
    grey = grey_picture(images)
    size = _size(images)
    # (height, 2 * width) is (2 * height, width) with rows and grey rows in turn.
    pairs = fn.multi_paste(
        images,
        grey,
        out_anchors_rel=types.Constant(np.array([[0, 0], [0, 0.5]], np.float32)),
        output_size=size * types.Constant(np.array([1, 2], np.int32)),
    )
    pairs = fn.reshape(pairs, rel_shape=[2.0, 0.5, 1.0])
    blended = fn.filter(pairs, beside(images, matrix[:2, :1]), anchor=[0, 0])
    return fn.multi_paste(
        fn.reshape(blended, rel_shape=[0.5, 2.0, 1.0]),
        shapes_rel=types.Constant(np.array([[1, 0.5]], np.float32)),
        output_size=size,
    )


def _sharpness_blend(images: Node, matrix: Node) -> Node:
    """Filter, then put the inner pixels on the images."""
    size = _size(images)
    inner = math.max(size - types.Constant(2, dtype=types.INT32), types.Constant(0, dtype=types.INT32))
    anchors = types.Constant(np.array([[0, 0], [1, 1]], np.int32))
    return fn.multi_paste(
        images,
        fn.filter(images, beside(images, matrix)),
        in_anchors=anchors,
        out_anchors=anchors,
        shapes=fn.stack(size, inner),
        output_size=size,
    )


def _equalize(images: Node, matrix: Node) -> Node:
    """Equalize the negative: of the levels, OpenCV leaves out the lowest where Pillow does the highest."""
    white = types.Constant(255, dtype=types.UINT8)
    return fn.equalize(images ^ white) ^ white


def _auto_contrast(images: Node, matrix: Node) -> Node:
    low = fn.reductions.min(images, axes=[0, 1], keep_dims=True)
    extent = fn.reductions.max(images, axes=[0, 1], keep_dims=True) - low
    # A channel of a single level has extent 0 and stays: low 0, extent 255.
    scaled = extent * 255.0
    low = math.min(low, scaled)
    extent = math.max(extent, 255.0 - scaled)
    low = low + extent * (TRUNCATE / 255)
    if images.device == "gpu":
        return fn.cast((images - low) * (255.0 / extent), dtype=types.UINT8)
    return fn.normalize(images, mean=low, stddev=extent, axes=[0, 1], scale=255.0, dtype=types.UINT8)


def _solarize_add(images: Node, matrix: Node) -> Node:
    """Add where the level is below the threshold: 255 * (threshold - level) saturates to 255 or to 0."""
    below = fn.brightness_contrast(images, brightness=-255.0, brightness_shift=matrix[0, 1])
    return images + (below & beside(images, fn.cast(matrix[0, 0], dtype=types.UINT8)))


def _blur(images: Node, matrix: Node) -> Node:
    return fn.gaussian_blur(images, sigma=matrix[0, 0], window_size=2 * BLUR_RADIUS + 1)


BRANCHES: Mapping[Group, Branch] = {
    Group.IDENTITY: _identity,
    Group.POSTERIZE: _posterize_levels,
    Group.SOLARIZE: _solarize_levels,
    Group.BRIGHTNESS: _brightness,
    Group.CONTRAST: _contrast,
    Group.COLOR: _color_blend,
    Group.SHARPNESS: _sharpness_blend,
    Group.EQUALIZE: _equalize,
    Group.AUTO_CONTRAST: _auto_contrast,
    Group.SOLARIZE_ADD: _solarize_add,
    Group.BLUR: _blur,
}
