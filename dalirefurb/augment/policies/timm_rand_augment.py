"""timm's RandAugment: operations that are left out at random, at magnitudes that vary, from one of several sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.policies.leveled import Floats, Leveled, LeveledOperation, LeveledTable
from dalirefurb.augment.policies.magnitude_noise import QUANTILES, STEADY, MagnitudeNoise, checked_noise
from dalirefurb.augment.policies.operation_layer import Fill, OperationLayer
from dalirefurb.augment.policies.operations import Group
from dalirefurb.augment.policies.sub_policies import cumulative, pick
from dalirefurb.augment.policies.timm_operations import FULL, SETS, operations_of
from dalirefurb.augment.stage import Arrays, Interpolation
from dalirefurb.checks import number, require


@lru_cache
def table_of(names: tuple[str, ...]) -> LeveledTable:
    """Return a table of timm's operations, after the one that does nothing."""
    return LeveledTable(operations_of(names))


def check_set(name: str, operations: object) -> None:
    """Refuse a set of operations that there is not.

    Raises:
        ConfigurationError: If there is no such set.
    """
    known = isinstance(operations, str) and operations in SETS
    require(known, f"{name}: operations", f"one of {', '.join(SETS)}", operations, "choose one")


def checked_magnitude(name: str, magnitude: object) -> float:
    """Return the magnitude of a stage's operations.

    Raises:
        ConfigurationError: If it is no number, or below 0.
    """
    remedy = "10 is the end of an operation's range"
    return number(f"{name}: magnitude", magnitude, "of at least 0", lambda m: 0 <= m < np.inf, remedy)


def checked_probability(name: str, probability: object) -> float:
    """Return the probability that an operation is applied.

    Raises:
        ConfigurationError: If it is no number in 0..1.
    """
    remedy = "0.5 is usual, 1 applies every operation"
    return number(f"{name}: probability", probability, "in 0..1", lambda p: 0 <= p <= 1, remedy)


def chances_of(operation: LeveledOperation, magnitude: float, noise: MagnitudeNoise) -> Floats:
    """Return the probabilities of what an operation can do, of one sign, at magnitudes that vary.

    Where these are countless, each stands for as many that are as likely together.
    """
    middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
    arguments = np.atleast_2d(operation.arguments(noise.quantiles(magnitude), middles))  # (arguments, quantiles)
    _, counts = np.unique(arguments, axis=1, return_counts=True)
    return counts / QUANTILES


@dataclass(frozen=True)
class TimmRandAugmentLayer(OperationLayer):
    """One operation of a set, applied with a probability, at a magnitude that varies. Defaults are timm's.

    Attributes:
        operations: Set of operations: "decreasing", "increasing" (operations whose effect grows with the magnitude),
            "weights", "3a", "3aw", "w0" or "w0_increasing"; see `timm_operations.SETS`.
        magnitude: Magnitude of the operations; 10 is the end of their range.
        noise: How the magnitude varies.
        probability: Probability that the operation is applied.
    """

    name: str = "timm_rand_augment"
    interpolation: Interpolation = "bilinear"
    fill: Fill = 128
    operations: str = "decreasing"
    magnitude: float = FULL
    noise: MagnitudeNoise = STEADY
    probability: float = 0.5

    num_uniforms = 6  # operation, whether it is applied, sign, the magnitude's noise (two), the operation's own

    def __post_init__(self) -> None:
        super().__post_init__()
        check_set(self.name, self.operations)
        object.__setattr__(self, "magnitude", checked_magnitude(self.name, self.magnitude))
        object.__setattr__(self, "noise", checked_noise(self.name, self.noise))
        object.__setattr__(self, "probability", checked_probability(self.name, self.probability))

    @property
    def table(self) -> LeveledTable:
        """The set's operations, after the one that does nothing."""
        return table_of(tuple(SETS[self.operations]))

    @property
    def groups(self) -> Sequence[Group]:
        """See `OperationLayer.groups`."""
        return self.table.groups

    @property
    def outcomes(self) -> NDArray[np.float64]:
        """One for doing nothing, and some for each operation and sign, as many as their magnitudes are taken for."""
        shares, chances = self._shares, [np.array([1 - self.probability])]
        for share, operation in zip(shares, self.table.operations[1:], strict=True):
            signs = 1 + operation.signed
            each = share * self.probability / signs * chances_of(operation, self.magnitude, self.noise)
            chances += [each] * signs
        return np.concatenate(chances)

    @property
    def _shares(self) -> Floats:
        """Probability of each operation of the set."""
        weights = np.array(list(SETS[self.operations].values()), np.float64)
        shares: Floats = weights / weights.sum()
        return shares

    def draw(self, uniforms: NDArray[np.float64], heights: NDArray[np.int64], widths: NDArray[np.int64]) -> Arrays:
        """Draw an operation, whether it is applied, and its magnitude and sign; see `Stage.draw`."""
        picked = 1 + pick(cumulative(self._shares[None, :]), uniforms[:, 0])
        applied = np.where(uniforms[:, 1] < self.probability, picked, 0)
        magnitudes = self.noise.draw(np.full(len(uniforms), self.magnitude), uniforms[:, 3:5])
        drawn = Leveled(applied, magnitudes, uniforms[:, 2] < 0.5, uniforms[:, 5])
        return self.table.parameters(drawn, heights=heights, widths=widths)
