"""What `kernels.py` compares: a stage, images and parameters each, and how DALI's operators and kernels do it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from dalirefurb import ImageFolder, Output, Recipe, rng
from dalirefurb.augment import (
    AdjustSharpness,
    AutoContrast,
    ColorJitter,
    Cutout,
    Decode,
    Equalize,
    GaussianBlur,
    HorizontalFlip,
    Invert,
    Posterize,
    RandAugmentLayer,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    Solarize,
    SolarizeAdd,
    Stage,
    VerticalFlip,
)
from dalirefurb.augment.policies.operations import OPERATIONS, Chosen
from dalirefurb.augment.stage import Arrays, Interpolation, draw
from dalirefurb.augment.stages.resize import ResizeInterpolation
from dalirefurb.dali import Feed, Graph, Part, PipelineRunner, Replicas, images_in
from dalirefurb.kernels.buffers import OutputBuffers
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
from dalirefurb.kernels.program import KernelProgram
from dalirefurb.kernels.rows import KernelThreadPool
from dalirefurb.kernels.runner import KernelRunner

Images = list[NDArray[np.uint8]] | NDArray[np.uint8]
"""Of one size each, or all of one size, as a store has them."""


STAGES: dict[str, Stage] = {
    "ColorJitter": ColorJitter(0.4, 0.4, 0.4, 0.1),
    "- hue alone": ColorJitter(hue=0.1),
    "RandomGrayscale": RandomGrayscale(1.0),
    "GaussianBlur, 23 pixels": GaussianBlur(23),
    "- 3 pixels": GaussianBlur(3),
    "AdjustSharpness": AdjustSharpness(2.0),
    "AutoContrast": AutoContrast(),
    "Equalize": Equalize(),
    "Invert": Invert(),
    "Posterize": Posterize(4),
    "Solarize": Solarize(),
    "SolarizeAdd": SolarizeAdd(110),
    "RandomErasing": RandomErasing(1.0),
    "- of noise": RandomErasing(1.0, value="pixel"),
    "Cutout": Cutout(112),
}
"""Stages beside those of recipes, always applied."""


@dataclass(frozen=True)
class Subject:
    """What both do.

    Attributes:
        name: For tables and results.
        stages: Of the part; with none it is the output.
        images: What enters.
        arrays: The stages' parameters.
    """

    name: str
    stages: tuple[Stage, ...]
    images: Images
    arrays: dict[str, Arrays]

    def feeds(self, entering: str) -> dict[str, Feed]:
        """Name everything as graphs name it."""
        named = {f"{stage}/{name}": rows for stage, arrays in self.arrays.items() for name, rows in arrays.items()}
        return {entering: self.images, **named}


def decoded(source: ImageFolder, count: int) -> Images:
    """Decode samples spread over the source."""
    samples = source.read(np.linspace(0, len(source) - 1, count).astype(np.int64))
    runner = dali_runner(Recipe([Decode(), RandomResizedCrop(8)], Output(8), split=1), "decoded", count, threads=1)
    runner.submit({"sample": samples})
    return [image.copy() for image in images_in(runner.collect())]


def subjects(photographs: Images, size: int) -> Iterator[Subject]:
    """List what is measured: a stage with parameters as they are drawn, and every operation alone."""
    crop = (RandomResizedCrop(size), HorizontalFlip())
    resized = Subject("crop, resize, flip", crop, photographs, drawn(crop, photographs))
    yield resized
    for each in get_args(ResizeInterpolation):
        stage = RandomResizedCrop(size, interpolation=each)
        yield Subject(f"crop, resize, {each}", (stage,), photographs, drawn((stage,), photographs))
    reflecting = Resize(size, "bicubic"), RandomCrop(size, padding=4, padding_mode="reflect")
    yield Subject("resize, crop of mirrored borders", reflecting, photographs, drawn(reflecting, photographs))
    runner = kernel_runner(resized, threads=1)
    runner.submit(resized.feeds("sample"))
    images = np.stack(list(images_in(runner.collect())))
    for stage in _geometry(size):
        way = getattr(stage, "interpolation", "")
        yield Subject(", ".join(filter(None, (stage.name, way))), (stage,), images, drawn((stage,), images))
    for interpolation in get_args(Interpolation):
        layer = RandAugmentLayer(interpolation=interpolation)
        yield Subject(f"RandAugment layer, {interpolation}", (layer,), images, drawn((layer,), images))
    layer = RandAugmentLayer()
    sides = np.full(len(images), size)
    for row, operation in enumerate(OPERATIONS):
        choice = Chosen(np.full(len(images), row), layer.magnitude, np.arange(len(images)) % 2 == 0)
        parameters = layer.table.parameters(choice, heights=sides, widths=sides)
        yield Subject(f"- {operation.name}", (layer,), images, {layer.name: parameters})
    for name, stage in STAGES.items():
        yield Subject(name, (stage,), images, drawn((stage,), images))
    yield Subject("output", (), images, {})


def _geometry(size: int) -> Iterator[Stage]:
    yield VerticalFlip(1.0)
    yield RandomCrop(size, margin=8, padding=4, padding_mode="reflect")
    for interpolation in get_args(Interpolation):
        yield RandomRotation(30, interpolation)
        yield RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, interpolation)
        yield RandomPerspective(probability=1.0, interpolation=interpolation)


def turn(runner: PipelineRunner, feeds: dict[str, Feed], batches: int, count: int) -> float:
    """Return the CPU time of an image in microseconds, of batches of `count`."""
    began = time.process_time()
    for _ in range(batches):
        runner.submit(feeds)
        runner.collect()
    return (time.process_time() - began) / batches / count * 1e6


def copy_turn(source: Sequence[NDArray[np.uint8]], target: Sequence[NDArray[np.uint8]], batches: int) -> float:
    """Return the CPU time of copying an image in microseconds: what no kernel that writes all of one can fall below."""
    began = time.process_time()
    for _ in range(batches):
        for one, other in zip(source, target, strict=True):
            np.copyto(other, one)
    return (time.process_time() - began) / batches / len(source) * 1e6


def drawn(stages: tuple[Stage, ...], images: Images) -> dict[str, Arrays]:
    """Draw the stages' parameters for each image."""
    sizes = np.array([image.shape[:2] for image in images])
    indices = rng.permutation(len(images), 0, "kernels")
    arrays, _, _ = draw(stages, seed=0, indices=indices, numbers=0 * indices, heights=sizes[:, 0], widths=sizes[:, 1])
    return arrays


@lru_cache(maxsize=1)
def dali_runner(recipe: Recipe, part: Part, count: int, threads: int) -> Replicas:
    """Return DALI's pipeline of a part of a recipe; the last one ends when another is asked for."""
    graph = Graph(recipe, part)
    return Replicas(graph, 1, max_batch_size=count, num_threads=threads, device_id=None)


def kernel_runner(subject: Subject, threads: int) -> KernelRunner:
    """Return a runner of kernels."""
    steps = steps_of(subject.stages)
    assert steps is not None
    output = None if subject.stages else Output(subject.images[0].shape[0])
    program = KernelProgram(steps, output, split=len(steps) if output is None else None)
    pipelines = DecodePipelines([], DecodePipeline(None, max_rows=1, num_threads=threads))
    return KernelRunner(program, pipelines, KernelThreadPool(0), OutputBuffers(3))
