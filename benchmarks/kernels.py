"""How much faster are kernels than DALI's operators? CPU time of an image, stage by stage, on photographs.

Both do one stage to the same batch, with the same parameters, in turns; the figures are medians over the rounds, and
ratios are of one round. Torchvision's v2 takes its turns, too, where `competitors/build.py` has installed it: one image
at a time, of one thread, with parameters of its own. A user's own loops over pixels (`KernelStage`) take turns with the
library's kernels that do the same.

    python benchmarks/kernels.py                        five minutes on 2 cores
    python benchmarks/kernels.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import harness
import numpy as np
from claims import Claim, Spread, claim_table, say, table_of
from competitors import build
from experiment import Experiment, Options
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
    KernelStage,
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
from dalirefurb.augment.policies.operations import OPERATIONS, Choice
from dalirefurb.augment.recipe import draw
from dalirefurb.augment.stage import Arrays, Interpolation
from dalirefurb.augment.stages.interpolation import ResizeInterpolation
from dalirefurb.dali import Feed, Graph, Part, PipelineRunner, Replicas, views
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.output_buffers import OutputBuffers
from dalirefurb.kernels.pipelines import DecodePipeline, DecodePipelines
from dalirefurb.kernels.program import KernelProgram
from dalirefurb.kernels.runner import KernelRunner
from dalirefurb.kernels.thread_pool import KernelThreadPool

Images = list[NDArray[np.uint8]]


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
class Config:
    """What is run.

    Attributes:
        data: Name of the data set.
        batch_size: Images of a batch.
        size: Side of the images that enter all stages but the first, in pixels.
        rounds: Turns of either.
        batches: Of a turn.
        threads: Of either.
    """

    data: str = ""
    batch_size: int = 64
    size: int = 224
    rounds: int = 9
    batches: int = 4
    threads: int = field(default_factory=harness.cores)


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
    runner = _dali(Recipe([Decode(), RandomResizedCrop(8)], Output(8), split=1), "decoded", count, threads=1)
    runner.submit({"sample": samples})
    return [image.copy() for image in views(runner.collect())]


def subjects(photographs: Images, size: int) -> Iterator[Subject]:
    """List what is measured: a stage with parameters as they are drawn, and every operation alone."""
    crop = (RandomResizedCrop(size), HorizontalFlip())
    resized = Subject("crop, resize, flip", crop, photographs, _drawn(crop, photographs))
    yield resized
    for each in get_args(ResizeInterpolation):
        stage = RandomResizedCrop(size, interpolation=each)
        yield Subject(f"crop, resize, {each}", (stage,), photographs, _drawn((stage,), photographs))
    reflecting = Resize(size, "bicubic"), RandomCrop(size, padding=4, padding_mode="reflect")
    yield Subject("resize, crop of mirrored borders", reflecting, photographs, _drawn(reflecting, photographs))
    runner = _kernels(resized, threads=1)
    runner.submit(resized.feeds("sample"))
    images = [image.copy() for image in views(runner.collect())]
    for stage in _geometry(size):
        way = getattr(stage, "interpolation", "")
        yield Subject(", ".join(filter(None, (stage.name, way))), (stage,), images, _drawn((stage,), images))
    for interpolation in get_args(Interpolation):
        layer = RandAugmentLayer(interpolation=interpolation)
        yield Subject(f"RandAugment layer, {interpolation}", (layer,), images, _drawn((layer,), images))
    layer = RandAugmentLayer()
    sides = np.full(len(images), size)
    for row, operation in enumerate(OPERATIONS[1:], 1):
        choice = Choice(np.full(len(images), row), layer.magnitude, np.arange(len(images)) % 2 == 0)
        parameters = layer.table.parameters(choice, heights=sides, widths=sides)
        yield Subject(f"- {operation.name}", (layer,), images, {layer.name: parameters})
    for name, stage in STAGES.items():
        yield Subject(name, (stage,), images, _drawn((stage,), images))
    yield Subject("output", (), images, {})


def _geometry(size: int) -> Iterator[Stage]:
    yield VerticalFlip(1.0)
    yield RandomCrop(size, margin=8, padding=4, padding_mode="reflect")
    for interpolation in get_args(Interpolation):
        yield RandomRotation(30, interpolation)
        yield RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, interpolation)
        yield RandomPerspective(probability=1.0, interpolation=interpolation)


class Torchvision:
    """A process that does the same by torchvision, see `competitors/torchvision_operations.py`.

    Args:
        python: Interpreter of an environment that has torchvision.
        photographs: Images that enter what crops.
        images: Images that enter all else.
    """

    def __init__(self, python: Path, photographs: Images, images: Images) -> None:
        self._folder = TemporaryDirectory()
        paths = [Path(self._folder.name) / f"{name}.npz" for name in ("photographs", "images")]
        for path, given in zip(paths, (photographs, images), strict=True):
            np.savez(path, *given)
        script = Path(__file__).parent / "competitors" / "torchvision_operations.py"
        command = [str(each) for each in (python, script, *paths)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.names: list[str] = json.loads(self._process.stdout.readline() or "[]")

    def turn(self, name: str, batches: int) -> float:
        """Return the microseconds of an image."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\t{batches}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()
        self._folder.cleanup()


def torchvision(python: Path | None, photographs: Images, images: Images) -> Torchvision | None:
    """Start torchvision's process; None where its environment is not there."""
    python = python or build.ENVIRONMENT / "bin" / "python"
    if not python.exists():
        say("torchvision is left out: python benchmarks/competitors/build.py makes its environment")
        return None
    return Torchvision(python, photographs, images)


def inverted_above(image: Any, uniforms: Any, out: Any) -> None:
    """Invert the levels from 128 on, as `Solarize`: a user's own loop."""
    for i in range(image.size):
        level = image.flat[i]
        out.flat[i] = np.uint8(255) - level if level >= 128 else level


def brightened(image: Any, uniforms: Any, out: Any) -> None:
    """Brighten as RandAugment's operation does at magnitude 9, pixel by pixel: likewise."""
    factor, shift = np.float32(1.27), np.float32(-0.498)
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            for channel in range(3):
                level = np.float32(image[y, x, channel]) * factor + shift
                level = min(max(level, np.float32(0)), np.float32(255)) + np.float32(0.5)
                out[y, x, channel] = np.uint8(np.int32(level))


def own_loops(images: Images, config: Config) -> list[dict[str, Any]]:
    """Let a user's own loops take turns with the library's kernels."""
    layer = RandAugmentLayer()
    row = [operation.name for operation in OPERATIONS].index("Brightness")
    sides, bins = np.full(len(images), len(images[0])), np.full(len(images), 9)
    choice = Choice(np.full(len(images), row), bins, np.zeros(len(images), np.bool_))
    brightness = {layer.name: layer.table.parameters(choice, heights=sides, widths=sides)}
    results = []
    for function, theirs in (
        (inverted_above, Subject("Solarize", (Solarize(),), images, {})),
        (brightened, Subject("Brightness", (layer,), images, brightness)),
    ):
        own = Subject(theirs.name, (KernelStage(function, "own"),), images, {})
        runners = [(_kernels(subject, config.threads), subject.feeds("sample")) for subject in (own, theirs)]
        times: list[list[float]] = [[], []]
        for number in range(config.rounds + 1):
            for place in (0, 1) if number % 2 else (1, 0):
                times[place].append(_turn(*runners[place], config))
        ratios = [mine / built_in for mine, built_in in zip(times[0][1:], times[1][1:], strict=True)]
        results.append(
            {
                "name": theirs.name,
                "own_us": times[0][1:],
                "built_in_us": times[1][1:],
                "claim": Claim.ratio(f"KernelStage / built in, {theirs.name}", ratios, [1] * len(ratios), most=1.2),
            }
        )
    return results


def _turn(runner: PipelineRunner, feeds: dict[str, Feed], config: Config) -> float:
    """Return the CPU time of an image in microseconds."""
    began = time.process_time()
    for _ in range(config.batches):
        runner.submit(feeds)
        runner.collect()
    return (time.process_time() - began) / config.batches / config.batch_size * 1e6


def compare(subject: Subject, config: Config, rival: Torchvision | None) -> dict[str, Any]:
    """Let all take turns; return the CPU time of an image in microseconds, one figure per round."""
    output = not subject.stages
    recipe = Recipe(subject.stages, Output(config.size), split=len(subject.stages))
    dali = _dali(recipe, "final" if output else "partial", config.batch_size, config.threads)
    kernels = _kernels(subject, config.threads)
    named = {dali: subject.feeds("partial" if output else "sample"), kernels: subject.feeds("sample")}
    times: dict[PipelineRunner, list[float]] = {dali: [], kernels: []}
    rivals: list[float] = []
    for number in range(config.rounds + 1):
        for runner in (dali, kernels) if number % 2 else (kernels, dali):
            times[runner].append(_turn(runner, named[runner], config))
        if rival is not None and subject.name in rival.names:
            rivals.append(rival.turn(subject.name, 1))
    # The first round fetches memory.
    dali_us, kernels_us, torchvision_us = times[dali][1:], times[kernels][1:], rivals[1:]
    return {
        "name": subject.name,
        "dali_us": dali_us,
        "kernels_us": kernels_us,
        "torchvision_us": torchvision_us,
        "ratio": Spread.of([theirs / ours for theirs, ours in zip(dali_us, kernels_us, strict=True)]),
        "torchvision_ratio": Spread.of([a / b for a, b in zip(torchvision_us, kernels_us, strict=True)])
        if rivals
        else None,
    }


def _drawn(stages: tuple[Stage, ...], images: Images) -> dict[str, Arrays]:
    sizes = np.array([image.shape[:2] for image in images])
    indices = rng.permutation(len(images), 0, "kernels")
    arrays, _, _ = draw(stages, seed=0, indices=indices, numbers=0 * indices, heights=sizes[:, 0], widths=sizes[:, 1])
    return arrays


@lru_cache
def _dali(recipe: Recipe, part: Part, count: int, threads: int) -> Replicas:
    graph = Graph(recipe, part)
    return Replicas(graph, 1, max_batch_size=count, num_threads=threads, device_id=None)


def _kernels(subject: Subject, threads: int) -> KernelRunner:
    steps = steps_of(subject.stages)
    assert steps is not None
    output = None if subject.stages else Output(subject.images[0].shape[0])
    program = KernelProgram(steps, output, split=len(steps) if output is None else None)
    pipelines = DecodePipelines([], DecodePipeline(None, max_rows=1, num_threads=threads))
    return KernelRunner(program, pipelines, KernelThreadPool(0), OutputBuffers(3))


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Compare at every stage."""
    photographs = decoded(ImageFolder(options.data), config.batch_size)
    compared = list(subjects(photographs, config.size))
    images = next(each.images for each in compared if each.name == "output")
    rival = torchvision(options.python, photographs, images)
    results = [compare(subject, config, rival) for subject in compared]
    if rival is not None:
        rival.close()
    columns = {
        "CPU time of an image": "{name}",
        "kernels, us": "{kernels:.0f}",
        "DALI, us": "{dali:.0f}",
        "torchvision, us": "{torchvision}",
        "DALI / kernels": "{ratio:1}",
        "torchvision / kernels": "{torchvision_over}",
    }
    rows = [
        {
            **each,
            "dali": np.median(each["dali_us"]),
            "kernels": np.median(each["kernels_us"]),
            "torchvision": f"{np.median(each['torchvision_us']):.0f}" if each["torchvision_us"] else "-",
            "torchvision_over": f"{each['torchvision_ratio']:1}" if each["torchvision_ratio"] else "-",
        }
        for each in results
    ]
    loops = own_loops(images, config)
    say(table_of(rows, columns), claim_table([each["claim"] for each in loops]))
    return {"kernels": results, "own_loops": loops}


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(batch_size=4, size=32, rounds=2, batches=1),
    options={"--python": {"type": Path, "help": "of an environment with torchvision, in place of the competitors'"}},
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
