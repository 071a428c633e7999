"""Figures with what is promised of them: medians of rounds, means of seeds, and the tables that say them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

Speeds = Mapping[str, Sequence[float]]
"""Figures of each contender, one a round; most are images/s."""


LEAST_ROUNDS = 3
"""That have quartiles."""

ABOVE_BOUND = 1.02
"""Times its bound, a median is taken to be no more than it: both are measured."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a figure taken once a round; None in place of quartiles where rounds are too few."""

    lower: float | None
    median: float
    upper: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise the rounds."""
        lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        return cls(lower, median, upper) if len(values) >= LEAST_ROUNDS else cls(None, median, None)

    def __format__(self, decimals: str) -> str:
        """Write median and quartiles, with so many decimals."""
        median = f"{self.median:.{decimals}f}"
        if self.lower is None or self.upper is None:
            return f"{median} [too few rounds]"
        return f"{median} [{self.lower:.{decimals}f}, {self.upper:.{decimals}f}]"


@dataclass(frozen=True)
class Interval:
    """Mean of a figure taken once a seed, and half of its 95 % interval (Student's t)."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Summarise at least two seeds."""
        from scipy.stats import t as student  # large, and few scripts have seeds

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

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.lower:.2f}, {self.upper:.2f}]"


@dataclass(frozen=True)
class Claim:
    """One figure that can fall short.

    Attributes:
        name: What is compared with what.
        figure: Over the rounds.
        least: What the median is promised to reach, None if nothing is.
        most: What the median is promised not to exceed, None if nothing is.
        bound: What no loader can exceed, None if nothing is known: a figure above it is wrong.
    """

    name: str
    figure: Spread
    least: float | None = None
    most: float | None = None
    bound: float | None = None

    @classmethod
    def ratio(
        cls,
        name: str,
        upper: Sequence[float],
        lower: Sequence[float],
        least: float | None = None,
        most: float | None = None,
        bound: float | None = None,
    ) -> Claim:
        """Divide figures of one round by each other."""
        return cls(name, Spread.of([a / b for a, b in zip(upper, lower, strict=True)]), least, most, bound)

    @classmethod
    def possible(
        cls, name: str, achieved: Sequence[float], bound: Sequence[float], least: float | None = None
    ) -> Claim:
        """Divide what was achieved by what is possible, each measured in the same rounds."""
        return cls.ratio(name, achieved, bound, least, bound=1.0)

    @classmethod
    def between(
        cls,
        speeds: Speeds,
        upper: str,
        lower: str,
        least: float | None = None,
        most: float | None = None,
        bound: float | None = None,
    ) -> Claim:
        """Divide one contender's figures by another one's."""
        return cls.ratio(f"{upper} / {lower}", speeds[upper], speeds[lower], least, most, bound)

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Claim:
        """Make it of its JSON."""
        figure = Spread(**written["figure"])
        return cls(written["name"], figure, written["least"], written["most"], written.get("bound"))

    @property
    def impossible(self) -> bool:
        """Whether more was achieved than is possible: then the measurement is at fault."""
        return self.bound is not None and self.figure.median > ABOVE_BOUND * self.bound

    @property
    def holds(self) -> bool:
        """Whether the median is where it is promised to be; without a promise it is."""
        above = self.least is None or self.figure.median >= self.least
        return above and (self.most is None or self.figure.median <= self.most)

    @property
    def verdict(self) -> str:
        """Say what is promised and whether it holds."""
        if self.impossible:
            return f"IMPOSSIBLE: above {self.bound:.4g}"
        if self.least is not None:
            return f"{'reaches' if self.holds else 'MISSES'} {self.least}"
        if self.most is not None:
            return f"{'within' if self.holds else 'EXCEEDS'} {self.most}"
        return "reported" if self.bound is None else f"cannot exceed {self.bound:.4g}"


def impossible(results: Any) -> list[Claim]:
    """Find, anywhere in the results of a script, the figures that are above what is possible."""
    return [claim for claim in stated(results) if claim.impossible]


def stated(results: Any) -> list[Claim]:
    """Find all claims in the results of a script."""
    if isinstance(results, Claim):
        return [results]
    if isinstance(results, Mapping):
        parts: Iterable[Any] = results.values()
    elif isinstance(results, (list, tuple)):
        parts = results
    elif is_dataclass(results):
        parts = (getattr(results, each.name) for each in fields(results))
    else:
        return []
    return [claim for part in parts for claim in stated(part)]


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right."""
    lines = [heading, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    return "\n".join(
        "   ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def table_of(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Write a row of each mapping; below the heading of a column stands its template, such as "{bound.median:.0f}"."""
    return table(list(columns), [[each.format_map(row) for each in columns.values()] for row in rows])


def claim_table(claims: Sequence[Claim], heading: str = "ratio") -> str:
    """Write name, figure and verdict of each claim."""
    rows = [[claim.name, f"{claim.figure:{2 if claim.figure.median < 10 else 1}}", claim.verdict] for claim in claims]
    return table([heading, "median [quartiles]", ""], rows)


def say(*parts: str) -> None:
    """Print tables and headings, at once and apart from each other."""
    print("\n\n".join(parts) + "\n", flush=True)


def say_speeds(speeds: Speeds, claims: Sequence[Claim], *headings: str, unit: str = "images/s") -> None:
    """Print the speeds of all contenders, and what is claimed of them, below headings."""
    rows = [[name, f"{Spread.of(own):0}"] for name, own in speeds.items()]
    say(*headings, table(["contender", f"{unit} [quartiles]"], rows), claim_table(claims))


def bounds_of(hits: Sequence[float], all_missed: Sequence[float], misses: float) -> list[float]:
    """Return how fast each round can be if a share misses, given the speeds of hits alone, and of misses alone."""
    return [1 / (1 / hit + misses * (1 / missed - 1 / hit)) for hit, missed in zip(hits, all_missed, strict=True)]
