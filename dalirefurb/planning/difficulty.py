"""Difficulty: which samples the model finds hard, learned from losses by logistic regression on features.

Features of an image are low-resolution pixels, which cost next to nothing: the means of a sample's version 0 over a
grid of equal cells, each rounded to a byte; of a bad sample that is replaced, zeros. All sums are of integers, and
exact: they depend on nothing but the pixels, not on which images come together, nor in which order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import integer
from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.batch_plan import Indices, Mask
from dalirefurb.rng import uniforms

_PIXELS_AT_ONCE = 1 << 20


class FeatureTable:
    """The features of each sample that was seen: 193 bytes a sample at resolution 8. A row never changes once there.

    >>> table = FeatureTable(3, resolution=1)
    >>> table.fill(np.array([2]), [np.full((4, 5, 3), 255, np.uint8)])
    >>> table.missing(np.arange(3)).tolist(), table.rows(np.array([2])).tolist()
    ([0, 1], [[1.0, 1.0, 1.0]])

    Attributes:
        num_samples: Number of samples, one row of the table each, at least 1.
        resolution: Cells along each side of the grid, at least 1.
    """

    def __init__(self, num_samples: int, *, resolution: int) -> None:
        self.resolution = integer("resolution", resolution, 1, None, "pass the pixels a side to judge images by")
        self.num_samples = integer("num_samples", num_samples, 1, None, "pass the planner's num_samples")
        self._table = np.zeros((self.num_samples, self.resolution**2 * 3), np.uint8)
        self._there = np.zeros(self.num_samples, np.bool_)

    def fill(self, indices: Indices, images: Sequence[NDArray[np.uint8]]) -> None:
        """Put the features of samples in.

        Args:
            indices: Indices of the samples, shape (n,).
            images: The partial image of version 0 of each sample, HWC, of any size.
        """
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for place, image in enumerate(images):
            by_shape.setdefault(image.shape, []).append(place)
        for shape, places in by_shape.items():
            at_once = max(1, _PIXELS_AT_ONCE // (3 * shape[0] * shape[1]))
            for start in range(0, len(places), at_once):
                some = places[start : start + at_once]
                self._table[indices[some]] = cell_means([images[place] for place in some], self.resolution)
        self._there[indices] = True

    def missing(self, indices: Indices) -> Indices:
        """Return those samples whose features are not there, each once, ascending."""
        return np.unique(indices[~self._there[indices]])

    def rows(self, indices: Indices) -> NDArray[np.float64]:
        """Return features scaled to -1..1, shape (n, resolution * resolution * 3); all must be there."""
        return self._table[indices] / 127.5 - 1


def cell_means(images: Sequence[NDArray[np.uint8]], cells: int) -> NDArray[np.uint8]:
    """Return the means of n images of one shape over `cells` x `cells` equal cells, shape (n, cells * cells * 3).

    A pixel counts with the area that it has in a cell. Halves are rounded up.
    """
    height, width, channels = images[0].shape
    pixels = np.stack(images, dtype=np.float32).reshape(-1, height, width * channels)
    # A column's sum is at most 255 * height, exact in float32 up to 65,000 rows; a cell's needs float64.
    columns = (_overlaps(height, cells) @ pixels).reshape(-1, width, channels)  # (n * cells, width, 3)
    sums = (_overlaps(width, cells) @ columns.astype(np.float64)).astype(np.int64)  # (n * cells, cells, 3)
    means: NDArray[np.int64] = (2 * sums + height * width) // (2 * height * width)
    return means.astype(np.uint8).reshape(len(images), -1)


@lru_cache(maxsize=256)
def _overlaps(size: int, cells: int) -> NDArray[np.float32]:
    """Measure how much of each pixel is in each cell, shape (cells, size), in units of 1 / cells of a pixel.

    >>> _overlaps(3, 2).tolist()
    [[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]
    """
    pixel, cell = cells * np.arange(size), size * np.arange(cells)[:, None]
    overlap: Indices = np.minimum(pixel + cells, cell + size) - np.maximum(pixel, cell)
    return overlap.clip(0).astype(np.float32)


Compute = Callable[[Indices], Sequence[NDArray[np.uint8]]]
"""Makes the partial images of version 0 of samples, HWC."""


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """What was learned from the losses of some batches.

    Attributes:
        weights: Weights of the features and of the bias, shape (features + 1,).
        threshold: Moving average of the losses.
        accuracy: Moving average of the accuracy, which is the confidence gamma.
    """

    weights: NDArray[np.float64]
    threshold: float = 0.0
    accuracy: float = 0.0


class Difficulty:
    """Learns from losses, and accepts candidates by what was learned.

    Args:
        planner: What says how to learn.
        features: Table where features are found, and put if they were missing: of the planner's samples and resolution.
        compute: Function that makes the images whose features are missing.
    """

    def __init__(self, planner: AutoAssist, features: FeatureTable, compute: Compute) -> None:
        self.features = features
        self._planner = planner
        self._compute = compute

    def learned(self, belief: Belief, indices: Indices, losses: NDArray[np.float32], *, first: bool) -> Belief:
        """Compare losses with the threshold, update the averages, and take one gradient step.

        Args:
            belief: What was learned before.
            indices: Samples of a batch, shape (batch_size,).
            losses: Losses of the samples, shape (batch_size,).
            first: Whether these are the first losses.
        """
        planner = self._planner
        kept = 0.0 if first else planner.loss_momentum
        threshold = kept * belief.threshold + (1 - kept) * float(losses.mean(dtype=np.float64))
        hard = losses > threshold
        inputs = self.inputs(indices)
        expected = _logistic(inputs @ belief.weights)
        accuracy = float(np.mean((expected > 0.5) == hard))
        gradient = inputs.T @ (expected - hard) / len(losses)
        gradient[:-1] += planner.weight_decay * belief.weights[:-1]
        return Belief(
            weights=belief.weights - planner.learning_rate * gradient,
            threshold=threshold,
            accuracy=planner.accuracy_momentum * belief.accuracy + (1 - planner.accuracy_momentum) * accuracy,
        )

    def accepts(self, belief: Belief, indices: Indices, serving: Indices) -> Mask:
        """Decide about candidates, as Algorithm 1 does, shape (n,); those that gamma lets in need no features.

        Args:
            belief: What was learned.
            indices: Samples of the candidates, shape (n,).
            serving: Which draw of the final augmentation each candidate has, shape (n,).
        """
        doubt, luck = uniforms(self._planner.seed, "auto assist", indices, serving, 2).T
        accepts: Mask = doubt < 1 - belief.accuracy
        judged = np.flatnonzero(~accepts)
        if len(judged):
            accepts[judged] = luck[judged] < _logistic(self.inputs(indices[judged]) @ belief.weights)
        return accepts

    def inputs(self, indices: Indices) -> NDArray[np.float64]:
        """Return features over the square root of their number, and a 1 for the bias, shape (n, features + 1)."""
        missing = self.features.missing(indices)
        if len(missing):
            self.features.fill(missing, self._compute(missing))
        rows = self.features.rows(indices)
        return np.column_stack([rows / math.sqrt(rows.shape[1]), np.ones(len(rows))])


def _logistic(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 / (1 + exp(-values)), without overflow."""
    probabilities: NDArray[np.float64] = np.exp(-np.logaddexp(0, -values))
    return probabilities
