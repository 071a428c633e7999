"""The DALI operators of colour stages: the graph's half of `color`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from nvidia.dali import fn, math, types

from dalirefurb.augment.policies.operation_graph import BRANCHES, beside, choose
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.stage import Node


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
