"""MemoryStore: samples in fixed slots of one array, or in one byte buffer when sizes vary."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import OutOfMemoryError, StoreError
from dalirefurb.image_batch import Image, Images
from dalirefurb.store.available import available_bytes
from dalirefurb.store.base import Keys, Lease, Store, checked_keys
from dalirefurb.store.memory.slots import REMEDY, Blocks, Rows
from dalirefurb.store.memory_budget import Budget, budget_bytes
from dalirefurb.store.slot_table import SlotTable
from dalirefurb.store.spec import StoreSpec

_SPARE = 1024
_SPARE_BYTES = 32 << 20
"""Slots beyond those that are asked for, at most: for images on their way here. Of small ones as many as fit."""


class MemoryStore(Store):
    """Keeps samples in memory that is allocated once, and touched when it is first written.

    One lock guards everything, copies included. Leased views outlive `close`.

    Args:
        max_bytes: The most to set aside, "16GB", "60%" of what is available, or bytes. If slots need more there are
            fewer, with a warning. By default all that are asked for, or an error if they exceed what is available.
            Images on their way here are not counted: up to 1,024, of small ones up to 32 MiB, are made in the
            store's memory, others elsewhere.
    """

    def __init__(self, *, max_bytes: Budget | None = None) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._contents: _Contents | None = None

    def open(self, spec: StoreSpec) -> None:
        """Set memory aside, as `Store.open` says."""
        with self._lock:
            if self._contents is not None:
                self._contents.spec.check_same(spec)
                return
            self._contents = _Contents(spec, self._affordable(spec))

    def get(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Lease:
        """Lend samples, as `Store.get` says."""
        keys = checked_keys(indices, versions)
        with self._lock:
            contents = self._opened()
            slots = contents.slot_table.find(*keys)
            found = slots >= 0
            pinned = slots[found]
            contents.slot_table.pin(pinned)
        return Lease(found, contents.images(pinned), partial(self._release, contents, pinned))

    def put(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Sequence[Image]
    ) -> NDArray[np.bool_]:
        """Copy samples in, as `Store.put` says."""
        keys = checked_keys(indices, versions)
        with self._lock:
            contents = self._opened()
            contents.spec.check_samples(samples, len(keys[0]))
            return contents.keep(keys, samples)

    def reserve(self, count: int) -> Images | None:
        """Lend slots that nobody holds, as `Store.reserve` says."""
        with self._lock:
            return self._opened().reserve(count)

    def evict(self, indices: NDArray[np.int64]) -> None:
        """Forget these indices, as `Store.evict` says."""
        keys, _ = checked_keys(indices, indices)
        with self._lock:
            contents = self._opened()
            contents.free(contents.slot_table.hide(keys).freed)

    def retain(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Forget all but these versions, as `Store.retain` says."""
        wanted = checked_keys(indices, versions)
        with self._lock:
            contents = self._opened()
            contents.free(contents.slot_table.retain(*wanted).freed)

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
            return 0 if self._contents is None else len(self._contents.slot_table)

    def _release(self, contents: _Contents, slots: NDArray[np.int64]) -> None:
        """Unpin a lease's slots; harmless when the store was closed, or opened anew, since."""
        with self._lock:
            contents.free(contents.slot_table.unpin(slots))

    def _opened(self) -> _Contents:
        """Return the contents of an open store."""
        if self._contents is None:
            raise StoreError("a store must be open to be used, but this one is not: call open first")
        return self._contents

    def _affordable(self, spec: StoreSpec) -> StoreSpec:
        """Return what there is memory for: all that is asked for, or as much as `max_bytes` allows."""
        limit = available_bytes() if self._max_bytes is None else budget_bytes(self._max_bytes)
        if limit is None or spec.nbytes <= limit:
            return spec
        need = f"{spec.slots} slots need {spec.nbytes / 1e9:.2f} GB and {limit / 1e9:.2f} GB are"
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
        if spec.slot_shape is None:
            return replace(spec, arena_bytes=max(1, limit))
        return replace(spec, slots=limit // math.prod(spec.slot_shape))


class _User:
    """Whoever has images that were made in slots: when it is gone, nobody has."""


class _Contents:
    """One opening's slots: their names and their bytes.

    Args:
        spec: What the store is open for.
        affordable: What memory is set aside for: the same as `spec`, or less of it.
    """

    def __init__(self, spec: StoreSpec, affordable: StoreSpec) -> None:
        self.spec = spec
        self.nbytes = affordable.nbytes
        # The bytes of slots of one shape are rows, of which some can be spare.
        shape = spec.slot_shape
        self._rows = None
        if shape is not None:
            spare = min(affordable.slots, max(_SPARE, _SPARE_BYTES // math.prod(shape)))
            self._rows = Rows(shape, affordable.slots + spare)
        self._room = self._rows or Blocks(affordable.nbytes, affordable.slots)
        self.slot_table = SlotTable(
            affordable.slots, spare=0 if self._rows is None else len(self._rows) - affordable.slots
        )
        # Slots that were reserved, and whose images are gone; the garbage collector finds them, under whichever lock.
        self._left: deque[NDArray[np.int64]] = deque()

    def keep(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Keep samples, shape (n,), unless their versions are held; return whether they are, or there was no room."""
        reserved = None if self._rows is None else self._rows.slots_of(samples)
        stored = np.zeros(len(keys[0]), np.bool_)
        for step in self.slot_table.steps(keys[0]):
            rows, stored[step], hidden = self.slot_table.make_way(keys[0][step], keys[1][step])
            self.free(hidden.freed)
            new = step[rows]
            stored[new] = True
            if reserved is not None:
                new = new[~self.slot_table.adopt(reserved[new], keys[0][new], keys[1][new])]
            stored[self._copy(new, keys, samples)] = False
        return stored

    def _copy(self, rows: NDArray[np.int64], keys: Keys, samples: Sequence[Image]) -> NDArray[np.int64]:
        """Copy the samples of some rows into slots of their own; return those for which there are no bytes."""
        if not len(rows):
            return rows
        chosen = [samples[row] for row in rows.tolist()]  # Before slots are named: whoever finds them may fail.
        slots = self.slot_table.take(keys[0][rows], keys[1][rows])
        placed = [self._room.place(slot, sample) for slot, sample in zip(slots.tolist(), chosen, strict=True)]
        homeless: NDArray[np.int64] = rows[~np.array(placed)]
        self.slot_table.forget(keys[0][homeless], keys[1][homeless])
        return homeless

    def reserve(self, count: int) -> Images | None:
        """Lend slots until nobody has the images any more."""
        while self._left:
            self.free(self.slot_table.leave(self._left.popleft()))
        slots = self.slot_table.reserve(count)
        if self._rows is None or not len(slots):
            return None
        user = _User()
        weakref.finalize(user, self._left.append, slots).atexit = False
        return self._rows.images(slots, user)

    def images(self, slots: NDArray[np.int64]) -> Images:
        """View the samples in some slots, shape (n,), which stay as they are until they are free."""
        room = self._room
        return Images.on_demand(
            len(slots), lambda: [room.view(slot) for slot in slots.tolist()], lambda: room.places(slots)
        )

    def free(self, slots: NDArray[np.int64]) -> None:
        """Give back the bytes of slots that the table has freed, shape (n,)."""
        self._room.free(slots)
