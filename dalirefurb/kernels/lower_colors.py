"""Lowering of colour, blur and erasing stages: which kernels they call, and with which numbers."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Sizes, Stage
from dalirefurb.augment.stages.blur import GaussianBlur
from dalirefurb.augment.stages.color import ColorJitter, RandomGrayscale, SolarizeAdd
from dalirefurb.augment.stages.erasing import Cutout, PaintedWindows, RandomErasing
from dalirefurb.kernels.call import UNTOUCHED, Call, Numbers, Parameters, if_drawn, write_same

_JITTERS = ("levels.brightness", "levels.contrast", "filters.color", "color.hue")


def calls_of(stage: Stage) -> tuple[Call, ...] | None:
    """Return the calls of a stage; None if it is none of these, or a user's own that may do something else."""
    if type(stage) is ColorJitter:
        return tuple(_jitter(stage.changing, slot) for slot in range(len(stage.changing)))
    if type(stage) is RandomGrayscale:
        return (Call(("color.grayscale",), partial(write_same, ()), partial(if_drawn, "grey")),)
    if type(stage) is SolarizeAdd:
        return (Call(("color.solarize_add",), partial(write_same, (stage.addition, stage.threshold))),)
    if type(stage) is GaussianBlur:
        return (Call(("blur.gaussian",), partial(_blur, stage.kernel_size // 2)),)
    if type(stage) is RandomErasing or type(stage) is Cutout:
        return tuple(_paint(stage, place) for place in range(stage.windows))
    return None


def _blur(radius: int, parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    numbers[:, 0], numbers[:, 1] = parameters["sigma"], radius


def _jitter(changing: tuple[int, ...], slot: int) -> Call:
    """Return the call of the operation that comes at a place in the order."""

    def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
        numbers[:, 0], numbers[:, 3] = parameters["factor"][:, slot, :, 0].T

    def choose(parameters: Parameters) -> NDArray[Any]:
        return parameters["operation"][:, slot]

    return Call(tuple(_JITTERS[number] for number in changing), write, choose if len(changing) > 1 else None)


def _paint(stage: PaintedWindows, place: int) -> Call:
    """Return the call for one window."""
    noise = stage.noise

    def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
        numbers[:, :4] = parameters["window"][:, place]
        if noise is None:
            numbers[:, 4:7] = parameters["levels"][:, place]
        else:
            numbers[:, 4], numbers[:, 5:8], numbers[:, 8:11] = parameters["key"][:, place], *noise

    def choose(parameters: Parameters) -> NDArray[Any]:
        return np.where(parameters["window"][:, place, 2:].all(axis=1), 0, UNTOUCHED)

    return Call(("erasing.paint" if noise is None else "erasing.noise",), write, choose)
