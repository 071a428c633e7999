"""Statistics of accuracy: what pairs of runs differ by, and a curve of accuracy against the share of different images.

    pairs    BCa bootstrap interval of the mean difference (Efron 1987), p of a sign-flip test
    curve    accuracy = level of the order + slope x log(kept): as many points are lost with each halving of the
             different images; interval by a bootstrap of runs

Test error falls as a power of the number of different images (Hestness et al. 2017), so over a small range it is a line
in its logarithm. A line has one parameter, and few runs cannot tell a freer curve from noise; what lies beside it is
told of each case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from claims import Interval
from numpy.typing import NDArray

RESAMPLES = 9999
LEAST_PAIRS = 10
"""Of which a bootstrap knows the tails; of fewer the interval is Student's."""


@dataclass(frozen=True)
class Paired:
    """Mean difference of pairs, with its 95 % interval.

    Attributes:
        mean: Of the differences.
        lower: Where the interval begins.
        upper: Where it ends.
        p: Of a sign-flip test: how often a mean is as far from 0 where no pair has a sign of its own.
        deviation: Standard deviation of the differences.
        correlation: Between both runs of a pair: what pairing takes from the noise.
        pairs: How many there are.
    """

    mean: float
    lower: float
    upper: float
    p: float
    deviation: float
    correlation: float
    pairs: int

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Paired:
        """Compare at least two pairs, pair by pair."""
        from scipy.stats import bootstrap, permutation_test  # large, and few scripts have seeds

        differences = np.subtract(ours, theirs)
        deviation = float(np.std(differences, ddof=1))
        settings = {"n_resamples": RESAMPLES, "rng": np.random.default_rng(0)}
        flipped = permutation_test((differences,), np.mean, permutation_type="samples", vectorized=True, **settings)
        student = Interval.of(differences.tolist())
        lower, upper = student.lower, student.upper
        if len(differences) >= LEAST_PAIRS and deviation > 0:
            lower, upper = bootstrap((differences,), np.mean, method="BCa", **settings).confidence_interval
        both_vary = min(np.std(ours), np.std(theirs)) > 0
        return cls(
            mean=float(differences.mean()),
            lower=float(lower),
            upper=float(upper),
            p=float(flipped.pvalue),
            deviation=deviation,
            correlation=float(np.corrcoef(ours, theirs)[0, 1]) if both_vary else 0.0,
            pairs=len(differences),
        )

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return (self.upper - self.lower) / 2

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.lower:+.2f}, {self.upper:+.2f}]"


@dataclass(frozen=True)
class Curve:
    """Accuracy against the share of different images that is kept.

    Attributes:
        runs: How many it was fitted to.
        levels: Accuracy where all is kept, by order of stages, in percent.
        halving: Points that are lost where half of the images are left: best guess, and ends of its 95 % interval.
        floor: Share at which the margin is lost, likewise; the first end is that of the smallest loss. 0 where nothing
            is lost.
        beyond: Mean of each case less the curve, in points, by name; cases that it was not fitted to, too.
    """

    runs: int
    levels: dict[str, float]
    halving: tuple[float, float, float]
    floor: tuple[float, float, float]
    beyond: dict[str, float]

    @classmethod
    def of(cls, points: Sequence[tuple[str, str, float, float]], others: Sequence[str], *, margin: float) -> Curve:
        """Fit it.

        Args:
            points: Of each run name of the case, order of stages, kept share and accuracy in percent.
            others: Names of cases that are not fitted to.
            margin: Points that may be lost.
        """
        orders = sorted({order for name, order, *_ in points if name not in others})
        rows = np.array([[*(order == each for each in orders), math.log(kept)] for _, order, kept, _ in points])
        accuracies = np.array([accuracy for *_, accuracy in points])
        fitted = np.flatnonzero([name not in others for name, *_ in points])
        found = _line(rows[fitted], accuracies[fitted])
        rng, slopes = np.random.default_rng(0), []
        by_order = [fitted[rows[fitted, column] == 1] for column in range(len(orders))]
        for _ in range(RESAMPLES):
            drawn = np.concatenate([rng.choice(each, len(each)) for each in by_order])
            slopes.append(_line(rows[drawn], accuracies[drawn])[-1])
        slope, least, most = (float(each) for each in (found[-1], *np.quantile(slopes, [0.025, 0.975])))
        halving = (slope * math.log(2), least * math.log(2), most * math.log(2))
        floor = tuple(math.exp(-margin / each) if each > 0 else 0.0 for each in (slope, least, most))
        beyond: dict[str, list[float]] = {}
        for (name, *_), rest in zip(points, accuracies - rows @ found, strict=True):
            beyond.setdefault(name, []).append(rest)
        return cls(
            runs=len(fitted),
            levels=dict(zip(orders, found.tolist(), strict=False)),
            halving=halving,
            floor=(floor[0], floor[1], floor[2]),
            beyond={name: float(np.mean(each)) for name, each in beyond.items()},
        )


def _line(rows: NDArray[np.float64], accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit by least squares."""
    found: NDArray[np.float64] = np.linalg.lstsq(rows, accuracies, rcond=None)[0]
    return found
