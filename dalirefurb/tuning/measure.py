"""Measurement: what a source, recipes and a step cost on this machine, in a minute or so.

    read some samples ─▶ in turns, three rounds: standard of each recipe ▏ hits at each split ▏ reuse factor 2 at some
                         splits ▏ the same on the disk ▏ the step on a batch that is at hand

A loader is measured as it is, so everything it does is in its figures; only what differs from one configuration to the
next is told apart. A hit's cost is that of a plan which only hits. What a miss costs more than standard, to be kept, is
what is left of reuse factor 2, half of whose rows miss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dalirefurb.augment.recipe import Recipe
from dalirefurb.doctor.storage import disk_speeds
from dalirefurb.errors import DalirefurbError
from dalirefurb.planning.frozen import Frozen
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.reading.partial_sizes import PartialSizes, partial_sizes
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source
from dalirefurb.store import DeviceStore, DiskStore, MemoryStore, Store
from dalirefurb.store.available import available_bytes
from dalirefurb.store.memory_budget import amount
from dalirefurb.tuning.costs import Costs, Placement
from dalirefurb.tuning.derive import MIXED, Measured, Variant, costs_of
from dalirefurb.tuning.samples import Samples, read_some, rows_of
from dalirefurb.tuning.turns import Slice, Step, TimedStep, Turns, copied_s

Told = Callable[[str], None]

ROUNDS = 3
"""Slices of each subject; of fewer, nothing is concluded."""

_ENCODED_ROWS = 1024
_ARRAY_ROWS = 8192
_SHARE_OF_MEMORY = 1 / 8
_SLICE_S = (0.35, 1.0)
_COMPUTING = 4.0
"""How many times as long the slices are of what computes images, of which fewer are served."""

_TURN_S = 0.8
"""What a turn takes beside its slice, about."""

_SAME_AGAIN = 0.501
"""What is kept at reuse factor 2 where nothing final is random: such splits are left out."""

_FILLING = 0.7
"""Share of the time after which no more splits are begun."""

_PATIENCE = 1.15
"""The same, after which nothing more is measured."""

_AT_LEISURE = 1.5
"""Steps that take as many times as long as standard's batches are not waited for."""

_UNKNOWN_MEMORY = 8 << 30


@dataclass
class _Subject:
    """What takes turns, and what it did in them; one that computes takes longer ones, by its weight."""

    name: str
    turns: Turns
    weight: float = 1.0
    slices: list[Slice] = field(default_factory=list)


def measure(
    source: Source,
    recipes: Mapping[str, Recipe],
    *,
    batch_size: int,
    epochs: int,
    step: Step | float | None = None,
    disk: Path | None = None,
    placements: Sequence[Placement] = (("cpu", "cpu"),),
    limit_s: float = 90.0,
    told: Told = lambda _: None,
) -> Costs:
    """Measure what loading costs.

    Args:
        source: Source of the samples.
        recipes: Recipes by name, at least one; each is measured at all its splits.
        batch_size: Rows of a batch.
        epochs: Number of epochs of the run, for which what is kept is computed, too.
        step: Step of the model, which is called with images and labels; or seconds of it; None: not known.
        disk: Folder on the disk that a `DiskStore` would be on; None: no disk is measured.
        placements: Devices of the partial and of the final part, to be tried for each recipe.
        limit_s: Seconds that it may take, about; compiling kernels for the first time is not counted.
        told: Function that is called with a line about what is being done.

    Raises:
        DalirefurbError: If not even standard loading can be measured.
    """
    variants = {
        name if devices == ("cpu", "cpu") else f"{name} on {'/'.join(devices)}": Variant(name, recipe, devices)
        for devices in placements
        for name, recipe in recipes.items()
    }
    return _Measurement(source, variants, batch_size, epochs, step, disk, limit_s, told).run()


class _Measurement:
    def __init__(
        self,
        source: Source,
        variants: dict[str, Variant],
        batch_size: int,
        epochs: int,
        step: Step | float | None,
        disk: Path | None,
        limit_s: float,
        told: Told,
    ) -> None:
        self._source, self._variants, self._batch_size, self._epochs = source, variants, batch_size, epochs
        self._disk, self._limit_s, self._told = disk, limit_s, told
        self._step = TimedStep(step)
        self._began = time.perf_counter()
        self._notes: list[str] = []
        self._stack = ExitStack()
        self._subjects: dict[str, _Subject] = {}
        self._sizes: dict[tuple[str, int], PartialSizes] = {}
        self._hand_over_s: list[float] = []

    def run(self) -> Costs:
        self._told("reading some samples")
        samples = read_some(self._source)
        if count := samples.unreadable:
            self._notes.append(f"{count} of the samples looked at cannot be read; they are left out")
        with self._stack:
            self._told("compiling kernels, where they are not yet, and warming up")
            self._add_standard(samples)
            self._began += self._warm()
            self._told("measuring standard loading and every split")
            self._add_splits(samples)
            self._add_disk(samples)
            self._take_turns()
            batch, _ = next(iter(self._subjects.values())).turns.batch()
        return costs_of(
            Measured(
                variants=self._variants,
                encoded=self._source.encoded,
                batch_size=self._batch_size,
                epochs=self._epochs,
                samples=samples,
                sizes=self._sizes,
                slices={name: subject.slices for name, subject in self._subjects.items() if subject.slices},
                hand_over_s=self._hand_over_s,
                copy_s=copied_s(batch),
                step=self._step.costs(),
                disk_speeds=self._disk_speeds(),
                notes=tuple(self._notes),
            )
        )

    def _elapsed(self) -> float:
        """Return the time since the measurement began, as a share of its limit, without that for compiling."""
        return (time.perf_counter() - self._began) / self._limit_s

    def _rows(self, samples: Samples, nbytes: float = 0.0) -> Source | None:
        """Return samples for an epoch to measure with; None if not even a batch of partial images has room."""
        wanted = _ENCODED_ROWS if self._source.encoded else _ARRAY_ROWS
        batches = max(2, -(-wanted // self._batch_size))
        if nbytes:
            room = (available_bytes() or _UNKNOWN_MEMORY) * _SHARE_OF_MEMORY
            batches = min(batches, int(room / nbytes / self._batch_size))
        return rows_of(samples, self._source, rows=batches * self._batch_size) if batches else None

    def _add(self, name: str, turns: Turns) -> None:
        self._subjects[name] = _Subject(name, turns, 1.0 if "hits" in name else _COMPUTING)

    def _add_standard(self, samples: Samples) -> None:
        rows = self._rows(samples)
        assert rows is not None
        planner = Standard(len(rows), batch_size=self._batch_size)
        for name, variant in self._variants.items():
            self._add(f"standard {name}", Turns(rows, variant.recipe, planner, devices=variant.devices))

    def _warm(self) -> float:
        """Have each recipe serve a little, so that all is compiled; return the seconds it took."""
        began = time.perf_counter()
        first, *others = self._variants
        self._subjects[f"standard {first}"].turns.slice(0.0)
        for name in others:
            with self._noted(name):
                self._subjects[f"standard {name}"].turns.slice(0.0)
                continue
            del self._subjects[f"standard {name}"], self._variants[name]
        self._step.warm(next(iter(self._subjects.values())).turns)
        return time.perf_counter() - began

    def _add_splits(self, samples: Samples) -> None:
        for name, variant in self._variants.items():
            for split in range(len(variant.recipe.stages) + 1):
                with self._noted(f"{name}, {split} stages partial"):
                    self._add_split(samples, name, variant.recipe.at(split))

    def _add_split(self, samples: Samples, name: str, recipe: Recipe) -> None:
        """Measure hits at one split, and reuse factor 2 where a recipe splits by default, or sizes vary."""
        if recipe.split == 0:  # A hit costs the cores what standard does. Of arrays nothing is cached.
            self._sizes[name, 0] = self._partial_sizes(recipe, samples)
            return
        if recipe.diversity(2) <= _SAME_AGAIN:
            return
        if self._elapsed() > _FILLING:
            self._notes.append(f"{name}, {recipe.split} stages partial: not measured, for want of time")
            return
        sizes = self._partial_sizes(recipe, samples)
        rows = self._rows(samples, sizes.mean_bytes)
        if rows is None:
            need = amount(round(self._batch_size * sizes.mean_bytes))
            raise MemoryError(f"the images of a batch take {need}, more than an eighth of the memory at hand")
        self._sizes[name, recipe.split] = sizes
        devices = self._variants[name].devices
        make: Callable[[], Store] = DeviceStore if devices == ("gpu", "gpu") else MemoryStore
        self._add(f"hits {name} {recipe.split}", self._filled(rows, recipe, make(), devices))
        if self._is_mixed(name, recipe):
            self._add(f"mixed {name} {recipe.split}", self._mixed(rows, recipe, make(), devices))

    def _is_mixed(self, name: str, recipe: Recipe) -> bool:
        first, variant = next(iter(self._variants.items()))
        usual = variant.recipe.split
        return name == first and recipe.split in (usual, 1 if recipe.encoded else usual)

    def _add_disk(self, samples: Samples) -> None:
        """Measure a disk at the first recipe's split."""
        name, (_, recipe, devices) = next(iter(self._variants.items()))
        if self._disk is None or (name, recipe.split) not in self._sizes:
            return
        folder = self._disk
        with self._noted(f"a disk at {folder}"):
            rows = self._rows(samples, self._sizes[name, recipe.split].mean_bytes)
            assert rows is not None
            files = Path(self._stack.enter_context(TemporaryDirectory(prefix="dalirefurb-tune-", dir=folder)))
            for kind, make in (("hits", self._filled), ("mixed", self._mixed)):
                self._add(f"disk {kind}", make(rows, recipe, DiskStore(files / kind), devices))

    def _filled(self, rows: Source, recipe: Recipe, store: Store, devices: Placement) -> Turns:
        self._stack.callback(store.close)
        turns = Turns(rows, recipe, Frozen(len(rows), batch_size=self._batch_size), store, devices=devices)
        turns.fill()
        return turns

    def _mixed(self, rows: Source, recipe: Recipe, store: Store, devices: Placement) -> Turns:
        self._stack.callback(store.close)
        planner = Refurbish(len(rows), batch_size=self._batch_size, reuse_factor=MIXED)
        turns = Turns(rows, recipe, planner, store, devices=devices)
        turns.fill()
        return turns

    def _partial_sizes(self, recipe: Recipe, samples: Samples) -> PartialSizes:
        rows = rows_of(samples, self._source, rows=len(samples.indices))
        reader = Reader(rows, max_batch_size=self._batch_size, num_threads=1)
        try:
            return partial_sizes(rows, recipe, reader, seed=0)
        finally:
            reader.close()

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Make a failure of a measurement a note."""
        try:
            yield
        except (DalirefurbError, OSError, MemoryError) as error:
            self._notes.append(f"{what}: not measured: {' '.join(str(error).split())}")

    def _take_turns(self) -> None:
        """Give each subject a slice in each round, every second round backwards, as far as the time goes."""
        least, most = _SLICE_S
        left_s = self._limit_s * (1 - self._elapsed())
        weights = sum(each.weight for each in self._subjects.values())
        seconds = min(most, max(least, (left_s / ROUNDS - _TURN_S * len(self._subjects)) / weights))
        subjects = list(self._subjects.values())
        for number in range(ROUNDS):
            self._step.take()
            for place, subject in enumerate(subjects if number % 2 == 0 else subjects[::-1], 1):
                if self._elapsed() > _PATIENCE and subjects[0].slices:
                    over = f"the time, {self._limit_s:g} s, was over in round {number + 1} of {ROUNDS}"
                    self._notes.append(f"{over}: measure for longer, or when the machine is quiet")
                    return
                self._told(f"round {number + 1} of {ROUNDS}: {place} of {len(subjects)}, {subject.name}")
                with self._noted(subject.name):
                    subject.slices.append(subject.turns.slice(seconds * subject.weight))
            self._hand_over(subjects[0])

    def _hand_over(self, first: _Subject) -> None:
        """Measure what is between steps that the loader keeps up with."""
        with self._noted("what is between two steps"):
            batch_s = self._batch_size * float(np.median([each.image_s for each in first.slices]))
            self._hand_over_s.append(first.turns.hand_over(_AT_LEISURE * batch_s))

    def _disk_speeds(self) -> tuple[float, float] | None:
        """Return the bytes a second that the disk takes, and that it gives."""
        if self._disk is not None:
            with self._noted(f"the disk at {self._disk}"):
                written, read, _ = disk_speeds(self._disk)
                return written, read
        return None
