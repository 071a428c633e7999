"""Lowering of flips and of stages that map coordinates: which kernels they call, and with which numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Sizes, Stage
from dalirefurb.augment.stages.crop import VerticalFlip
from dalirefurb.augment.stages.geometry import RandomAffine, RandomPerspective, RandomRotation
from dalirefurb.kernels.lower_colors import Call, write_same

_Parameters = Mapping[str, NDArray[Any]]
_Numbers = NDArray[np.float64]


def calls_of(stage: Stage) -> tuple[Call, ...] | None:
    """Return the calls of a stage; None if it is none of these, or a user's own that may do something else."""
    if type(stage) is VerticalFlip:
        return (Call(("crop_flip.flip_over",), partial(write_same, ()), partial(_if_drawn, "mirror")),)
    if type(stage) is RandomRotation or type(stage) is RandomAffine:
        return (Call((f"warp.{stage.interpolation}",), partial(write_map, stage.fill_levels)),)
    if type(stage) is RandomPerspective:
        kernels, write = (f"perspective.{stage.interpolation}",), partial(write_map, stage.fill_levels)
        return (Call(kernels, write, partial(_if_drawn, "warped")),)
    return None


def write_map(fill: tuple[int, ...], parameters: _Parameters, sizes: Sizes, numbers: _Numbers) -> None:
    """Write a map of coordinates for every image, and the levels where there is no source."""
    numbers[:, :9], numbers[:, 9:12] = parameters["matrix"].reshape(-1, 9), fill


def _if_drawn(name: str, parameters: _Parameters) -> NDArray[Any]:
    return parameters[name] - 1
