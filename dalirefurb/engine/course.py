"""Course: how the training loop gets on, its time parted into waiting for batches and working with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from dalirefurb.dali.insides import THREADS
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.stats import Stats, Tally
from dalirefurb.system.threads import Times, watch_threads

_FIRST_PARTS_BATCHES = 8
_MOST_PARTS = 8

_FIRST_WATCHED = 3  # Steps: to look at every thread takes up to 0.1 ms of each.

_COMPUTES = 0.1  # Of a step's time, had it cores of its own: with less, other cores would not gain it a tenth.

Watch = Callable[[], Callable[[], Times]]
_WATCH = partial(watch_threads, "dalirefurb", THREADS)


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
        clock: Function that returns the time in seconds.
        watch: Function that begins to watch threads, see `watch_threads`.
    """

    def __init__(self, tally: Tally, clock: Callable[[], float] = time.perf_counter, watch: Watch = _WATCH) -> None:
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
        """Count the batch that was asked for and is handed out now.

        Args:
            position: Position of the batch.
            following: Position of the next batch.
            counts: Further counts, by their names in `Stats`.
        """
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
