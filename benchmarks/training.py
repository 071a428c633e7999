"""One run of a model on the samples that are chosen for it, evaluated after each epoch: how fast it learns.

All contenders of a seed begin with the same weights. SGD with momentum; after an epoch's warm-up the learning rate
stays, as a schedule over steps would favour who is early.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sources import AT_ONCE, MEAN, SIDE, STD, read_mosaics, whole
from torch import nn

from dalirefurb import Arrays, AutoAssist, Loader, Prefetch, Standard, evaluate
from dalirefurb.demo.training import SmallResNet
from dalirefurb.planning.assistant import AssistantReport

Batch = tuple[torch.Tensor, torch.Tensor, NDArray[np.int64]]
"""Images, labels, indices."""

UNIFORM = "uniform"
AUTO_ASSIST = "AutoAssist"
HOW_MANY = "knows how many"
WHICH = "knows which"
CLASSES = 10
CONTENDERS = (UNIFORM, AUTO_ASSIST, HOW_MANY, WHICH)


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set.
        train_per_class: Images to train on, of each of the 10 classes.
        test_per_class: Images to test with.
        batch_size: Samples of a step.
        epochs: Of as many steps as uniform sampling needs to serve each sample once; the model is evaluated after each.
        learning_rate: After the first epoch, in which it rises.
        momentum: Of the steps.
        lag: Batches between a loss and the first plan that it acts on.
        levels: Training losses that are reached sooner or later; the claim is about the last.
        seeds: Of weights, order and acceptance.
        rare: Share of its images that each of the classes 5 to 9 keeps for training.
        wrong: Share of the images to train on that have the label of another class.
    """

    data: str = ""
    train_per_class: int = 500
    test_per_class: int = 200
    batch_size: int = 64
    epochs: int = 32
    learning_rate: float = 0.02
    momentum: float = 0.9
    lag: int = 16
    levels: tuple[float, ...] = (1.0, 0.5, 0.2, 0.1, 0.05)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    rare: float = 1.0
    wrong: float = 0.0

    def source(self, folder: Path) -> Arrays:
        """Read what is trained on; which images are left out, or have a wrong label, is the same with every seed."""
        source = read_mosaics(folder, "train", self.train_per_class)
        images, labels = source.read(np.arange(len(source))), source.labels.copy()
        rng = np.random.default_rng(0)
        wrong = rng.permutation(len(labels))[: round(self.wrong * len(labels))]
        labels[wrong] = (labels[wrong] + rng.integers(1, CLASSES, len(wrong))) % CLASSES
        place = np.arange(len(labels)) % self.train_per_class  # in its class, as it was read
        kept = (source.labels < CLASSES // 2) | (place < round(self.rare * self.train_per_class))
        return Arrays(np.stack(images)[kept], labels[kept])


@dataclass(frozen=True)
class Evaluation:
    """The model after an epoch.

    Attributes:
        samples: Trained on so far.
        candidates: Considered so far.
        loss: Mean over all samples to train on.
        test_accuracy: Share of the test images that is classified correctly.
        hard: Share of all samples to train on whose loss exceeds the threshold, or `loss` where there is none.
        enrichment: Share of hard samples among those of this epoch, over their share among all.
        threshold: The Assistant's, None where there is none.
        accuracy: The Assistant's own, likewise.
    """

    samples: int
    candidates: int
    loss: float
    test_accuracy: float
    hard: float
    enrichment: float
    threshold: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class Run:
    """One contender with one seed."""

    contender: str
    seed: int
    evaluations: list[Evaluation]

    def reaches(self, level: float) -> bool:
        """Tell whether the loss ever fell to `level`."""
        return self._first(level) is not None

    def samples_to(self, level: float) -> float:
        """Return how many samples it was trained on when the loss first fell to `level`, or all of them."""
        place = self._first(level)
        if place is None or place == 0:
            return self.evaluations[-1 if place is None else 0].samples
        before, after = self.evaluations[place - 1 : place + 1]
        share = math.log(before.loss / level) / math.log(before.loss / after.loss)
        return before.samples + share * (after.samples - before.samples)

    def test_accuracy_at(self, level: float) -> float:
        """Return the test accuracy when the loss first fell to `level`, or at the end."""
        place = self._first(level)
        return self.evaluations[-1 if place is None else place].test_accuracy

    def _first(self, level: float) -> int | None:
        return next((place for place, each in enumerate(self.evaluations) if each.loss <= level), None)


class Chooser:
    """Whoever chooses batches."""

    def batches(self) -> Iterator[Batch]:
        """Serve batch after batch, without end: images, labels, indices."""
        raise NotImplementedError

    def observe(self, losses: NDArray[np.float32]) -> None:
        """Take the losses of the batch that was served last."""

    def evaluated(self, losses: NDArray[np.float32]) -> None:
        """Take the losses of all samples."""

    def report(self) -> AssistantReport | None:
        """Return what was accepted, None where everything is."""
        return None

    def close(self) -> None:
        """Let go of everything."""


class Served(Chooser):
    """Batches that a loader serves."""

    def __init__(self, source: Arrays, planner: Standard | AutoAssist) -> None:
        recipe = evaluate(SIDE, raw=True, mean=MEAN, std=STD)
        self._loader = Loader(
            source, recipe, planner, prefetch=Prefetch(num_threads=1, look_ahead=1), with_indices=True
        )
        self._assisted = isinstance(planner, AutoAssist)

    def batches(self) -> Iterator[Batch]:
        """Serve epoch after epoch: images, labels, indices."""
        while True:
            for images, labels, indices in self._loader:
                yield images, labels, indices.numpy()

    def observe(self, losses: NDArray[np.float32]) -> None:
        """Take the losses of the batch that was served last."""
        if self._assisted:
            self._loader.observe(losses)

    def report(self) -> AssistantReport | None:
        """Return what an Assistant did, None without one."""
        return self._loader.assistant_report() if self._assisted else None

    def close(self) -> None:
        """Close the loader."""
        self._loader.close()


class Known(Chooser):
    """Batches that Algorithm 1 chooses when something is known of all losses; images are those that a loader serves.

    Args:
        images: Of all samples, in the order of their indices.
        labels: Likewise.
        planner: Gives candidates, the losses' moving average and luck.
        which: Whether it is known which samples are hard, or just how many.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, planner: AutoAssist, *, which: bool) -> None:
        self._images, self._labels, self._planner, self._which = images, labels, planner, which
        self._rng = np.random.default_rng([planner.seed, planner.num_samples])
        self._chance: NDArray[np.float64] = np.ones(len(images))
        self._threshold = math.nan
        self._confidence = 0.0
        self._candidates = self._accepted = 0

    def batches(self) -> Iterator[Batch]:
        """Serve batch after batch: images, labels, indices."""
        chosen = self._chosen()
        while True:
            indices = np.array(list(islice(chosen, self._planner.batch_size)))
            self._accepted += len(indices)
            rows = torch.from_numpy(indices)
            yield self._images[rows], self._labels[rows], indices

    def _chosen(self) -> Iterator[int]:
        epoch = 0
        while True:
            for index in np.concatenate([plan.indices for plan in self._planner.planner.epoch(epoch)]).tolist():
                self._candidates += 1
                if self._rng.random() < self._chance[index]:
                    yield index
            epoch += 1

    def observe(self, losses: NDArray[np.float32]) -> None:
        """Take the losses of the batch that was served last into the moving average."""
        mean, kept = float(losses.mean()), self._planner.loss_momentum
        self._threshold = mean if math.isnan(self._threshold) else kept * self._threshold + (1 - kept) * mean

    def evaluated(self, losses: NDArray[np.float32]) -> None:
        """Decide which samples are hard."""
        hard = losses > self._threshold
        share = float(hard.mean())
        self._confidence = max(share, 1 - share)
        expected = hard.astype(np.float64) if self._which else np.full(len(hard), share)
        self._chance = 1 - self._confidence + self._confidence * expected

    def report(self) -> AssistantReport:
        """Return what was done."""
        return AssistantReport(self._candidates, self._accepted, self._confidence, self._threshold)


def train(task: tuple[Config, Path, str, int]) -> Run:
    """Train one contender with one seed."""
    config, folder, contender, seed = task
    torch.set_num_threads(1)
    source = config.source(folder)
    tested = whole(read_mosaics(folder, "test", config.test_per_class))
    images, labels = whole(source)
    standard = Standard(len(source), batch_size=config.batch_size, seed=seed, drop_last=True)
    assisted = AutoAssist(standard, lag=config.lag)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = SmallResNet(CLASSES, size=SIDE)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)
    chooser: Chooser
    if contender in (UNIFORM, AUTO_ASSIST):
        chooser = Served(source, standard if contender == UNIFORM else assisted)
    else:
        chooser = Known(images, labels, assisted, which=contender == WHICH)
    evaluations: list[Evaluation] = []
    losses, _ = losses_of(model, images, labels)
    with closing(chooser):
        batches = chooser.batches()
        for epoch in range(config.epochs):
            trained = []
            for number, (some, classes, indices) in enumerate(islice(batches, len(standard)), 1):
                optimizer.param_groups[0]["lr"] = config.learning_rate * min(1, epoch + number / len(standard))
                chooser.observe(step(model, optimizer, some, classes))
                trained.append(indices)
            hard = losses > losses.mean()
            enrichment = hard[np.concatenate(trained)].mean() / hard.mean()
            losses, _ = losses_of(model, images, labels)
            chooser.evaluated(losses)
            report, samples = chooser.report(), (epoch + 1) * len(standard) * config.batch_size
            evaluations.append(
                Evaluation(
                    samples=samples,
                    candidates=report.candidates if report else samples,
                    loss=float(losses.mean()),
                    test_accuracy=losses_of(model, *tested)[1],
                    hard=float(np.mean(losses > (report.threshold if report else losses.mean()))),
                    enrichment=float(enrichment),
                    accuracy=report.accuracy if report else None,
                    threshold=report.threshold if report else None,
                )
            )
    return Run(contender, seed, evaluations)


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> NDArray[np.float32]:
    """Learn from one batch; return each sample's loss."""
    losses = nn.functional.cross_entropy(model(images), labels, reduction="none")
    optimizer.zero_grad()
    losses.mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    of_each: NDArray[np.float32] = losses.detach().numpy()
    return of_each


@torch.no_grad()
def losses_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[NDArray[np.float32], float]:
    """Return each sample's loss in evaluation mode, and the share that is classified correctly."""
    model.eval()
    logits = torch.cat([model(some) for some in torch.split(images, AT_ONCE)])
    model.train()
    losses: NDArray[np.float32] = nn.functional.cross_entropy(logits, labels, reduction="none").numpy()
    return losses, float((logits.argmax(dim=1) == labels).float().mean())
