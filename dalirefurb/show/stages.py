"""Pictures of each stage, drawn at random as training draws them."""

from __future__ import annotations

import numpy as np

from dalirefurb.augment.drawing import draw
from dalirefurb.augment.output import Output
from dalirefurb.augment.policies.aug_mix import AugMix
from dalirefurb.augment.policies.one_operation import (
    AdjustSharpness,
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    Solarize,
)
from dalirefurb.augment.policies.timm_strings import timm_auto_augment
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage
from dalirefurb.augment.stages.blur import GaussianBlur
from dalirefurb.augment.stages.color import ColorJitter, RandomGrayscale, SolarizeAdd
from dalirefurb.augment.stages.crop import HorizontalFlip, RandomCrop, VerticalFlip
from dalirefurb.augment.stages.erasing import Cutout, RandomErasing
from dalirefurb.augment.stages.geometry import RandomAffine, RandomPerspective, RandomRotation
from dalirefurb.augment.stages.resize import RandomResizedCrop
from dalirefurb.dali import Graph, Replica
from dalirefurb.show.operations import MAGNITUDES, Row
from dalirefurb.show.pictures import Image, levels
from dalirefurb.system.cores import usable_cores


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
        pictures = _apply(picture, stages, count)
        told = [f"draw {number + 1}" if count > 1 else "" for number in range(count)]
        name, _, arguments = name.partition("(")
        rows.append(Row(name, arguments.removesuffix(")") or "by default", told, pictures, [False] * count))
    return rows


def _apply(picture: Image, stages: list[Stage], count: int) -> list[Image]:
    """Apply stages to copies, each with numbers of its own."""
    size, indices, threads = len(picture), np.arange(count), usable_cores()
    recipe = Recipe(stages, Output(size), split=0)
    graph = Graph(recipe, "whole")
    blob = graph.serialize(max_batch_size=count, num_threads=threads)
    replica = Replica.of(graph, blob, num_threads=threads, device_id=None)
    sides, numbers = np.full(count, size), np.zeros_like(indices)
    drawn, _, _ = draw(
        recipe.stages, seed=0, indices=indices, numbers=numbers, heights=sides, widths=sides, versions=numbers
    )
    named = {f"{stage}/{name}": rows for stage, arrays in drawn.items() for name, rows in arrays.items()}
    replica.submit({"sample": [picture] * count, **named})
    return list(levels(recipe.output, np.asarray(replica.collect().as_tensor())))
