"""Which kernels do a recipe's stages have? A stage is a step, and each step a row of numbers for every image.

    stage                                            step       beside DALI's operators
    RandomResizedCrop, Resize, bilinear              RESIZE     within 1 level
    RandomResizedCrop, Resize, nearest               RESIZE     exact
    CenterCrop, RandomCrop                           CROP       exact
    HorizontalFlip                                   FLIP       exact; part of the RESIZE before it, if there is one
    RandAugment's, AutoAugment's, TrivialAugment's   OPERATE    see `operate`
    the output                                       -          exact

Decoding stays DALI's, and so does a recipe that has a user's own stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.geometry import CenterCrop, HorizontalFlip, RandomCrop, RandomResizedCrop, Resize
from dalirefurb.augment.operation_layer import OperationLayer
from dalirefurb.augment.stage import Sizes, Stage

WIDTH = 10
"""Numbers of a step, at most."""

MIRROR = 4
"""Which number of a RESIZE says whether to mirror."""

Parameters = Mapping[str, NDArray[Any]]
"""What a stage drew, by name; see `Stage.draw`."""

Numbers = NDArray[np.float64]
"""One row per image, shape (n, `WIDTH`), of zeros."""


class Code(IntEnum):
    """What a step does, and with which numbers."""

    RESIZE = 0
    """Row, column, height and width of a window; whether to mirror it."""
    CROP = 1
    """Row and column of a window."""
    FLIP = 2
    """Whether to mirror."""
    OPERATE = 3
    """Group and matrix of an operation."""


@dataclass(frozen=True)
class Step:
    """One call of a kernel for each image.

    Attributes:
        code: Which kernel.
        stage: Whose parameters it takes.
        write: Lays the stage's parameters out, given the heights and widths of the images that enter.
        bilinear: Whether it interpolates.
        fill: Levels where there is no source.
        mirror: A flip that is done on the way.
    """

    code: Code
    stage: Stage
    write: Callable[[Parameters, Sizes, Numbers], None]
    bilinear: bool = False
    fill: tuple[int, ...] = (0, 0, 0)
    mirror: HorizontalFlip | None = None


def steps_of(stages: tuple[Stage, ...]) -> tuple[Step, ...] | None:
    """Return the steps of consecutive stages, or None if one of them has no kernel."""
    steps: list[Step] = []
    for stage in stages:
        step = _step(stage)
        if step is None:
            return None
        before = steps[-1] if steps else None
        if isinstance(stage, HorizontalFlip) and before and before.code == Code.RESIZE and before.mirror is None:
            steps[-1] = replace(before, mirror=stage)
        else:
            steps.append(step)
    return tuple(steps)


def _step(stage: Stage) -> Step | None:
    """Return a stage's step; a subclass made by a user may do something else, so it has none."""
    if type(stage) is RandomResizedCrop:
        return Step(Code.RESIZE, stage, _window, stage.interpolation == "bilinear")
    if type(stage) is Resize:
        return Step(Code.RESIZE, stage, _everything, stage.interpolation == "bilinear")
    if type(stage) is CenterCrop:
        return Step(Code.CROP, stage, _start)
    if type(stage) is RandomCrop:
        return Step(Code.CROP, stage, _start if stage.padding else partial(_place, stage.margin))
    if type(stage) is HorizontalFlip:
        return Step(Code.FLIP, stage, _mirror)
    if isinstance(stage, OperationLayer) and type(stage).apply is OperationLayer.apply:
        return Step(Code.OPERATE, stage, _operation, stage.interpolation == "bilinear", stage.fill_levels)
    return None


def _window(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    numbers[:, :2], numbers[:, 2:4] = parameters["start"], parameters["shape"]


def _everything(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    numbers[:, 2], numbers[:, 3] = sizes


def _start(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    numbers[:, :2] = parameters["start"]


def _place(margin: int, parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    for column, name in enumerate(("row_position", "column_position")):
        np.rint(parameters[name].astype(np.float64) * margin, out=numbers[:, column])


def _mirror(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    numbers[:, 0] = parameters["mirror"]


def _operation(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    numbers[:, 0], numbers[:, 1:] = parameters["group"], parameters["matrix"].reshape(-1, 9)
