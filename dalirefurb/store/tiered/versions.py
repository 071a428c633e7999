"""A table of the known versions: the tier that each lives in, and its next use. A row of arrays for each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dalirefurb.store.base import Keys
from dalirefurb.store.key_index import KeyIndex, Numbers

NOWHERE = -1
"""Stands for a tier: of what is computed again."""

UNKNOWN = -1
"""Stands for a next use that nobody told: it counts as the soonest, so the version stays where it is."""


class Versions:
    """Rows of what is known of versions. Row -1 is of any that is not known. Arguments are of shape (n,).

    Args:
        tiers: Number of tiers.

    Attributes:
        homes: The tier that each version lives in, or `NOWHERE`, shape (rows,).
        uses: When each version is used next, or `UNKNOWN`, shape (rows,).
        fastest: The fastest tier that holds each version, or is to, shape (rows,): its home, but while that is being
            decided.
        copies: Which tiers hold each version, or are to, shape (rows, tiers): its home, and slower ones with spare
            copies.
        spared: The number under which each copy became a spare one last, if it ever did, shape (rows, tiers).
        counts: Number of versions that live in each tier.
        awaited: Whether it is decided where each version is to be put, but it is not put yet, shape (rows,).
    """

    def __init__(self, tiers: int) -> None:
        self._names = KeyIndex(0)
        # The last row is -1.
        self.homes = np.full(1, NOWHERE)
        self.fastest = np.full(1, NOWHERE)
        self.uses = np.full(1, UNKNOWN)
        self.copies = np.zeros((1, tiers), np.bool_)
        self.spared = np.zeros((1, tiers), np.int64)
        self.awaited = np.zeros(1, np.bool_)
        self._free: list[int] = []
        self.counts = [0] * tiers
        self._held = np.zeros(tiers, np.int64)

    @property
    def spares(self) -> list[int]:
        """How many copies each tier holds of versions that live in faster ones."""
        spares: list[int] = (self._held - self.counts).tolist()
        return spares

    def find(self, keys: Keys) -> Numbers:
        """Return the rows of n versions, -1 where one is not known."""
        return self._names.find(*keys)

    def of(self, indices: Numbers) -> tuple[Numbers, Numbers]:
        """Return, for every version of n indices, which of the n it belongs to, and its row, each of shape (m,)."""
        return self._names.all_of(indices)

    def keys(self, rows: Numbers) -> Keys:
        """Return which versions n rows are of."""
        return self._names.indices(rows), self._names.versions(rows)

    def find_or_add(self, keys: Keys) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return the rows of n different versions, and which are new, shape (n,): these live nowhere."""
        rows = self.find(keys)
        is_new = rows < 0
        count = int(np.count_nonzero(is_new))
        if count:
            if count > len(self._free):
                self._grow(count)
            rows[is_new] = self._free[-1 : -count - 1 : -1]
            del self._free[-count:]
            self._names.add_any(rows[is_new], keys[0][is_new], keys[1][is_new])
        return rows, is_new

    def delete(self, rows: Numbers) -> None:
        """Know n different rows no longer."""
        if len(rows):
            self.leave(rows)
            self.hold(rows, np.zeros_like(self.copies[rows]))
            self._names.remove(rows)
            self._free += rows.tolist()

    def leave(self, rows: Numbers) -> None:
        """Let n different rows live nowhere."""
        left = np.bincount(self.homes[rows] + 1, minlength=len(self.counts) + 1)[1:]
        self.counts = [count - less for count, less in zip(self.counts, left.tolist(), strict=True)]
        self.homes[rows] = NOWHERE

    def enter(self, rows: Numbers, tier: int) -> None:
        """Let n different rows, which live nowhere, live in a tier."""
        self.counts[tier] += len(rows)
        self.homes[rows] = tier

    def hold(self, rows: Numbers, copies: NDArray[np.bool_]) -> None:
        """Let tiers, shape (n, tiers), and no others hold n different rows, and await none of them."""
        self._held += copies.sum(axis=0) - self.copies[rows].sum(axis=0)
        self.copies[rows] = copies
        self.fastest[rows] = NOWHERE
        if copies.size:  # There may be no tier that holds anything.
            self.fastest[rows] = np.where(copies.any(axis=1), copies.argmax(axis=1), NOWHERE)
        self.awaited[rows] = False

    def _grow(self, count: int) -> None:
        """Make room for more rows."""
        old = len(self.homes) - 1
        new = old + max(count, old, 64)
        self._names.grow(new)
        for name in "homes", "fastest", "uses", "copies", "spared", "awaited":
            array = getattr(self, name)
            more = np.broadcast_to(array[-1:], (new - old, *array.shape[1:]))
            setattr(self, name, np.concatenate([array[:-1], more, array[-1:]]))
        self._free += range(new - 1, old - 1, -1)
