"""What takes turns: samples that are read, and a loader of them for each recipe, split and reuse factor measured."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.augment.recipe import Recipe
from dalirefurb.engine.prefetch import Depths
from dalirefurb.errors import DalirefurbError, ReadError, SampleError
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Frozen, Refurbish, Standard
from dalirefurb.reading.partial_sizes import PartialSizes, partial_sizes
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source
from dalirefurb.source.outage import Patience
from dalirefurb.store import DeviceStore, DiskStore, MemoryStore, Store
from dalirefurb.store.available import available_bytes
from dalirefurb.store.memory_budget import amount
from dalirefurb.tuning.costs import Placement, place_of
from dalirefurb.tuning.turns import Slice, Turns

LEAST = 256
"""Samples that are measured, unless the source has fewer."""

_CANDIDATES = 2048
_LONGEST_S = 4.0
_AT_A_TIME = 16


@dataclass(frozen=True)
class ReadSamples:
    """What was read.

    Attributes:
        indices: Samples that could be read, in rising order of their bytes, shape (n,).
        read_s: Seconds for a sample, as the loader's reading threads read together.
        mean_bytes: Mean bytes of a sample as it is read.
        unreadable: Number of samples that could not be read.
    """

    indices: NDArray[np.int64]
    read_s: float
    mean_bytes: float
    unreadable: int


def read_some(source: Source, *, seed: int = 0) -> ReadSamples:
    """Read some samples at random, for some seconds at most, but at least 256.

    Raises:
        SampleError, ReadError: If none of them can be read.
    """
    threads = Depths.reading_threads
    chosen = rng.permutation(len(source), seed, "tuning")[:_CANDIDATES]
    jobs = [chosen[start : start + _AT_A_TIME] for start in range(0, len(chosen), _AT_A_TIME)]
    began = time.perf_counter()
    sizes: dict[int, int] = {}
    failed: list[SampleError | ReadError] = []
    with ThreadPoolExecutor(threads, thread_name_prefix="dalirefurb-tune") as pool:
        for start in range(0, len(jobs), threads):
            for read, errors in pool.map(lambda job: _lengths(source, job), jobs[start : start + threads]):
                sizes |= read
                failed += errors
            if time.perf_counter() - began > _LONGEST_S and len(sizes) >= LEAST:
                break
    elapsed = time.perf_counter() - began
    if not sizes:
        raise failed[0]
    indices = np.array(sorted(sizes, key=lambda index: (sizes[index], index)), np.int64)
    done = len(sizes) + len(failed)
    return ReadSamples(indices, elapsed / done, float(np.mean([*sizes.values()])), len(failed))


def rows_of(samples: ReadSamples, source: Source, *, rows: int, seed: int = 0) -> Source:
    """Return a source of so many rows: samples taken evenly by size, again and again if there are fewer, in any order.

    Args:
        samples: What was read.
        source: Source that was read.
        rows: Number of rows.
        seed: Seed of the order.
    """
    count = len(samples.indices)
    places = np.arange(rows) * count // rows if rows <= count else np.arange(rows) % count
    return source.subset(samples.indices[places][rng.permutation(rows, seed, "tuning rows")])


def _lengths(source: Source, indices: NDArray[np.int64]) -> tuple[dict[int, int], list[SampleError | ReadError]]:
    """Read samples together, or if one of them cannot be read, one by one."""
    try:
        read = Patience(0).of(lambda: source.read(indices), source.name(int(indices[0])))
        return {int(index): sample.nbytes for index, sample in zip(indices, read, strict=True)}, []
    except (SampleError, ReadError) as error:
        if len(indices) == 1:
            return {}, [error]
        parts = [_lengths(source, index[np.newaxis]) for index in indices]
        return {key: size for read, _ in parts for key, size in read.items()}, [
            one for _, each in parts for one in each
        ]


MIXED = (2, 4)
"""Reuse factors whose epochs, of hits and misses, tell what both cost together."""

_ENCODED_ROWS = 1024
_ARRAY_ROWS = (8192, 32_768)
"""Rows of an epoch, of a source that is small, and of others: in short epochs what is reused is waited for."""

_SHARE_OF_MEMORY = 1 / 8

_COMPUTING, _MIXED = 4.0, 2.0
"""Lengths of turns of what computes all images, and some, in those of what computes none: they serve fewer."""

_SAME_AGAIN = 0.501
"""What is kept at reuse factor 2 where nothing final is random: such splits are left out."""

FILLING = 0.7
"""Share of the time after which no more splits are begun."""

_UNKNOWN_MEMORY = 8 << 30


class Variant(NamedTuple):
    """One recipe on certain devices.

    Attributes:
        name: Name of the recipe.
        recipe: The recipe.
        devices: Devices of its partial and of its final part.
    """

    name: str
    recipe: Recipe
    devices: Placement


class Key(NamedTuple):
    """What a loader serves.

    Attributes:
        variant: Name of the variant.
        split: Number of partial stages; 0 for standard.
        reuse_factor: Uses of a version; 1: standard; None: every row is a hit.
        on_disk: Whether the partial images are on a disk.
    """

    variant: str
    split: int = 0
    reuse_factor: int | None = 1
    on_disk: bool = False


@dataclass
class Subject:
    """A loader that takes turns, and what it did in them.

    Attributes:
        turns: The loader.
        weight: Length of its turns, in those of what computes no images.
        slices: What it did in each turn.
    """

    turns: Turns
    weight: float
    slices: list[Slice] = field(default_factory=list)


class Subjects(dict[Key, Subject]):
    """All that take turns. Those that cannot be made are noted.

    Args:
        source: Source of the samples.
        samples: Samples that were read of it.
        variants: Recipes on devices, by name.
        batch_size: Rows of a batch.
        notes: List to which a line is added for each that cannot be made.
        stack: Stack that closes stores.

    Attributes:
        sizes: Sizes of partial images, by variant and split.
        left_out: Number of loaders that there was no time for, by variant and split.
    """

    def __init__(
        self,
        source: Source,
        samples: ReadSamples,
        variants: Mapping[str, Variant],
        batch_size: int,
        notes: list[str],
        stack: ExitStack,
    ) -> None:
        super().__init__()
        self._source, self._samples, self._variants, self._batch_size = source, samples, variants, batch_size
        self._notes, self._stack = notes, stack
        self.sizes: dict[tuple[str, int], PartialSizes] = {}
        self.left_out: dict[tuple[str, int], int] = {}

    @property
    def first(self) -> str:
        """Name of the variant of which most is measured."""
        return next(iter(self._variants))

    def name_of(self, key: Key) -> str:
        """Say in a few words what a loader serves."""
        if key.reuse_factor == 1:
            return f"standard loading ({key.variant})"
        what = "hits" if key.reuse_factor is None else f"reuse factor {key.reuse_factor}"
        return f"{self._place(key.variant, key.split)}, {what}{' on the disk' if key.on_disk else ''}"

    def _place(self, name: str, split: int) -> str:
        stages = self._variants[name].recipe.stages
        return f"{name}, cached {place_of(stages[split - 1].name) if split else f'before the {stages[0].name}'}"

    def add_standard(self) -> None:
        """Add standard of each variant."""
        rows = self._rows()
        assert rows is not None
        planner = Standard(len(rows), batch_size=self._batch_size)
        for name, variant in self._variants.items():
            self[Key(name)] = Subject(Turns(rows, variant.recipe, planner, devices=variant.devices), _COMPUTING)

    def add_splits(self, elapsed: Callable[[], float]) -> None:
        """Add hits at each split, and reuse factors where a recipe splits by default, or where sizes vary.

        Args:
            elapsed: Function that returns the share of the time that is over.
        """
        for name, variant in self._variants.items():
            for split in range(len(variant.recipe.stages) + 1):
                with noted(self._notes, self._place(name, split)):
                    recipe = variant.recipe.at(split)
                    if split == 0:  # A hit costs the cores what standard does. Of arrays nothing is cached.
                        self.sizes[name, 0] = self._partial_sizes(recipe)
                    elif recipe.diversity(2) > _SAME_AGAIN and elapsed() > FILLING and len(self) > len(self._variants):
                        self.left_out[name, split] = 1 + len(self._mixed(name, recipe))
                    elif recipe.diversity(2) > _SAME_AGAIN:
                        self._add_split(name, recipe)

    def add_disk(self, folder: Path) -> None:
        """Add a store on a disk, at the first variant's split."""
        first = self.first
        recipe, devices = self._variants[first].recipe, self._variants[first].devices
        if (first, recipe.split) not in self.sizes:
            return
        with noted(self._notes, f"a disk at {folder}"):
            rows = self._rows(self.sizes[first, recipe.split].mean_bytes)
            assert rows is not None
            files = Path(self._stack.enter_context(TemporaryDirectory(prefix="dalirefurb-tune-", dir=folder)))
            for factor in (None, *MIXED):
                store = DiskStore(files / str(factor))
                self._add(Key(first, recipe.split, factor, on_disk=True), rows, recipe, store, devices)

    def _add_split(self, name: str, recipe: Recipe) -> None:
        sizes = self._partial_sizes(recipe)
        rows = self._rows(sizes.mean_bytes)
        if rows is None:
            need = amount(round(self._batch_size * sizes.mean_bytes))
            raise MemoryError(f"the images of a batch take {need}, more than an eighth of the memory at hand")
        self.sizes[name, recipe.split] = sizes
        devices = self._variants[name].devices
        make: Callable[[], Store] = DeviceStore if devices == ("gpu", "gpu") else MemoryStore
        for factor in (None, *self._mixed(name, recipe)):
            self._add(Key(name, recipe.split, factor), rows, recipe, make(), devices)

    def _mixed(self, name: str, recipe: Recipe) -> tuple[int, ...]:
        """Return the reuse factors that are measured at a split, which all others are computed from."""
        if name != self.first:
            return ()
        if recipe.split == self._variants[name].recipe.split:
            return MIXED
        return MIXED[:1] if recipe.split == 1 and recipe.encoded else ()

    def _add(self, key: Key, rows: Source, recipe: Recipe, store: Store, devices: Placement) -> None:
        """Have a store filled, and add what serves from it."""
        self._stack.callback(store.close)
        planner: Planner = (
            Frozen(len(rows), batch_size=self._batch_size)
            if key.reuse_factor is None
            else Refurbish(len(rows), batch_size=self._batch_size, reuse_factor=key.reuse_factor)
        )
        turns = Turns(rows, recipe, planner, store, devices=devices)
        turns.fill()
        self[key] = Subject(turns, 1.0 if key.reuse_factor is None else _MIXED)

    def _rows(self, nbytes: float = 0.0) -> Source | None:
        """Return samples for an epoch to measure with; None if not even a batch of partial images has room."""
        least, most = _ARRAY_ROWS
        wanted = _ENCODED_ROWS if self._source.encoded else min(most, max(least, len(self._source)))
        batches = max(2, -(-wanted // self._batch_size))
        batches = min(batches, batches_that_fit(nbytes, self._batch_size))
        return rows_of(self._samples, self._source, rows=batches * self._batch_size) if batches else None

    def _partial_sizes(self, recipe: Recipe) -> PartialSizes:
        rows = rows_of(self._samples, self._source, rows=len(self._samples.indices))
        reader = Reader(rows, max_batch_size=self._batch_size, num_threads=1)
        try:
            return partial_sizes(rows, recipe, reader, seed=0)
        finally:
            reader.close()


def batches_that_fit(nbytes: float, batch_size: int) -> int:
    """Return of how many batches partial images of so many bytes fit into the memory that may be taken for them."""
    room = (available_bytes() or _UNKNOWN_MEMORY) * _SHARE_OF_MEMORY
    return int(room / nbytes / batch_size) if nbytes else sys.maxsize


@contextmanager
def noted(notes: list[str], what: str) -> Iterator[None]:
    """Make a failure of a measurement a note."""
    try:
        yield
    except (DalirefurbError, OSError, MemoryError) as error:
        notes.append(f"{what}: not measured: {' '.join(str(error).split())}")
