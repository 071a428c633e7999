"""KeyIndex: which version a slot holds, and which slots hold a sample. Looked up both ways, many at a time.

All of it is arrays: a dictionary of a million versions would take hundreds of bytes for each, and as long to ask.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MOST_TABLED = 1 << 24
"""Indices from here on, and negative ones, are found one by one, lest few large ones take much memory."""

Numbers = NDArray[np.int64]


class KeyIndex:
    """Indices and versions of a number of slots. Arguments are of shape (n,).

    Attributes:
        indices: Index that each slot holds a version of, -1 where it holds none; the last place is of no slot.
        versions: Version that each slot holds, likewise.
    """

    def __init__(self, slots: int) -> None:
        self.indices, self.versions = np.full(slots + 1, -1), np.full(slots + 1, -1)
        # The slot that was named last for each index, and the one before it, and so on.
        self._latest = np.full(1, -1, np.int32)
        self._far: dict[int, int] = {}
        self._before = np.full(slots, -1, np.int32)

    def find(self, indices: Numbers, versions: Numbers) -> Numbers:
        """Return the slots of n versions, -1 where one is not held."""
        slots = self.latest(indices)
        while (others := (slots >= 0) & (self.versions[slots] != versions)).any():
            slots[others] = self._before[slots[others]]
        return slots

    def latest(self, indices: Numbers) -> Numbers:
        """Return the slot that was named last for each of n indices, -1 where none holds it."""
        slots = self._latest.take(indices, mode="clip").astype(np.int64)
        if self._far:
            far = np.flatnonzero(~_near(indices))
            slots[far] = [self._far.get(index, -1) for index in indices[far].tolist()]
        return np.where(self.indices[slots] == indices, slots, -1)

    def all_of(self, indices: Numbers) -> tuple[Numbers, Numbers]:
        """Return, for every version of n indices, which of the n it belongs to, and its slot, each of shape (m,)."""
        slots = self.latest(indices)
        rows = np.flatnonzero(slots >= 0)
        found, slots = [(rows, slots[rows])], slots[rows]
        while len(more := np.flatnonzero(self._before[slots] >= 0)):
            rows, slots = rows[more], self._before[slots[more]].astype(np.int64)
            found.append((rows, slots))
        return np.concatenate([rows for rows, _ in found]), np.concatenate([slots for _, slots in found])

    def add(self, slots: Numbers, indices: Numbers, versions: Numbers) -> None:
        """Let n slots hold versions of different indices."""
        self._before[slots] = self.latest(indices)
        self._lead(indices, slots)
        self.indices[slots] = indices
        self.versions[slots] = versions

    def add_any(self, slots: Numbers, indices: Numbers, versions: Numbers) -> None:
        """Let n slots hold versions, also of equal indices."""
        rows = np.arange(len(slots))
        while len(rows):
            _, first = np.unique(indices[rows], return_index=True)
            self.add(slots[rows[first]], indices[rows[first]], versions[rows[first]])
            rows = np.delete(rows, first)

    def grow(self, slots: int) -> None:
        """Let there be more slots, to begin with without names."""
        more = slots - len(self._before)
        self.indices, self.versions = (np.append(held, np.full(more, -1)) for held in (self.indices, self.versions))
        self._before = np.concatenate([self._before, np.full(more, -1, np.int32)])

    def remove(self, slots: Numbers) -> None:
        """Let n different slots, all of which hold something, hold nothing."""
        indices = self.indices[slots]
        alone = (self.latest(indices) == slots) & (self._before[slots] < 0)
        self._lead(indices[alone], np.full(int(alone.sum()), -1))
        gone = set(slots[~alone].tolist())
        for index in set(indices[~alone].tolist()):  # Few have several versions.
            _, chain = self.all_of(np.array([index]))
            kept = [slot for slot in chain.tolist() if slot not in gone]
            self._before[kept] = [*kept[1:], -1][: len(kept)]
            self._lead(np.array([index]), np.array([*kept, -1][:1]))
        self.indices[slots] = self.versions[slots] = -1

    def _lead(self, indices: Numbers, slots: Numbers) -> None:
        """Note the slot that was named last for each of n indices, -1 for none."""
        near = _near(indices)
        if not near.all():
            for index, slot in zip(indices[~near].tolist(), slots[~near].tolist(), strict=True):
                self._far[index] = slot
                if slot < 0:
                    del self._far[index]
            indices, slots = indices[near], slots[near]
        end = int(indices.max(initial=-1)) + 1
        if end > len(self._latest):
            more = np.full(max(end, 2 * len(self._latest)) - len(self._latest), -1, np.int32)
            self._latest = np.concatenate([self._latest, more])
        self._latest[indices] = slots


def _near(indices: Numbers) -> NDArray[np.bool_]:
    """Tell which of n indices are looked up in a table."""
    near: NDArray[np.bool_] = (indices >= 0) & (indices < _MOST_TABLED)
    return near


def distinct(numbers: Numbers) -> Numbers:
    """Return each of n numbers once, sorted, as `numpy.unique` does, but sooner where they are few."""
    numbers = np.sort(numbers)
    first = np.ones(len(numbers), np.bool_)
    first[1:] = numbers[1:] != numbers[:-1]
    return numbers[first]
