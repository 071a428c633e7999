"""Echo stream: things that are repeated and pass through a shuffle buffer, known from any place of the stream on.

A buffer of `buffer_size` places is filled first. Then each thing that comes takes the place of one drawn at random,
which leaves; at the end the rest leaves in random order. The draws are functions of their number, so who is in the
buffer before any place of the stream is found from the draws just before it: as many as it takes to meet each place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.planning.batch_plan import Indices
from dalirefurb.planning.whole_numbers import scaled
from dalirefurb.rng import Bijection, key, numbered_keys

_NEVER = np.int64(1 << 62)


class Left(NamedTuple):
    """Repeats that leave at consecutive places of the stream, n of them, each of shape (n,).

    Attributes:
        numbers: Number of each repeat, in the order in which they come.
        units: Things that they repeat.
        repeats: Number of each repeat among those of its thing, from 0.
        first: Where the first repeat of the thing leaves; -1: before these places.
        last: Where the last one leaves, or a number above all places: after these.
    """

    numbers: Indices
    units: Indices
    repeats: Indices
    first: Indices
    last: Indices


InnerRows = dict[str, NDArray[Any]]
"""Rows of the planner that is echoed, each array of shape (n,): those of its `BatchPlan`, and `evicted`, whether
the batch of a row evicts its sample."""


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

    Attributes:
        places: Places of the buffer: no more than there are repeats.
    """

    def __init__(self, units: int, total: int, buffer_size: int, *, seed: int, epoch: int) -> None:
        self._units = units
        self._total = total
        self._phase = int(key(seed, "echo", epoch)) % units
        self.places = min(buffer_size, total)
        self._flow = total - self.places  # where repeats stop to come
        self._key = key(seed, "echo buffer", epoch)
        self._drain = Bijection(self.places, key(seed, "echo drain", epoch))
        self._most = -(-total // units)
        # Who is in the buffer before a place of the stream; whoever goes on from there takes it, and changes it.
        self._known: dict[int, Indices] = {}

    def leaving(self, start: int, stop: int) -> Left:
        """Return what leaves at the places from `start` to `stop`, excluded."""
        inside = self.inside(start)
        flow = np.arange(min(start, self._flow), min(stop, self._flow))
        drain = np.arange(max(start, self._flow), max(stop, self._flow))
        place = self._drawn(flow)
        by_place = np.argsort(place, kind="stable")
        again = np.flatnonzero(place[by_place[1:]] == place[by_place[:-1]])  # those whose place the next one takes
        left = inside[place]
        left[by_place[again + 1]] = flow[by_place[again]] + self.places
        inside[place] = flow + self.places  # of a place that is taken twice the last one counts
        left = np.concatenate([left, inside[self._drain.positions(drain - self._flow)]])
        units = self.unit_of(left)
        starts, ends = self._start_of(units), self._start_of(units + 1)
        first, last = np.full(len(left), _NEVER), np.full(len(left), -1)
        for repeat in range(self._most):
            number = starts + repeat
            there = number < ends
            when = self._when(number, left, inside, start, stop)
            first = np.where(there, np.minimum(first, when), first)
            last = np.where(there, np.maximum(last, when), last)
        self._known.clear()
        self._known[stop] = inside
        return Left(left, units, left - starts, first, last)

    def coming(self, start: int, stop: int) -> Indices:
        """Return the repeats that come while others leave at the places from `start` to `stop`, excluded."""
        return np.arange(min(start, self._flow), min(stop, self._flow)) + self.places

    def inside(self, start: int) -> Indices:
        """Return the repeat at each place of the buffer before a place of the stream, by number, shape (places,)."""
        known = self._known.pop(start, None)
        if known is not None:
            return known
        before = min(start, self._flow)
        inside = np.full(self.places, -1)
        step = max(self.places, 1024)
        while before > 0 and (inside < 0).any():
            numbers = np.arange(max(0, before - step), before)
            latest = np.full(self.places, -1)
            latest[self._drawn(numbers)] = numbers + self.places  # of a place drawn twice the last one counts
            inside = np.where(inside < 0, latest, inside)
            before = int(numbers[0])
        return np.where(inside < 0, np.arange(self.places), inside)

    def entered(self, start: int) -> tuple[int, Indices]:
        """Return how many things have come into the buffer before a place, whole or in part, and who is still in it."""
        count = min(start + self.places, self._total)
        inside = self.inside(start)
        if start > self._flow:
            inside = inside[self._drain.values(np.arange(self.places)) >= start - self._flow]
        begun = self.unit_of(inside)
        latest, following = self.unit_of(np.array([count - 1, count])).tolist()
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
        to_come = (repeats >= stop + self.places) & flows
        when[to_come] = _NEVER
        rest = np.flatnonzero(~here & ~to_come)
        place = self.place_of(repeats[rest])
        stays = inside[place] == repeats[rest]
        when[rest[stays]] = _NEVER if flows else self._flow + self._drain.values(place[stays])
        return when

    def _drawn(self, numbers: Indices) -> Indices:
        """Return the place that is given up at each place of the stream, shape (n,)."""
        return (numbered_keys(numbers.astype(np.uint64), self._key) % np.uint64(self.places)).astype(np.int64)

    def place_of(self, repeats: Indices) -> Indices:
        """Return the place of the buffer that each repeat takes, shape (n,)."""
        return np.where(repeats < self.places, repeats, self._drawn(repeats - self.places))

    def _start_of(self, units: Indices) -> Indices:
        """Return the first repeat of each thing, shape (n,)."""
        return scaled(units, self._total, self._phase, self._units)

    def unit_of(self, repeats: Indices) -> Indices:
        """Return the thing that each repeat is of, shape (n,): the last one that begins no later."""
        return scaled(repeats, self._units, self._units - self._phase - 1, self._total)


class RowBuffer:
    """The rows in the buffer of an `EchoStream`: each is asked for when it comes, and given back when it leaves."""

    def __init__(self, stream: EchoStream) -> None:
        self._stream = stream
        # The row at each place before a place of the stream; whoever goes on from there takes them, and changes them.
        self._known: dict[int, InnerRows] = {}

    def leaving(self, start: int, stop: int, ask: Callable[[Indices], InnerRows]) -> tuple[InnerRows, Left]:
        """Return the rows that leave at the places from `start` to `stop`, excluded, and what leaves there.

        `ask` returns rows by their numbers, shape (n,).
        """
        stream = self._stream
        held = self._known.pop(start, None)
        if held is None:
            held = ask(stream.unit_of(stream.inside(start)))
        left = stream.leaving(start, stop)
        coming = stream.coming(start, stop)
        come = ask(stream.unit_of(coming)) if len(coming) else {name: rows[:0] for name, rows in held.items()}
        is_new = left.numbers >= start + stream.places
        new, old = left.numbers[is_new] - start - stream.places, stream.place_of(left.numbers[~is_new])
        taken = stream.place_of(coming)
        gone: InnerRows = {}
        for name, rows in held.items():
            gone[name] = np.empty(len(left.numbers), rows.dtype)
            gone[name][is_new], gone[name][~is_new] = come[name][new], rows[old]
            rows[taken] = come[name]  # of a place that is taken twice the last one counts
        self._known.clear()
        self._known[stop] = held
        return gone, left
