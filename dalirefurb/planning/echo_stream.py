"""Echo stream: things that are repeated and pass through a shuffle buffer, known from any place of the stream on.

A buffer of `buffer_size` places is filled first. Then each thing that comes takes the place of one drawn at random,
which leaves; at the end the rest leaves in random order. The draws are functions of their number, so who is in the
buffer before any place of the stream is found from the draws just before it: as many as it takes to meet each place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dalirefurb.planning.batch_plan import Indices
from dalirefurb.planning.whole_numbers import scaled
from dalirefurb.rng import Bijection, key, numbered_keys

_NEVER = np.int64(1 << 62)


class Left(NamedTuple):
    """Repeats that leave at consecutive places of the stream, n of them, each of shape (n,).

    Attributes:
        units: Things that they repeat.
        repeats: Number of each repeat among those of its thing, from 0.
        first: Where the first repeat of the thing leaves; -1: before these places.
        last: Where the last one leaves, or a number above all places: after these.
    """

    units: Indices
    repeats: Indices
    first: Indices
    last: Indices


class EchoStream:
    """Repeats `units` things `total` times in all, and shuffles the repeats.

    Each is repeated floor or ceil of the mean m = total / units times. The first k things are repeated floor(m k + u)
    times, where u, a multiple of 1 / units in [0, 1), is drawn once per epoch: so the mean number of repeats is m for
    each of them. All is counted in integers.

    >>> stream = EchoStream(6, 9, 1, seed=0, epoch=0)
    >>> stream.leaving(0, 9).units.tolist()
    [0, 0, 1, 2, 2, 3, 4, 4, 5]

    Args:
        units: Number of things, at least 1.
        total: Number of repeats, at least `units`.
        buffer_size: Places of the shuffle buffer, at least 1; with 1 repeats leave as they come. No repeat leaves more
            than `buffer_size` - 1 places early.
        seed: The run's seed.
        epoch: Number of the epoch.
    """

    def __init__(self, units: int, total: int, buffer_size: int, *, seed: int, epoch: int) -> None:
        self._units = units
        self._total = total
        self._phase = int(key(seed, "echo", epoch)) % units
        self._places = min(buffer_size, total)
        self._flow = total - self._places  # where repeats stop to come
        self._key = key(seed, "echo buffer", epoch)
        self._drain = Bijection(self._places, key(seed, "echo drain", epoch))
        self._most = -(-total // units)
        # Who was in the buffer before a place of the stream.
        self._known: tuple[int, Indices] = 0, np.arange(self._places)

    def leaving(self, start: int, stop: int) -> Left:
        """Return what leaves at the places from `start` to `stop`, excluded."""
        inside = self._inside(start)
        flow = np.arange(min(start, self._flow), min(stop, self._flow))
        drain = np.arange(max(start, self._flow), max(stop, self._flow))
        place = self._drawn(flow)
        by_place = np.argsort(place, kind="stable")
        again = np.flatnonzero(place[by_place[1:]] == place[by_place[:-1]])  # those whose place the next one takes
        left = inside[place]
        left[by_place[again + 1]] = flow[by_place[again]] + self._places
        inside = inside.copy()
        inside[place] = flow + self._places  # of a place that is taken twice the last one counts
        left = np.concatenate([left, inside[self._drain.positions(drain - self._flow)]])
        self._known = stop, inside
        units = self._unit_of(left)
        starts, ends = self._start_of(units), self._start_of(units + 1)
        first, last = np.full(len(left), _NEVER), np.full(len(left), -1)
        for repeat in range(self._most):
            number = starts + repeat
            there = number < ends
            when = self._when(number, left, inside, start, stop)
            first = np.where(there, np.minimum(first, when), first)
            last = np.where(there, np.maximum(last, when), last)
        return Left(units, left - starts, first, last)

    def entered(self, start: int) -> tuple[int, Indices]:
        """Return how many things have come into the buffer before a place, whole or in part, and who is still in it."""
        count = min(start + self._places, self._total)
        inside = self._inside(start)
        if start > self._flow:
            inside = inside[self._drain.values(np.arange(self._places)) >= start - self._flow]
        begun = self._unit_of(inside)
        latest, following = self._unit_of(np.array([count - 1, count])).tolist()
        if following == latest:
            begun = np.append(begun, latest)
        return latest + 1, np.unique(begun)

    def _when(self, repeats: Indices, left: Indices, inside: Indices, start: int, stop: int) -> Indices:
        """Return when n repeats leave, as `Left` says; `left` leave from `start` on, others are `inside` at `stop`."""
        when = np.full(len(repeats), -1)
        order = np.argsort(left)
        places = order[np.minimum(np.searchsorted(left, repeats, sorter=order), len(left) - 1)]
        here = left[places] == repeats
        when[here] = start + places[here]
        flows = stop < self._flow
        to_come = (repeats >= stop + self._places) & flows
        when[to_come] = _NEVER
        rest = np.flatnonzero(~here & ~to_come)
        place = self._place_of(repeats[rest])
        stays = inside[place] == repeats[rest]
        when[rest[stays]] = _NEVER if flows else self._flow + self._drain.values(place[stays])
        return when

    def _inside(self, start: int) -> Indices:
        """Return the repeat at each place of the buffer before a place of the stream, shape (places,)."""
        before = min(start, self._flow)
        if min(self._known[0], self._flow) == before:
            return self._known[1]
        inside = np.full(self._places, -1)
        step = max(self._places, 1024)
        while before > 0 and (inside < 0).any():
            numbers = np.arange(max(0, before - step), before)
            latest = np.full(self._places, -1)
            latest[self._drawn(numbers)] = numbers + self._places  # of a place drawn twice the last one counts
            inside = np.where(inside < 0, latest, inside)
            before = int(numbers[0])
        return np.where(inside < 0, np.arange(self._places), inside)

    def _drawn(self, numbers: Indices) -> Indices:
        """Return the place that is given up at each place of the stream, shape (n,)."""
        return (numbered_keys(numbers.astype(np.uint64), self._key) % np.uint64(self._places)).astype(np.int64)

    def _place_of(self, repeats: Indices) -> Indices:
        """Return the place of the buffer that each repeat takes, shape (n,)."""
        return np.where(repeats < self._places, repeats, self._drawn(repeats - self._places))

    def _start_of(self, units: Indices) -> Indices:
        """Return the first repeat of each thing, shape (n,)."""
        return scaled(units, self._total, self._phase, self._units)

    def _unit_of(self, repeats: Indices) -> Indices:
        """Return the thing that each repeat is of, shape (n,): the last one that begins no later."""
        return scaled(repeats, self._units, self._units - self._phase - 1, self._total)
