"""How are samples kept in host memory? In fixed slots of one array, or in one byte arena when sizes vary."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import OutOfMemoryError, StoreError
from dalirefurb.images import Image, Images, Places
from dalirefurb.store.arena import ALIGNMENT, Arena
from dalirefurb.store.available import available_bytes
from dalirefurb.store.budget import Budget, budget_bytes
from dalirefurb.store.contract import Lease, Store, checked_keys, pairs_of
from dalirefurb.store.ledger import Ledger
from dalirefurb.store.opening import Opening

_REMEDY = "use a smaller coverage (see propose_coverage), a smaller reuse factor or a smaller image"


class MemoryStore(Store):
    """Keeps samples in memory that is allocated once, and touched when it is first written.

    One lock guards everything, copies included. Leased views outlive `close`.

    Args:
        max_bytes: The most to set aside, "16GB", "60%" of what is available, or bytes. If slots need more there are
            fewer, with a warning. By default all that are asked for, or an error if they exceed what is available.
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
            stored = [contents.keep(*pair, sample) for pair, sample in zip(pairs_of(keys), samples, strict=True)]
        return np.array(stored, dtype=np.bool_)

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
                f"the store must fit in memory, but {need} available: {_REMEDY}; "
                "or pass max_bytes, and what has no room is recomputed"
            )
        warnings.warn(
            f"the store is smaller than the plan needs: {need} allowed by max_bytes. What has no room is recomputed, "
            f"so batches miss unequally; to cache evenly, {_REMEDY}",
            stacklevel=3,
        )
        if opening.slot_shape is None:
            return replace(opening, arena_bytes=max(1, limit))
        return replace(opening, slots=limit // math.prod(opening.slot_shape))


class _Contents:
    """One opening's slots: their names, their bytes, and a view of each one that is held or hidden.

    Args:
        opening: What the store is open for.
        affordable: The same, or less of it: what memory is set aside for.
    """

    def __init__(self, opening: Opening, affordable: Opening) -> None:
        self.opening = opening
        self.nbytes = affordable.nbytes
        self.ledger = Ledger(affordable.slots)
        self.views: dict[int, Image] = {}
        self._room = _Blocks(affordable) if opening.slot_shape is None else _Rows(affordable)

    def keep(self, index: int, version: int, sample: Image) -> bool:
        """Copy one sample in, unless its version is held; False when there is no room."""
        if (index, version) in self.ledger:
            return True
        self.free(self.ledger.hide(index, older_than=version).freed)
        if self.ledger.full:
            return False
        slot = self.ledger.take(index, version)
        view = self._room.place(slot, sample.shape)
        if view is None:
            self.ledger.forget(index, version)
            return False
        np.copyto(view, sample)
        view.flags.writeable = False
        self.views[slot] = view
        return True

    def images(self, slots: NDArray[np.int64]) -> Images:
        """View the samples in some slots, shape (n,), which stay as they are until they are free."""
        views = self.views
        return Images.on_demand(
            len(slots), lambda: [views[slot] for slot in slots.tolist()], lambda: self._room.places(slots)
        )

    def free(self, slots: list[int]) -> None:
        """Give back the bytes of slots that the ledger has freed."""
        for slot in slots:
            del self.views[slot]
            self._room.free(slot)


class _Rows:
    """Bytes for slots of one shape: the rows of one array."""

    def __init__(self, opening: Opening) -> None:
        assert opening.slot_shape is not None
        self._rows = _aligned_empty(opening.nbytes).reshape(opening.slots, *opening.slot_shape)
        self._start: int = self._rows.ctypes.data

    def place(self, slot: int, shape: tuple[int, ...]) -> Image | None:
        """Return the slot's bytes, of the one shape there is."""
        row: Image = self._rows[slot]
        return row

    def places(self, slots: NDArray[np.int64]) -> Places:
        """Tell where slots, shape (n,), lie in memory."""
        sizes = np.full((len(slots), 2), self._rows.shape[1:3], np.int64)
        return Places(self._start + slots * self._rows.strides[0], sizes)

    def free(self, slot: int) -> None:
        """Do nothing: a row belongs to its slot."""


class _Blocks:
    """Bytes for slots of any shape: blocks of one arena."""

    def __init__(self, opening: Opening) -> None:
        self._bytes = _aligned_empty(opening.nbytes)
        self._start: int = self._bytes.ctypes.data
        self._arena = Arena(opening.nbytes)
        # Where each slot's block begins, and height and width of what it holds.
        self._blocks = np.zeros((opening.slots, 3), np.int64)

    def place(self, slot: int, shape: tuple[int, ...]) -> Image | None:
        """Return bytes for the slot, or None when no free block is large enough."""
        nbytes = math.prod(shape)
        start = self._arena.allocate(nbytes)
        if start is None:
            return None
        self._blocks[slot] = start, *shape[:2]
        return self._bytes[start : start + nbytes].reshape(shape)

    def places(self, slots: NDArray[np.int64]) -> Places:
        """Tell where slots, shape (n,), lie in memory."""
        blocks = self._blocks[slots]
        return Places(self._start + blocks[:, 0], blocks[:, 1:])

    def free(self, slot: int) -> None:
        """Give the slot's block back."""
        self._arena.free(int(self._blocks[slot, 0]))


def _aligned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Allocate untouched bytes that begin at a multiple of `ALIGNMENT`, shape (nbytes,)."""
    try:
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"the store must fit in memory, but {nbytes / 1e9:.2f} GB cannot be allocated: {_REMEDY}"
        ) from error
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
