"""How do several open stores act as one? Each version is in one of them, and goes where a `Placement` says.

How it is intended to behave (if the code differs, that is a bug):

* What any tier holds is found, also while it moves.
* With advice each version is in the tier that the placement decides, if that one can take it, else in the next slower
  one that can. What a slower tier still has a copy of is not written there again.
* Without advice a version goes to the fastest tier with room, and stays there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dalirefurb.images import Image, Images
from dalirefurb.placement import Moves, Placement
from dalirefurb.store.contract import Keys, Lease, Pair, Store, pairs_of


class Tiers:
    """Open stores, from the fastest, and which of them holds what.

    One call at a time changes what they hold, and `get` waits for it only if it misses what they should hold.

    Args:
        stores: The tiers.
        slots: Of each tier.

    Attributes:
        stores: The tiers.
        hits: Samples that each tier has lent, shape (tiers,).
    """

    def __init__(self, stores: Sequence[Store], slots: Sequence[int]) -> None:
        self.stores = list(stores)
        self.hits = np.zeros(len(self.stores), np.int64)
        self._lock = Lock()
        self._counting = Lock()
        self._placement = Placement(slots)
        # What was decided about versions that are not put yet.
        self._expected: dict[Pair, int | None] = {}
        for tier, store in enumerate(self.stores):
            for pair in pairs_of(store.recovered()):
                if pair in self._placement:
                    self._placement.add_spare(pair, tier)
                else:
                    self._placement.relocate(pair, tier)

    def __len__(self) -> int:
        """Count the versions held."""
        with self._lock:
            return sum(map(len, self.stores)) - self._placement.num_spares

    def get(self, keys: Keys) -> Lease:
        """Lend samples; see `Store.get`."""
        parts: list[tuple[NDArray[np.int64], Images]] = []
        with ExitStack() as leases:
            missing = self._lend(keys, np.arange(len(keys[0])), parts, leases)
            if any(pair in self._placement for pair in pairs_of((keys[0][missing], keys[1][missing]))):
                with self._lock:  # It moved just now, or it is lost.
                    missing = self._lend(keys, missing, parts, leases)
                    for pair in pairs_of((keys[0][missing], keys[1][missing])):
                        if pair not in self._expected:
                            self._placement.relocate(pair, None)
            release = leases.pop_all().close
        found = np.ones(len(keys[0]), np.bool_)
        found[missing] = False
        places = np.cumsum(found) - 1
        images = Images.joined(int(found.sum()), [(places[rows], lent) for rows, lent in parts])
        return Lease(found, images, release)

    def prefetch(self, keys: Keys) -> None:
        """Let each tier prepare what lives there."""
        if len(self.stores) == 1:
            self.stores[0].prefetch(*keys)
            return
        homes = np.array(self._placement.tiers(pairs_of(keys)), np.int64)
        for tier, store in enumerate(self.stores):
            rows = homes == tier
            if rows.any():
                store.prefetch(keys[0][rows], keys[1][rows])

    def advise(self, keys: Keys, next_uses: NDArray[np.int64]) -> None:
        """Move what is held to where it should live, given its next use, and decide where to put what is not held."""
        with self._lock:
            for pair in self._expected:
                self._placement.relocate(pair, None)
            uses = dict(zip(pairs_of(keys), next_uses.tolist(), strict=True))
            for pair in [pair for pair, use in uses.items() if use < 0]:
                del uses[pair]
                if pair in self._placement:
                    self._forget([pair])
            moves = self._placement.settle(uses)
            self._expected = moves.targets
            self._carry_out(moves)

    def put(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Copy samples in; see `Store.put`."""
        pairs = pairs_of(keys)
        with self._lock:
            older = [self._older(pair) for pair in pairs]
            if not any(older) and len(set(keys[0].tolist())) == len(pairs):
                return np.array(self._put(pairs, samples), np.bool_)
            stored = []
            for pair, sample in zip(pairs, samples, strict=True):
                self._forget(self._older(pair))
                stored += self._put([pair], [sample])
        return np.array(stored, np.bool_)

    def evict(self, indices: NDArray[np.int64]) -> None:
        """Forget every version of these indices, shape (n,)."""
        with self._lock:
            for store in self.stores:
                store.evict(indices)
            for index in indices.tolist():
                for version in self._placement.versions(index):
                    self._leave((index, version))

    def retain(self, keys: Keys) -> None:
        """Forget everything but these versions."""
        wanted = set(pairs_of(keys))
        with self._lock:
            for store in self.stores:
                store.retain(*keys)
            for pair in [pair for pair in self._placement if pair not in wanted]:
                self._leave(pair)

    def _lend(
        self, keys: Keys, rows: NDArray[np.int64], parts: list[tuple[NDArray[np.int64], Images]], leases: ExitStack
    ) -> NDArray[np.int64]:
        """Ask the tiers in turn for some rows, add what each lends, and return those that none of them holds."""
        for tier, store in enumerate(self.stores):
            if not len(rows):
                break
            lease = store.get(keys[0][rows], keys[1][rows])
            leases.callback(lease.release)
            parts.append((rows[lease.found], lease.images))
            with self._counting:
                self.hits[tier] += np.count_nonzero(lease.found)
            rows = rows[~lease.found]
        return rows

    def _carry_out(self, moves: Moves) -> None:
        """Move bytes: what rises is taken first, then each tier makes room and takes what sinks, the slowest first."""
        rising = [move for move in moves.copies if move[2] < move[1]]
        sinking = [move for move in moves.copies if move[2] > move[1]]
        images: dict[Pair, Image] = {}
        for origin in range(len(self.stores)):
            with self._lent([pair for pair, tier, _ in rising if tier == origin], origin) as lent:
                images |= {pair: image.copy() for pair, image in lent.items()}
        for tier in reversed(range(len(self.stores))):
            self._free([pair for pair, freed in moves.frees if freed == tier], tier)
            for origin in range(tier):
                pairs = [pair for pair, *way in sinking if way == [origin, tier]]
                with self._lent(pairs, origin) as lent:
                    self._fill(pairs, lent, tier)
        for tier in range(len(self.stores)):
            self._fill([pair for pair, _, target in rising if target == tier], images, tier)

    def _put(self, pairs: Sequence[Pair], samples: Sequence[Image]) -> list[bool]:
        """Put versions of different indices where they are expected, by default in the fastest tier with room."""
        images = dict(zip(pairs, samples, strict=True))
        targets = {pair: self._expected.pop(pair, 0) for pair in pairs if not self._holds(pair)}
        for tier in range(len(self.stores)):
            self._fill([pair for pair, target in targets.items() if target == tier], images, tier)
        return [pair in self._placement for pair in pairs]

    def _fill(self, pairs: Sequence[Pair], images: Mapping[Pair, Image], tier: int) -> None:
        """Put versions into a tier; what it declines goes to the next slower one that takes it, or is forgotten."""
        lost = [pair for pair in pairs if pair not in images]
        pairs = [pair for pair in pairs if pair in images]
        for number, store in enumerate(self.stores[tier:], tier):
            if not pairs:
                break
            stored = store.put(*_keys(pairs), [images[pair] for pair in pairs]).tolist()
            for pair, is_here in zip(pairs, stored, strict=True):
                if is_here and self._placement.tier(pair) != number:
                    self._placement.relocate(pair, number)
            pairs = [pair for pair, is_here in zip(pairs, stored, strict=True) if not is_here]
        self._forget([*lost, *pairs])

    def _holds(self, pair: Pair) -> bool:
        """Tell whether a version is in a tier, not only expected."""
        return pair in self._placement and pair not in self._expected

    def _older(self, pair: Pair) -> list[Pair]:
        """Return the versions that have to go before this one is put: older ones, unless it is held already."""
        if self._holds(pair):
            return []
        index, version = pair
        return [(index, other) for other in self._placement.versions(index) if other < version]

    def _free(self, pairs: Sequence[Pair], tier: int) -> None:
        """Have a tier forget versions, and no other versions of their indices."""
        freed = set(pairs)
        siblings = {(index, other) for index, _ in pairs for other in self._placement.versions(index)} - freed
        if any(tier in self._placement.copies(pair) for pair in siblings):
            stay = (pair for pair in self._placement if tier in self._placement.copies(pair))
            self.stores[tier].retain(*_keys([pair for pair in stay if pair not in freed]))
        elif pairs:
            self.stores[tier].evict(_keys(pairs)[0])

    def _forget(self, pairs: Iterable[Pair]) -> None:
        """Forget versions, wherever they are."""
        for pair in pairs:
            copies = self._placement.copies(pair)
            self._leave(pair)
            for tier in copies:
                self._free([pair], tier)

    def _leave(self, pair: Pair) -> None:
        """Take note that a version is in no tier any more."""
        self._placement.relocate(pair, None)
        self._expected.pop(pair, None)

    @contextmanager
    def _lent(self, pairs: Sequence[Pair], tier: int) -> Iterator[dict[Pair, Image]]:
        """Borrow those versions that a tier holds."""
        if not pairs:
            yield {}
            return
        with self.stores[tier].get(*_keys(pairs)) as lease:
            found = zip(pairs, lease.samples, strict=True)
            yield {pair: sample for pair, sample in found if sample is not None}


def _keys(pairs: Sequence[Pair]) -> Keys:
    indices, versions = np.array(pairs, np.int64).reshape(-1, 2).T
    return indices, versions
