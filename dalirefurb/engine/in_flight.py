"""Versions that runs on their way compute. Other runs, and other rows, take the images from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Images
from dalirefurb.planning.batch_plan import Indices
from dalirefurb.store.key_index import KeyIndex, Numbers, distinct


@dataclass(eq=False)
class Computed:
    """Partial images of one run, once they are there; or its samples, where nothing but reading is partial.

    Attributes:
        indices: Indices of the samples that the images show: the plan's samples, or what replaces them, int64 of shape
            (n,).
        sizes: Heights and widths of the images in pixels, int64 of shape (n, 2), where they vary and somebody needs to
            know them before the images are there.
        images: Partial images, HWC uint8, or encoded samples, uint8 of shape (length,).
    """

    indices: Indices = field(default_factory=lambda: np.empty(0, np.int64))
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    images: Images = field(default_factory=lambda: Images(()))


class Borrowed(NamedTuple):
    """Rows whose images are computed for other rows.

    Attributes:
        rows: Rows of the run that borrows the images, int64 of shape (n,).
        computed: Images of the run that computes them, which may be the same run.
        places: Places of the borrowed images among the images of `computed`, int64 of shape (n,).
    """

    rows: NDArray[np.int64]
    computed: Computed
    places: NDArray[np.int64]


class InFlightVersions:
    """Where the images of runs on their way are, or will be. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._names = KeyIndex(0)
        self._free: list[int] = []
        # By slot: the number of the run, and the place among its images.
        self._numbers = np.empty(0, np.int64)
        self._places = np.empty(0, np.int64)
        self._runs: dict[int, Computed] = {}
        self._begun = 0

    def add(self, indices: Indices, versions: NDArray[np.int64], computed: Computed) -> Numbers:
        """Let a run compute n different versions that no other one computes; return what `remove` needs."""
        count = len(indices)
        if not count:
            return np.empty(0, np.int64)
        with self._lock:
            if count > len(self._free):
                self._grow(count)
            slots = np.array(self._free[-count:], np.int64)
            del self._free[-count:]
            self._names.add_any(slots, indices, versions)
            self._numbers[slots] = self._begun
            self._places[slots] = np.arange(count)
            self._runs[self._begun] = computed
            self._begun += 1
        return slots

    def find(self, indices: Indices, versions: NDArray[np.int64]) -> list[Borrowed]:
        """Find the rows, of n, whose versions are computed, run by run."""
        with self._lock:
            if not self._runs:
                return []
            slots = self._names.find(indices, versions)
            rows = np.flatnonzero(slots >= 0)
            numbers, places = self._numbers[slots[rows]], self._places[slots[rows]]
            parts = [(number, numbers == number) for number in distinct(numbers).tolist()]
            return [Borrowed(rows[part], self._runs[number], places[part]) for number, part in parts]

    def remove(self, slots: Numbers) -> None:
        """End what a run was added for: its images are in the store, or will not come."""
        if len(slots):
            with self._lock:
                del self._runs[int(self._numbers[slots[0]])]
                self._names.remove(slots)
                self._free += slots.tolist()

    def _grow(self, count: int) -> None:
        """Make room for more versions."""
        old = len(self._places)
        new = old + max(count, old)
        self._names.grow(new)
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
