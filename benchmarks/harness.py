"""Turns of contenders in one run: how a figure is taken that can be compared, as a ratio of one round.

    round 0   standard ▏ reuse factor 2 ▏ reuse factor 3 ▏ ...
    round 1   ... ▏ reuse factor 3 ▏ reuse factor 2 ▏ standard          every second round runs backwards

    one turn   wait until the process is idle ▏ drained: until what was made ahead is gone, and the rate is steady
               ▏ timed: whole rotations

A machine that is slower for a minute slows all contenders of that round alike. What a contender made in the idle time
before its turn cost it nothing. So it is taken first, as fast as it comes, without the steps of a training loop: at the
rate of the steps it would last for as long as they hide. Then batches arrive at the rate at which they are made, which
is steady when two rotations of its workers took as long. What is timed is whole rotations: workers that began together
deliver together, batches that are made as one group arrive as one, and a cache that is refilled after each epoch is
slow at its beginning. `Slice.drained_s` holds the arrivals that were not timed, so a file shows that nothing was left.
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

from dalirefurb.system.resources import usable_cores
from dalirefurb.system.threads import wait_until_idle

cores = usable_cores

VERSION = 2
"""Of the way in which figures are taken; 1 counted a part of what was made ahead, and broken rotations."""

RAMP_BATCHES = 2
"""Batches that are served before a turn is timed, beside those that were made ahead."""

MOST_ROTATIONS = 4
"""After which a rate is taken for steady."""

_RAMP_SHARE = 1 / 3
_STEADY = 1.15
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
        rotation: Batches after which its work repeats: as many as its workers make at a time, or an epoch.
        step: What a training loop does with the batch that was served last; None: nothing.
    """

    name: str
    placement: Placement | str
    made_ahead: int
    batches: Generator[int, None, None]
    rotation: int = 1
    step: Callable[[], object] | None = None

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
        seconds: From the arrival of the last batch that is not timed to the end of the last one.
        batch_s: Time of each timed batch.
        drained_s: Time of each batch before.
    """

    contender: str
    placement: str
    round: int
    images: int
    seconds: float
    batch_s: list[float]
    drained_s: list[float]

    @property
    def images_per_s(self) -> float:
        """Throughput of the slice."""
        return self.images / self.seconds


def placements() -> list[Placement]:
    """List one core alone, every way of sharing out all cores, and more replicas than cores."""
    whole = [Placement(replicas, cores() // replicas) for replicas in range(1, cores() + 1) if cores() % replicas == 0]
    return list(dict.fromkeys([Placement(1, 1), *whole, Placement(cores() + 1, 1), Placement(2 * cores(), 1)]))


def interleave(
    contenders: Sequence[Entrant],
    *,
    rounds: int,
    timed_batches: int,
    timed_s: float = 0.0,
    most_rotations: int = MOST_ROTATIONS,
) -> list[Slice]:
    """Give each contender a slice in every round; for the arguments see `time_slice`."""
    slices: list[Slice] = []
    for number in range(rounds):
        turns = contenders if number % 2 == 0 else contenders[::-1]
        for entrant in turns:
            with entrant.turn() as contender:
                slices.append(time_slice(contender, number, timed_batches, timed_s, most_rotations))
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


def time_slice(
    contender: Contender, number: int, timed_batches: int, timed_s: float, most_rotations: int = MOST_ROTATIONS
) -> Slice:
    """Let a contender come to rest, have what it made ahead, and time it.

    Args:
        contender: Who has its turn.
        number: Of the round.
        timed_batches: That are timed, at least; in whole rotations.
        timed_s: Seconds that are timed, at least.
        most_rotations: That are waited for until the rate is steady: a machine can be restless. With 0, only what was
            made ahead is taken.
    """
    if not wait_until_idle(_IDLE_LIMIT_S):
        raise RuntimeError(f"contenders must come to rest between slices, but worked on for {_IDLE_LIMIT_S:.0f} s")
    turn = _Turn(contender)
    turn.drain(timed_s * _RAMP_SHARE, most_rotations)
    if contender.step is not None:
        # What a loader makes while the first steps are taken fills its buffers, and takes cores from the steps.
        turn.serve(contender.made_ahead + RAMP_BATCHES, 0.0, contender.step)
    drained, images = len(turn.arrivals) - 1, turn.images
    turn.serve(timed_batches, timed_s, contender.step)
    times = np.diff(turn.arrivals).round(6).tolist()
    return Slice(
        contender=contender.name,
        placement=str(contender.placement),
        round=number,
        images=turn.images - images,
        seconds=turn.arrivals[-1] - turn.arrivals[drained],
        batch_s=times[drained:],
        drained_s=times[:drained],
    )


def stepped(contender: Contender) -> Generator[int, None, None]:
    """Serve batches with their steps."""
    for images in contender.batches:
        if contender.step is not None:
            contender.step()
        yield images


class _Turn:
    """What a contender served since its turn began.

    Attributes:
        images: That were served.
        arrivals: When the turn began, and when each batch was there and its step was done.
    """

    def __init__(self, contender: Contender) -> None:
        self.images = 0
        self.arrivals = [time.perf_counter()]
        self._contender = contender

    def drain(self, least_s: float, most_rotations: int) -> None:
        """Take what was made ahead, and go on until two rotations took as long."""
        self.serve(self._contender.made_ahead + RAMP_BATCHES, least_s)
        taken: list[float] = []
        while len(taken) < most_rotations and not _steady(taken):
            began = self.arrivals[-1]
            self.serve(max(RAMP_BATCHES, self._contender.rotation), 0.0)
            taken.append(self.arrivals[-1] - began)

    def serve(self, batches: int, seconds: float, step: Callable[[], object] | None = None) -> None:
        """Serve whole rotations, of at least so many batches and for so long."""
        first = len(self.arrivals) - 1
        while (served := len(self.arrivals) - 1 - first) < batches or self._is_between(served, first, seconds):
            self.images += next(self._contender.batches)
            if step is not None:
                step()
            self.arrivals.append(time.perf_counter())

    def _is_between(self, served: int, first: int, seconds: float) -> bool:
        return served % self._contender.rotation > 0 or self.arrivals[-1] - self.arrivals[first] < seconds


def _steady(taken: Sequence[float]) -> bool:
    """Whether the last two rotations took as long."""
    return len(taken) > 1 and max(taken[-2:]) <= _STEADY * min(taken[-2:])
