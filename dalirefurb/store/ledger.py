"""Which slot holds which version, and when is a slot free? The bookkeeping of a store, without its bytes.

All of it is arrays: a dictionary of a million versions would take hundreds of bytes for each, and as long to ask.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_TABLED = 1 << 24
"""Indices from here on, and negative ones, are found one by one, lest few large ones take much memory."""

_NONE = np.empty(0, np.int64)

Numbers = NDArray[np.int64]


class Hidden(NamedTuple):
    """Slots whose versions were forgotten, and those of them that are free now; pinned ones are not, yet."""

    slots: Numbers
    freed: Numbers


_FREE, _HELD, _HIDDEN, _RESERVED = range(4)


class Ledger:
    """Names of slots. A slot is free, held, or hidden: evicted while pinned, and free at its last unpin.

    Or it is reserved: without a name, but in use by whoever reserved it. It may be named meanwhile; when it has neither
    name nor user any more, it is free.

    Slots come back last in, first out, so memory that was touched is used again before fresh memory.
    Not thread-safe: the store that owns it holds a lock. Arguments are of shape (n,).

    Args:
        slots: That are held or hidden at a time, at most.
        spare: That are in use at a time by those who reserved them, at most, named ones included.

    Example:
        >>> ledger, key = Ledger(1), (np.array([7]), np.array([0]))
        >>> ledger.take(*key).tolist()
        [0]
        >>> ledger.pin(ledger.find(*key))
        >>> ledger.hide(key[0]).freed.tolist(), ledger.find(*key).tolist(), ledger.room
        ([], [-1], 0)
        >>> ledger.unpin(np.array([0])).tolist(), ledger.room
        ([0], 1)
    """

    def __init__(self, slots: int, spare: int = 0) -> None:
        self._slots = slots
        self._spare = spare
        # What slots hold; the last row is of no slot.
        self._holds = np.full((slots + spare + 1, 2), -1)
        # The slot that was last taken for each index, and the one before it, and so on.
        self._latest = np.full(1, -1, np.int32)
        self._far: dict[int, int] = {}
        self._before = np.full(slots + spare, -1, np.int32)
        self._pins = np.zeros(slots + spare, np.int64)
        self._states = np.full(slots + spare, _FREE, np.uint8)
        self._in_use = np.zeros(slots + spare, np.bool_)
        self._held = 0
        self._hidden = 0
        self._used = 0
        self._free: list[int] = []
        # Slots from here on were never taken.
        self._fresh = 0

    def __len__(self) -> int:
        """Count the versions held."""
        return self._held

    @property
    def room(self) -> int:
        """How many versions more can be held."""
        return self._slots - self._held - self._hidden

    def find(self, indices: Numbers, versions: Numbers) -> Numbers:
        """Return the slots of n versions, -1 where one is not held."""
        slots = self._latest_of(indices)
        while (others := (slots >= 0) & (self._holds[slots, 1] != versions)).any():
            slots[others] = self._before[slots[others]]
        return slots

    def steps(self, indices: Numbers) -> list[Numbers]:
        """Part n rows to be put in this order: each step names an index once, and its first rows get what room is left.

        That is one step, unless an index is named twice, or room is short and may come from older versions.
        """
        rows = np.arange(len(indices))
        fits = len(rows) <= self.room or (self._latest_of(indices) < 0).all()
        return [rows] if fits and len(_distinct(indices)) == len(rows) else list(rows[:, None])

    def take(self, indices: Numbers, versions: Numbers) -> Numbers:
        """Name n free slots after versions of different indices that are not held; there must be room for them."""
        slots = self._take(len(indices))
        self._name(slots, indices, versions)
        return slots

    def reserve(self, count: int) -> Numbers:
        """Let somebody use free slots until `leave`; none where not that many may be reserved."""
        if self._used + count > self._spare:
            return _NONE
        slots = self._take(count)
        self._states[slots] = _RESERVED
        self._in_use[slots] = True
        self._used += count
        return slots

    def adopt(self, slots: Numbers, indices: Numbers, versions: Numbers) -> NDArray[np.bool_]:
        """Name n reserved slots as `take` does; False where one has a name already."""
        adopted = np.zeros(len(slots), np.bool_)
        adopted[np.unique(slots, return_index=True)[1]] = True
        adopted &= self._states[slots] == _RESERVED
        self._name(slots[adopted], indices[adopted], versions[adopted])
        return adopted

    def leave(self, slots: Numbers) -> Numbers:
        """End the use of slots that were reserved together, and return those that are free now."""
        self._in_use[slots] = False
        self._used -= len(slots)
        nameless: Numbers = slots[self._states[slots] == _RESERVED]
        self._release(nameless)
        return nameless

    def restore(self, slots: Numbers, indices: Numbers, versions: Numbers) -> None:
        """Name n slots, ascending, after n versions; nothing was taken before."""
        rows = np.arange(len(slots))
        while len(rows):
            _, first = np.unique(indices[rows], return_index=True)
            self._name(slots[rows[first]], indices[rows[first]], versions[rows[first]])
            rows = np.delete(rows, first)
        self._fresh = int(slots[-1]) + 1 if len(slots) else 0
        self._free = np.setdiff1d(np.arange(self._fresh), slots)[::-1].tolist()

    def hide(self, indices: Numbers) -> Hidden:
        """Forget every version of n indices."""
        _, slots = self._all_of(indices)
        return self._hide(_distinct(slots))

    def supersede(self, indices: Numbers, versions: Numbers) -> Hidden:
        """Forget the versions of n different indices that are older than these."""
        rows, slots = self._all_of(indices)
        return self._hide(slots[self._holds[slots, 1] < versions[rows]])

    def forget(self, indices: Numbers, versions: Numbers) -> Hidden:
        """Forget n versions, as far as they are held."""
        slots = self.find(indices, versions)
        return self._hide(_distinct(slots[slots >= 0]))

    def retain(self, indices: Numbers, versions: Numbers) -> Hidden:
        """Forget every version but these n."""
        held = np.flatnonzero(self._states == _HELD)
        return self._hide(np.setdiff1d(held, self.find(indices, versions)))

    def pin(self, slots: Numbers) -> None:
        """Keep n slots from being taken, until each is unpinned as often as it was pinned."""
        np.add.at(self._pins, slots, 1)

    def unpin(self, slots: Numbers) -> Numbers:
        """Undo one `pin` of the same slots, and return those that are free now."""
        np.subtract.at(self._pins, slots, 1)
        hidden = slots[self._states[slots] == _HIDDEN]
        if not len(hidden):
            return _NONE
        unpinned = _distinct(hidden[self._pins[hidden] == 0])
        self._hidden -= len(unpinned)
        return self._drop(unpinned)

    def _take(self, count: int) -> Numbers:
        """Return slots that are free, those that were used last first."""
        start = max(0, len(self._free) - count)
        slots = self._free[start:][::-1]
        del self._free[start:]
        fresh = count - len(slots)
        slots += range(self._fresh, self._fresh + fresh)
        self._fresh += fresh
        return np.array(slots, np.int64)

    def _release(self, slots: Numbers) -> None:
        """Make slots free."""
        self._states[slots] = _FREE
        self._free += slots.tolist()

    def _name(self, slots: Numbers, indices: Numbers, versions: Numbers) -> None:
        """Let slots hold versions of different indices."""
        self._before[slots] = self._latest_of(indices)
        self._lead(indices, slots)
        self._holds[slots, 0] = indices
        self._holds[slots, 1] = versions
        self._states[slots] = _HELD
        self._held += len(slots)

    def _hide(self, slots: Numbers) -> Hidden:
        """Forget what different slots hold."""
        if not len(slots):
            return Hidden(_NONE, _NONE)
        self._unlink(slots)
        self._holds[slots] = -1
        self._held -= len(slots)
        pinned = self._pins[slots] > 0
        self._states[slots[pinned]] = _HIDDEN
        self._hidden += int(pinned.sum())
        return Hidden(slots, self._drop(slots[~pinned]))

    def _drop(self, slots: Numbers) -> Numbers:
        """Let go of slots without a name that nobody has pinned, and return those that are free now."""
        used = self._in_use[slots]
        self._states[slots[used]] = _RESERVED
        freed = slots[~used]
        self._release(freed)
        return freed

    def _latest_of(self, indices: Numbers) -> Numbers:
        """Return the slot that was last taken for each of n indices, -1 where none holds it."""
        slots = self._latest.take(indices, mode="clip").astype(np.int64)
        if self._far:
            far = np.flatnonzero(~_near(indices))
            slots[far] = [self._far.get(index, -1) for index in indices[far].tolist()]
        return np.where(self._holds[slots, 0] == indices, slots, -1)

    def _lead(self, indices: Numbers, slots: Numbers) -> None:
        """Note the slot that was last taken for each of n indices, -1 for none."""
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

    def _all_of(self, indices: Numbers) -> tuple[Numbers, Numbers]:
        """Return the slots of every version of n indices, shape (m,), and which of the n each belongs to."""
        slots = self._latest_of(indices)
        rows = np.flatnonzero(slots >= 0)
        found, slots = [(rows, slots[rows])], slots[rows]
        while len(more := np.flatnonzero(self._before[slots] >= 0)):
            rows, slots = rows[more], self._before[slots[more]].astype(np.int64)
            found.append((rows, slots))
        return np.concatenate([rows for rows, _ in found]), np.concatenate([slots for _, slots in found])

    def _unlink(self, slots: Numbers) -> None:
        """Take different slots out of what leads to them."""
        indices = self._holds[slots, 0]
        alone = (self._latest_of(indices) == slots) & (self._before[slots] < 0)
        self._lead(indices[alone], np.full(int(alone.sum()), -1))
        gone = set(slots[~alone].tolist())
        for index in set(indices[~alone].tolist()):  # Few have several versions.
            _, chain = self._all_of(np.array([index]))
            kept = [slot for slot in chain.tolist() if slot not in gone]
            self._before[kept] = [*kept[1:], -1][: len(kept)]
            self._lead(np.array([index]), np.array([*kept, -1][:1]))


def _distinct(numbers: Numbers) -> Numbers:
    """Return each of n numbers once, sorted, as `numpy.unique` does, but sooner where they are few."""
    numbers = np.sort(numbers)
    first = np.ones(len(numbers), np.bool_)
    first[1:] = numbers[1:] != numbers[:-1]
    return numbers[first]


def _near(indices: Numbers) -> NDArray[np.bool_]:
    """Tell which of n indices are looked up in a table."""
    near: NDArray[np.bool_] = (indices >= 0) & (indices < _MOST_TABLED)
    return near
