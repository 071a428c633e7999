"""MemoryStore: samples in fixed slots of one array, or in one byte buffer when sizes vary."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import OutOfMemoryError, warn
from dalirefurb.image_batch import ALIGNMENT, Image, Images, aligned_empty, images_at, rounded
from dalirefurb.store.base import Contents, Keys, Lease, Store, Taken
from dalirefurb.store.slot_table import SlotContents, SlotTable
from dalirefurb.store.spec import StoreSpec
from dalirefurb.system.resources import (
    Budget,
    Remains,
    amount,
    available_bytes,
    budget_bytes,
    checked_budget,
    promise_to,
)


class Allocator:
    """Hands out blocks of a buffer it never sees. Not thread-safe.

    Free blocks are binned by size, so a search takes time in the number of different sizes, not of blocks.

    Args:
        nbytes: Size of the buffer in bytes.
        alignment: Blocks begin at, and are rounded up to, multiples of this many bytes.
        used: Starts and sizes of blocks in use, ascending and apart.

    Example:
        >>> allocator = Allocator(256)
        >>> allocator.allocate(100), allocator.allocate(64), allocator.allocate(100)
        (0, 128, None)
        >>> allocator.free(0); allocator.free(128); allocator.allocate(256)
        0
    """

    def __init__(self, nbytes: int, *, alignment: int = ALIGNMENT, used: Iterable[tuple[int, int]] = ()) -> None:
        self._alignment = alignment
        # Block starts to sizes, for blocks in use and for free ones.
        self._used: dict[int, int] = {}
        self._free: dict[int, int] = {}
        # Ends of free blocks to their starts: the left neighbour of a block ends where it begins.
        self._start_of_end: dict[int, int] = {}
        # Sizes of free blocks to their starts, and those sizes in order.
        self._bins: dict[int, set[int]] = {}
        self._sizes: list[int] = []
        end = 0
        for start, size in used:
            self._used[start] = rounded(size, self._alignment)
            if start > end:
                self._add(end, start - end)
            end = start + self._used[start]
        rest = (nbytes - end) // alignment * alignment
        if rest > 0:
            self._add(end, rest)

    def allocate(self, nbytes: int) -> int | None:
        """Reserve `nbytes` (at least 1) in the smallest free block that fits.

        Returns:
            The block's first byte, or None when nothing fits.
        """
        size = rounded(nbytes, self._alignment)
        rank = bisect_left(self._sizes, size)
        if rank == len(self._sizes):
            return None
        start = next(iter(self._bins[self._sizes[rank]]))
        rest = self._remove(start) - size
        if rest:
            self._add(start + size, rest)
        self._used[start] = size
        return start

    def size(self, start: int) -> int:
        """Return the bytes of the block that begins at `start`."""
        return self._used[start]

    def free(self, start: int) -> None:
        """Give back the block that begins at `start`."""
        size = self._used.pop(start)
        end = start + size
        if end in self._free:
            size += self._remove(end)
        if start in self._start_of_end:
            start = self._start_of_end[start]
            size += self._remove(start)
        self._add(start, size)

    def _add(self, start: int, size: int) -> None:
        """List a free block."""
        self._free[start] = size
        self._start_of_end[start + size] = start
        if size not in self._bins:
            self._bins[size] = set()
            insort(self._sizes, size)
        self._bins[size].add(start)

    def _remove(self, start: int) -> int:
        """Unlist the free block at `start` and return its size."""
        size = self._free.pop(start)
        del self._start_of_end[start + size]
        self._bins[size].remove(start)
        if not self._bins[size]:
            del self._bins[size]
            del self._sizes[bisect_left(self._sizes, size)]
        return size


_REMEDY = "use smaller images, a smaller reuse factor"
"""What helps where memory is short."""
_IN_CODE = "a smaller coverage (see propose_coverage)"
"""What else helps then."""

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
        super().__init__()
        self._max_bytes = checked_budget(max_bytes)

    def _open(self, spec: StoreSpec) -> Contents:
        return _Contents(spec, self._affordable(spec))

    def _takes(self, spec: StoreSpec) -> Taken:
        """Count the bytes for images on their way here, too."""
        if self._max_bytes is not None:
            spec = _within(budget_bytes(self._max_bytes), spec)
        return Taken(spec.nbytes + _spare(spec) * math.prod(spec.slot_shape or ()))

    def _affordable(self, spec: StoreSpec) -> StoreSpec:
        """Return what there is memory for: all that is asked for, or as much as `max_bytes` allows."""
        limit = available_bytes() if self._max_bytes is None else budget_bytes(self._max_bytes)
        if limit is None or spec.nbytes <= limit:
            return spec
        need = f"{spec.slots} slots need {amount(spec.nbytes)} and {amount(limit)} are"
        if self._max_bytes is None:
            said = f"the store must fit in memory, but {need} available"
            in_code = f"{_IN_CODE}; or pass max_bytes, and what has no room is recomputed"
            raise OutOfMemoryError(said, remedy=_REMEDY, in_code=in_code)
        warn(
            f"the store is smaller than the plan needs: {need} allowed by max_bytes. What has no room is recomputed, "
            f"so batches miss unequally; to cache evenly, {_REMEDY}, or {_IN_CODE}",
        )
        return _within(limit, spec)


def _within(nbytes: int, spec: StoreSpec) -> StoreSpec:
    """Return what of a spec these bytes have room for."""
    if spec.slot_shape is None:
        return replace(spec, arena_bytes=max(1, min(nbytes, spec.arena_bytes)))
    return replace(spec, slots=min(spec.slots, nbytes // math.prod(spec.slot_shape)))


def _spare(spec: StoreSpec) -> int:
    """Return how many slots there are beyond those that are asked for, where all are of one shape."""
    return min(spec.slots, max(_SPARE, _SPARE_BYTES // math.prod(spec.slot_shape))) if spec.slot_shape else 0


class _Contents(SlotContents):
    """Slots in memory: their names and their bytes, of which there are as many as are affordable, all or fewer."""

    def __init__(self, spec: StoreSpec, affordable: StoreSpec) -> None:
        slots, spare, shape = affordable.slots, _spare(affordable), spec.slot_shape
        self._room = SlotRows(shape, slots + spare) if shape else Blocks(affordable.arena_bytes, slots)
        super().__init__(spec, SlotTable(slots, spare))
        self._nbytes = affordable.nbytes
        self._slots = slots + spare
        # Slots that were reserved, and whose images are gone; the garbage collector finds them, under whichever lock.
        self._left: Remains[NDArray[np.int64]] = Remains()
        promise_to(self)

    def get(self, keys: Keys) -> Lease:
        with self._lock:
            found, slots = self._pin(keys)
        return Lease(found, self._room.lent(slots), partial(self._release, slots))

    def put(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Keep samples where they were made, if that is in slots, else copies of them."""
        reserved = self._room.slots_of(samples) if isinstance(self._room, SlotRows) else None
        stored = np.zeros(len(keys[0]), np.bool_)
        with self._lock:
            for step in self.slot_table.steps(keys[0]):
                rows, stored[step], hidden = self.slot_table.make_way(keys[0][step], keys[1][step])
                self._clear(hidden)
                new = step[rows]
                stored[new] = True
                if reserved is not None:
                    new = new[~self.slot_table.adopt(reserved[new], keys[0][new], keys[1][new])]
                stored[self._copy(new, keys, samples)] = False
        return stored

    def reserve(self, count: int) -> Images | None:
        """Lend slots that nobody holds, until nobody has the images any more."""
        with self._lock:
            while self._left:
                self._free(self.slot_table.leave(self._left.take()))
            slots = self.slot_table.reserve(count)
        if not isinstance(self._room, SlotRows) or not len(slots):
            return None
        images, user = self._room.reserved(slots)
        self._left.expect(user, slots)
        return images

    @property
    def nbytes(self) -> int:
        """Bytes set aside for samples, but for those on their way here."""
        return self._nbytes

    @property
    def untouched_bytes(self) -> int:
        """Bytes of the slots that no sample has been in yet."""
        slots, shape = self._slots - self.slot_table.fresh, self.spec.slot_shape
        return slots * math.prod(shape) if shape else self._nbytes * slots // max(1, self._slots)

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

    def _free(self, slots: NDArray[np.int64]) -> None:
        self._room.free(slots)


class SlotRows:
    """Bytes for slots of one shape: the rows of one array."""

    def __init__(self, shape: tuple[int, int, int], count: int) -> None:
        self._rows = _aligned_empty(count * math.prod(shape)).reshape(count, *shape)
        self._lent = self._rows.view()
        self._lent.flags.writeable = False

    def place(self, slot: int, sample: Image) -> bool:
        """Copy a sample into a slot, whose shape it has."""
        self._rows[slot] = sample
        return True

    def lent(self, slots: NDArray[np.int64]) -> Images:
        """View the images of slots, shape (n,), read-only."""
        return Images.rows_of(self._lent, slots)

    def reserved(self, slots: NDArray[np.int64]) -> tuple[Images, object]:
        """Return the images of slots, shape (n,), to be written, and what is gone when nobody has a view of them."""
        user = _User(self._rows)
        rows = np.asarray(user)
        images = Images.rows_of(rows, slots)
        images.whole = self._rows, slots
        return images, user

    def slots_of(self, samples: Sequence[Image]) -> NDArray[np.int64] | None:
        """Return the slots that samples were made in, shape (n,), if they were."""
        whole = samples.whole if isinstance(samples, Images) else None
        return whole[1] if whole is not None and whole[0] is self._rows else None

    def free(self, slots: NDArray[np.int64]) -> None:
        """Do nothing: a row belongs to its slot."""


class _User:
    """An array's memory, in use by whoever has the array that NumPy makes of this, or a view of it: these keep it."""

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array = array


class Blocks:
    """Bytes for slots of any shape: blocks of one arena."""

    def __init__(self, nbytes: int, slots: int) -> None:
        self._bytes = _aligned_empty(nbytes)
        self._arena = Allocator(nbytes)
        # Where each slot's block begins, and the shape of what it holds.
        self._blocks = np.zeros((slots, 4), np.int64)

    def place(self, slot: int, sample: Image) -> bool:
        """Copy a sample into a block for its slot; False when no free block is large enough."""
        start = self._arena.allocate(sample.size)
        if start is None:
            return False
        self._blocks[slot] = start, *sample.shape
        self._bytes[start : start + sample.size].reshape(sample.shape)[:] = sample
        return True

    def lent(self, slots: NDArray[np.int64]) -> Images:
        """View the images of slots, shape (n,), read-only."""
        blocks = self._blocks[slots]
        return images_at(self._bytes, blocks[:, 0], blocks[:, 1:])

    def free(self, slots: NDArray[np.int64]) -> None:
        """Give the blocks of some slots back, shape (n,)."""
        for start in self._blocks[slots, 0].tolist():
            self._arena.free(start)


def _aligned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Allocate the store's bytes, see `aligned_empty`; shape (nbytes,)."""
    try:
        return aligned_empty(nbytes)
    except MemoryError as error:
        said = f"the store must fit in memory, but {amount(nbytes)} cannot be allocated"
        raise OutOfMemoryError(said, remedy=_REMEDY, in_code=_IN_CODE) from error
