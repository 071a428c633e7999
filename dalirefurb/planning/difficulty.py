"""Difficulty: which samples the model finds hard, learned from losses by logistic regression on features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.batch_plan import Indices, Mask
from dalirefurb.planning.features import FeatureTable
from dalirefurb.rng import uniforms

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
        features: Table where features are found, and put if they were missing.
        compute: Function that makes the images whose features are missing.
    """

    def __init__(self, planner: AutoAssist, features: FeatureTable, compute: Compute) -> None:
        expected, given = (planner.num_samples, planner.resolution), (features.num_samples, features.resolution)
        if given != expected:
            raise ConfigurationError(
                f"features must have the planner's samples and resolution, {expected[0]} and {expected[1]}, got "
                f"{given[0]} and {given[1]}: pass FeatureTable(planner.num_samples, resolution=planner.resolution)"
            )
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
