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


class Ledger:
    """Names of slots. A slot is free, held, or hidden: evicted while pinned, and free at its last unpin.

    Slots come back last in, first out, so memory that was touched is used again before fresh memory.
    Not thread-safe: the store that owns it holds a lock.

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

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._slot_of: dict[tuple[int, int], int] = {}
        self._versions_of: dict[int, tuple[int, ...]] = {}
        # The same in arrays, where most are found: the slot that was last taken for each index, and what slots hold.
        # The last row is of no slot.
        self._latest = np.empty(0, np.int32)
        self._holds = np.full((slots + 1, 2), -1)
        self._pins = np.zeros(slots, np.int64)
        self._hidden = np.zeros(slots, np.bool_)
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
        """Whether every slot is held or hidden."""
        return not self._free and self._fresh == self._slots

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
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._fresh
            self._fresh += 1
        self._slot_of[index, version] = slot
        self._versions_of[index] = (*self._versions_of.get(index, ()), version)
        self._table(slot, index, version)
        return slot

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
        self._slot_of = dict(zip(zip(indices, versions, strict=True), slots, strict=True))
        for (index, version), slot in self._slot_of.items():
            self._versions_of[index] = (*self._versions_of.get(index, ()), version)
            self._table(slot, index, version)
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
        self._hidden[hidden[pinned]] = True
        freed = hidden[~pinned].tolist()
        self._free += freed
        return Hidden(slots, freed)

    def pin(self, slots: NDArray[np.int64]) -> None:
        """Keep slots from being taken, shape (n,), until each is unpinned as often as it was pinned."""
        np.add.at(self._pins, slots, 1)

    def unpin(self, slots: NDArray[np.int64]) -> list[int]:
        """Undo one `pin` of the same slots, and return those that are free now."""
        np.subtract.at(self._pins, slots, 1)
        hidden = slots[self._hidden[slots]]
        if not len(hidden):
            return []
        freed: list[int] = np.unique(hidden[self._pins[hidden] == 0]).tolist()
        self._hidden[freed] = False
        self._free += freed
        return freed
