"""DALI operators of stages: the graph's half of `color`, of `erasing` and of `noise`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from nvidia.dali import fn, math, types

from dalirefurb.augment.policies.operation_graph import BRANCHES, beside, choose
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.stage import Node
from dalirefurb.augment.stages.noise import FIRST, LONGEST_SIDE, ROW, SECOND, THIRD, Noise


def apply_jitters(images: Node, parameters: Mapping[str, Node], changing: Sequence[int]) -> Node:
    """Apply operations in each sample's order; call it where conditionals are enabled.

    Args:
        images: HWC uint8 images with 3 channels, on "cpu" or "gpu".
        parameters: The arrays of `color.ColorJitter.draw` as CPU nodes.
        changing: Numbers of the operations that there are, as of `color.JITTERS`.
    """
    branches = [_JITTERS[number] for number in changing]
    for slot in range(len(branches)):
        factor = parameters["factor"][slot]
        if len(branches) == 1:
            images = branches[0](images, factor)
        else:
            images = choose(dict(enumerate(branches)), parameters["operation"][slot], images, factor)
    return images


def _turn_hue(images: Node, factor: Node) -> Node:
    """Turn the hue, 6 to a full turn; a channel is v - chroma * clamp(min(k, 4 - k), 0, 1), k its distance in hue."""
    red, green, blue = (images[:, :, channel : channel + 1] for channel in range(3))
    value = math.max(red, math.max(green, blue))
    chroma = (value - math.min(red, math.min(green, blue))) * 1.0
    scale = 1.0 / math.max(chroma, 1.0)
    red, green, blue, value = red * 1.0, green * 1.0, blue * 1.0, value * 1.0
    of_green = (green == value) * ((blue - red) * scale + 2.0) + (green != value) * ((red - green) * scale + 4.0)
    hue = (red == value) * ((green - blue) * scale) + (red != value) * of_green
    channels = types.Constant(np.array([[[5, 3, 1]]], np.float32), device=images.device)
    distance = hue + beside(images, factor[0, 0] * 6.0) + channels
    distance = distance - math.floor(distance * (1 / 6)) * 6.0
    share = math.clamp(math.min(distance, 4.0 - distance), 0.0, 1.0)
    return fn.cast(value - chroma * share, dtype=types.UINT8)


_JITTERS = (BRANCHES[Group.BRIGHTNESS], BRANCHES[Group.CONTRAST], BRANCHES[Group.COLOR], _turn_hue)


_BASE = 512


def paint_levels(images: Node, window: Node, levels: Node) -> Node:
    """Paint a colour over a window of each image.

    Args:
        images: HWC uint8 images with 3 channels, on "cpu" or "gpu".
        window: First row, first column, height and width, shape (4,), as a CPU node.
        levels: Levels of the channels, float32 of shape (3,), as a CPU node.
    """
    places = fn.cast(window, dtype=types.FLOAT)
    return fn.erase(images, anchor=places[:2], shape=places[2:], axes=[0, 1], fill_value=levels)


def paint_noise(images: Node, window: Node, key: Node, noise: Noise) -> Node:
    """Paint noise over a window of each image, if it has pixels; call it where conditionals are enabled.

    Args:
        images: HWC uint8 images with 3 channels, on "cpu" or "gpu".
        window: First row, first column, height and width, shape (4,), as a CPU node.
        key: Key of the noise, as a CPU node.
        noise: How levels are made.
    """
    if window[2] * window[3] > 0:
        painted = fn.multi_paste(
            images,
            _levels(window, key, noise, images.device),
            out_anchors=fn.stack(types.Constant(np.zeros(2, np.int32)), window[:2]),
            output_size=images.shape(dtype=types.INT32)[:2],
        )
    else:
        painted = images
    return painted


def _whole(value: int) -> Node:
    return types.Constant(value, dtype=types.UINT32)


def _first(values: Node, count: Node) -> Node:
    start = types.Constant(np.zeros(1, np.int32))
    return fn.slice(values, start=start, shape=fn.reshape(count, shape=[1]), axes=[0])


def _counted(count: Node) -> Node:
    """Return 0, 1, ..., shape (count,), of a table of two digits: one of all numbers would be megabytes of a graph."""
    low = types.Constant(np.arange(_BASE, dtype=np.uint32)[None])
    high = types.Constant(np.arange(0, 3 * LONGEST_SIDE, _BASE, dtype=np.uint32))
    rows = _first(high, count // types.Constant(_BASE, dtype=types.INT32) + types.Constant(1, dtype=types.INT32))
    return _first(fn.reshape(fn.reshape(rows, shape=[-1, 1]) + low, shape=[-1]), count)


def _levels(window: Node, key: Node, noise: Noise, device: str) -> Node:
    """Return levels of noise, as `noise.byte_sums` and `Noise.levels` say."""
    rows = fn.reshape(_counted(window[2]), shape=[-1, 1, 1])
    row = fn.reshape(_counted(window[3] * types.Constant(3, dtype=types.INT32)), shape=[1, -1, 3])
    start = fn.cast(key, dtype=types.UINT32) * _whole(THIRD)
    if device == "gpu":
        rows, row, start = rows.gpu(), row.gpu(), start.gpu()
    bits = start + rows * _whole(ROW) + row
    bits = (bits ^ (bits >> _whole(16))) * _whole(FIRST)
    bits = (bits ^ (bits >> _whole(13))) * _whole(SECOND)
    bits = bits ^ (bits >> _whole(16))
    more = (bits ^ (bits >> _whole(15))) * _whole(THIRD)
    more = more ^ (more >> _whole(13))
    byte = _whole(0x00FF00FF)
    pairs = (bits & byte) + ((bits >> _whole(8)) & byte) + (more & byte) + ((more >> _whole(8)) & byte)
    sums = fn.cast((pairs & _whole(0xFFFF)) + (pairs >> _whole(16)), dtype=types.FLOAT)
    scale, shift = (types.Constant(np.array([[each]], np.float32), device=device) for each in noise)
    return fn.reshape(fn.cast(sums * scale + shift, dtype=types.UINT8), layout="HWC")
