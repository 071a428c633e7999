"""Which slot holds which version, and when is a slot free? The bookkeeping of a store, without its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_TABLED = 1 << 24
"""Indices from here on are found one by one, lest few large ones take much memory."""


class Hidden(NamedTuple):
    """Slots whose versions were forgotten, and those of them that are free now; pinned ones are not, yet."""

    slots: list[int]
    freed: list[int]


_FREE, _HELD, _HIDDEN, _RESERVED = range(4)


class Ledger:
    """Names of slots. A slot is free, held, or hidden: evicted while pinned, and free at its last unpin.

    Or it is reserved: without a name, but in use by whoever reserved it. It may be named meanwhile; when it has neither
    name nor user any more, it is free.

    Slots come back last in, first out, so memory that was touched is used again before fresh memory.
    Not thread-safe: the store that owns it holds a lock.

    Args:
        slots: That are held or hidden at a time, at most.
        spare: That are in use at a time by those who reserved them, at most, named ones included.

    Example:
        >>> ledger = Ledger(1)
        >>> ledger.take(7, 0)
        0
        >>> ledger.pin(ledger.find(np.array([7]), np.array([0])))
        >>> ledger.hide(7), ledger.find(np.array([7]), np.array([0])), ledger.full
        (Hidden(slots=[0], freed=[]), array([-1]), True)
        >>> ledger.unpin(np.array([0])), ledger.full
        ([0], False)
    """

    def __init__(self, slots: int, spare: int = 0) -> None:
        self._slots = slots
        self._spare = spare
        self._slot_of: dict[tuple[int, int], int] = {}
        self._versions_of: dict[int, tuple[int, ...]] = {}
        # The same in arrays, where most are found: the slot that was last taken for each index, and what slots hold.
        # The last row is of no slot.
        self._latest = np.empty(0, np.int32)
        self._holds = np.full((slots + spare + 1, 2), -1)
        self._pins = np.zeros(slots + spare, np.int64)
        self._states = np.full(slots + spare, _FREE, np.uint8)
        self._in_use = np.zeros(slots + spare, np.bool_)
        self._hidden = 0
        self._used = 0
        self._free: list[int] = []
        # Slots from here on were never taken.
        self._fresh = 0

    def __len__(self) -> int:
        """Count the versions held."""
        return len(self._slot_of)

    def __contains__(self, key: tuple[int, int]) -> bool:
        """Tell whether an (index, version) is held."""
        return key in self._slot_of

    @property
    def full(self) -> bool:
        """Whether as many slots are held or hidden as may be."""
        return len(self._slot_of) + self._hidden == self._slots

    def slot(self, index: int, version: int) -> int:
        """Return the slot of a version, -1 if it is not held."""
        return self._slot_of.get((index, version), -1)

    def find(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of n versions, shape (n,), -1 where one is not held."""
        slots = np.full(len(indices), -1)
        tabled = (indices >= 0) & (indices < len(self._latest))
        slots[tabled] = self._latest[indices[tabled]]
        held = self._holds[slots]
        others = np.flatnonzero(~tabled | (held[:, 0] != indices) | (held[:, 1] != versions))
        pairs = zip(indices[others].tolist(), versions[others].tolist(), strict=True)
        slots[others] = [self.slot(*pair) for pair in pairs]
        return slots

    def take(self, index: int, version: int) -> int:
        """Name a free slot after a version that is not held; the ledger must not be full."""
        (slot,) = self._take(1)
        self._name(slot, index, version)
        return slot

    def reserve(self, count: int) -> list[int]:
        """Let somebody use free slots until `leave`; none where not that many may be reserved."""
        if self._used + count > self._spare:
            return []
        slots = self._take(count)
        self._states[slots] = _RESERVED
        self._in_use[slots] = True
        self._used += count
        return slots

    def adopt(self, slot: int, index: int, version: int) -> bool:
        """Name a reserved slot after a version that is not held, if it has no name yet; the ledger must not be full."""
        if self._states[slot] != _RESERVED:
            return False
        self._name(slot, index, version)
        return True

    def leave(self, slots: list[int]) -> list[int]:
        """End the use of slots that were reserved together, and return those that are free now."""
        self._in_use[slots] = False
        self._used -= len(slots)
        nameless = [slot for slot in slots if self._states[slot] == _RESERVED]
        self._release(nameless)
        return nameless

    def _take(self, count: int) -> list[int]:
        """Return slots that are free, those that were used last first."""
        used = min(count, len(self._free))
        slots = [self._free.pop() for _ in range(used)]
        slots += range(self._fresh, self._fresh + count - used)
        self._fresh += count - used
        return slots

    def _release(self, slots: list[int]) -> None:
        """Make slots free."""
        self._states[slots] = _FREE
        self._free += slots

    def _name(self, slot: int, index: int, version: int) -> None:
        """Let a slot hold a version."""
        self._states[slot] = _HELD
        self._slot_of[index, version] = slot
        self._versions_of[index] = (*self._versions_of.get(index, ()), version)
        self._table(slot, index, version)

    def _table(self, slot: int, index: int, version: int) -> None:
        """Note what a slot holds where `find` looks first."""
        self._holds[slot] = index, version
        if 0 <= index < _MOST_TABLED:
            if index >= len(self._latest):
                more = np.full(max(index + 1, 2 * len(self._latest)) - len(self._latest), -1, np.int32)
                self._latest = np.concatenate([self._latest, more])
            self._latest[index] = slot

    def restore(self, slots: list[int], indices: list[int], versions: list[int]) -> None:
        """Name n slots, ascending, after n versions; nothing was taken before."""
        for slot, index, version in zip(slots, indices, versions, strict=True):
            self._name(slot, index, version)
        self._fresh = slots[-1] + 1 if slots else 0
        self._free = sorted(set(range(self._fresh)) - set(slots), reverse=True)

    def hide(self, index: int, *, older_than: int | None = None) -> Hidden:
        """Forget an index's versions, or only those below `older_than`."""
        versions = self._versions_of.get(index, ())
        kept = () if older_than is None else tuple(v for v in versions if v >= older_than)
        return self._hide([(index, kept)])

    def forget(self, index: int, version: int) -> Hidden:
        """Forget one version; see `hide`."""
        return self._hide([(index, tuple(v for v in self._versions_of.get(index, ()) if v != version))])

    def hide_all(self, indices: list[int]) -> Hidden:
        """Forget every version of these indices; see `hide`."""
        return self._hide((index, ()) for index in indices)

    def retain(self, wanted: set[tuple[int, int]]) -> Hidden:
        """Forget every (index, version) that is not wanted; see `hide`."""
        held = list(self._versions_of.items())
        return self._hide((index, tuple(v for v in versions if (index, v) in wanted)) for index, versions in held)

    def _hide(self, kept: Iterable[tuple[int, tuple[int, ...]]]) -> Hidden:
        """Forget indices but for those versions of each that are kept."""
        slots: list[int] = []
        for index, remaining in kept:
            forgotten = [version for version in self._versions_of.pop(index, ()) if version not in remaining]
            slots += [self._slot_of.pop((index, version)) for version in forgotten]
            if remaining:
                self._versions_of[index] = remaining
        if not slots:
            return Hidden([], [])
        hidden = np.array(slots)
        self._holds[hidden] = -1
        pinned = self._pins[hidden] > 0
        self._states[hidden[pinned]] = _HIDDEN
        self._hidden += int(pinned.sum())
        return Hidden(slots, self._drop(hidden[~pinned]))

    def _drop(self, slots: NDArray[np.int64]) -> list[int]:
        """Let go of slots without a name that nobody has pinned, shape (n,), and return those that are free now."""
        used = self._in_use[slots]
        self._states[slots[used]] = _RESERVED
        freed: list[int] = slots[~used].tolist()
        self._release(freed)
        return freed

    def pin(self, slots: NDArray[np.int64]) -> None:
        """Keep slots from being taken, shape (n,), until each is unpinned as often as it was pinned."""
        np.add.at(self._pins, slots, 1)

    def unpin(self, slots: NDArray[np.int64]) -> list[int]:
        """Undo one `pin` of the same slots, and return those that are free now."""
        np.subtract.at(self._pins, slots, 1)
        hidden = slots[self._states[slots] == _HIDDEN]
        if not len(hidden):
            return []
        unpinned = np.unique(hidden[self._pins[hidden] == 0])
        self._hidden -= len(unpinned)
        return self._drop(unpinned)
