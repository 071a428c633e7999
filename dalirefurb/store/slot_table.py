"""SlotTable: which version a slot holds, which slots are free or hidden, and what a store holds in such slots.

All of it is arrays: a dictionary of a million versions would take hundreds of bytes for each, and as long to ask.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.store.base import Contents, Keys
from dalirefurb.store.spec import StoreSpec

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


_NONE = np.empty(0, np.int64)


class Hidden(NamedTuple):
    """Slots whose versions were forgotten, and those of them that are free now; pinned ones are not, yet."""

    slots: Numbers
    freed: Numbers


_FREE, _HELD, _HIDDEN, _RESERVED = range(4)


class SlotTable:
    """Names of slots. A slot is free, held, or hidden: evicted while pinned, and free at its last unpin.

    Or it is reserved: without a name, but in use by whoever reserved it. It may be named meanwhile; when it has neither
    name nor user any more, it is free.

    Slots come back last in, first out, so memory that was touched is used again before fresh memory.
    Not thread-safe: the store that owns it holds a lock. Arguments are of shape (n,).

    Args:
        slots: Slots that are held or hidden at a time, at most.
        spare: Slots that are in use at a time by those who reserved them, at most, named ones included.

    Attributes:
        fresh: The first of the slots that were never taken.

    Example:
        >>> table, key = SlotTable(1), (np.array([7]), np.array([0]))
        >>> table.take(*key).tolist()
        [0]
        >>> table.pin(table.find(*key))
        >>> table.hide(key[0]).freed.tolist(), table.find(*key).tolist(), table.room
        ([], [-1], 0)
        >>> table.unpin(np.array([0])).tolist(), table.room
        ([0], 1)
    """

    def __init__(self, slots: int, spare: int = 0) -> None:
        self._slots = slots
        self._spare = spare
        self._names = KeyIndex(slots + spare)
        self._pins = np.zeros(slots + spare, np.int64)
        self._states = np.full(slots + spare, _FREE, np.uint8)
        self._in_use = np.zeros(slots + spare, np.bool_)
        self._held = 0
        self._hidden = 0
        self._used = 0
        self._free: list[int] = []
        self.fresh = 0

    def __len__(self) -> int:
        """Count the versions held."""
        return self._held

    @property
    def room(self) -> int:
        """How many versions more can be held."""
        return self._slots - self._held - self._hidden

    @property
    def pinned(self) -> Numbers:
        """Slots that are pinned, shape (n,)."""
        return np.flatnonzero(self._pins)

    def find(self, indices: Numbers, versions: Numbers) -> Numbers:
        """Return the slots of n versions, -1 where one is not held."""
        return self._names.find(indices, versions)

    def held(self, indices: Numbers | None = None) -> tuple[Numbers, Numbers]:
        """Return indices and versions, each of shape (m,), of all versions, or of those of n indices."""
        slots = np.flatnonzero(self._states == _HELD) if indices is None else distinct(self._names.all_of(indices)[1])
        return self._names.indices[slots], self._names.versions[slots]

    def steps(self, indices: Numbers) -> list[Numbers]:
        """Part n rows to be put in this order: each step names an index once, and its first rows get what room is left.

        That is one step, unless an index is named twice, or room is short and may come from older versions.
        """
        rows = np.arange(len(indices))
        fits = len(rows) <= self.room or (self._names.latest(indices) < 0).all()
        return [rows] if fits and len(distinct(indices)) == len(rows) else list(rows[:, None])

    def make_way(self, indices: Numbers, versions: Numbers) -> tuple[Numbers, NDArray[np.bool_], Hidden]:
        """Forget what is older than those of n versions that are not held; their indices differ.

        Returns:
            Rows of versions that are not held, and have room now; which are held, shape (n,); and what was forgotten.
        """
        held = self.find(indices, versions) >= 0
        new = np.flatnonzero(~held)
        rows, slots = self._names.all_of(indices[new])
        hidden = self._hide(slots[self._names.versions[slots] < versions[new[rows]]])
        return new[: self.room], held, hidden

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
        self._names.add_any(slots, indices, versions)
        self._states[slots] = _HELD
        self._held += len(slots)
        self.fresh = int(slots[-1]) + 1 if len(slots) else 0
        self._free = np.setdiff1d(np.arange(self.fresh), slots)[::-1].tolist()

    def hide(self, indices: Numbers) -> Hidden:
        """Forget every version of n indices."""
        _, slots = self._names.all_of(indices)
        return self._hide(distinct(slots))

    def forget(self, indices: Numbers, versions: Numbers) -> Hidden:
        """Forget n versions, as far as they are held."""
        slots = self.find(indices, versions)
        return self._hide(distinct(slots[slots >= 0]))

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
        unpinned = distinct(hidden[self._pins[hidden] == 0])
        self._hidden -= len(unpinned)
        return self._drop(unpinned)

    def _take(self, count: int) -> Numbers:
        """Return slots that are free, those that were used last first."""
        start = max(0, len(self._free) - count)
        slots = self._free[start:][::-1]
        del self._free[start:]
        fresh = count - len(slots)
        slots += range(self.fresh, self.fresh + fresh)
        self.fresh += fresh
        return np.array(slots, np.int64)

    def _release(self, slots: Numbers) -> None:
        """Make slots free."""
        self._states[slots] = _FREE
        self._free += slots.tolist()

    def _name(self, slots: Numbers, indices: Numbers, versions: Numbers) -> None:
        """Let slots hold versions of different indices."""
        self._names.add(slots, indices, versions)
        self._states[slots] = _HELD
        self._held += len(slots)

    def _hide(self, slots: Numbers) -> Hidden:
        """Forget what different slots hold."""
        if not len(slots):
            return Hidden(_NONE, _NONE)
        self._names.remove(slots)
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


class SlotContents(Contents):
    """Contents in slots. Methods that begin with an underscore are called under the lock, but for `_release`.

    `held`, `evict`, `retain` and `len` are here. A kind of store adds `get` (`_pin`, and a `Lease` that calls
    `_release`) and `put` (`slot_table.steps`, then for each sample `make_way`, `_clear`, `take`, and `forget` for what
    found no room), each under the lock and after `_look`.
    """

    def __init__(self, spec: StoreSpec, slot_table: SlotTable) -> None:
        super().__init__(spec)
        self.slot_table = slot_table
        self._lock = Lock()

    def held(self, indices: NDArray[np.int64] | None = None) -> Keys:
        with self._lock:
            self._look()
            return self.slot_table.held(indices)

    def evict(self, indices: NDArray[np.int64], versions: NDArray[np.int64] | None = None) -> None:
        with self._lock:
            self._look()
            table = self.slot_table
            self._clear(table.hide(indices) if versions is None else table.forget(indices, versions))

    def retain(self, keys: Keys) -> None:
        with self._lock:
            self._look()
            self._clear(self.slot_table.retain(*keys))

    def __len__(self) -> int:
        with self._lock:
            return len(self.slot_table)

    def _pin(self, keys: Keys) -> tuple[NDArray[np.bool_], Numbers]:
        """Return which of n versions are held, shape (n,), and their slots, which are pinned until `_release`."""
        slots = self.slot_table.find(*keys)
        found = slots >= 0
        pinned = slots[found]
        self.slot_table.pin(pinned)
        return found, pinned

    def _release(self, slots: Numbers) -> None:
        """Unpin a lease's slots; harmless when the store was closed since."""
        with self._lock:
            self._free(self.slot_table.unpin(slots))

    def _look(self) -> None:
        """Find out whether what is held is still there."""

    def _clear(self, hidden: Hidden) -> None:
        """Let go of what slots held."""
        self._free(hidden.freed)

    def _free(self, slots: Numbers) -> None:
        """Give back the bytes of slots that the table has freed, where they have none of their own."""
