"""How are samples kept in host memory? In fixed slots of one array, or in one byte arena when sizes vary."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import OutOfMemoryError, StoreError
from dalirefurb.images import Image, Images
from dalirefurb.store.available import available_bytes
from dalirefurb.store.budget import Budget, budget_bytes
from dalirefurb.store.contract import Lease, Pair, Store, checked_keys, pairs_of
from dalirefurb.store.ledger import Ledger
from dalirefurb.store.memory_slots import REMEDY, Blocks, Rows
from dalirefurb.store.opening import Opening

_SPARE = 1024
"""Slots beyond those that are asked for, at most: for images on their way here."""


class MemoryStore(Store):
    """Keeps samples in memory that is allocated once, and touched when it is first written.

    One lock guards everything, copies included. Leased views outlive `close`.

    Args:
        max_bytes: The most to set aside, "16GB", "60%" of what is available, or bytes. If slots need more there are
            fewer, with a warning. By default all that are asked for, or an error if they exceed what is available.
            Images on their way here are not counted: up to 1,024 are made in the store's memory, or elsewhere.
    """

    def __init__(self, *, max_bytes: Budget | None = None) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._contents: _Contents | None = None

    def open(
        self,
        slot_shape: tuple[int, int, int] | None,
        *,
        slots: int,
        fingerprint: Mapping[str, Any],
        arena_bytes: int = 0,
    ) -> None:
        """Set memory aside, as `Store.open` says."""
        opening = Opening(slot_shape, slots, fingerprint, arena_bytes)
        with self._lock:
            if self._contents is not None:
                self._contents.opening.check_same(opening)
                return
            self._contents = _Contents(opening, self._affordable(opening))

    def get(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Lease:
        """Lend samples, as `Store.get` says."""
        keys = checked_keys(indices, versions)
        with self._lock:
            contents = self._opened()
            slots = contents.ledger.find(*keys)
            found = slots >= 0
            pinned = slots[found]
            contents.ledger.pin(pinned)
        return Lease(found, contents.images(pinned), partial(self._release, contents, pinned))

    def put(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Sequence[Image]
    ) -> NDArray[np.bool_]:
        """Copy samples in, as `Store.put` says."""
        keys = checked_keys(indices, versions)
        with self._lock:
            contents = self._opened()
            contents.opening.check_samples(samples, len(keys[0]))
            return contents.keep(pairs_of(keys), samples)

    def reserve(self, count: int) -> Images | None:
        """Lend slots that nobody holds, as `Store.reserve` says."""
        with self._lock:
            return self._opened().reserve(count)

    def evict(self, indices: NDArray[np.int64]) -> None:
        """Forget these indices, as `Store.evict` says."""
        keys, _ = checked_keys(indices, indices)
        with self._lock:
            contents = self._opened()
            contents.free(contents.ledger.hide_all(keys.tolist()).freed)

    def retain(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Forget all but these versions, as `Store.retain` says."""
        wanted = set(pairs_of(checked_keys(indices, versions)))
        with self._lock:
            contents = self._opened()
            contents.free(contents.ledger.retain(wanted).freed)

    def close(self) -> None:
        """Let the memory go, as `Store.close` says."""
        with self._lock:
            self._contents = None

    @property
    def nbytes(self) -> int:
        """Bytes set aside for samples."""
        with self._lock:
            return 0 if self._contents is None else self._contents.nbytes

    def __len__(self) -> int:
        """Count the versions held; none when closed."""
        with self._lock:
            return 0 if self._contents is None else len(self._contents.ledger)

    def _release(self, contents: _Contents, slots: NDArray[np.int64]) -> None:
        """Unpin a lease's slots; harmless when the store was closed, or opened anew, since."""
        with self._lock:
            contents.free(contents.ledger.unpin(slots))

    def _opened(self) -> _Contents:
        """Return the contents of an open store."""
        if self._contents is None:
            raise StoreError("a store must be open to be used, but this one is not: call open first")
        return self._contents

    def _affordable(self, opening: Opening) -> Opening:
        """Return what there is memory for: all that is asked for, or as much as `max_bytes` allows."""
        limit = available_bytes() if self._max_bytes is None else budget_bytes(self._max_bytes)
        if limit is None or opening.nbytes <= limit:
            return opening
        need = f"{opening.slots} slots need {opening.nbytes / 1e9:.2f} GB and {limit / 1e9:.2f} GB are"
        if self._max_bytes is None:
            raise OutOfMemoryError(
                f"the store must fit in memory, but {need} available: {REMEDY}; "
                "or pass max_bytes, and what has no room is recomputed"
            )
        warnings.warn(
            f"the store is smaller than the plan needs: {need} allowed by max_bytes. What has no room is recomputed, "
            f"so batches miss unequally; to cache evenly, {REMEDY}",
            stacklevel=3,
        )
        if opening.slot_shape is None:
            return replace(opening, arena_bytes=max(1, limit))
        return replace(opening, slots=limit // math.prod(opening.slot_shape))


class _User:
    """Whoever has images that were made in slots: when it is gone, nobody has."""


class _Contents:
    """One opening's slots: their names and their bytes.

    Args:
        opening: What the store is open for.
        affordable: The same, or less of it: what memory is set aside for.
    """

    def __init__(self, opening: Opening, affordable: Opening) -> None:
        self.opening = opening
        self.nbytes = affordable.nbytes
        # The bytes of slots of one shape are rows, of which some can be spare.
        shape = opening.slot_shape
        self._rows = None if shape is None else Rows(shape, affordable.slots + min(_SPARE, affordable.slots))
        self._room = self._rows or Blocks(affordable.nbytes, affordable.slots)
        self.ledger = Ledger(affordable.slots, spare=0 if self._rows is None else len(self._rows) - affordable.slots)
        # Slots that were reserved, and whose images are gone; the garbage collector finds them, under whichever lock.
        self._left: deque[list[int]] = deque()

    def keep(self, pairs: list[Pair], samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Keep samples, shape (n,), unless their versions are held; return whether they are, or there was no room."""
        reserved = None if self._rows is None else self._rows.slots_of(samples)
        stored = np.zeros(len(pairs), np.bool_)
        for row, (index, version) in enumerate(pairs):
            if (index, version) not in self.ledger:
                self.free(self.ledger.hide(index, older_than=version).freed)
                if self.ledger.full:
                    continue
                adopted = reserved is not None and self.ledger.adopt(reserved[row], index, version)
                if not adopted and not self._copy(index, version, samples[row]):
                    continue
            stored[row] = True
        return stored

    def _copy(self, index: int, version: int, sample: Image) -> bool:
        """Copy a sample into a slot of its own; False if there are no bytes for it."""
        slot = self.ledger.take(index, version)
        if not self._room.place(slot, sample):
            self.ledger.forget(index, version)
            return False
        return True

    def reserve(self, count: int) -> Images | None:
        """Lend slots until nobody has the images any more."""
        while self._left:
            self.free(self.ledger.leave(self._left.popleft()))
        slots = self.ledger.reserve(count)
        if self._rows is None or not slots:
            return None
        user = _User()
        weakref.finalize(user, self._left.append, slots).atexit = False
        return self._rows.images(np.array(slots), user)

    def images(self, slots: NDArray[np.int64]) -> Images:
        """View the samples in some slots, shape (n,), which stay as they are until they are free."""
        room = self._room
        return Images.on_demand(
            len(slots), lambda: [room.view(slot) for slot in slots.tolist()], lambda: room.places(slots)
        )

    def free(self, slots: list[int]) -> None:
        """Give back the bytes of slots that the ledger has freed."""
        for slot in slots:
            self._room.free(slot)
