"""Lowering: the kernel operations of a recipe's stages, with a row of numbers for every image.

Decoding stays DALI's, and so do a stage without kernels, such as `Custom`, and all behind it. How far kernels are from
DALI's operators is in `docs/kernels.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import UNTOUCHED, Code, KernelCall, Numbers, Parameters
from dalirefurb.augment.stage import Sizes, Stage
from dalirefurb.augment.stages.choice import RandomApply, RandomChoice
from dalirefurb.augment.stages.crop import HorizontalFlip, RandomCrop
from dalirefurb.kernels.record import FULL, MIRROR, START, WARP_START, WIDTH


@dataclass(frozen=True, kw_only=True)
class KernelOp(KernelCall):
    """One call of a kernel for each image, with the stage that it is of, and what is done in passing.

    Attributes:
        stage: Stage whose parameters the kernels take.
        inside: Names of the stages that the stage is inside of, from the recipe's on.
        taken: Parameters of these, as "<stage>/<parameter>", each with the value without which the image stays.
        mirror: Flip that the kernel does on the way; None: it does none.
        crop: CROP after the kernel and its flip, of which only the window is made; None: there is none.
    """

    stage: Stage
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
        full = self.stage.output_sizes(*sizes)
        if self.crop is not None:
            start = START if self.code == Code.RESIZE else WARP_START
            self.crop.write(self.crop._parameters(drawn), full, numbers[:, start : start + 2])
        if self.code == Code.RESIZE:
            numbers[:, FULL], numbers[:, FULL + 1] = full

    def largest(self, sizes: Sizes) -> Numbers:
        """Return numbers with which kernels need the most memory, for images of these heights and widths, (n,)."""
        numbers = np.zeros((len(sizes[0]), WIDTH))
        if self.most is not None:
            self.most(sizes, numbers)
        if self.code == Code.RESIZE:
            numbers[:, 2], numbers[:, 3] = sizes
            numbers[:, FULL], numbers[:, FULL + 1] = self.stage.output_sizes(*sizes)
        return numbers

    def _parameters(self, drawn: Mapping[str, Any]) -> Parameters:
        return {name: np.asarray(drawn[named(self.inside, self.stage, name)]) for name in self.stage.parameters}


def named(inside: tuple[str, ...], stage: Stage, parameter: str) -> str:
    """Return the name of an input: a parameter of a stage, which may be inside of others."""
    outermost, *others = *inside, stage.name
    return f"{outermost}/{'.'.join((*others, parameter))}"


def steps_of(stages: tuple[Stage, ...]) -> tuple[KernelOp, ...] | None:
    """Return the steps of consecutive stages, or None if one of them has no kernel."""
    steps: list[KernelOp] = []
    for stage in stages:
        own = _steps_of_stage(stage)
        if own is None:
            return None
        before = steps[-1] if steps else None
        code = before.code if before is not None and before.crop is None and not before.inside else Code.OTHER
        alone = own[0].code if len(own) == 1 else Code.OTHER
        padded = isinstance(stage, RandomCrop) and stage.padding
        if before is not None and code in (Code.RESIZE, Code.WARP) and alone == Code.CROP and not padded:
            steps[-1] = replace(before, crop=own[0])
        elif (
            before is not None
            and code == Code.RESIZE
            and alone == Code.FLIP
            and isinstance(stage, HorizontalFlip)
            and before.mirror is None
        ):
            steps[-1] = replace(before, mirror=stage)
        else:
            steps.extend(own)
    return tuple(steps)


def _steps_of_stage(stage: Stage) -> tuple[KernelOp, ...] | None:
    """Return a stage's steps; None if it has no kernel, as what a user derives, which may do something else."""
    if type(stage) is not RandomApply and type(stage) is not RandomChoice:
        calls = stage.kernel_calls if _speaks_for_itself(type(stage)) else None
        if calls is None:
            return None
        return tuple(
            KernelOp(tuple(call.kernels), call.write, call.choose, call.code, call.most, stage=stage) for call in calls
        )
    steps: list[KernelOp] = []
    for number, branch in enumerate(stage.branches):
        for inner in branch:
            own = _steps_of_stage(inner)
            if own is None:
                return None
            steps.extend(_inside(stage, number, step) for step in own)
    return tuple(steps)


def _speaks_for_itself(kind: type[Stage]) -> bool:
    """Tell whether the kernel calls of a class are of its `apply`, and not of one that it overrides."""
    calls, apply = (next(each for each in kind.__mro__ if name in vars(each)) for name in ("kernel_calls", "apply"))
    return issubclass(calls, apply)


def _inside(stage: RandomApply | RandomChoice, branch: int, step: KernelOp) -> KernelOp:
    """Return a step that only the samples of a stage's branch take."""
    inside = (stage.name, *step.inside)
    first = (named((), stage, stage.CHOSEN), branch)
    others = tuple((f"{stage.name}/{name.replace('/', '.', 1)}", value) for name, value in step.taken)
    # The output does in passing what all samples take.
    code = Code.OTHER if step.code == Code.CROP else step.code
    return replace(step, code=code, inside=inside, taken=(first, *others))
