"""Placement of each version in one of several tiers: the sooner it is used again, the faster.

When a version was served or computed it is at hand, so it can go to any tier; at any time it can sink to a slower one.
After each batch

    the fastest tier keeps, of what it holds and what is at hand, what is used again soonest;
    each slower tier does so with what it holds and what the tier above it gives up;
    what the slowest gives up is computed again.

This is Belady's rule, with bypass, tier by tier, and no placement serves more. A version is held from one use to the
next, an interval, and a fast hit if it spent all of it in a fast tier. For each k, what the k fastest tiers hold
together is what one tier of all their slots would hold: they give up nothing before all of them are full, and then the
interval that ends last, which for intervals that compete for equal slots leaves as many as can be. So hits in the k
fastest tiers are at their most for every k at once, whatever a hit in each of them is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from dalirefurb.store.base import Keys
from dalirefurb.store.key_index import Numbers, distinct
from dalirefurb.store.tiered.moves import NO_MOVES, Copies, Frees, Moves
from dalirefurb.store.tiered.row_queue import RowQueue
from dalirefurb.store.tiered.versions import UNKNOWN, Versions


class Placement:
    """Knows which tier each version lives in and when it is used next, and decides what moves. It holds no bytes.

    Tiers are numbered from the fastest, 0. A version that rises leaves a spare copy below, which is given up when its
    slot is needed: to sink again costs nothing while it is there. Safe to use from several threads.

    Args:
        slots: Slots of each tier, from the fastest.

    Example:
        >>> placement, keys = Placement([1, 1]), (np.array([7, 8]), np.array([0, 0]))
        >>> _ = placement.settle(keys, np.array([5, 4]))
        >>> placement.targets(keys).tolist()
        [1, 0]
        >>> placement.relocate((np.array([7]), np.array([0])), 1)
        >>> moves = placement.settle((np.array([7]), np.array([0])), np.array([6]))
        >>> moves.copies.origins.tolist(), moves.copies.targets.tolist()
        ([1], [0])
    """

    def __init__(self, slots: Sequence[int]) -> None:
        self._slots = list(slots)
        self._versions = Versions(len(slots))
        self._lock = RLock()
        self._by_use = [RowQueue(partial(self._lives, tier)) for tier in range(len(slots))]
        # The oldest ones go first: numbers descend.
        self._spares = [RowQueue(partial(self._is_spare, tier)) for tier in range(len(slots))]
        self._last_spared = 0
        self._awaited = np.empty(0, np.int64)

    @property
    def num_spares(self) -> int:
        """Spare copies in all tiers."""
        return sum(self._versions.spares)

    def tiers(self, keys: Keys) -> Numbers:
        """Return the tier that each of n versions lives in, or is to be put into, or `NOWHERE`."""
        with self._lock:
            return self._versions.homes[self._versions.find(keys)]

    def targets(self, keys: Keys) -> Numbers:
        """Return the tier that each of n versions, if it comes, is to be put into, or `NOWHERE`."""
        with self._lock:
            rows = self._versions.find(keys)
            return np.where(rows < 0, 0, self._versions.homes[rows])

    def are_put(self, keys: Keys) -> NDArray[np.bool_]:
        """Tell which of n versions live in a tier, and are not only to be put there."""
        with self._lock:
            rows = self._versions.find(keys)
            found: NDArray[np.bool_] = (self._versions.homes[rows] >= 0) & ~self._versions.awaited[rows]
            return found

    def copies(self, keys: Keys) -> NDArray[np.bool_]:
        """Tell which tiers hold each of n versions, or are to, spare copies included, shape (n, tiers)."""
        with self._lock:
            return self._versions.copies[self._versions.find(keys)]

    def older(self, keys: Keys) -> Keys:
        """Return those versions of the same indices that are older than one of n versions."""
        with self._lock:
            owners, rows = self._versions.of(keys[0])
            others = self._versions.keys(rows)
            is_older = others[1] < keys[1][owners]
            return others[0][is_older], others[1][is_older]

    def of(self, indices: Numbers) -> Keys:
        """Return all versions of n different indices."""
        with self._lock:
            return self._versions.keys(self._versions.of(indices)[1])

    def held(self, tier: int) -> Keys:
        """Return what a tier holds or is to hold, spare copies included."""
        with self._lock:
            return self._versions.keys(np.flatnonzero(self._versions.copies[:, tier]))

    def settle(self, keys: Keys, uses: Numbers) -> Moves:
        """Decide where versions live from now on.

        Versions that are not held may be put then; those that are not put before the next decision are forgotten.

        Args:
            keys: Different versions that are at hand.
            uses: When the versions are used next, shape (n,).
        """
        with self._lock:
            versions = self._versions
            versions.delete(self._awaited[versions.awaited[self._awaited]])
            rows, is_new = versions.find_or_add(keys)
            versions.leave(rows)
            versions.uses[rows] = uses
            arriving, touched = rows, [rows]
            for tier in range(len(self._slots)):
                arriving = self._take(arriving, tier)
                touched.append(arriving)
            moves = self._moves(np.concatenate(touched))
            self._awaited = rows[is_new]
            versions.awaited[self._awaited] = True
            return moves

    def relocate(self, keys: Keys, tier: int) -> None:
        """Take note that n different versions live in another tier than was decided, there being no faster copy."""
        with self._lock:
            versions = self._versions
            rows, is_new = versions.find_or_add(keys)
            versions.uses[rows[is_new]] = UNKNOWN
            moved = rows[versions.homes[rows] != tier]
            versions.leave(rows)
            versions.enter(rows, tier)
            versions.hold(rows, self._copies_after(rows))
            self._by_use[tier].add(moved, versions.uses[moved])

    def forget(self, keys: Keys) -> None:
        """Take note that n versions are in no tier any more; those that are not known are ignored."""
        with self._lock:
            rows = distinct(self._versions.find(keys))
            self._versions.delete(rows[rows >= 0])

    def retain(self, keys: Keys) -> None:
        """Take note that all but n versions are in no tier any more."""
        with self._lock:
            known = np.flatnonzero((self._versions.homes >= 0) | self._versions.awaited)
            self._versions.delete(np.setdiff1d(known, self._versions.find(keys)))

    def add_spares(self, keys: Keys, tier: int) -> None:
        """Take note of copies of n different versions in a slower tier than the one they live in."""
        with self._lock:
            rows = self._versions.find(keys)
            copies = self._versions.copies[rows]
            copies[:, tier] = True
            self._versions.hold(rows, copies)
            self._add_spares(rows, tier)

    def _take(self, rows: Numbers, tier: int) -> Numbers:
        """Let a tier keep, of what lives there and these, which live nowhere, what is used soonest; return the rest."""
        versions, queue = self._versions, self._by_use[tier]
        room, given_up = max(0, self._slots[tier] - versions.counts[tier]), [rows[:0]]
        if len(rows) > room:
            # Of equal uses the first ones stay: those at home, which cost nothing. What comes from above, or is new,
            # has to be copied anyway, and what would rise has not.
            origins, uses = versions.fastest[rows], versions.uses[rows]
            order = np.lexsort(((origins != tier) + (origins > tier).astype(np.int8), uses))
            passes = (np.arange(len(rows)) >= room) & (uses[order] >= queue.last)
            given_up, rows = [rows[order[passes]]], rows[order[~passes]]
        versions.enter(rows, tier)
        queue.add(rows, versions.uses[rows])
        queue.tidy(2 * versions.counts[tier])
        while versions.counts[tier] > self._slots[tier]:
            given_up.append(queue.pop(versions.counts[tier] - self._slots[tier]))
            versions.leave(given_up[-1])
        return np.concatenate(given_up)

    def _moves(self, rows: Numbers) -> Moves:
        """Note what it takes to bring versions, some named twice, from where they are to where they live now."""
        versions = self._versions
        rows = distinct(rows[versions.fastest[rows] != versions.homes[rows]])
        if not len(rows):
            return NO_MOVES
        origins = versions.fastest[rows]
        targets, before, after = versions.homes[rows], versions.copies[rows], self._copies_after(rows)
        copied = (origins >= 0) & (targets >= 0) & ~before[np.arange(len(rows)), targets]
        owners, tiers = np.nonzero(before & ~after)
        freed, freed_from = [rows[owners]], [tiers]
        versions.hold(rows, after)
        rising = (targets >= 0) & (targets < origins)
        for tier in range(len(self._slots)):
            self._add_spares(rows[rising & (origins == tier)], tier)
            spares = self._spares_given_up(tier)
            freed.append(spares)
            freed_from.append(np.full(len(spares), tier))
        moves = Moves(
            Copies(versions.keys(rows[copied]), origins[copied], targets[copied]),
            Frees(versions.keys(np.concatenate(freed)), np.concatenate(freed_from)),
        )
        versions.delete(rows[(origins >= 0) & (targets < 0)])
        return moves

    def _add_spares(self, rows: Numbers, tier: int) -> None:
        """Take note of spare copies in a tier, which are there already."""
        self._last_spared -= 1
        self._versions.spared[rows, tier] = self._last_spared
        self._spares[tier].add(rows, self._versions.spared[rows, tier])
        self._spares[tier].tidy(2 * self._versions.spares[tier])

    def _spares_given_up(self, tier: int) -> Numbers:
        """Remove from a tier the oldest spare copies that have no slot, and return which."""
        versions = self._versions
        surplus = min(versions.counts[tier] + versions.spares[tier] - self._slots[tier], versions.spares[tier])
        given_up = [np.empty(0, np.int64)]
        while surplus > 0:
            rows = self._spares[tier].pop(surplus)
            copies = versions.copies[rows]
            copies[:, tier] = False
            versions.hold(rows, copies)
            given_up.append(rows)
            surplus -= len(rows)
        return np.concatenate(given_up)

    def _copies_after(self, rows: Numbers) -> NDArray[np.bool_]:
        """Tell which tiers hold versions in the end, shape (n, tiers): where they live, and slower ones that do now."""
        homes, tiers = self._versions.homes[rows][:, None], np.arange(len(self._slots))
        after: NDArray[np.bool_] = (homes >= 0) & ((tiers == homes) | (tiers > homes) & self._versions.copies[rows])
        return after

    def _lives(self, tier: int, rows: Numbers, uses: Numbers) -> NDArray[np.bool_]:
        """Tell which versions live in a tier and have this next use."""
        lives: NDArray[np.bool_] = (self._versions.homes[rows] == tier) & (self._versions.uses[rows] == uses)
        return lives

    def _is_spare(self, tier: int, rows: Numbers, numbers: Numbers) -> NDArray[np.bool_]:
        """Tell of which versions a tier has a spare copy, and has it under this number."""
        versions = self._versions
        has_copy = versions.copies[rows, tier] & (versions.homes[rows] != tier)
        is_spare: NDArray[np.bool_] = has_copy & (versions.spared[rows, tier] == numbers)
        return is_spare
