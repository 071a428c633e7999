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

from dataclasses import replace

from dalirefurb.augment.kernel_call import Code
from dalirefurb.augment.stage import Stage
from dalirefurb.augment.stages.choice import RandomApply, RandomChoice
from dalirefurb.augment.stages.crop import HorizontalFlip, RandomCrop
from dalirefurb.kernels.kernel_op import KernelOp, named


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
        elif len(own) == 1 and own[0].code == Code.CROP and not (isinstance(stage, RandomCrop) and stage.padding):
            steps[-1] = replace(before, crop=own[0])
        elif len(own) == 1 and own[0].code == Code.FLIP and isinstance(stage, HorizontalFlip) and before.mirror is None:
            steps[-1] = replace(before, mirror=stage)
        else:
            steps.extend(own)
    return tuple(steps)


def _steps_of_stage(stage: Stage) -> tuple[KernelOp, ...] | None:
    """Return a stage's steps; None if it has no kernel, as what a user derives, which may do something else."""
    if type(stage) is not RandomApply and type(stage) is not RandomChoice:
        calls = stage.kernel_calls if _speaks_for_itself(type(stage)) else None
        return None if calls is None else tuple(KernelOp.of(stage, call) for call in calls)
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
