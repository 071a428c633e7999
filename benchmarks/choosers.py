"""Samples of CIFAR-10 that a model is trained on: those that a loader serves, or those that Algorithm 1 accepts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from sources import MEAN, SIDE, STD

from dalirefurb import Arrays, AutoAssist, Loader, Standard, evaluate
from dalirefurb.planning.assistant import AssistantReport

Batch = tuple[torch.Tensor, torch.Tensor, NDArray[np.int64]]

AT_ONCE = 500


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
        self._loader = Loader(source, recipe, planner, num_threads=1, look_ahead=1, with_indices=True)
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


def whole(source: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
    """Serve every sample once; return images and labels in the order of their indices."""
    planner = Standard(len(source), batch_size=min(AT_ONCE, len(source)))
    images = torch.empty(len(source), 3, SIDE, SIDE)
    labels = torch.empty(len(source), dtype=torch.int64)
    with closing(Served(source, planner)) as served:
        for some, classes, indices in islice(served.batches(), len(planner)):
            rows = torch.from_numpy(indices)
            images[rows], labels[rows] = some, classes
    return images, labels
