"""One picture of each operation of a preset, at magnitudes from the least to the greatest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.augment.policies.auto_augment import AutoAugmentFirst
from dalirefurb.augment.policies.auto_augment_tables import POLICIES
from dalirefurb.augment.policies.operation_layer import TableLayer
from dalirefurb.augment.policies.operations import Choice, Operation
from dalirefurb.augment.policies.rand_augment import RandAugmentLayer
from dalirefurb.augment.policies.trivial_augment import TrivialAugmentLayer
from dalirefurb.augment.recipe import Recipe
from dalirefurb.dali import Graph, Replica
from dalirefurb.show.pictures import Image, levels
from dalirefurb.system.cores import usable_cores

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

TABLES: Mapping[str, tuple[TableLayer, str]] = {
    "rand_augment": (
        RandAugmentLayer(),
        "rand_augment() applies each at magnitude 9 of 30, which is marked.",
    ),
    "auto_augment": (AutoAugmentFirst(), _SUB_POLICIES),
    "auto_augment_cifar10": (AutoAugmentFirst(policy="cifar10"), _SUB_POLICIES),
    "auto_augment_svhn": (AutoAugmentFirst(policy="svhn"), _SUB_POLICIES),
    "trivial_augment": (
        TrivialAugmentLayer(),
        "trivial_augment() applies one of them, all magnitudes being equally likely.",
    ),
}
"""A stage that looks operations up and applies them, and a sentence on which magnitudes the preset draws."""


def operate(picture: Image, layer: TableLayer) -> list[Row]:
    """Apply every operation of a layer to a square picture, at `MAGNITUDES` magnitudes where it has a range."""
    operations = layer.table.operations
    used = [_used(layer, operation) for operation in operations]
    steps = [_steps(operation, layer.table.num_bins, bins) for operation, bins in zip(operations, used, strict=True)]
    rows = np.repeat(np.arange(len(steps)), [len(each) for each in steps])
    signed_bins = np.array([step for each in steps for step in each], np.int64)
    results = iter(_apply(picture, layer, Choice(rows, abs(signed_bins), signed_bins < 0)))
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


def _used(layer: TableLayer, operation: Operation) -> set[int]:
    """Return the bins that training uses, negative where the magnitude is; none where it uses all."""
    if not operation.ranged:
        return set()
    bins: set[int] = set()
    if isinstance(layer, RandAugmentLayer):
        bins = {layer.magnitude}
    elif isinstance(layer, AutoAugmentFirst):
        halves = [half for sub_policy in POLICIES[layer.policy] for half in sub_policy]
        bins = {int(half.magnitude) for half in halves if half.operation == operation.name}
    return {sign * each for each in bins for sign in ((-1, 1) if operation.signed else (1,))}


def _steps(operation: Operation, num_bins: int, used: set[int]) -> dict[int, str]:
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


def _apply(picture: Image, layer: TableLayer, choice: Choice) -> NDArray[np.uint8]:
    """Apply one operation to each of n copies, in one run of a graph that has no other stage, shape (n, H, W, 3)."""
    size = len(picture)
    count, sides = len(choice.operations), np.full(len(choice.operations), size)
    threads = usable_cores()
    recipe = Recipe((layer,), Output(size), split=0)
    graph = Graph(recipe, "whole")
    replica = Replica.of(
        graph, graph.serialize(max_batch_size=count, num_threads=threads), num_threads=threads, device_id=None
    )
    parameters = layer.table.parameters(choice, heights=sides, widths=sides)
    replica.submit(
        {"sample": [picture] * count, **{f"{layer.name}/{name}": values for name, values in parameters.items()}}
    )
    return levels(recipe.output, np.asarray(replica.collect().as_tensor()))


def _unit(operation: Operation) -> tuple[str, Callable[[float], str]]:
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
