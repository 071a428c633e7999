"""Rows of pictures: a preset's operations, each at magnitudes from the least to the greatest, and draws of stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dalirefurb.augment.output import Output
from dalirefurb.augment.policies.aug_mix import AugMix
from dalirefurb.augment.policies.auto_augment import POLICIES, AutoAugmentFirst, sub_policies_of
from dalirefurb.augment.policies.layers import (
    AdjustSharpness,
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    RandAugmentLayer,
    Solarize,
    TrivialAugmentLayer,
)
from dalirefurb.augment.policies.operations import Chosen, RangedOperation
from dalirefurb.augment.policies.sub_policies import halves_of
from dalirefurb.augment.policies.timm_strings import timm_auto_augment
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Arrays, Stage, as_inputs, draw
from dalirefurb.augment.stages.color import ColorJitter, GaussianBlur, RandomGrayscale, SolarizeAdd
from dalirefurb.augment.stages.crop import HorizontalFlip, RandomCrop, VerticalFlip
from dalirefurb.augment.stages.erasing import Cutout, RandomErasing
from dalirefurb.augment.stages.geometry import RandomAffine, RandomPerspective, RandomRotation
from dalirefurb.augment.stages.resize import RandomResizedCrop
from dalirefurb.dali import Graph, Replica
from dalirefurb.show.pictures import Image, levels
from dalirefurb.system.resources import usable_cores

MAGNITUDES = 7
"""Of each operation that has a range. Signed ones are shown without effect in the middle."""


@dataclass(frozen=True)
class Row:
    """One operation.

    Attributes:
        name: torchvision's name of the operation.
        unit: Unit of the operation's magnitudes; empty if it has none.
        magnitudes: The magnitude of each picture, as text, in this unit.
        pictures: One picture for each magnitude, from the most negative magnitude to the most positive, or from no
            effect to the strongest.
        used: Whether training uses each of these magnitudes, where it does not use all.
    """

    name: str
    unit: str
    magnitudes: list[str]
    pictures: list[Image]
    used: list[bool]


_SUB_POLICIES = "A sub-policy applies two of them, each at a magnitude of its own; those of some sub-policy are marked."

Layer = RandAugmentLayer | TrivialAugmentLayer | AutoAugmentFirst

TABLES: Mapping[str, tuple[Layer, str]] = {
    "rand_augment": (RandAugmentLayer(), "rand_augment() applies each at magnitude 9 of 30, which is marked."),
    "auto_augment": (AutoAugmentFirst(), _SUB_POLICIES),
    **{
        f"auto_augment_{name}": (AutoAugmentFirst(policy=name), _SUB_POLICIES)
        for name in POLICIES
        if name != "imagenet"
    },
    "trivial_augment": (
        TrivialAugmentLayer(),
        "trivial_augment() applies one of them, all magnitudes being equally likely.",
    ),
}
"""A stage that looks operations up and applies them, and a sentence on which magnitudes the preset draws."""


def operate(picture: Image, layer: Layer) -> list[Row]:
    """Apply every operation of a layer to a square picture, at `MAGNITUDES` magnitudes where it has a range."""
    operations = layer.table.operations
    used = [_used(layer, operation) for operation in operations]
    steps = [_steps(operation, layer.table.num_bins, bins) for operation, bins in zip(operations, used, strict=True)]
    rows = np.repeat(np.arange(len(steps)), [len(each) for each in steps])
    signed_bins = np.array([step for each in steps for step in each], np.int64)
    choice, sides = Chosen(rows, abs(signed_bins), signed_bins < 0), np.full(len(rows), len(picture))
    parameters = layer.table.parameters(choice, heights=sides, widths=sides)
    results = iter(_applied(picture, [layer], len(rows), {layer.name: parameters}))
    return [
        Row(
            operation.name,
            _unit(operation)[0],
            list(each.values()),
            [next(results) for _ in each],
            [step in bins for step in each],
        )
        for operation, each, bins in zip(operations, steps, used, strict=True)
    ]


def _used(layer: Layer, operation: RangedOperation) -> set[int]:
    """Return the bins that training uses, negative where the magnitude is; none where it uses all."""
    if not operation.ranged:
        return set()
    bins: set[int] = set()
    if isinstance(layer, RandAugmentLayer):
        bins = {layer.magnitude}
    elif isinstance(layer, AutoAugmentFirst):
        first, second = halves_of(sub_policies_of(layer.policy))
        bins = {int(magnitude) for name, _, magnitude in first + second if name == operation.name}
    return {sign * each for each in bins for sign in ((-1, 1) if operation.signed else (1,))}


def _steps(operation: RangedOperation, num_bins: int, used: set[int]) -> dict[int, str]:
    """Return magnitude bins, evenly spaced and negative where the magnitude is, and how their magnitudes are written.

    A bin gives way to one that is used nearby. Of bins that mean the same, one that is used is taken, else the first.
    """
    if not operation.ranged:
        return {0: ""}
    last = num_bins - 1
    scale = np.linspace(operation.first, operation.last, num_bins)
    _, form = _unit(operation)
    bins: dict[str, int] = {}
    steps, apart = np.linspace(-last if operation.signed else 0, last, MAGNITUDES, retstep=True)
    for step in steps.round().astype(int).tolist():
        near = [each for each in sorted(used) if abs(each - step) <= apart / 2]
        step = min(near, key=lambda each: abs(each - step), default=step)
        written = form(math.copysign(scale[abs(step)], step))
        if written not in bins or step in used:
            bins[written] = step
    return {step: written for written, step in bins.items()}


def _unit(operation: RangedOperation) -> tuple[str, Callable[[float], str]]:
    """Return the unit of an operation's magnitudes in the papers, and how one is written."""
    if not operation.ranged:
        return "", lambda magnitude: ""
    if operation.name.startswith("Translate"):
        side = "width" if operation.name.endswith("X") else "height"
        if operation.whole:
            return f"share of the {side}", lambda magnitude: f"{_signed(100 * magnitude)} %"
        return "pixels", lambda magnitude: _signed(math.trunc(magnitude))
    if operation.name.startswith("Shear"):
        return "slope", lambda magnitude: _signed(magnitude, digits=2)
    return {
        "Rotate": ("degrees", _signed),
        "Posterize": ("bits kept", lambda magnitude: f"{8 - round(magnitude)}"),
        "Solarize": ("inverts from level", lambda magnitude: f"{math.ceil(magnitude)}"),
    }.get(operation.name, ("factor", lambda magnitude: f"{1 + magnitude:.2f}"))


def _signed(magnitude: float, *, digits: int = 0) -> str:
    """Write a number with its sign.

    >>> _signed(30), _signed(-0.3, digits=2), _signed(0.0, digits=2)
    ('+30', '-0.30', '0')
    """
    return f"{magnitude:+.{digits}f}" if magnitude else "0"


def stages_for(size: int) -> dict[str, list[Stage]]:
    """Return what is drawn, by how it is written, for pictures of a size in pixels."""
    kernel, hole, padding = max(3, size // 20 * 2 + 1), max(1, size // 2), max(1, size // 8)
    return {
        f"RandomResizedCrop({size})": [RandomResizedCrop(size)],
        f'RandomCrop({size}, padding={padding}, padding_mode="reflect")': [
            RandomCrop(size, padding=padding, padding_mode="reflect")
        ],
        "HorizontalFlip()": [HorizontalFlip()],
        "VerticalFlip()": [VerticalFlip()],
        "RandomRotation(30)": [RandomRotation(30, "bilinear")],
        "RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10)": [RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, "bilinear")],
        "RandomPerspective(0.5, 1.0)": [RandomPerspective(0.5, 1.0)],
        "ColorJitter(0.4, 0.4, 0.4, 0.1)": [ColorJitter(0.4, 0.4, 0.4, 0.1)],
        "RandomGrayscale(0.5)": [RandomGrayscale(0.5)],
        f"GaussianBlur({kernel})": [GaussianBlur(kernel)],
        "AdjustSharpness(2)": [AdjustSharpness(2)],
        "Invert()": [Invert()],
        "Posterize(3)": [Posterize(3)],
        "Solarize(128)": [Solarize(128)],
        "SolarizeAdd(60)": [SolarizeAdd(60)],
        "AutoContrast()": [AutoContrast()],
        "Equalize()": [Equalize()],
        "RandomErasing(1.0)": [RandomErasing(1.0)],
        'RandomErasing(1.0, value="pixel")': [RandomErasing(1.0, value="pixel")],
        f"Cutout({hole})": [Cutout(hole)],
        'timm_auto_augment("rand-m9-mstd0.5-inc1")': timm_auto_augment("rand-m9-mstd0.5-inc1"),
        'timm_auto_augment("3a")': timm_auto_augment("3a"),
        "AugMix()": [AugMix()],
    }


def draws(picture: Image) -> list[Row]:
    """Apply what `stages_for` lists to a square picture: as often as fits in a row, or once if nothing is random."""
    rows = []
    for name, stages in stages_for(len(picture)).items():
        count = MAGNITUDES if any(stage.random for stage in stages) else 1
        indices, sides, numbers = np.arange(count), np.full(count, len(picture)), np.zeros(count, np.int64)
        drawn, _, _ = draw(
            tuple(stages), seed=0, indices=indices, numbers=numbers, heights=sides, widths=sides, versions=numbers
        )
        pictures = _applied(picture, stages, count, drawn)
        told = [f"draw {number + 1}" if count > 1 else "" for number in range(count)]
        name, _, arguments = name.partition("(")
        rows.append(Row(name, arguments.removesuffix(")") or "by default", told, pictures, [False] * count))
    return rows


def _applied(picture: Image, stages: Sequence[Stage], count: int, drawn: Mapping[str, Arrays]) -> list[Image]:
    """Apply stages to n copies, given what is drawn for each, in one run of a graph that has no others."""
    threads = usable_cores()
    recipe = Recipe([*stages], Output(len(picture)), split=0)
    graph = Graph(recipe, "whole")
    blob = graph.serialize(max_batch_size=count, num_threads=threads)
    replica = Replica.of(graph, blob, num_threads=threads, device_id=None)
    replica.submit({"sample": [picture] * count, **as_inputs(drawn)})
    return list(levels(recipe.output, np.asarray(replica.collect().as_tensor())))
