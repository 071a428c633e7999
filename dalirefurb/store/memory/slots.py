"""Slots in host memory: rows of one array, or blocks of one byte buffer when sizes vary."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import OutOfMemoryError
from dalirefurb.image_batch import Image, Images, Places
from dalirefurb.store.allocator import ALIGNMENT, Allocator
from dalirefurb.store.memory_budget import amount

REMEDY = "use a smaller coverage (see propose_coverage), a smaller reuse factor or a smaller image"
"""What helps where memory is short."""


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

    def view(self, slot: int) -> Image:
        """View a slot's bytes."""
        row: Image = self._lent[slot]
        return row

    def places(self, slots: NDArray[np.int64]) -> Places:
        """Tell where slots, shape (n,), lie in memory."""
        return Places.of_rows(self._rows, slots)

    def images(self, slots: NDArray[np.int64], user: object) -> Images:
        """Return the images of slots, shape (n,), to be written; they, and views of them, keep their user."""
        rows = self._rows
        images = Images.on_demand(
            len(slots),
            lambda: [np.asarray(_Used(rows[slot], user)) for slot in slots.tolist()],
            lambda: self.places(slots),
        )
        images.whole = rows, slots
        return images

    def slots_of(self, samples: Sequence[Image]) -> NDArray[np.int64] | None:
        """Return the slots that samples were made in, shape (n,), if they were."""
        whole = samples.whole if isinstance(samples, Images) else None
        return whole[1] if whole is not None and whole[0] is self._rows else None

    def free(self, slots: NDArray[np.int64]) -> None:
        """Do nothing: a row belongs to its slot."""


class _Used:
    """An array's memory, and who uses it: arrays that NumPy makes of this keep both."""

    def __init__(self, array: Image, user: object) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array = array
        self._user = user


class Blocks:
    """Bytes for slots of any shape: blocks of one arena."""

    def __init__(self, nbytes: int, slots: int) -> None:
        self._bytes = _aligned_empty(nbytes)
        self._start: int = self._bytes.ctypes.data
        self._lent = self._bytes.view()
        self._lent.flags.writeable = False
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

    def view(self, slot: int) -> Image:
        """View a slot's block."""
        start, *shape = self._blocks[slot].tolist()
        return self._lent[start : start + math.prod(shape)].reshape(shape)

    def places(self, slots: NDArray[np.int64]) -> Places:
        """Tell where slots, shape (n,), lie in memory."""
        blocks = self._blocks[slots]
        return Places(self._start + blocks[:, 0], blocks[:, 1:3])

    def free(self, slots: NDArray[np.int64]) -> None:
        """Give the blocks of some slots back, shape (n,)."""
        for start in self._blocks[slots, 0].tolist():
            self._arena.free(start)


def _aligned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Allocate untouched bytes that begin at a multiple of `ALIGNMENT`, shape (nbytes,)."""
    try:
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"the store must fit in memory, but {amount(nbytes)} cannot be allocated: {REMEDY}"
        ) from error
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]
