"""Batch tensors: a batch as the training loop gets it, images beside labels and indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from dalirefurb.engine.finish_thread import Served

Batch = tuple[torch.Tensor, ...]
"""Images, labels and, if asked for, indices."""


@dataclass(frozen=True)
class BatchTensors:
    """Puts the tensors of a batch together.

    Attributes:
        labels: Labels of all samples, of a type that torch knows, shape (num_samples, ...).
        with_indices: Whether a batch has a third part, the samples' indices.
        pin_memory: Whether labels are put into pinned memory.
    """

    labels: NDArray[Any]
    with_indices: bool
    pin_memory: bool

    def of(self, served: Served, padding: int) -> Batch:
        """Return images, labels and perhaps indices of a batch whose last rows, so many, only fill it up."""
        labels = torch.from_numpy(self.labels[served.indices])
        if self.pin_memory:
            labels = labels.pin_memory()
        if served.images.is_cuda:
            labels = labels.to(served.images.device, non_blocking=True)
        if not self.with_indices:
            return served.images, labels
        indices = torch.from_numpy(served.indices.copy())
        indices[len(indices) - padding :] = -1
        return served.images, labels, indices
