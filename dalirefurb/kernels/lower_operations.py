"""Lowering of policies' operations: which kernels they call, and with which numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.aug_mix import AugMix
from dalirefurb.augment.policies.one_operation import OneOperation
from dalirefurb.augment.policies.operation_layer import OperationLayer
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.policies.timm_weighted_layers import TimmWeightedLayers
from dalirefurb.augment.stage import Sizes, Stage
from dalirefurb.kernels.call import UNTOUCHED, Call, Numbers, Parameters, write_map, write_same

_WARPS = {"bilinear": "warp.bilinear", "nearest": "warp.nearest"}
_OPERATIONS = {
    Group.POSTERIZE: "levels.posterize",
    Group.SOLARIZE: "levels.solarize",
    Group.BRIGHTNESS: "levels.brightness",
    Group.CONTRAST: "levels.contrast",
    Group.COLOR: "filters.color",
    Group.SHARPNESS: "filters.sharpness",
    Group.EQUALIZE: "levels.equalize",
    Group.AUTO_CONTRAST: "levels.auto_contrast",
    Group.SOLARIZE_ADD: "color.solarize_add",
    Group.BLUR: "blur.gaussian",
}


def calls_of(stage: Stage) -> tuple[Call, ...] | None:
    """Return the calls of a stage; None if it is none of these, or a user's own that may do something else."""
    if type(stage) is AugMix:
        return _mix(stage)
    if type(stage) is TimmWeightedLayers:
        return tuple(_operate(stage, (place,)) for place in range(stage.layers))
    if isinstance(stage, OperationLayer) and type(stage).apply is OperationLayer.apply:
        return (_operate(stage, ()),)
    if isinstance(stage, OneOperation) and type(stage).apply is OneOperation.apply:
        return (Call((_OPERATIONS[stage.group],), partial(write_same, stage.matrix.ravel())),)
    return None


def _operate(layer: OperationLayer, place: tuple[int, ...]) -> Call:
    """Return the call of an operation for each image: a table of the groups that the layer's operations are of.

    Args:
        layer: Layer of operations.
        place: Index of the operation, where the layer draws more than one for an image.
    """
    names = {**_OPERATIONS, Group.WARP: _WARPS[layer.interpolation]}
    kernels = tuple(names.get(group) if group in layer.groups else None for group in Group)
    index: Any = (slice(None), *place)

    def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
        write_map(layer.fill_levels, {"matrix": parameters["matrix"][index]}, sizes, numbers)

    def choose(parameters: Parameters) -> NDArray[Any]:
        groups = parameters["group"][index]
        return np.where(groups == Group.IDENTITY, UNTOUCHED, groups)

    return Call(kernels, write, choose)


def _mix(stage: AugMix) -> tuple[Call, ...]:
    """Return the calls that add chains up: the image first, then what each chain makes of it."""
    calls = [Call(("mixing.begin",), partial(_weigh, 0))]
    for chain in range(stage.mixture_width):
        calls += [_operate(stage, (chain, place)) for place in range(stage.depth)]
        last = chain == stage.mixture_width - 1
        calls.append(Call(("mixing.end" if last else "mixing.add",), partial(_weigh, chain + 1)))
    return tuple(calls)


def _weigh(place: int, parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    numbers[:, 0] = parameters["weight"][:, place]
