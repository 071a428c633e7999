"""Versions in flight: those that batch groups on their way compute. Other groups, and other rows, share the images."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Images
from dalirefurb.planning.batch_plan import Indices
from dalirefurb.store.slot_table import KeyIndex, Numbers, distinct


@dataclass(frozen=True, eq=False)
class InFlightImages:
    """Partial images of one batch group, as they come to be known; or its samples, where these are what is cached.

    Attributes:
        number: Number of the group among those that ever computed versions that others may share; -1 for any other.
        slots: Slots of the versions in `InFlightVersions`, int64 of shape (n,).
        shown: Indices of the samples that the images show: the plan's samples, or what replaces them, int64 of shape
            (n,). Known once they are read.
        sizes: Heights and widths of the images in pixels, int64 of shape (n, 2). Known before the images, where they
            vary and somebody needs them; never where nobody does.
        images: Partial images, HWC uint8, or encoded samples, uint8 of shape (length,). Known once they are computed.
    """

    number: int = -1
    slots: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    shown: Future[Indices] = field(default_factory=Future)
    sizes: Future[NDArray[np.int64]] = field(default_factory=Future)
    images: Future[Images] = field(default_factory=Future)


class SharedRows(NamedTuple):
    """Rows whose images are computed for other rows.

    Attributes:
        rows: Rows of the group that takes the images, int64 of shape (n,).
        images: Images of the group that computes them, which may be the same group.
        places: Places of the rows' images among `images`, int64 of shape (n,).
    """

    rows: NDArray[np.int64]
    images: InFlightImages
    places: NDArray[np.int64]


Value = TypeVar("Value")


def known(future: Future[Value]) -> Value:
    """Return what is known by now.

    Raises:
        TimeoutError: It is asked for too early, which is a fault of the caller.
    """
    return future.result(timeout=0)


class InFlightVersions:
    """Where the images of batch groups on their way are, or will be. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._keys = KeyIndex(0)
        self._free: list[int] = []
        # By slot: the number of the group, and the place among its images.
        self._numbers = np.empty(0, np.int64)
        self._places = np.empty(0, np.int64)
        self._images: dict[int, InFlightImages] = {}
        self._begun = 0

    def add(self, indices: Indices, versions: NDArray[np.int64]) -> InFlightImages:
        """Let a group compute n different versions that no other one computes, until `remove`; return their images."""
        count = len(indices)
        if not count:
            return InFlightImages()
        with self._lock:
            if count > len(self._free):
                self._grow(count)
            slots = np.array(self._free[-count:], np.int64)
            del self._free[-count:]
            self._keys.add_any(slots, indices, versions)
            self._numbers[slots] = self._begun
            self._places[slots] = np.arange(count)
            images = self._images[self._begun] = InFlightImages(self._begun, slots)
            self._begun += 1
        return images

    def find(self, indices: Indices, versions: NDArray[np.int64]) -> list[SharedRows]:
        """Find the rows, of n, whose versions are computed, group by group."""
        with self._lock:
            if not self._images:
                return []
            slots = self._keys.find(indices, versions)
            rows = np.flatnonzero(slots >= 0)
            numbers, places = self._numbers[slots[rows]], self._places[slots[rows]]
            parts = [(number, numbers == number) for number in distinct(numbers).tolist()]
            return [SharedRows(rows[part], self._images[number], places[part]) for number, part in parts]

    def remove(self, images: InFlightImages) -> None:
        """Have nobody share images any more: they are in the store, or will not come. Twice is as once."""
        with self._lock:
            if self._images.pop(images.number, None) is not None:
                self._keys.remove(images.slots)
                self._free += images.slots.tolist()

    def _grow(self, count: int) -> None:
        """Make room for more versions."""
        old = len(self._places)
        new = old + max(count, old)
        self._keys.grow(new)
        self._numbers, self._places = np.resize(self._numbers, new), np.resize(self._places, new)
        self._free += range(old, new)


def part_repeats(indices: Indices, versions: NDArray[np.int64]) -> tuple[Numbers, Numbers, Numbers]:
    """Part n rows into those that name a version first, and its repeats.

    Returns:
        The first ones, ascending; the repeats, ascending; and for each repeat the place of its own among the first.

    >>> part_repeats(np.array([4, 7, 4, 4]), np.array([1, 1, 1, 0]))
    (array([0, 1, 3]), array([2]), array([0]))
    """
    rows = np.arange(len(indices))
    if len(rows) < 2 or len(distinct(indices)) == len(rows):
        return rows, rows[:0], rows[:0]
    order = np.lexsort((versions, indices))  # It is stable: of equal versions the first row comes first.
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (np.diff(indices[order]) != 0) | (np.diff(versions[order]) != 0)
    firsts = np.empty_like(rows)
    firsts[order] = order[begins][np.cumsum(begins) - 1]
    first, again = np.flatnonzero(firsts == rows), np.flatnonzero(firsts != rows)
    return first, again, np.searchsorted(first, firsts[again])
