"""Lowering: the kernel operations of a recipe's stages, with a row of numbers for every image.

    stage                                   beside DALI's operators
    RandomResizedCrop, Resize, bilinear     within 1 level
    RandomResizedCrop, Resize, nearest      exact
    RandomResizedCrop, Resize, bicubic      exactly Pillow's, columns first. DALI's neither rounds between columns and
        and lanczos                         rows nor cuts off what overshoots there, and repeats a window's border
    CenterCrop, RandomCrop                  exact; part of the resize before it, if there is one
    HorizontalFlip, VerticalFlip            exact; the former likewise
    RandomRotation, RandomAffine            as warps, see below
    RandomPerspective                       as warps
    operations of augmentation policies
        posterize, solarize, solarize add   exact
        brightness, contrast                exact
        color, sharpness                    exact on processors that multiply and add in one step, else within 1 level
        warp, nearest                       exact on such processors, else either of two pixels that are as near
        warp, bilinear; blur                within 1 level
        auto contrast                       exact
        equalize                            exactly Pillow's, which DALI's is not in small pictures
    Solarize, Equalize, ...                 as the operations of policies
    AugMix                                  the sum of these, rounded once
    ColorJitter                             as these, and hue within 1 level; so later operations may differ by some
    RandomGrayscale, SolarizeAdd            exact
    GaussianBlur                            within 1 level
    RandomErasing, Cutout                   exact
    KernelStage                             -
    RandomApply, RandomChoice               as the stages that they choose
    the output                              exact

Decoding stays DALI's, and so does a recipe that has a user's own stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Sizes, Stage
from dalirefurb.augment.stages.choice import RandomApply, RandomChoice
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.stages.kernel_stage import KernelStage
from dalirefurb.augment.stages.resize import RandomResizedCrop, Resize
from dalirefurb.kernels import lower_colors, lower_geometry, lower_operations
from dalirefurb.kernels.call import UNTOUCHED, Numbers, Parameters, if_drawn

WIDTH = 16
"""Numbers of a step, at most."""

MIRROR, START, FULL = 4, 5, 7
"""Which numbers of a RESIZE say whether to mirror; where a crop begins; and what the size would be without it."""

KernelName = str | KernelStage
"""The library's kernels by name, such as "warp.nearest"; of the user's own the stage."""


class Code(IntEnum):
    """What is known of a step beside its kernels, and which numbers it takes then."""

    OTHER = 0
    """Nothing. The image keeps its size, unless its stage says otherwise."""
    RESIZE = 1
    """Row, column, height and width of a window; whether to mirror it; row and column where what it becomes is cropped;
    height and width of that."""
    CROP = 2
    """Row and column of a window."""
    FLIP = 3
    """Nothing: it is chosen or not."""


@dataclass(frozen=True)
class KernelOp:
    """One call of a kernel for each image.

    Attributes:
        code: Code that says what is known of the step.
        stage: Stage whose parameters the kernels take.
        kernels: Kernels that rows choose among; None: one that no row chooses.
        write: Function that lays the stage's parameters out as numbers, given the heights and widths of the images that
            enter.
        choose: Function from the stage's parameters to the kernel of each row, int64 (n,), below 0 where the image
            stays as it is; None: all take the first.
        inside: Names of the stages that the stage is inside of, from the recipe's on.
        taken: Parameters of these, as "<stage>/<parameter>", each with the value without which the image stays.
        mirror: Flip that the kernel does on the way; None: it does none.
        crop: CROP after the kernel and its flip, of which only the window is made; None: there is none.
    """

    code: Code
    stage: Stage
    kernels: tuple[KernelName | None, ...]
    write: Callable[[Parameters, Sizes, Numbers], None]
    choose: Callable[[Parameters], NDArray[Any]] | None = None
    inside: tuple[str, ...] = ()
    taken: tuple[tuple[str, int], ...] = ()
    mirror: HorizontalFlip | None = None
    crop: KernelOp | None = None

    def output_sizes(self, heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Sizes:
        """Return the sizes of the images that it makes of such, (n,)."""
        heights, widths = self.stage.output_sizes(heights, widths)
        return (heights, widths) if self.crop is None else self.crop.output_sizes(heights, widths)

    def lay_out(self, drawn: Mapping[str, Any], sizes: Sizes, chosen: NDArray[np.int64], numbers: Numbers) -> None:
        """Write what each image is given.

        Args:
            drawn: Parameters of all stages, as "<stage>/<parameter>".
            sizes: Heights and widths of the images that enter, in pixels.
            chosen: Kernel of each image, (n,), to be written where it is not the first.
            numbers: Numbers of each image, shape (n, `WIDTH`), to be written.
        """
        parameters = self._parameters(drawn)
        self.write(parameters, sizes, numbers)
        if self.choose is not None:
            chosen[:] = self.choose(parameters)
        for name, value in self.taken:
            chosen[np.asarray(drawn[name]) != value] = UNTOUCHED
        if self.mirror is not None:
            numbers[:, MIRROR] = drawn[f"{self.mirror.name}/mirror"]
        if self.code == Code.RESIZE:
            full = self.stage.output_sizes(*sizes)
            numbers[:, FULL], numbers[:, FULL + 1] = full
            if self.crop is not None:
                self.crop.write(self.crop._parameters(drawn), full, numbers[:, START:FULL])

    def largest(self, sizes: Sizes) -> Numbers:
        """Return numbers with which kernels need the most memory, for images of these heights and widths, (n,)."""
        numbers = np.zeros((len(sizes[0]), WIDTH))
        if self.code == Code.RESIZE:
            numbers[:, 2], numbers[:, 3] = sizes
            numbers[:, FULL], numbers[:, FULL + 1] = self.stage.output_sizes(*sizes)
        return numbers

    def _parameters(self, drawn: Mapping[str, Any]) -> Parameters:
        return {name: np.asarray(drawn[_named(self.inside, self.stage, name)]) for name in self.stage.parameters}


def steps_of(stages: tuple[Stage, ...]) -> tuple[KernelOp, ...] | None:
    """Return the steps of consecutive stages, or None if one of them has no kernel."""
    steps: list[KernelOp] = []
    for stage in stages:
        own = _steps_of_stage(stage)
        if own is None:
            return None
        before = steps[-1] if steps else None
        if before is None or before.code != Code.RESIZE or before.crop is not None or before.inside:
            steps.extend(own)
        elif own and own[0].code == Code.CROP and not _pads(stage):
            steps[-1] = replace(before, crop=own[0])
        elif isinstance(stage, HorizontalFlip) and before.mirror is None:
            steps[-1] = replace(before, mirror=stage)
        else:
            steps.extend(own)
    return tuple(steps)


def _pads(stage: Stage) -> bool:
    """Whether a crop may reach over an image's borders."""
    return isinstance(stage, RandomCrop) and stage.padding > 0


_RESIZES = {
    "nearest": ("crop_flip.pick",),
    "bilinear": ("resize.bilinear",),
    "bicubic": ("resample.bicubic",),
    "lanczos": ("resample.lanczos",),
    "random": ("resize.bilinear", "resample.bicubic"),  # in the order of `interpolation.RANDOM`
}
_CROPS = {"constant": "crop_flip.crop", "reflect": "crop_flip.crop_reflected"}


def _steps_of_stage(stage: Stage) -> tuple[KernelOp, ...] | None:
    """Return a stage's steps; None if it has no kernel."""
    if type(stage) is not RandomApply and type(stage) is not RandomChoice:
        for family in (lower_colors, lower_geometry, lower_operations):
            if (calls := family.calls_of(stage)) is not None:
                return tuple(KernelOp(Code.OTHER, stage, *call) for call in calls)
        step = _step(stage)
        return None if step is None else (step,)
    steps: list[KernelOp] = []
    for number, branch in enumerate(stage.branches):
        for inner in branch:
            own = _steps_of_stage(inner)
            if own is None:
                return None
            steps.extend(_inside(stage, number, step) for step in own)
    return tuple(steps)


def _inside(stage: RandomApply | RandomChoice, branch: int, step: KernelOp) -> KernelOp:
    """Return a step that only the samples of a stage's branch take."""
    inside = (stage.name, *step.inside)
    first = (_named((), stage, stage.CHOSEN), branch)
    others = tuple((f"{stage.name}/{name.replace('/', '.', 1)}", value) for name, value in step.taken)
    # The output does in passing what all samples take.
    code = Code.OTHER if step.code == Code.CROP else step.code
    return replace(step, code=code, inside=inside, taken=(first, *others))


def _named(inside: tuple[str, ...], stage: Stage, parameter: str) -> str:
    """Return the name of an input: a parameter of a stage, which may be inside of others."""
    outermost, *others = *inside, stage.name
    return f"{outermost}/{'.'.join((*others, parameter))}"


def _step(stage: Stage) -> KernelOp | None:
    """Return a stage's step; a subclass made by a user may do something else, so it has none."""
    if type(stage) is RandomResizedCrop or type(stage) is Resize:
        kernels, write = _RESIZES[stage.interpolation], _everything if isinstance(stage, Resize) else _window
        return KernelOp(Code.RESIZE, stage, kernels, write, itemgetter("interpolation") if len(kernels) > 1 else None)
    if type(stage) is CenterCrop:
        return KernelOp(Code.CROP, stage, ("crop_flip.crop",), _start)
    if type(stage) is RandomCrop:
        place = partial(_place, stage.margin) if stage.margin is not None and stage.relative else _start
        return KernelOp(Code.CROP, stage, (_CROPS[stage.padding_mode],), place)
    if type(stage) is HorizontalFlip:
        return KernelOp(Code.FLIP, stage, ("crop_flip.flip",), _nothing, partial(if_drawn, "mirror"))
    if type(stage) is KernelStage:
        return KernelOp(Code.OTHER, stage, (stage,), _uniforms if stage.uniforms else _nothing)
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


def _uniforms(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    given = parameters["uniforms"]
    numbers[:, : given.shape[1]] = given


def _nothing(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    pass
