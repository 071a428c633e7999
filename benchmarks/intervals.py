"""How sure is a mean? A figure is taken once a seed, and its mean stands in an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student


@dataclass(frozen=True)
class Interval:
    """Mean of a figure taken once a seed, and half of its 95 % interval (Student's t)."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Summarise at least two seeds."""
        count = len(values)
        half = student.ppf(0.975, count - 1) * np.std(values, ddof=1) / math.sqrt(count)
        return cls(float(np.mean(values)), float(half))

    @property
    def lower(self) -> float:
        """Where the interval begins."""
        return self.mean - self.half_width

    @property
    def upper(self) -> float:
        """Where it ends."""
        return self.mean + self.half_width

    def show(self) -> str:
        """Write mean and interval."""
        return f"{self.mean:.2f} [{self.lower:.2f}, {self.upper:.2f}]"
