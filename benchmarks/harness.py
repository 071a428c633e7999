"""Turns of contenders in one run: how a figure is taken that can be compared, as a ratio of one round.

    round 0   standard ▏ reuse factor 2 ▏ reuse factor 3 ▏ ...
    round 1   ... ▏ reuse factor 3 ▏ reuse factor 2 ▏ standard          every second round runs backwards

    one slice   wait until the process is idle ▏ batches made ahead, ramp: not timed ▏ timed batches

A machine that is slower for a minute slows all contenders of that round alike. Batches that a contender made ahead
in the idle time before its turn cost it nothing, so they are served first and never timed. A slice that lasts for at
least some seconds has a ramp of a third of them: memory that was let go of in the last turn comes back page by page,
and a contender that needs a millisecond for a batch writes to new pages for longer than its first batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

import numpy as np

from dalirefurb.system.cores import usable_cores
from dalirefurb.system.fair_comparison import wait_until_idle

cores = usable_cores

RAMP_BATCHES = 2
"""Batches that are served before a turn is timed, beside those that were made ahead."""

_RAMP_SHARE = 1 / 3
_IDLE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Placement:
    """How cores are shared out.

    Attributes:
        replicas: Pipelines that batches are dealt to in turn.
        threads: Of each pipeline.
    """

    replicas: int
    threads: int

    def __str__(self) -> str:
        return f"{self.replicas}x{self.threads}"


class Entrant(Protocol):
    """Whoever takes turns."""

    @property
    def name(self) -> str:
        """For tables and results."""

    def turn(self) -> AbstractContextManager[Contender]:
        """Serve batches for one turn, and let go of what is not needed until the next."""


@dataclass(frozen=True)
class Contender:
    """Something that serves batches.

    Attributes:
        name: For tables and results.
        placement: Where it runs, or how it is set.
        made_ahead: Batches that can be ready when its turn begins.
        batches: Serves a batch at each step and yields its number of images, without end.
    """

    name: str
    placement: Placement | str
    made_ahead: int
    batches: Generator[int, None, None]

    def turn(self) -> AbstractContextManager[Contender]:
        """Go on: nothing is let go of between turns."""
        return nullcontext(self)


@dataclass(frozen=True)
class Slice:
    """One turn of one contender.

    Attributes:
        contender: Its name.
        placement: Replicas x threads, or its setting.
        round: From 0.
        images: Served while the clock ran.
        seconds: From the arrival of the last batch that is not timed to that of the last one.
        batch_s: Time between arrivals, one per timed batch.
    """

    contender: str
    placement: str
    round: int
    images: int
    seconds: float
    batch_s: list[float]

    @property
    def images_per_s(self) -> float:
        """Throughput of the slice."""
        return self.images / self.seconds


def placements() -> list[Placement]:
    """List one core alone, every way of sharing out all cores, and more replicas than cores."""
    whole = [Placement(replicas, cores() // replicas) for replicas in range(1, cores() + 1) if cores() % replicas == 0]
    return list(dict.fromkeys([Placement(1, 1), *whole, Placement(cores() + 1, 1), Placement(2 * cores(), 1)]))


def interleave(contenders: Sequence[Entrant], *, rounds: int, timed_batches: int, timed_s: float = 0.0) -> list[Slice]:
    """Give each contender a slice in every round, of at least so many batches and seconds."""
    slices: list[Slice] = []
    for number in range(rounds):
        turns = contenders if number % 2 == 0 else contenders[::-1]
        for entrant in turns:
            with entrant.turn() as contender:
                slices.append(time_slice(contender, number, timed_batches, timed_s))
    return slices


def by_round(slices: Sequence[Slice], name: str) -> list[Slice]:
    """Return a contender's slices, one per round."""
    return sorted((each for each in slices if each.contender == name), key=lambda each: each.round)


def speeds_of(slices: Sequence[Slice]) -> dict[str, list[float]]:
    """Return the images/s of each contender, one figure per round."""
    names = dict.fromkeys(each.contender for each in slices)
    return {name: [each.images_per_s for each in by_round(slices, name)] for name in names}


def calibrate(
    make: Callable[[Placement], Contender],
    *,
    rounds: int,
    timed_batches: int,
    timed_s: float = 0.0,
    among: Sequence[Placement] | None = None,
) -> tuple[Placement, list[Slice]]:
    """Run a contender at every placement in turn, or at some; return the fastest by medians, and the slices.

    It is made anew for each slice: several at a time may need more memory than there is.
    """
    tried = placements() if among is None else among
    trials = [MadeAnew(str(placement), partial(make, placement)) for placement in tried]
    slices = interleave(trials, rounds=rounds, timed_batches=timed_batches, timed_s=timed_s)

    def speed(placement: Placement) -> float:
        return float(np.median([each.images_per_s for each in slices if each.placement == str(placement)]))

    return max(tried, key=speed), slices


@dataclass(frozen=True)
class MadeAnew:
    """A contender that is there only while it has its turn.

    Attributes:
        name: For tables and results.
        make: Makes it.
    """

    name: str
    make: Callable[[], Contender]

    @contextmanager
    def turn(self) -> Generator[Contender, None, None]:
        """Make the contender, let it touch the memory that it writes to, and let it go."""
        contender = self.make()
        try:
            for _ in islice(contender.batches, 2 * (contender.made_ahead + 1)):
                pass
            yield contender
        finally:
            contender.batches.close()


def time_slice(contender: Contender, number: int, timed_batches: int, timed_s: float) -> Slice:
    """Let a contender come to rest, have what it made ahead, and time it; `number` is that of the round."""
    if not wait_until_idle(_IDLE_LIMIT_S):
        raise RuntimeError(f"contenders must come to rest between slices, but worked on for {_IDLE_LIMIT_S:.0f} s")
    _serve(contender, contender.made_ahead + RAMP_BATCHES, timed_s * _RAMP_SHARE)
    images, arrivals = _serve(contender, timed_batches, timed_s)
    return Slice(
        contender=contender.name,
        placement=str(contender.placement),
        round=number,
        images=images,
        seconds=arrivals[-1] - arrivals[0],
        batch_s=np.diff(arrivals).round(6).tolist(),
    )


def _serve(contender: Contender, batches: int, seconds: float) -> tuple[int, list[float]]:
    """Serve at least so many batches and for so long; return the images, and when it began and each batch arrived."""
    images = 0
    arrivals = [time.perf_counter()]
    while len(arrivals) <= batches or arrivals[-1] - arrivals[0] < seconds:
        images += next(contender.batches)
        arrivals.append(time.perf_counter())
    return images, arrivals
