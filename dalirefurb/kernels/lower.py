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
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.augment.policies.aug_mix import AugMix
from dalirefurb.augment.policies.one_operation import OneOperation
from dalirefurb.augment.policies.operation_layer import OperationLayer
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.stage import Sizes, Stage
from dalirefurb.augment.stages.blur import GaussianBlur
from dalirefurb.augment.stages.choice import RandomApply, RandomChoice
from dalirefurb.augment.stages.color import ColorJitter, RandomGrayscale, SolarizeAdd
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop, VerticalFlip
from dalirefurb.augment.stages.custom import KernelStage
from dalirefurb.augment.stages.erasing import Cutout, PaintedWindows, RandomErasing
from dalirefurb.augment.stages.geometry import RandomAffine, RandomPerspective, RandomRotation
from dalirefurb.augment.stages.resize import RandomResizedCrop, Resize
from dalirefurb.kernels.kernel_op import UNTOUCHED, Code, KernelOp, Numbers, Parameters, named

_RESIZES = {
    "nearest": ("crop_flip.pick",),
    "bilinear": ("resize.bilinear",),
    "bicubic": ("resample.bicubic",),
    "lanczos": ("resample.lanczos",),
    "random": ("resize.bilinear", "resample.bicubic"),  # in the order of `resize.RANDOM`
}
_CROPS = {"constant": "crop_flip.crop", "reflect": "crop_flip.crop_reflected"}
_JITTERS = ("levels.brightness", "levels.contrast", "color.blend", "color.hue")
_WARPS = {"bilinear": "warp.bilinear", "nearest": "warp.nearest"}
_OPERATIONS = {
    Group.POSTERIZE: "levels.posterize",
    Group.SOLARIZE: "levels.solarize",
    Group.BRIGHTNESS: "levels.brightness",
    Group.CONTRAST: "levels.contrast",
    Group.COLOR: "color.blend",
    Group.SHARPNESS: "color.sharpness",
    Group.EQUALIZE: "levels.equalize",
    Group.AUTO_CONTRAST: "levels.auto_contrast",
    Group.SOLARIZE_ADD: "color.solarize_add",
    Group.BLUR: "blur.gaussian",
}


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
        elif own and own[0].code == Code.CROP and not (isinstance(stage, RandomCrop) and stage.padding):
            steps[-1] = replace(before, crop=own[0])
        elif isinstance(stage, HorizontalFlip) and before.mirror is None:
            steps[-1] = replace(before, mirror=stage)
        else:
            steps.extend(own)
    return tuple(steps)


def _steps_of_stage(stage: Stage) -> tuple[KernelOp, ...] | None:
    """Return a stage's steps; None if it has no kernel, as what a user derives, which may do something else."""
    if type(stage) is not RandomApply and type(stage) is not RandomChoice:
        for family in (_moved, _recoloured, _operated):
            if (own := family(stage)) is not None:
                return own
        return None
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
    first = (named((), stage, stage.CHOSEN), branch)
    others = tuple((f"{stage.name}/{name.replace('/', '.', 1)}", value) for name, value in step.taken)
    # The output does in passing what all samples take.
    code = Code.OTHER if step.code == Code.CROP else step.code
    return replace(step, code=code, inside=inside, taken=(first, *others))


def _moved(stage: Stage) -> tuple[KernelOp, ...] | None:
    """Return the steps of a stage that moves pixels."""
    other = partial(KernelOp, Code.OTHER, stage)
    if type(stage) is RandomResizedCrop or type(stage) is Resize:
        kernels, write = _RESIZES[stage.interpolation], _everything if isinstance(stage, Resize) else _window
        choose = itemgetter("interpolation") if len(kernels) > 1 else None
        return (KernelOp(Code.RESIZE, stage, kernels, write, choose),)
    if type(stage) is CenterCrop:
        return (KernelOp(Code.CROP, stage, ("crop_flip.crop",), _start),)
    if type(stage) is RandomCrop:
        place = partial(_place, stage.margin) if stage.margin is not None and stage.relative else _start
        return (KernelOp(Code.CROP, stage, (_CROPS[stage.padding_mode],), place),)
    if type(stage) is HorizontalFlip:
        return (KernelOp(Code.FLIP, stage, ("crop_flip.flip",), _nothing, partial(_if_drawn, "mirror")),)
    if type(stage) is VerticalFlip:
        return (other(("crop_flip.flip_over",), _nothing, partial(_if_drawn, "mirror")),)
    if type(stage) is RandomRotation or type(stage) is RandomAffine:
        return (other((f"warp.{stage.interpolation}",), partial(_write_map, stage.fill_levels)),)
    if type(stage) is RandomPerspective:
        kernels, write = (f"warp.perspective_{stage.interpolation}",), partial(_write_map, stage.fill_levels)
        return (other(kernels, write, partial(_if_drawn, "warped")),)
    return None


def _recoloured(stage: Stage) -> tuple[KernelOp, ...] | None:
    """Return the steps of a stage of colours, of blur or of erasing, or of a user's own function."""
    other = partial(KernelOp, Code.OTHER, stage)
    if type(stage) is ColorJitter:
        return tuple(_jitter(stage, slot) for slot in range(len(stage.changing)))
    if type(stage) is RandomGrayscale:
        return (other(("color.grayscale",), _nothing, partial(_if_drawn, "grey")),)
    if type(stage) is SolarizeAdd:
        return (other(("color.solarize_add",), partial(_write_same, (stage.addition, stage.threshold))),)
    if type(stage) is GaussianBlur:
        return (other(("blur.gaussian",), partial(_blur, stage.kernel_size // 2)),)
    if type(stage) is RandomErasing or type(stage) is Cutout:
        return tuple(_paint(stage, place) for place in range(stage.windows))
    if type(stage) is KernelStage:
        return (other((stage,), _uniforms if stage.uniforms else _nothing),)
    return None


def _operated(stage: Stage) -> tuple[KernelOp, ...] | None:
    """Return the steps of a stage of policies' operations."""
    if type(stage) is AugMix:
        return _mix(stage)
    if isinstance(stage, OperationLayer) and type(stage).apply is OperationLayer.apply:
        return tuple(_operate(stage, place) for place in np.ndindex(stage.places))
    if isinstance(stage, OneOperation) and type(stage).apply is OneOperation.apply:
        write = partial(_write_same, stage.matrix.ravel())
        return (KernelOp(Code.OTHER, stage, (_OPERATIONS[stage.group],), write),)
    return None


def _jitter(stage: ColorJitter, slot: int) -> KernelOp:
    """Return the step of the operation that comes at a place in the order."""

    def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
        numbers[:, 0], numbers[:, 3] = parameters["factor"][:, slot, :, 0].T

    def choose(parameters: Parameters) -> NDArray[Any]:
        return parameters["operation"][:, slot]

    kernels = tuple(_JITTERS[number] for number in stage.changing)
    return KernelOp(Code.OTHER, stage, kernels, write, choose if len(kernels) > 1 else None)


def _paint(stage: PaintedWindows, place: int) -> KernelOp:
    """Return the step for one window."""
    noise = stage.noise

    def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
        numbers[:, :4] = parameters["window"][:, place]
        if noise is None:
            numbers[:, 4:7] = parameters["levels"][:, place]
        else:
            numbers[:, 4], numbers[:, 5:8], numbers[:, 8:11] = parameters["key"][:, place], *noise

    def choose(parameters: Parameters) -> NDArray[Any]:
        return np.where(parameters["window"][:, place, 2:].all(axis=1), 0, UNTOUCHED)

    return KernelOp(Code.OTHER, stage, ("erasing.paint" if noise is None else "erasing.noise",), write, choose)


def _operate(layer: OperationLayer, place: tuple[int, ...]) -> KernelOp:
    """Return the step of an operation for each image: a table of the groups that the layer's operations are of.

    Args:
        layer: Layer of operations.
        place: Index of the operation, where the layer draws more than one for an image.
    """
    names = {**_OPERATIONS, Group.WARP: _WARPS[layer.interpolation]}
    kernels = tuple(names.get(group) if group in layer.groups else None for group in Group)
    index: Any = (slice(None), *place)

    def write(parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
        _write_map(layer.fill_levels, {"matrix": parameters["matrix"][index]}, sizes, numbers)

    def choose(parameters: Parameters) -> NDArray[Any]:
        groups = parameters["group"][index]
        return np.where(groups == Group.IDENTITY, UNTOUCHED, groups)

    return KernelOp(Code.OTHER, layer, kernels, write, choose)


def _mix(stage: AugMix) -> tuple[KernelOp, ...]:
    """Return the steps that add chains up: the image first, then what each chain makes of it."""
    steps = [KernelOp(Code.OTHER, stage, ("mixing.begin",), partial(_weigh, 0))]
    for chain in range(stage.mixture_width):
        steps += [_operate(stage, (chain, place)) for place in range(stage.depth)]
        last = chain == stage.mixture_width - 1
        kernel = "mixing.end" if last else "mixing.add"
        steps.append(KernelOp(Code.OTHER, stage, (kernel,), partial(_weigh, chain + 1)))
    return tuple(steps)


def _if_drawn(name: str, parameters: Parameters) -> NDArray[Any]:
    """Choose the first kernel where a parameter is 1, and none where it is 0."""
    return np.where(parameters[name] > 0, 0, UNTOUCHED)


def _write_same(given: ArrayLike, parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    """Write the same numbers for every image."""
    fixed = np.asarray(given, np.float64)
    numbers[:, : len(fixed)] = fixed


def _write_map(fill: tuple[int, ...], parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    """Write a matrix for every image, such as a map of coordinates, and the levels where there is no source."""
    numbers[:, :9], numbers[:, 9:12] = parameters["matrix"].reshape(-1, 9), fill


def _blur(radius: int, parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    numbers[:, 0], numbers[:, 1] = parameters["sigma"], radius


def _weigh(place: int, parameters: Parameters, sizes: Sizes, numbers: Numbers) -> None:
    numbers[:, 0] = parameters["weight"][:, place]


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
