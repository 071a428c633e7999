"""How soon does a training learn whose images cost more than its steps? Test accuracy against the clock.

Claim, on 2 cores: with reuse factor 3, or with decoded images that are kept, a training has the accuracy that standard
has at the end in at most 0.8 of the time that standard takes to have it first.
n: 3 rounds (`--rounds`), each a training of every contender with a seed of its own, all for the same number of seconds.

Images of CIFAR-10, enlarged to 500 pixels a side, with grain, as JPEG files about as large as ImageNet's: to read,
decode and augment one takes about twice as long as to learn from it. 2,000 to train on, 5,000 to test with.
`rand_augment(224)`, the network of `dalirefurb train`, one thread for it; loaders are as they come, on all cores, so
that a step is slower while images are made: little of it is seen as waiting. The first epoch is in the time.

All contenders of a round begin with the same weights. After a warm-up the learning rate stays, as a schedule over steps
would favour who has a certain length; what is tested is a moving average of the weights. These are copied at equal
times and tested when the training is over, so that no loader can work ahead while others are tested. What a process
does once (to load libraries and compiled kernels) is done before the clock starts.

    standard                every image read, decoded and augmented at each use
    decoded images kept     decoded once, everything else drawn anew: the same images as standard's
    reuse factor 2, 3       the paper's split; the order of stages is the preset's
    echo after augmentation each finished image three times, mixed over 16 batches
    frozen                  partial images for ever

    python benchmarks/time_to_accuracy.py                        about half an hour on 2 cores
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from claims import Claim, claim_table, say, table_of
from experiment import CIFAR10, Experiment, Options
from loaders import KEPT, STANDARD, reuse
from PIL import Image
from sources import AT_ONCE, read_mosaics
from torch import nn

from dalirefurb import Echo, ImageFolder, Kept, Loader, MemoryStore, Recipe, Refurbish, Standard, evaluate, rand_augment
from dalirefurb.demo.training import SmallResNet
from dalirefurb.planning import Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source

CLASSES = 10
ECHO, FROZEN = "echo after augmentation 3", "frozen"
_GRAIN, _QUALITY = 6, 95
SOONER = {KEPT: 0.8, reuse(3): 0.8}
"""Who is promised to be as accurate as standard at its end, in at most which share of the time that takes standard."""


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        train_per_class: Images that are learned from.
        test_per_class: Images that are tested with.
        side: Of the files, in pixels.
        size: Of what the network is given, in pixels.
        batch_size: Samples of a step.
        seconds: Of each training.
        points: How often weights are copied.
        warm_up: Steps.
        learning_rate: AdamW's, after the warm-up.
        decay: Of the moving average of weights, a step.
        rounds: Seeds.
    """

    train_per_class: int = 200
    test_per_class: int = 500
    side: int = 500
    size: int = 224
    batch_size: int = 64
    seconds: float = 80.0
    points: int = 16
    warm_up: int = 50
    learning_rate: float = 3e-3
    decay: float = 0.99
    rounds: int = 3


@dataclass(frozen=True)
class Point:
    """A training at one time.

    Attributes:
        seconds: Since it began.
        images: That were learned from.
        accuracy: Share of the test images that the average of the weights classifies correctly, in percent.
    """

    seconds: float
    images: int
    accuracy: float


@dataclass(frozen=True)
class Run:
    """A training.

    Attributes:
        contender: Whose.
        round: Which is its seed.
        points: In the order of time.
        waiting: Share of its time that it waited for images.
    """

    contender: str
    round: int
    points: list[Point]
    waiting: float

    def seconds_to(self, accuracy: float) -> float:
        """Return when it first was as accurate, between two points in a straight line; its whole time if never."""
        before = Point(0.0, 0, 100 / CLASSES)
        for point in self.points:
            if point.accuracy >= accuracy:
                share = max(0.0, accuracy - before.accuracy) / max(1e-9, point.accuracy - before.accuracy)
                return before.seconds + share * (point.seconds - before.seconds)
            before = point
        return before.seconds


def contenders(config: Config, count: int, seed: int) -> dict[str, tuple[Recipe, Planner]]:
    """List recipes and planners by name, in the order of tables."""
    sizes: dict[str, Any] = {"batch_size": config.batch_size, "seed": seed}
    recipe, standard = rand_augment(config.size), Standard(count, **sizes)
    return {
        STANDARD: (recipe, standard),
        KEPT: (recipe, standard),
        **{reuse(factor): (recipe, Refurbish(count, reuse_factor=factor, **sizes)) for factor in (2, 3)},
        ECHO: (
            recipe.at(len(recipe.stages)),
            Echo(standard, echoing_factor=3, buffer_size=16 * config.batch_size),
        ),
        FROZEN: (recipe, Frozen(count, **sizes)),
    }


def enlarged(mosaics: Path, part: str, per_class: int, side: int, folder: Path) -> ImageFolder:
    """Write images of CIFAR-10 as larger JPEG files, with grain, which interpolation has none of."""
    source = read_mosaics(mosaics, part, per_class)
    random = np.random.default_rng(0)
    for index in range(len(source)):
        image = Image.fromarray(source[index][0]).resize((side, side), Image.Resampling.BICUBIC)
        grain = random.normal(0, _GRAIN, (side, side, 1))
        pixels = np.clip(np.rint(np.asarray(image) + grain), 0, 255).astype(np.uint8)
        path = folder / part / str(source.labels[index]) / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path, quality=_QUALITY)
    return ImageFolder(folder / part)


class Tested:
    """Images that are tested with: decoded once, and averaged once as the network averages what it is given."""

    def __init__(self, source: Source, size: int) -> None:
        planner = Standard(len(source), batch_size=min(AT_ONCE, len(source)), drop_last=False)
        pool = SmallResNet(CLASSES, size=size).layers[0]
        with Loader(source, evaluate(size), planner) as loader:
            self._batches = [(pool(images), labels) for images, labels in loader]

    @torch.no_grad()
    def accuracy(self, model: SmallResNet) -> float:
        """Return the share that is classified correctly, in percent."""
        model.eval()
        right = sum(int((model.layers[1:](images).argmax(1) == labels).sum()) for images, labels in self._batches)
        return 100 * right / sum(len(labels) for _, labels in self._batches)


def train(config: Config, loader: Loader, seed: int) -> Iterator[tuple[float, int, dict[str, torch.Tensor]]]:
    """Learn for so long; yield seconds, images and averaged weights at equal times."""
    torch.manual_seed(seed)
    model = SmallResNet(CLASSES, size=config.size)
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(config.decay), use_buffers=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), config.learning_rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / config.warm_up, total_iters=config.warm_up)
    seen, due, began = 0, 1, time.perf_counter()
    for images, labels in chain.from_iterable(repeat(loader)):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        averaged.update_parameters(model)
        seen += len(labels)
        if (now := time.perf_counter() - began) >= due * config.seconds / config.points:
            yield now, seen, {name: each.clone() for name, each in averaged.module.state_dict().items()}
            due = 1 + int(now / (config.seconds / config.points))
            if now >= config.seconds:
                return


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Train all in turns, and compare them at equal times and at equal accuracy."""
    torch.set_num_threads(1)
    runs: list[Run] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        sizes = config.train_per_class, config.test_per_class
        trained, tested = (
            enlarged(options.data, part, count, config.side, folder)
            for part, count in zip(("train", "test"), sizes, strict=True)
        )
        test = Tested(tested, config.size)
        for number in range(-1, config.rounds):
            entrants = [*contenders(config, len(trained), max(0, number)).items()]
            for name, (recipe, planner) in entrants if number % 2 == 0 else entrants[::-1]:
                with ExitStack() as own:
                    keep = Path(own.enter_context(TemporaryDirectory()))
                    source = Kept(trained, keep, form="decoded") if name == KEPT else trained
                    store = own.enter_context(MemoryStore()) if planner.peak_slots else None
                    loader = own.enter_context(Loader(source, recipe, planner, store))
                    if number < 0:
                        next(iter(loader))  # Compiled kernels are loaded.
                    else:
                        points = _points(config, train(config, loader, number), test)
                        waiting = loader.stats().consumer_wait_s / points[-1].seconds
                        runs.append(Run(name, number, points, round(waiting, 3)))
    names = list(dict.fromkeys(run.contender for run in runs if run.round == 0))
    claims, rows = _claims(runs, names), [_row(runs, name) for name in names]
    columns = {
        "contender": "{name}",
        "images/s": "{images_per_s:.0f}",
        "accuracy at the end, %": "{accuracy:.1f}",
        "images learned from": "{images:,}",
        "waiting": "{waiting:.2f}",
    }
    say(table_of(rows, columns), claim_table(claims, "seconds to standard's accuracy"))
    return {"time_to_accuracy": rows, "claims": claims, "runs": runs}


def _points(config: Config, course: Iterator[tuple[float, int, dict[str, torch.Tensor]]], test: Tested) -> list[Point]:
    points, model = [], SmallResNet(CLASSES, size=config.size)
    for seconds, images, weights in [*course]:
        model.load_state_dict(weights)
        points.append(Point(round(seconds, 3), images, test.accuracy(model)))
    return points


def _of(runs: Sequence[Run], name: str) -> list[Run]:
    return sorted((run for run in runs if run.contender == name), key=lambda run: run.round)


def _claims(runs: Sequence[Run], names: Sequence[str]) -> list[Claim]:
    """Compare times to what standard has at its end with standard's own, which can have been there before."""
    standard = _of(runs, STANDARD)
    goals = [run.points[-1].accuracy for run in standard]
    taken = {name: [run.seconds_to(goal) for run, goal in zip(_of(runs, name), goals, strict=True)] for name in names}
    return [
        Claim.ratio(
            f"{name}: seconds to standard's accuracy / standard's", taken[name], taken[STANDARD], most=SOONER.get(name)
        )
        for name in names[1:]
    ]


def _row(runs: Sequence[Run], name: str) -> Mapping[str, Any]:
    own = _of(runs, name)
    ends = [run.points[-1] for run in own]
    return {
        "name": name,
        "images_per_s": float(np.median([end.images / end.seconds for end in ends])),
        "images": round(float(np.median([end.images for end in ends]))),
        "accuracy": float(np.mean([end.accuracy for end in ends])),
        "waiting": float(np.median([run.waiting for run in own])),
    }


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(
        train_per_class=8, test_per_class=2, side=64, size=56, batch_size=8, seconds=0.3, points=2, warm_up=2, rounds=1
    ),
    data=CIFAR10,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
