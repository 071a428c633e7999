"""A training loop that reports how fast it is, and what it learns.

It shows what a loader does for a training loop, it is no trainer to build on.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dalirefurb.augment.presets import evaluate
from dalirefurb.augment.recipe import Recipe
from dalirefurb.cli.terminal import counted
from dalirefurb.engine.stats import Stats
from dalirefurb.loader import Loader
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import MemoryStore

_SEEN_SIZE = 56
_PATCH = 4


class SmallResNet(nn.Module):
    """A residual network of 78,000 weights that costs a CPU core about half a millisecond per training image.

    Large images, of sides of at least 32 pixels, are averaged to 56 .. 111 pixels a side, which needs no gradient.
    The stem cuts the result into patches of 4 x 4; three residual blocks follow, the second and third at half the
    resolution and twice the width.
    """

    def __init__(self, num_classes: int, *, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AvgPool2d(max(1, size // _SEEN_SIZE)),
            *_convolved(3, 16, _PATCH, stride=_PATCH),
            nn.ReLU(inplace=True),
            _ResidualBlock(16, 16, stride=1),
            _ResidualBlock(16, 32, stride=2),
            _ResidualBlock(32, 64, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, num_classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Turn images, shape (B, 3, size, size), into logits, shape (B, num_classes)."""
        logits: torch.Tensor = self.layers(images)
        return logits


class _ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, *, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolved(channels_in, channels_out, 3, stride=stride, padding=1),
            nn.ReLU(inplace=True),
            *_convolved(channels_out, channels_out, 3, padding=1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(*_convolved(channels_in, channels_out, 1, stride=stride))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Turn features, shape (B, C, H, W), into others, at half the resolution where the stride is 2."""
        activated: torch.Tensor = nn.functional.relu(self.body(features) + self.shortcut(features))
        return activated


def _convolved(channels_in: int, channels_out: int, side: int, *, stride: int = 1, padding: int = 0) -> list[nn.Module]:
    """Return a convolution whose results are normalised."""
    return [nn.Conv2d(channels_in, channels_out, side, stride, padding, bias=False), nn.BatchNorm2d(channels_out)]


_WARM_UP = 0.15
_WEIGHT_DECAY = 0.05


@dataclass(frozen=True)
class EpochReport:
    """What one epoch of training did.

    Attributes:
        epoch: Number of the epoch, counted from 0.
        rows: Samples in each batch, shape (batches,).
        batch_s: Seconds from one batch's end to the next one's, shape (batches,).
        stats: What the loader did meanwhile: hits, misses, and how long it was waited for.
        loss: Mean cross-entropy over the epoch's training samples.
        accuracy: Share of the epoch's training samples that the model classified correctly before it learned from them,
            0..1.
    """

    epoch: int
    rows: NDArray[np.int64]
    batch_s: NDArray[np.float64]
    stats: Stats
    loss: float
    accuracy: float

    def after(self, batches: int) -> EpochReport:
        """Return the report with times of later batches only; unchanged where there are no more than `batches`."""
        if len(self.rows) <= batches:
            return self
        later = slice(batches, None)
        return replace(self, rows=self.rows[later], batch_s=self.batch_s[later])

    @property
    def images_per_s(self) -> float:
        """Throughput."""
        return float(self.rows.sum() / self.batch_s.sum())

    def batch_ms(self, percentile: float) -> float:
        """Return a percentile of the time per batch, in milliseconds."""
        return float(1e3 * np.percentile(self.batch_s, percentile))

    @property
    def waiting(self) -> float:
        """Share of the time that the model waited for data, 0..1."""
        return float(self.stats.consumer_wait_s / self.batch_s.sum())


class Trainer(ExitStack):
    """Trains a small network, one epoch at a time: AdamW, with a warm-up and then a cosine to 0.

    The loader keeps partial images in memory. Where a GPU is found the network is there; the data are made on the CPU.

    Args:
        source: Source of the samples; its labels are classes, counted from 0.
        recipe: Recipe that leaves images of at least 32 x 32 pixels.
        planner: The planner; its seed is also the seed of the initial weights. No global random state is touched.
        epochs: Length of the learning rate's schedule.
        learning_rate: The highest learning rate of the schedule.
        loading: Further arguments of the loader.

    Raises:
        ConfigurationError: If the parts do not fit together.
        OutOfMemoryError: If the partial images exceed the memory at hand.
    """

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        planner: Planner,
        *,
        epochs: int,
        learning_rate: float = 0.01,
        **loading: Any,
    ) -> None:
        super().__init__()
        self._planner = planner
        self._size = recipe.output.sides[0]
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(planner.seed % 2**63)
            model = SmallResNet(int(source.labels.max()) + 1, size=recipe.output.sides[0])
        self._model = model.to(self._device)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=_WEIGHT_DECAY)
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer, max_lr=learning_rate, total_steps=epochs * len(planner) + 1, pct_start=_WARM_UP
        )
        self._validation: Loader | None = None
        self.store = self.enter_context(MemoryStore())
        self.loader = self.enter_context(Loader(source, recipe, planner, self.store, **loading))

    def epoch(self, what: str = "") -> EpochReport:
        """Train on the next epoch; tell of progress, of what is being done: by default its number."""
        epoch = self.loader.epoch
        before = self.loader.stats()
        rows, batch_s = [], []
        # Loss and correct answers, summed over samples, on the model's device: to read them is to wait for it.
        sums = torch.zeros(2, device=self._device)
        ended = time.perf_counter()
        for images, labels in counted(self.loader, what or f"epoch {epoch}", "batch", len(self.loader)):
            losses, correct = self._gradients(images.to(self._device), labels.to(self._device))
            self._optimizer.step()
            self._schedule.step()
            if self._planner.feedback_lag is not None:
                self.loader.observe(losses)
            sums += torch.stack([losses.sum(), correct.sum()])
            now = time.perf_counter()
            rows.append(len(labels))
            batch_s.append(now - ended)
            ended = now
        loss, accuracy = (sums / sum(rows)).tolist()
        return EpochReport(
            epoch=epoch,
            rows=np.array(rows),
            batch_s=np.array(batch_s),
            stats=self.loader.stats() - before,
            loss=loss,
            accuracy=accuracy,
        )

    def hold_out(self, source: Source, **loading: Any) -> None:
        """Keep images, decoded once, of the classes that are learned, for `validation_accuracy`."""
        planner = Evaluate(len(source), batch_size=min(self._planner.batch_size, len(source)))
        store = self.enter_context(MemoryStore())
        self._validation = self.enter_context(Loader(source, evaluate(self._size), planner, store, **loading))

    @torch.no_grad()
    def validation_accuracy(self) -> float:
        """Return the share of the images held out that the network classifies correctly."""
        assert self._validation is not None
        self._model.eval()
        correct = 0
        for images, labels in counted(self._validation, "validation", "batch", len(self._validation)):
            logits = self._model(images.to(self._device))
            correct += int((logits.argmax(dim=1) == labels.to(self._device)).sum())
        self._model.train()
        return correct / self._validation.num_samples

    def step_alone_s(self) -> float:
        """Measure gradients of a full batch of blank images: median seconds of 9. No weight changes.

        Called before the first epoch it has the cores to itself: the loader has not begun to work ahead.
        """
        images = torch.zeros(self._planner.batch_size, 3, self._size, self._size, device=self._device)
        labels = torch.zeros(len(images), dtype=torch.int64, device=self._device)
        times = []
        for _ in range(9):
            began = time.perf_counter()
            losses, _ = self._gradients(images, labels)
            losses.tolist()
            times.append(time.perf_counter() - began)
        return float(np.median(times))

    def _gradients(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute them; return each sample's loss and whether it was classified correctly, shape (B,)."""
        logits = self._model(images)
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        self._optimizer.zero_grad()
        losses.mean().backward()  # type: ignore[no-untyped-call]
        return losses.detach(), logits.detach().argmax(dim=1) == labels
