"""Batch tensors: a batch as the training loop gets it, images beside labels and indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from dalirefurb.augment.output import Dtype
from dalirefurb.engine.finisher import Served

Batch = tuple[torch.Tensor, ...]
"""Images, labels and, if asked for, indices."""


@dataclass(frozen=True)
class BatchTensors:
    """Puts the tensors of a batch together.

    Attributes:
        labels: Labels of all samples, of a type that torch knows, shape (num_samples, ...).
        with_indices: Whether a batch has a third part, the samples' indices.
        pin_memory: Whether labels are put into pinned memory.
        dtype: Type of the images, as `Output` names it.
    """

    labels: NDArray[Any]
    with_indices: bool
    pin_memory: bool
    dtype: Dtype

    def of(self, served: Served, padding: int) -> Batch:
        """Return images, labels and perhaps indices of a batch whose last rows, so many, only fill it up."""
        labels = torch.from_numpy(self.labels[served.indices])
        if self.pin_memory:
            labels = labels.pin_memory()
        images = served.images
        if images.is_cuda:
            labels = labels.to(images.device, non_blocking=True)
        if self.dtype == "bfloat16":
            images = images.to(torch.bfloat16)
        if not self.with_indices:
            return images, labels
        indices = torch.from_numpy(served.indices.copy())
        indices[len(indices) - padding :] = -1
        return images, labels, indices
