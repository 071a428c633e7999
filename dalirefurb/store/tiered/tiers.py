"""Several open stores as one: each version is in one of them, and goes where a `Placement` says.

How it is intended to behave (if the code differs, that is a bug):

* What any tier holds is found, also while it moves.
* With advice each version is in the tier that the placement decides, if that one can take it, else in the next slower
  one that can. What a slower tier still has a copy of is not written there again.
* Without advice a version goes to the fastest tier with room, and stays there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Image, Images
from dalirefurb.store.base import Keys, Store, not_open
from dalirefurb.store.key_index import Numbers, distinct
from dalirefurb.store.lease import Lease
from dalirefurb.store.tiered.moves import Moves
from dalirefurb.store.tiered.placement import Placement
from dalirefurb.store.tiered.versions import NOWHERE


class Tiers:
    """Open stores, from the fastest, and which of them holds what.

    One call at a time changes what they hold, and `get` waits for it only if it misses what they should hold.

    Args:
        stores: The stores of the tiers, from the fastest.
        slots: Slots of each tier.

    Attributes:
        stores: The stores of the tiers, from the fastest.
        hits: Samples that each tier has lent, shape (tiers,).
    """

    def __init__(self, stores: Sequence[Store], slots: Sequence[int]) -> None:
        self.stores = list(stores)
        self.hits = np.zeros(len(self.stores), np.int64)
        self._lock = Lock()
        self._counting = Lock()
        self._closed = False
        self._placement = Placement(slots)
        for tier, store in enumerate(self.stores):
            keys = store.recovered()
            is_faster = self._placement.are_put(keys)
            self._placement.relocate(_rows(keys, ~is_faster), tier)
            self._placement.add_spares(_rows(keys, is_faster), tier)

    def __len__(self) -> int:
        """Count the versions held."""
        with self._lock:
            return sum(map(len, self.stores)) - self._placement.num_spares

    def get(self, keys: Keys) -> Lease:
        """Lend samples; see `Store.get`."""
        parts: list[tuple[Numbers, Images]] = []
        with ExitStack() as leases:
            missing = self._lend(keys, np.arange(len(keys[0])), parts, leases)
            if len(missing) and (self._placement.tiers(_rows(keys, missing)) >= 0).any():
                with self._lock:  # It moved just now, or it is lost.
                    missing = self._lend(keys, missing, parts, leases)
                    lost = _rows(keys, missing)
                    self._placement.forget(_rows(lost, self._placement.are_put(lost)))
            if self._closed:  # What was lent may be of a later opening.
                raise not_open()
            release = leases.pop_all().close
        found = np.ones(len(keys[0]), np.bool_)
        found[missing] = False
        places = np.cumsum(found) - 1
        images = Images.joined(int(found.sum()), [(places[rows], part) for rows, part in parts])
        return Lease(found, images, release)

    def prefetch(self, keys: Keys) -> None:
        """Let each tier prepare what lives there."""
        if len(self.stores) == 1:
            self.stores[0].prefetch(*keys)
            return
        homes = self._placement.tiers(keys)
        for tier, store in enumerate(self.stores):
            rows = homes == tier
            if rows.any():
                store.prefetch(*_rows(keys, rows))

    def advise(self, keys: Keys, next_uses: Numbers) -> None:
        """Move what is held to where it should live, given its next use, and decide where to put what is not held."""
        with self._changing():
            rows = _last(keys)
            is_over = next_uses[rows] < 0
            self._forget(_rows(keys, rows[is_over]))
            rows = rows[~is_over]
            self._carry_out(self._placement.settle(_rows(keys, rows), next_uses[rows]))

    def put(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Copy samples in; see `Store.put`."""
        stored = np.zeros(len(samples), np.bool_)
        with self._changing():
            if len(distinct(keys[0])) == len(samples) and not len(self._older(keys)[0]):
                return self._put(keys, samples)
            for row, sample in enumerate(samples):  # What goes makes room for those after it.
                key = keys[0][row : row + 1], keys[1][row : row + 1]
                self._forget(self._older(key))
                stored[row] = self._put(key, [sample])[0]
        return stored

    def evict(self, indices: Numbers) -> None:
        """Forget every version of these indices, shape (n,)."""
        with self._changing():
            for store in self.stores:
                store.evict(indices)
            self._placement.forget(self._placement.of(distinct(indices)))

    def retain(self, keys: Keys) -> None:
        """Forget everything but these versions."""
        with self._changing():
            for store in self.stores:
                store.retain(*keys)
            self._placement.retain(keys)

    def close(self) -> None:
        """Close the stores, once nothing is changed in them."""
        with self._lock:
            self._closed = True
            for store in self.stores:
                store.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep others from changing anything meanwhile; refuse to change what a later opening holds."""
        with self._lock:
            if self._closed:
                raise not_open()
            yield

    def _lend(self, keys: Keys, rows: Numbers, parts: list[tuple[Numbers, Images]], leases: ExitStack) -> Numbers:
        """Ask the tiers in turn for some rows, add what each lends, and return those that none of them holds."""
        for tier, store in enumerate(self.stores):
            if not len(rows):
                break
            lease = store.get(*_rows(keys, rows))
            leases.callback(lease.release)
            parts.append((rows[lease.found], lease.images))
            with self._counting:
                self.hits[tier] += np.count_nonzero(lease.found)
            rows = rows[~lease.found]
        return rows

    def _carry_out(self, moves: Moves) -> None:
        """Move bytes: what rises is taken first, then each tier makes room and takes what sinks, the slowest first."""
        keys, origins, targets = moves.copies
        if not len(origins) and not len(moves.frees.tiers):
            return
        images: list[Image | None] = [None] * len(origins)
        for origin in range(len(self.stores)):
            rising = np.flatnonzero((origins == origin) & (targets < origin))
            with self._lent(_rows(keys, rising), origin) as samples:
                for row, sample in zip(rising.tolist(), samples, strict=True):
                    images[row] = None if sample is None else sample.copy()
        for tier in reversed(range(len(self.stores))):
            self._free(_rows(moves.frees.keys, moves.frees.tiers == tier), tier)
            for origin in range(tier):
                sinking = _rows(keys, (origins == origin) & (targets == tier))
                with self._lent(sinking, origin) as samples:
                    self._fill(sinking, samples, tier)
        for tier in range(len(self.stores)):
            rising = np.flatnonzero((targets == tier) & (tier < origins))
            self._fill(_rows(keys, rising), [images[row] for row in rising.tolist()], tier)

    def _put(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Put versions of different indices where they are to go, by default in the fastest tier with room."""
        targets = np.where(self._placement.are_put(keys), NOWHERE, self._placement.targets(keys))
        for tier in range(len(self.stores)):
            rows = np.flatnonzero(targets == tier)
            self._fill(_rows(keys, rows), [samples[row] for row in rows.tolist()], tier)
        return self._placement.are_put(keys)

    def _older(self, keys: Keys) -> Keys:
        """Return the versions that have to go before these are put: older ones than those that are not held already."""
        return self._placement.older(_rows(keys, ~self._placement.are_put(keys)))

    def _fill(self, keys: Keys, samples: Sequence[Image | None], tier: int) -> None:
        """Put versions into a tier; what it declines goes to the next slower one that takes it, or is forgotten."""
        is_lost = np.ones(len(samples), np.bool_)
        images = {row: sample for row, sample in enumerate(samples) if sample is not None}
        for number, store in enumerate(self.stores[tier:], tier):
            if not images:
                break
            rows = np.array([*images])
            rows = rows[store.put(*_rows(keys, rows), [*images.values()])]
            self._placement.relocate(_rows(keys, rows), number)
            is_lost[rows] = False
            for row in rows.tolist():
                del images[row]
        self._forget(_rows(keys, is_lost))

    def _free(self, keys: Keys, tier: int) -> None:
        """Have a tier forget versions, and no other versions of their indices."""
        if not len(keys[0]):
            return
        indices = distinct(keys[0])
        if self._placement.copies(self._placement.of(indices))[:, tier].any():
            self.stores[tier].retain(*self._placement.held(tier))
        else:
            self.stores[tier].evict(indices)

    def _forget(self, keys: Keys) -> None:
        """Forget different versions, wherever they are."""
        if not len(keys[0]):
            return
        copies = self._placement.copies(keys)
        self._placement.forget(keys)
        for tier in range(len(self.stores)):
            self._free(_rows(keys, copies[:, tier]), tier)

    @contextmanager
    def _lent(self, keys: Keys, tier: int) -> Iterator[list[Image | None]]:
        """Borrow those versions that a tier holds."""
        if not len(keys[0]):
            yield []
            return
        with self.stores[tier].get(*keys) as lease:
            yield lease.samples


def _rows(keys: Keys, rows: Numbers | NDArray[np.bool_]) -> Keys:
    """Return some of n versions, by number or mask."""
    return keys[0][rows], keys[1][rows]


def _last(keys: Keys) -> Numbers:
    """Return the last row of each of n versions, ascending."""
    if len(distinct(keys[0])) == len(keys[0]):
        return np.arange(len(keys[0]))
    order = np.lexsort(keys)
    ends = np.ones(len(order), np.bool_)
    ends[:-1] = (np.diff(keys[0][order]) != 0) | (np.diff(keys[1][order]) != 0)
    rows: Numbers = np.sort(order[ends])
    return rows
