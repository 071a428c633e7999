"""SlotContents: what a store holds in slots, whose table one lock guards."""

from __future__ import annotations

from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dalirefurb.store.base import Contents, Keys
from dalirefurb.store.key_index import Numbers
from dalirefurb.store.slot_table import Hidden, SlotTable
from dalirefurb.store.spec import StoreSpec


class SlotContents(Contents):
    """Contents in slots. Methods that begin with an underscore are called under the lock, but for `_release`.

    `held`, `evict`, `retain` and `len` are here. A kind of store adds `get` (`_pin`, and a `Lease` that calls
    `_release`) and `put` (`slot_table.steps`, then for each sample `make_way`, `_clear`, `take`, and `forget` for what
    found no room), each under the lock and after `_look`.

    Attributes:
        slot_table: Table of which slot holds which version.
    """

    def __init__(self, spec: StoreSpec, slot_table: SlotTable) -> None:
        super().__init__(spec)
        self.slot_table = slot_table
        self._lock = Lock()

    def held(self, indices: NDArray[np.int64] | None = None) -> Keys:
        """Tell which versions slots hold."""
        with self._lock:
            self._look()
            return self.slot_table.held(indices)

    def evict(self, indices: NDArray[np.int64], versions: NDArray[np.int64] | None = None) -> None:
        """Forget indices, or some of their versions."""
        with self._lock:
            self._look()
            table = self.slot_table
            self._clear(table.hide(indices) if versions is None else table.forget(indices, versions))

    def retain(self, keys: Keys) -> None:
        """Forget all but these versions."""
        with self._lock:
            self._look()
            self._clear(self.slot_table.retain(*keys))

    def __len__(self) -> int:
        """Count the versions held."""
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
