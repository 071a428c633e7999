"""The DALI operators that blend an image with what chains of operations make of it: the graph's half of `aug_mix`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvidia.dali import fn, types

from dalirefurb.augment.policies.operation_graph import apply_operations, beside
from dalirefurb.augment.stage import Node


def apply_chains(images: Node, parameters: Mapping[str, Node], chains: tuple[int, int], **operations: Any) -> Node:
    """Blend images with what each chain makes of them; call it where conditionals are enabled.

    Args:
        images: HWC uint8 images with 3 channels, on "cpu" or "gpu".
        parameters: The arrays of `AugMix.draw` as CPU nodes.
        chains: Number of chains, and of operations of each.
        operations: Further arguments of `apply_operations`.
    """
    width, depth = chains
    mixture = images * beside(images, parameters["weight"][0])
    for chain in range(width):
        shown = images
        for place in range(depth):
            own = {name: parameters[name][chain, place] for name in ("group", "matrix")}
            shown = apply_operations(shown, own, **operations)
        mixture = mixture + shown * beside(images, parameters["weight"][chain + 1])
    return fn.cast(mixture, dtype=types.UINT8)
