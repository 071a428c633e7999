"""One run of one case with one seed, which goes on where it was left: how well a network classifies in the end.

    epoch of standard   0            1            2
    checkpoint                  ▲            ▲            ▲      model, optimizer, schedule, place of the loader
    time is over                             └ the run ends here, and goes on from here when it is called again

The loader serves the same images to a run that goes on, and on a CPU the network becomes the same bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accuracy_cases import Case, Config
from networks import NETWORKS
from sources import AT_ONCE, read_mosaics, whole
from torch import nn

from dalirefurb import Loader, MemoryStore, Prefetch

CLASSES = 10


@dataclass(frozen=True)
class Run:
    """One case with one seed.

    Attributes:
        group: Of the case.
        case: Its name.
        seed: Of weights, order and augmentation.
        test_accuracy: Share of the test images that is classified correctly, in percent; mean over `accuracies`.
        test_loss: Cross entropy of the test images, mean over `test_losses`.
        accuracies: The share after each of the last epochs, in percent; logits are those of image and mirror image.
        test_losses: Likewise.
        losses: Mean over the training samples of each epoch of standard, as they were learned from.
        cpu_s: Spent by all threads, loading included.
        wall_s: Likewise, on the clock.
        device: Where the network was.
    """

    group: str
    case: str
    seed: int
    test_accuracy: float
    test_loss: float
    accuracies: list[float]
    test_losses: list[float]
    losses: list[float]
    cpu_s: float
    wall_s: float
    device: str


@dataclass(frozen=True)
class Task:
    """A run that is wanted.

    Attributes:
        config: What is run.
        case: Which of its cases.
        seed: Which seed.
        folder: Of the data.
        checkpoint: A file that the run may leave behind, and that it goes on from.
        ends: When it must have stopped, in seconds since 1970.
        threads: For loading.
    """

    config: Config
    case: Case
    seed: int
    folder: Path
    checkpoint: Path
    ends: float
    threads: int


def train(task: Task) -> Run | None:
    """Train one case with one seed; None if time was over before the last step."""
    if time.time() >= task.ends:
        return None
    torch.set_num_threads(1)
    config = task.config
    with ExitStack() as stack:
        training = Training(stack, task)
        epoch_s = 0.0
        while training.step < config.steps:
            began = time.time()
            if began + epoch_s >= task.ends:
                return None
            training.epoch()
            if training.step > config.steps - config.checkpoints * config.epoch_steps:
                training.test()
            training.save(task.checkpoint)
            epoch_s = max(epoch_s, time.time() - began)
        cpu_s, wall_s = training.spent()
    task.checkpoint.unlink()
    return Run(
        group=task.case.group,
        case=task.case.name,
        seed=task.seed,
        test_accuracy=float(np.mean(training.accuracies)),
        test_loss=float(np.mean(training.test_losses)),
        accuracies=training.accuracies,
        test_losses=training.test_losses,
        losses=training.losses,
        cpu_s=round(cpu_s, 2),
        wall_s=round(wall_s, 2),
        device=training.device,
    )


class Training:
    """A network and what it takes to go on with it.

    Args:
        stack: Closes the loader and its store.
        task: What is trained; goes on from its checkpoint if there is one.

    Attributes:
        device: Where the network is.
        step: How many were taken.
        losses: Of each epoch of standard so far.
        accuracies: See `Run`; those so far.
        test_losses: Likewise.
    """

    def __init__(self, stack: ExitStack, task: Task) -> None:
        config = task.config
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.step = 0
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.test_losses: list[float] = []
        self._config, self._folder = config, task.folder
        self._before = 0.0, 0.0
        self._began = time.process_time(), time.perf_counter()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(task.seed)
            model = NETWORKS[task.case.network](CLASSES)
        self._model = model.to(self.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = torch.optim.SGD(
            self._model.parameters(),
            task.case.learning_rate,
            momentum=config.momentum,
            nesterov=True,
            weight_decay=config.weight_decay,
        )
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer,
            task.case.learning_rate,
            total_steps=config.steps + 1,
            pct_start=config.warm_up,
            cycle_momentum=False,
        )
        planner = config.planner(task.case, task.seed)
        self._loader = stack.enter_context(
            Loader(
                _read(task.folder, "train", config.train_per_class),
                task.case.recipe(),
                planner,
                stack.enter_context(MemoryStore()) if planner.peak_slots else None,
                prefetch=Prefetch(num_threads=task.threads),
                pin_memory=self.device == "cuda",
            )
        )
        if task.checkpoint.exists():
            self._restore(task.checkpoint)
        self._batches: Iterator[tuple[torch.Tensor, ...]] = chain.from_iterable(repeat(self._loader))

    def epoch(self) -> None:
        """Take as many steps as standard takes in an epoch."""
        total, rows = torch.zeros((), device=self.device), 0
        for images, labels in islice(self._batches, self._config.epoch_steps):
            images, labels = (each.to(self.device, non_blocking=True) for each in (images, labels))
            loss = nn.functional.cross_entropy(self._logits(images), labels)
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._schedule.step()
            total += loss.detach() * len(labels)
            rows += len(labels)
        self.step += self._config.epoch_steps
        self.losses.append(total.item() / rows)

    @torch.no_grad()
    def test(self) -> None:
        """Classify the test images, each by the mean of its logits and its mirror image's."""
        images, labels = _test_images(self._folder, self._config.test_per_class)
        self._model.eval()
        batches = torch.split(images, AT_ONCE)
        logits = torch.cat([self._both_ways(some.to(self.device)).cpu() for some in batches])
        self._model.train()
        self.accuracies.append(100 * float((logits.argmax(dim=1) == labels).double().mean()))
        self.test_losses.append(float(nn.functional.cross_entropy(logits, labels)))

    def spent(self) -> tuple[float, float]:
        """Return seconds of all threads and on the clock, those before a checkpoint included."""
        began, now = self._began, (time.process_time(), time.perf_counter())
        return self._before[0] + now[0] - began[0], self._before[1] + now[1] - began[1]

    def save(self, path: Path) -> None:
        """Replace the checkpoint, whole or not at all."""
        state = {name: part.state_dict() for name, part in self._parts.items()}
        figures = {"losses": self.losses, "accuracies": self.accuracies, "test_losses": self.test_losses}
        place = {"step": self.step, **figures, "spent": self.spent()}
        new = path.with_suffix(".new")
        torch.save({**state, **place}, new)
        new.replace(path)

    def _restore(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        self.step, self.losses, self._before = state["step"], state["losses"], state["spent"]
        self.accuracies, self.test_losses = state["accuracies"], state["test_losses"]

    @property
    def _parts(self) -> dict[str, Any]:
        return {"model": self._model, "optimizer": self._optimizer, "schedule": self._schedule, "loader": self._loader}

    def _both_ways(self, images: torch.Tensor) -> torch.Tensor:
        return (self._logits(images) + self._logits(images.flip(-1))) / 2

    def _logits(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits: torch.Tensor = self._model(images)
        return logits.float()


_read = lru_cache(read_mosaics)
"""Reads images once a process."""


@lru_cache
def _test_images(folder: Path, per_class: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise them once a process."""
    return whole(_read(folder, "test", per_class))
