"""Lowering of colour, blur and erasing stages: which kernels they call, and with which numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.augment.stage import Sizes, Stage
from dalirefurb.augment.stages.blur import GaussianBlur
from dalirefurb.augment.stages.color import ColorJitter, RandomGrayscale, SolarizeAdd
from dalirefurb.augment.stages.erasing import Cutout, PaintedWindows, RandomErasing

_Parameters = Mapping[str, NDArray[Any]]
_Numbers = NDArray[np.float64]

_JITTERS = ("levels.brightness", "levels.contrast", "filters.color", "color.hue")


class Call(NamedTuple):
    """One call of a kernel for each image: what a `lower.KernelOp` says of it, in the same words.

    Attributes:
        kernels: Names of the kernels that rows choose among; None: one that no row chooses.
        write: Function that lays the stage's parameters out as numbers.
        choose: Function from the stage's parameters to the kernel of each row, -1 where the image stays as it is; None:
            all take the first.
    """

    kernels: tuple[str | None, ...]
    write: Callable[[_Parameters, Sizes, _Numbers], None]
    choose: Callable[[_Parameters], NDArray[Any]] | None = None


def calls_of(stage: Stage) -> tuple[Call, ...] | None:
    """Return the calls of a stage; None if it is none of these, or a user's own that may do something else."""
    if type(stage) is ColorJitter:
        return tuple(_jitter(stage.changing, slot) for slot in range(len(stage.changing)))
    if type(stage) is RandomGrayscale:
        return (Call(("color.grayscale",), partial(write_same, ()), _if_grey),)
    if type(stage) is SolarizeAdd:
        return (Call(("color.solarize_add",), partial(write_same, (stage.addition, stage.threshold))),)
    if type(stage) is GaussianBlur:
        return (Call(("blur.gaussian",), partial(_blur, stage.kernel_size // 2)),)
    if type(stage) is RandomErasing or type(stage) is Cutout:
        return tuple(_paint(stage, place) for place in range(stage.windows))
    return None


def write_same(given: ArrayLike, parameters: _Parameters, sizes: Sizes, numbers: _Numbers) -> None:
    """Write the same numbers for every image."""
    fixed = np.asarray(given, np.float64)
    numbers[:, : len(fixed)] = fixed


def _if_grey(parameters: _Parameters) -> NDArray[Any]:
    return parameters["grey"] - 1


def _blur(radius: int, parameters: _Parameters, sizes: Sizes, numbers: _Numbers) -> None:
    numbers[:, 0], numbers[:, 1] = parameters["sigma"], radius


def _jitter(changing: tuple[int, ...], slot: int) -> Call:
    """Return the call of the operation that comes at a place in the order."""

    def write(parameters: _Parameters, sizes: Sizes, numbers: _Numbers) -> None:
        numbers[:, 0], numbers[:, 3] = parameters["factor"][:, slot, :, 0].T

    def choose(parameters: _Parameters) -> NDArray[Any]:
        return parameters["operation"][:, slot]

    return Call(tuple(_JITTERS[number] for number in changing), write, choose if len(changing) > 1 else None)


def _paint(stage: PaintedWindows, place: int) -> Call:
    """Return the call for one window."""
    noise = stage.noise

    def write(parameters: _Parameters, sizes: Sizes, numbers: _Numbers) -> None:
        numbers[:, :4] = parameters["window"][:, place]
        if noise is None:
            numbers[:, 4:7] = parameters["levels"][:, place]
        else:
            numbers[:, 4], numbers[:, 5:8], numbers[:, 8:11] = parameters["key"][:, place], *noise

    def choose(parameters: _Parameters) -> NDArray[Any]:
        return np.where(parameters["window"][:, place, 2:].all(axis=1), 0, -1)

    return Call(("erasing.paint" if noise is None else "erasing.noise",), write, choose)
