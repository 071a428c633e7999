"""Counts and times of what a loader has done, cumulative since construction."""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import Any

_LEAST_STEP_S = 1e-6
"""A step that is less is nothing to divide by."""


@dataclass(frozen=True)
class Stats:
    """A snapshot; the difference of two snapshots is what happened between them.

    Rows are counted when their batch is handed out. Times and what the store took also belong to batches made ahead.

    Attributes:
        batches: Number of batches handed out.
        steps: Number of batches whose time in the training loop is known: all but the last one of each pass.
        samples: Number of rows of the batches handed out; hits + misses.
        hits: Rows whose partial image was at hand: in the store, or on its way to it.
        misses: Rows whose partial image was computed for them.
        recomputed: Misses that the plan expected to hit: their version was not in the store, though of a good sample.
        replaced: Rows that show another sample than the plan's, since the plan's is bad.
        stored: Partial images put into the store.
        declined: Partial images the store had no room for.
        files: Encoded images that were read to be decoded, also of batches made ahead.
        pillow_images: Those of `files` that Pillow decoded, since they are of no kind that DALI is given.
        planning_s: Seconds that the loader's threads spent planning.
        preparing_s: Seconds that the loader's threads spent drawing parameters and feeding.
        storing_s: Seconds that the loader's threads spent on the store.
        reading_wait_s: Seconds that the loader's threads waited for files.
        graph_wait_s: Seconds that the loader's threads waited for DALI.
        pillow_s: Seconds that reading threads spent in Pillow.
        consumer_wait_s: Seconds the training loop waited for a batch.
        consumer_busy_s: Seconds the training loop worked between the batches of an epoch, `steps` times.
    """

    batches: int = 0
    steps: int = 0
    samples: int = 0
    hits: int = 0
    misses: int = 0
    recomputed: int = 0
    replaced: int = 0
    stored: int = 0
    declined: int = 0
    files: int = 0
    pillow_images: int = 0
    planning_s: float = 0.0
    preparing_s: float = 0.0
    storing_s: float = 0.0
    reading_wait_s: float = 0.0
    graph_wait_s: float = 0.0
    pillow_s: float = 0.0
    consumer_wait_s: float = 0.0
    consumer_busy_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Mean seconds that the training loop works with a batch; NaN if none is known."""
        return self.consumer_busy_s / self.steps if self.steps else math.nan

    @property
    def wait_s(self) -> float:
        """Mean seconds that the training loop waits for a batch; NaN if there are none."""
        return self.consumer_wait_s / self.batches if self.batches else math.nan

    @property
    def images_per_s(self) -> float:
        """Images that training gets through in a second, pauses between epochs left out; NaN if it is not known."""
        return self.samples / max(self.batches, 1) / max(self.wait_s + self.step_s, _LEAST_STEP_S)

    @property
    def headspace(self) -> float:
        """How many times as fast training would be if data cost nothing, at least 1; NaN if it is not known.

        >>> Stats(batches=10, steps=10, consumer_wait_s=1.0, consumer_busy_s=4.0).headspace
        1.25
        """
        return (self.step_s + self.wait_s) / max(self.step_s, _LEAST_STEP_S)

    @property
    def hit_rate(self) -> float:
        """Share of the rows handed out that hit, 0..1; 0 if there are none."""
        return self.hits / max(self.samples, 1)

    def as_dict(self, prefix: str = "") -> dict[str, float]:
        """Return all of it by name, with the hit rate, as loggers take it.

        >>> Stats(samples=8, hits=6, misses=2).as_dict("data/")["data/hit_rate"]
        0.75
        """
        return {f"{prefix}{name}": value for name, value in {**asdict(self), "hit_rate": self.hit_rate}.items()}

    def summary(self) -> str:
        """Say in one line what hit, and what time went to, the largest part of the loader's own time first.

        >>> print(Stats(samples=8, hits=6, misses=2, graph_wait_s=1.5, reading_wait_s=2.25).summary())
        75 % of 8 samples hit; training waited 0.0 s; the loader's threads: files 2.2 s, computing 1.5 s
        """
        times = {
            "planning": self.planning_s,
            "drawing": self.preparing_s,
            "the store": self.storing_s,
            "files": self.reading_wait_s,
            "computing": self.graph_wait_s,
        }
        spent = [f"{name} {time:.1f} s" for name, time in sorted(times.items(), key=lambda each: -each[1]) if time]
        return (
            f"{round(100 * self.hit_rate)} % of {self.samples:,} samples hit; training waited "
            f"{self.consumer_wait_s:.1f} s; the loader's threads: {', '.join(spent) or 'nothing'}"
        )

    def __add__(self, later: Stats) -> Stats:
        return Stats(**{field.name: getattr(self, field.name) + getattr(later, field.name) for field in fields(self)})

    __str__ = summary

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __sub__(self, earlier: Stats) -> Stats:
        return Stats(**{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)})


class Tally:
    """Adds up what several threads do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, **increments: float) -> None:
        """Add to fields of `Stats`, by their names."""
        with self._lock:
            for name, value in increments.items():
                self._counts[name] += value  # type: ignore[assignment]

    @property
    def batches(self) -> int:
        """Number of batches handed out."""
        return self._counts["batches"]

    def stats(self) -> Stats:
        """Return a snapshot."""
        with self._lock:
            return Stats(**self._counts)
