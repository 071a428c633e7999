"""Measurement: what a source, recipes and a step cost on this machine, in a minute or so.

read some samples ─▶ in turns, three rounds: standard of each recipe ▏ hits at each split ▏ reuse factors 2 and 4 at
some splits ▏ the same on the disk ▏ the step on a batch that is at hand
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from dalirefurb.augment.recipe import Recipe
from dalirefurb.doctor.findings import disk_speeds
from dalirefurb.engine.partial_sizes import PartialSizes, partial_sizes
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Frozen, Refurbish, Standard
from dalirefurb.reading.reader import Reader
from dalirefurb.source import Source
from dalirefurb.store import DeviceStore, DiskStore, MemoryStore, Store
from dalirefurb.system.resources import amount, usable_cores, watch_others
from dalirefurb.tuning.costs import (
    LEAST_ROUNDS,
    LIMIT_S,
    MIXED,
    Costs,
    Key,
    Measured,
    Placement,
    Spread,
    StepCosts,
    again,
    costs_of,
    named,
    place_of,
)
from dalirefurb.tuning.turns import (
    PATIENCE,
    Readable,
    Slice,
    Step,
    Told,
    Turns,
    batches_that_fit,
    copied_s,
    noted,
    read_some,
    slice_s,
    step_s,
)

MEASURING = 0.75
"""Share of the limit that is for costs; the rest is for turns of what is to be recommended."""

_FILLING = 0.7
"""Share of the time after which no more splits are begun."""

_TO_SPARE = 1.1
"""What is said to be needed, in what it is computed to be."""

_SLICE_S = (0.3, 1.0)
_WEIGHTS: Mapping[int | None, float] = {1: 4.0, 2: 2.0, 4: 2.0, None: 1.0}
"""Lengths of turns by reuse factor, in those of what only hits: what computes images serves fewer."""

_ENCODED_ROWS = 1024
_ARRAY_ROWS = (8192, 32_768)
"""Rows of an epoch, of a source that is small, and of others: in short epochs what is reused is waited for."""

_SAME_AGAIN = 0.501
"""What is kept at reuse factor 2 where nothing final is random: such splits are left out."""

_READ_BOUND = 0.9
"""Where reading takes this share of standard's time, the cores wait for it."""

_LONG_S = 0.05
"""Batches that take longer are handed over in a time that hardly counts: it is measured once."""

_AT_LEISURE = 1.5
"""Steps that take as many times as long as standard's batches are not waited for."""

_OTHERS = 0.2
"""Cores that other processes take of a machine that is not quiet."""


def measure(
    source: Source,
    recipes: Mapping[str, Recipe],
    *,
    batch_size: int,
    step: Step | float | None = None,
    disk: Path | None = None,
    placements: Sequence[Placement] = (("cpu", "cpu"),),
    limit_s: float = LIMIT_S,
    told: Told = lambda _: None,
) -> Costs:
    """Measure what loading costs, in three quarters of the limit. Arguments are those of `tune`, recipes have names.

    Raises:
        DalirefurbError: If not even standard loading can be measured.
    """
    began = time.perf_counter()
    told("reading some samples")
    samples = read_some(source)
    standards = [Key(name, devices) for devices in placements for name in recipes]
    return _Measurement(samples, recipes, standards, batch_size, disk, limit_s, told, began).run(step)


@dataclass
class _Measurement:
    """Loaders that take turns, and what they did in them; what cannot be measured is noted.

    Attributes:
        standards: Standard loaders, one for each recipe and placement; most is measured of the first one's recipe.
        slices: What each of the loaders that have not failed did in each of its turns.
        step_s: Seconds and CPU seconds of the step in each round.
        sizes: Sizes of the partial images of each split, by what only hits there.
        left_out: Loaders that there was no time for.
        notes: What could not be measured, a line each.
    """

    samples: Readable
    recipes: Mapping[str, Recipe]
    standards: list[Key]
    batch_size: int
    disk: Path | None
    limit_s: float
    told: Told
    began: float
    stack: ExitStack = field(default_factory=ExitStack)
    loaders: dict[Key, Turns] = field(default_factory=dict)
    slices: dict[Key, list[Slice]] = field(default_factory=dict)
    step_s: list[tuple[float, float]] = field(default_factory=list)
    hand_over_s: dict[Key, list[float]] = field(default_factory=dict)
    sizes: dict[Key, PartialSizes] = field(default_factory=dict)
    left_out: list[Key] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> Key:
        """Standard of the recipe that is compared with."""
        return self.standards[0]

    @property
    def usual(self) -> Key:
        """What only hits where that recipe splits by default."""
        return self.first._replace(split=self.recipes[self.first.recipe].split, reuse_factor=None)

    def run(self, step: Step | float | None) -> Costs:
        """Measure as much as there is time for."""
        if count := self.samples.unreadable:
            self.notes.append(f"{count} of the samples looked at cannot be read; they are left out")
        with self.stack:
            self.told("compiling kernels, where they are not yet, and warming up")
            warming = time.perf_counter()
            self._add_standards()
            batch = self.loaders[self.first].batch()
            if callable(step):
                step(*batch)  # Which warms it up.
            elif step is not None:
                self.step_s = [(step, 0.0)] * LEAST_ROUNDS
            self.began += time.perf_counter() - warming
            others = watch_others()
            self.told("measuring standard loading and every split")
            ready = self._elapsed()
            self._add_splits()
            self._add_disk()
            filled = self._elapsed()
            self._take_turns(step, batch)
            missing = self._missing(ready, filled, cores := others())
        if cores > _OTHERS:
            taken = f"other processes took {cores:.1f} cores while it measured"
            self.notes.append(f"{taken}: figures are those of what was left")
        image_s = {key: self._image_s(key) for key, slices in self.slices.items() if slices}
        standard = self.slices[self.first]
        speeds = None
        if self.disk is not None:
            with noted(self.notes, f"the disk at {self.disk}"):
                speeds = disk_speeds(self.disk)[:2]
        own_s = sum(each.stats.planning_s + each.stats.preparing_s for each in standard)
        wall_s, cpu_s = zip(*self.step_s, strict=True) if self.step_s else ((), ())
        return costs_of(
            Measured(
                recipes=self.recipes,
                usual=self.usual,
                image_s=image_s,
                hand_over_s=self.hand_over_s,
                sizes={key: each for key, each in self.sizes.items() if key.standard in image_s},
                disk_speeds=speeds,
            ),
            cores=usable_cores(),
            batch_size=self.batch_size,
            read_s=self.samples.read_s if self.samples.source.encoded else 0.0,
            encoded_bytes=self.samples.mean_bytes,
            serial_s=own_s / max(1, sum(each.stats.samples for each in standard)),
            copy_s=copied_s(batch[0]),
            step=StepCosts(Spread.of(wall_s), float(np.median(cpu_s))) if wall_s else None,
            miss_spread=Spread.of([seconds for each in standard for seconds in each.batch_s]).relative,
            notes=tuple(self.notes),
            limit_s=self.limit_s,
            missing=missing,
        )

    def _elapsed(self) -> float:
        """Return the time since the measurement began, as a share of its limit, without that for compiling."""
        return (time.perf_counter() - self.began) / (MEASURING * self.limit_s)

    def _name_of(self, key: Key) -> str:
        """Say in a few words what a loader serves."""
        if key.reuse_factor == 1:
            return f"standard loading ({named(key.recipe, key.devices)})"
        what = "hits" if key.reuse_factor is None else f"reuse factor {key.reuse_factor}"
        return f"{self._place_of(key)}, {what}{' on the disk' if key.on_disk else ''}"

    def _place_of(self, key: Key) -> str:
        stages = self.recipes[key.recipe].stages
        cached = stages[key.split - 1].name if key.split else ""
        return f"{named(key.recipe, key.devices)}, cached {place_of(cached, stages[0].name)}"

    def _add_standards(self) -> None:
        """Have each recipe serve a little, so that all is compiled; those that cannot are none of those measured."""
        rows = self._rows()
        planner = Standard(len(rows), batch_size=self.batch_size)
        for key in list(self.standards):
            self.loaders[key] = Turns(rows, self.recipes[key.recipe], planner, devices=key.devices)
            self.slices[key] = []
            if self._slice(key, 0.0, named(key.recipe, key.devices)) is None:
                self.standards.remove(key)

    def _slice(self, key: Key, seconds: float, what: str) -> Slice | None:
        """Have a loader serve for a while. One that fails is noted, and gone; without the first nothing can be said."""
        with nullcontext() if key == self.first else noted(self.notes, what):
            return self.loaders[key].slice(seconds)
        del self.loaders[key], self.slices[key]
        return None

    def _add_splits(self) -> None:
        """Add hits at each split, and reuse factors where a recipe splits by default, or where sizes vary."""
        for standard in self.standards:
            whole = self.recipes[standard.recipe]
            for split in range(len(whole.stages) + 1) if whole.partner_stage is None else [whole.split]:
                hits = standard._replace(split=split, reuse_factor=None)
                with noted(self.notes, self._place_of(hits)):
                    recipe = whole.at(split)
                    if split == 0:  # A hit costs the cores what standard does. Of arrays nothing is cached.
                        self.sizes[hits] = self._partial_sizes(recipe)
                    elif recipe.diversity(2) > _SAME_AGAIN:
                        self._add_split(hits, recipe)

    def _add_split(self, hits: Key, recipe: Recipe) -> None:
        """Add what only hits at a split, and reuse factors that all others are computed from, if there is time."""
        mixed: tuple[int, ...] = ()
        if hits == self.usual:
            mixed = MIXED
        elif hits.standard == self.first and hits.split == 1 and recipe.encoded:
            mixed = MIXED[:1]
        wanted = [hits, *(hits._replace(reuse_factor=factor) for factor in mixed)]
        if self._elapsed() > _FILLING and len(self.loaders) > len(self.standards):
            self.left_out += wanted
            return
        sizes = self._partial_sizes(recipe)
        rows = self._rows(sizes.mean_bytes)
        self.sizes[hits] = sizes
        make: Callable[[], Store] = DeviceStore if hits.devices == ("gpu", "gpu") else MemoryStore
        for key in wanted:
            self._add(key, rows, make())

    def _add_disk(self) -> None:
        """Add a store on a disk, where the first recipe splits by default."""
        if self.disk is None or self.usual not in self.sizes:
            return
        with noted(self.notes, f"a disk at {self.disk}"):
            rows = self._rows(self.sizes[self.usual].mean_bytes)
            files = Path(self.stack.enter_context(TemporaryDirectory(prefix="dalirefurb-tune-", dir=self.disk)))
            for factor in (None, *MIXED):
                key = self.usual._replace(reuse_factor=factor, on_disk=True)
                self._add(key, rows, DiskStore(files / str(factor)))

    def _add(self, key: Key, rows: Source, store: Store) -> None:
        """Have a store filled, and add what serves from it."""
        self.stack.callback(store.close)
        planner: Planner = (
            Frozen(len(rows), batch_size=self.batch_size)
            if key.reuse_factor is None
            else Refurbish(len(rows), batch_size=self.batch_size, reuse_factor=key.reuse_factor)
        )
        turns = Turns(rows, self.recipes[key.recipe].at(key.split), planner, store, devices=key.devices)
        turns.fill()
        self.loaders[key], self.slices[key] = turns, []

    def _rows(self, nbytes: float = 0.0) -> Source:
        """Return samples for an epoch to measure with, whose partial images take so many bytes each.

        Raises:
            MemoryError: If not even those of a batch have room.
        """
        source, (least, most) = self.samples.source, _ARRAY_ROWS
        wanted = _ENCODED_ROWS if source.encoded else min(most, max(least, len(source)))
        batches = min(max(2, -(-wanted // self.batch_size)), batches_that_fit(nbytes, self.batch_size))
        if batches == 0:
            need = amount(round(self.batch_size * nbytes))
            raise MemoryError(f"the images of a batch take {need}, more than an eighth of the memory at hand")
        return self.samples.rows(batches * self.batch_size)

    def _partial_sizes(self, recipe: Recipe) -> PartialSizes:
        rows = self.samples.rows(len(self.samples.indices))
        with closing(Reader(rows, max_batch_size=self.batch_size, num_threads=1)) as reader:
            return partial_sizes(rows, recipe, reader, seed=0)

    def _take_turns(self, step: Step | float | None, batch: tuple[torch.Tensor, Any]) -> None:
        """Give each loader a slice in each round, every second round backwards, as far as the time goes."""
        weights = {key: _WEIGHTS[key.reuse_factor] for key in self.loaders}
        seconds = slice_s(MEASURING * self.limit_s * (1 - self._elapsed()), [*weights.values()], _SLICE_S)
        order = list(self.loaders)
        for number in range(LEAST_ROUNDS):
            if callable(step):
                self.step_s.append(step_s(step, batch))
            for place, key in enumerate(order if number % 2 == 0 else order[::-1], 1):
                if self._elapsed() > PATIENCE and self.slices[self.first]:
                    return
                if key not in self.loaders:  # It failed in an earlier round.
                    continue
                name = self._name_of(key)
                self.told(f"round {number + 1} of {LEAST_ROUNDS}: {place} of {len(order)}, {name}")
                if (taken := self._slice(key, seconds * weights[key], name)) is not None:
                    self.slices[key].append(taken)
            self._hand_over()

    def _hand_over(self) -> None:
        """Measure what is between steps that the loader keeps up with, without reuse and with it."""
        batch_s = self.batch_size * float(np.median([each.image_s for each in self.slices[self.first]]))
        if batch_s > _LONG_S and self.hand_over_s:
            return
        for key in (self.first, self.usual._replace(reuse_factor=MIXED[0])):
            if key in self.loaders:
                with noted(self.notes, f"{self._name_of(key)}, what is between two steps"):
                    between_s = self.loaders[key].hand_over(_AT_LEISURE * batch_s)
                    self.hand_over_s.setdefault(key, []).append(between_s)

    def _missing(self, ready: float, filled: float, others: float) -> str:
        """Say what there was no time for.

        Args:
            ready: Share of the time that was over when splits were begun.
            filled: Share that was over when turns were.
            others: Cores that other processes took: without them the time may have sufficed.
        """
        done = {key._replace(reuse_factor=None): False for key in self.left_out}
        for key in self.loaders:
            split = key._replace(reuse_factor=None, on_disk=False)
            done[split] = done.get(split, True) and len(self.slices[key]) == LEAST_ROUNDS
        kept, left_out = len(self.loaders) - len(self.standards), len(self.left_out)
        turns = sum(map(len, self.slices.values()))
        filling = ready + (filled - ready) * (1 + left_out / max(1, kept))
        turning = (self._elapsed() - filled) * LEAST_ROUNDS * (len(self.loaders) + left_out) / turns
        needs_s = max(_TO_SPARE * max(filling / _FILLING, filling + turning), 1.01) * self.limit_s
        said = f"measured {sum(done.values())} of {len(done)} splits in all {LEAST_ROUNDS} rounds"
        if all(done.values()):
            return ""
        return again(said, self.limit_s, needs_s if others <= _OTHERS else 0.0)

    def _image_s(self, key: Key) -> Spread:
        """Return what an image costs the cores: of standard not the time in which they wait for the source."""
        slices = self.slices[key]
        spread = Spread.of([each.image_s for each in slices])
        waits = self.samples.source.encoded and self.samples.read_s >= _READ_BOUND * spread.median
        if key.reuse_factor != 1 or not waits:
            return spread
        return Spread.of([each.cpu_s / usable_cores() for each in slices])
