"""Lowering: the kernel operations of a recipe's stages, with a row of numbers for every image.

    stage                                            step       beside DALI's operators
    RandomResizedCrop, Resize, bilinear              RESIZE     within 1 level
    RandomResizedCrop, Resize, nearest               RESIZE     exact
    CenterCrop, RandomCrop                           CROP       exact; part of the RESIZE before it, if there is one
    HorizontalFlip                                   FLIP       exact; likewise
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

from dalirefurb.augment.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.operation_layer import OperationLayer
from dalirefurb.augment.resize import RandomResizedCrop, Resize
from dalirefurb.augment.stage import Sizes, Stage

WIDTH = 10
"""Numbers of a step, at most."""

MIRROR, START, FULL = 4, 5, 7
"""Which numbers of a RESIZE say whether to mirror; where a crop begins; and what the size would be without it."""

Parameters = Mapping[str, NDArray[Any]]
"""What a stage drew, by name; see `Stage.draw`."""

Numbers = NDArray[np.float64]
"""One row per image, shape (n, `WIDTH`), of zeros."""


class Code(IntEnum):
    """What a step does, and with which numbers."""

    RESIZE = 0
    """Row, column, height and width of a window; whether to mirror it; row and column where what it becomes is cropped;
    height and width of that."""
    CROP = 1
    """Row and column of a window."""
    FLIP = 2
    """Whether to mirror."""
    OPERATE = 3
    """Group and matrix of an operation."""


@dataclass(frozen=True)
class KernelOp:
    """One call of a kernel for each image.

    Attributes:
        code: Code of the kernel that is called.
        stage: Stage whose parameters the kernel takes.
        write: Function that lays the stage's parameters out as numbers, given the heights and widths of the images that
            enter.
        bilinear: Whether the kernel interpolates.
        fill: Levels of the channels where there is no source.
        mirror: Flip that the kernel does on the way; None: it does none.
        crop: CROP after the kernel and its flip, of which only the window is made; None: there is none.
    """

    code: Code
    stage: Stage
    write: Callable[[Parameters, Sizes, Numbers], None]
    bilinear: bool = False
    fill: tuple[int, ...] = (0, 0, 0)
    mirror: HorizontalFlip | None = None
    crop: KernelOp | None = None

    def output_sizes(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Sizes:
        """Return the sizes of the images that it makes of such, (n,)."""
        heights, widths = self.stage.output_sizes(heights, widths)
        return (heights, widths) if self.crop is None else self.crop.output_sizes(heights, widths)

    def lay_out(self, drawn: Mapping[str, Any], sizes: Sizes, numbers: Numbers) -> None:
        """Write a row of numbers for each image.

        Args:
            drawn: Parameters of all stages, as "<stage>/<parameter>".
            sizes: Heights and widths of the images that enter, in pixels.
            numbers: Numbers to write, one row for each image, shape (n, `WIDTH`).
        """
        self.write(self._parameters(drawn), sizes, numbers)
        if self.mirror is not None:
            numbers[:, MIRROR] = drawn[f"{self.mirror.name}/mirror"]
        if self.code == Code.RESIZE:
            full = self.stage.output_sizes(*sizes)
            numbers[:, FULL], numbers[:, FULL + 1] = full
            if self.crop is not None:
                self.crop.write(self.crop._parameters(drawn), full, numbers[:, START:FULL])

    def _parameters(self, drawn: Mapping[str, Any]) -> Parameters:
        return {name: np.asarray(drawn[f"{self.stage.name}/{name}"]) for name in self.stage.parameters}


def steps_of(stages: tuple[Stage, ...]) -> tuple[KernelOp, ...] | None:
    """Return the steps of consecutive stages, or None if one of them has no kernel."""
    steps: list[KernelOp] = []
    for stage in stages:
        step = _step(stage)
        if step is None:
            return None
        before = steps[-1] if steps else None
        if before is None or before.code != Code.RESIZE or before.crop is not None:
            steps.append(step)
        elif step.code == Code.CROP and not _pads(stage):
            steps[-1] = replace(before, crop=step)
        elif isinstance(stage, HorizontalFlip) and before.mirror is None:
            steps[-1] = replace(before, mirror=stage)
        else:
            steps.append(step)
    return tuple(steps)


def _pads(stage: Stage) -> bool:
    """Whether a crop may reach over an image's borders."""
    return isinstance(stage, RandomCrop) and stage.padding > 0


def _step(stage: Stage) -> KernelOp | None:
    """Return a stage's step; a subclass made by a user may do something else, so it has none."""
    if type(stage) is RandomResizedCrop:
        return KernelOp(Code.RESIZE, stage, _window, stage.interpolation == "bilinear")
    if type(stage) is Resize:
        return KernelOp(Code.RESIZE, stage, _everything, stage.interpolation == "bilinear")
    if type(stage) is CenterCrop:
        return KernelOp(Code.CROP, stage, _start)
    if type(stage) is RandomCrop:
        return KernelOp(Code.CROP, stage, _start if stage.padding else partial(_place, stage.margin))
    if type(stage) is HorizontalFlip:
        return KernelOp(Code.FLIP, stage, _mirror)
    if isinstance(stage, OperationLayer) and type(stage).apply is OperationLayer.apply:
        return KernelOp(Code.OPERATE, stage, _operation, stage.interpolation == "bilinear", stage.fill_levels)
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
