"""Volumes, and what each stage does to them, one after the other by NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb import Recipe
from dalirefurb.augment import (
    CenterCrop3D,
    HostStage,
    IntensityWindow,
    RandomCrop3D,
    RandomFlip3D,
    RandomRotate90,
    RandomScaleIntensity,
    RandomShiftIntensity,
    Stage,
    VolumeOutput,
)
from dalirefurb.augment.stage import draw
from dalirefurb.planning.batch_plan import BatchPlan

Pair = tuple[NDArray[Any], NDArray[Any]]


def volumes(count: int, dtype: str = "int16", channels: int = 1, least: int = 12, most: int = 19) -> list[Pair]:
    """Volumes (C, D, H, W) of several shapes, with labels of which some are foreground."""
    made = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        shape = tuple(rng.integers(least, most, 3).tolist())
        values = (
            rng.normal(0, 60, (channels, *shape))
            if np.dtype(dtype).kind in "fi"
            else rng.integers(0, 256, (channels, *shape))
        )
        made.append((np.asarray(values).reshape(channels, *shape).astype(dtype), (rng.random(shape) < 0.02) * 3))
    return made


def noise(volume: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A stage of the user's own, with labels."""
    image = volume["image"]
    return {**volume, "image": (image + rng.normal(0, 3, image.shape)).astype(np.float32)}


def one(stage: Stage, image: NDArray[Any], mask: NDArray[Any], drawn: Sequence[float]) -> Pair:
    """What one stage makes of a volume and its labels."""
    if isinstance(stage, HostStage):
        key = (np.asarray(drawn) * 2**53).astype(np.uint64)
        made = stage.function({"image": image, "mask": mask}, np.random.Generator(np.random.Philox(key=key)))
        return made["image"], made["mask"]
    if isinstance(stage, (CenterCrop3D, RandomCrop3D)):
        return cropped(stage, image, mask, drawn)
    if isinstance(stage, RandomFlip3D):
        axes = [axis for axis, number in zip(stage.axes, drawn, strict=True) if number < stage.probability]
        return np.flip(image, [axis + 1 for axis in axes]), np.flip(mask, axes)
    if isinstance(stage, RandomRotate90):
        if drawn[0] >= stage.probability:
            return image, mask
        quarters, (first, second) = 1 + int(drawn[1] * stage.max_quarters), stage.axes
        return np.rot90(image, quarters, (first + 1, second + 1)), np.rot90(mask, quarters, stage.axes)
    image, single = image.astype(np.float32), np.float32
    if isinstance(stage, IntensityWindow):
        low, high = stage.low, stage.high
        image = image * single(1 / (high - low)) + single(-low / (high - low))
        return np.clip(image, single(0), single(1)), mask
    factor, summand = 1.0, 0.0
    if isinstance(stage, RandomScaleIntensity):
        factor = 1 + stage.factor * (2 * drawn[1] - 1)
    else:
        assert isinstance(stage, RandomShiftIntensity)
        summand = stage.offset * (2 * drawn[1] - 1)
    if drawn[0] < stage.probability:
        image = image * single(factor) + single(summand)
    return image, mask


def cropped(stage: Any, image: NDArray[Any], mask: NDArray[Any], drawn: Sequence[float]) -> Pair:
    """A window, of a volume that is filled up where it is smaller."""
    place = np.empty(3, np.int64)
    found = np.argwhere(mask > 0)
    around = isinstance(stage, RandomCrop3D) and drawn[0] < stage.foreground and len(found) > 0
    chosen = found[np.linspace(0, len(found) - 1, min(len(found), 4096)).astype(int)] if around else found
    for axis, (there, side) in enumerate(zip(mask.shape, stage.size, strict=True)):
        if there <= side or isinstance(stage, CenterCrop3D):
            place[axis] = (there - side) // 2
        elif around:
            place[axis] = np.clip(chosen[int(drawn[1] * len(chosen))][axis] - side // 2, 0, there - side)
        else:
            place[axis] = int(drawn[1 + axis] * (there - side + 1))
    made = np.full((len(image), *stage.size), stage.fill, image.dtype)
    labels = np.zeros(stage.size, mask.dtype)
    to, of = [], []
    for begin, there, side in zip(place.tolist(), mask.shape, stage.size, strict=True):
        to.append(slice(max(-begin, 0), max(-begin, 0) + min(there - max(begin, 0), side - max(-begin, 0))))
        of.append(slice(max(begin, 0), max(begin, 0) + to[-1].stop - to[-1].start))
    made[(slice(None), *to)], labels[tuple(to)] = image[(slice(None), *of)], mask[tuple(of)]
    return made, labels


def all_of(stages: Sequence[Stage], image: NDArray[Any], mask: NDArray[Any], drawn: dict[str, Any]) -> Pair:
    for stage in stages:
        image, mask = one(stage, image, mask, drawn.get(stage.name, ()))
    return image, mask


def batch_of(recipe: Recipe, plan: BatchPlan, given: Sequence[Pair], seed: int) -> Pair:
    """What a batch has by its plan."""
    zeros = np.zeros(len(plan.indices), np.int64)
    parts = []
    for stages, numbers in ((recipe.partial, plan.version), (recipe.final, plan.serving)):
        drawn, _, _ = draw(stages, seed=seed, indices=plan.indices, numbers=numbers, heights=zeros, widths=zeros)
        parts.append({name: each["uniforms"] for name, each in drawn.items()})
    rows = []
    for row, index in enumerate(plan.indices.tolist()):
        image, mask = given[index]
        for stages, drawn in zip((recipe.partial, recipe.final), parts, strict=True):
            image, mask = all_of(stages, image, mask, {name: each[row].tolist() for name, each in drawn.items()})
        rows.append((image, mask))
    output = recipe.output
    assert isinstance(output, VolumeOutput)
    images, single = np.stack([image for image, _ in rows]).astype(np.float32), np.float32
    if (output.means, output.stds) != ((0.0,), (1.0,)):
        images = images * single(1 / output.stds[0]) + single(-output.means[0] / output.stds[0])
    return images.astype(output.dtype), np.stack([mask for _, mask in rows]).astype(output.mask_dtype)
