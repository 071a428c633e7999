"""Counts and times of what a loader has done, how the training loop gets on, and whether it waits for data."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

from dalirefurb.engine.batch_group import Position
from dalirefurb.system.threads import Times

_LEAST_STEP_S = 1e-6
"""A step that is less is nothing to divide by."""

_FIRST_PARTS_BATCHES = 8
_MOST_PARTS = 8

_FIRST_WATCHED = 3  # Steps: to look at every thread takes up to 0.1 ms of each.

_COMPUTES = 0.1  # Of a step's time, had it cores of its own: with less, other cores would not gain it a tenth.

Watch = Callable[[], Callable[[], Times]]
"""Begins to watch threads; what it returns says what they did meanwhile, see `watch_threads`."""


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
        dropped_objects: Objects of these rows that were left out, as less was left of them than `Boxes` asks for; those
            of an image in each `Mosaic`, or other image of several, that it is in.
        stored: Partial images put into the store.
        declined: Partial images the store had no room for.
        files: Encoded images that were read to be decoded, also of batches made ahead.
        pillow_images: Those of `files` that Pillow decoded, since they are of no kind that DALI is given.
        planning_s: Seconds that the loader's threads spent planning.
        preparing_s: Seconds that the loader's threads spent drawing parameters and feeding.
        storing_s: Seconds that the loader's threads spent on the store, and on telling it what it will be asked for.
        reading_wait_s: Seconds that the loader's threads waited for files.
        graph_wait_s: Seconds that the loader's threads computed, or waited for what computes.
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
    dropped_objects: int = 0
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
        spent = [f"{name} {taken:.1f} s" for name, taken in sorted(times.items(), key=lambda each: -each[1]) if taken]
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


class Steady(NamedTuple):
    """What a verdict on a loader is made of.

    Attributes:
        stats: What was done since the first epoch, or in it if it is not over; without its first batch, for which all
            began.
        parts: The same, parted by time into up to 8 parts of equally many batches; the last batches are in none.
        first_epoch: What was done in the first epoch, without its first batch; None while it is not over.
        computes: Whether the loop computes on cores of this machine, as far as is known.
    """

    stats: Stats
    parts: tuple[Stats, ...]
    first_epoch: Stats | None
    computes: bool


class Course:
    """Counts the batches that are handed out, and times the training loop between them.

    Two looks at the clock a batch. The time from handing a batch out to being asked for the next one of its epoch is
    the loop's own; between two epochs there may be a pause, such as validation, so that is nobody's. In the first
    steps, and in fewer and fewer of the others, all threads but the loaders' are watched, whichever a step computes on.

    Args:
        tally: Counter of what is done, see `Stats`.
        watch: Function that begins to watch the threads that the model may compute on.
        clock: Function that returns the time in seconds.
    """

    def __init__(self, tally: Tally, watch: Watch, clock: Callable[[], float] = time.perf_counter) -> None:
        self._tally = tally
        self._clock = clock
        self._watch = watch
        self._watched: Callable[[], Times] | None = None
        self._watches_next = True
        # Seconds in which watched steps computed, and in which they neither computed nor waited for a core.
        self._at_work: list[tuple[float, float]] = []
        self._asked_s = self._handed_s = 0.0
        self._following: Position | None = None
        self._worked_s: float | None = None
        self._epoch: int | None = None
        self._first_epoch: Stats | None = None
        # Snapshots, each `_every` batches after the one before it.
        self._marks: list[Stats] = []
        self._every = _FIRST_PARTS_BATCHES

    def ask(self, position: Position | None) -> None:
        """Be told that the training loop asks for the batch at a position; None: an interrupted one is made again."""
        self._asked_s = self._clock()
        goes_on = position is not None and position.batch > 0 and position == self._following
        self._worked_s = self._asked_s - self._handed_s if goes_on else None
        if self._watched is not None and self._worked_s is not None:
            computed_s, waited_s = self._watched()
            self._at_work.append((computed_s, max(0.0, self._worked_s - computed_s - waited_s)))
        self._following = self._watched = None

    def hand(self, position: Position, following: Position, **counts: int) -> None:
        """Count the batch that was asked for and is handed out now, with further counts, by their names in `Stats`."""
        if self._first_epoch is None and self._epoch not in (None, position.epoch):
            ended = self._tally.stats()
            self._first_epoch = ended - self._marks[0]
            self._marks, self._every = [ended], _FIRST_PARTS_BATCHES
        self._handed_s, self._following = self._clock(), following
        worked = {} if self._worked_s is None else {"steps": 1, "consumer_busy_s": self._worked_s}
        self._tally.add(batches=1, **counts, consumer_wait_s=self._handed_s - self._asked_s, **worked)
        self._epoch = position.epoch
        self._mark()
        if self._watches_next and following.batch:
            self._watched, self._watches_next = self._watch(), self._tally.batches < _FIRST_WATCHED

    def _mark(self) -> None:
        """Take a snapshot if it is time; where there are many, leave every second one out from now on."""
        batches = self._tally.batches
        if not self._marks or batches - self._marks[-1].batches == self._every:
            self._marks.append(self._tally.stats())
            self._watches_next = True
        if len(self._marks) > _MOST_PARTS + 1:
            self._marks, self._every = self._marks[::2], 2 * self._every

    def steady(self, since: Stats | None = None) -> Steady:
        """Return what a verdict is made of; may be called by any thread.

        Args:
            since: Snapshot that what is looked at begins with; None: the first epoch's end.
        """
        now, marks, first_epoch = self._tally.stats(), [*self._marks], self._first_epoch
        watched = self._at_work[1:] or self._at_work[:1]  # The first step may prepare what others need not.
        computes = sum(computed for computed, _ in watched) >= _COMPUTES * sum(map(sum, watched))
        if since is not None:
            marks = [since, *(mark for mark in marks if mark.batches > since.batches)]
        if not marks:
            return Steady(Stats(), (), None, computes)
        return Steady(now - marks[0], tuple(late - early for early, late in pairwise(marks)), first_epoch, computes)


DETECTED_ABOVE = 1.5
POTENTIAL_ABOVE = 1.1


class Verdict(str, Enum):
    """Whether the loader holds training back.

    Attributes:
        DETECTED: It does; training would be more than 1.5 times as fast with data at no cost.
        POTENTIAL: It does a little; training would be more than 1.1 times as fast.
        NOT_DETECTED: It does not.
        INCONCLUSIVE: What was measured is too little, or varies too much, to tell.
    """

    DETECTED = "DETECTED"
    POTENTIAL = "POTENTIAL"
    NOT_DETECTED = "NOT DETECTED"
    INCONCLUSIVE = "INCONCLUSIVE"

    def __str__(self) -> str:
        return self.value


def verdict_of(headspace: float) -> Verdict:
    """Return the verdict for how many times as fast training would be if data cost nothing.

    NaN, which nothing measured leaves, is inconclusive.

    >>> str(verdict_of(1.6)), str(verdict_of(1.5)), str(verdict_of(1.0))
    ('DETECTED', 'POTENTIAL', 'NOT DETECTED')
    """
    if headspace != headspace:
        return Verdict.INCONCLUSIVE
    if headspace > DETECTED_ABOVE:
        return Verdict.DETECTED
    return Verdict.POTENTIAL if headspace > POTENTIAL_ABOVE else Verdict.NOT_DETECTED
