"""Measurement: what a source, recipes and a step cost on this machine, in a minute or so.

    read some samples ─▶ in turns, three rounds: standard of each recipe ▏ hits at each split ▏ reuse factors 2 and 4 at
                         some splits ▏ the same on the disk ▏ the step on a batch that is at hand

A loader is measured as it is, so everything it does is in its figures; only what differs from one configuration to the
next is told apart. A hit's cost is that of a plan which only hits. What is left of reuse factors 2 and 4, half and a
quarter of whose rows miss, is what a miss costs more than standard, to be kept, and what both cost together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dalirefurb.augment.recipe import Recipe
from dalirefurb.doctor.machine import disk_speeds
from dalirefurb.reading.partial_sizes import PartialSizes
from dalirefurb.source import Source
from dalirefurb.system.cores import usable_cores, watch_others
from dalirefurb.tuning.choice import LEAST_ROUNDS, REUSE_FACTORS, again
from dalirefurb.tuning.costs import LIMIT_S, ORDERS, Costs, DiskCosts, Placement, SplitCosts, Spread, StepCosts
from dalirefurb.tuning.subjects import FILLING, MIXED, Key, ReadSamples, Subjects, Variant, noted, read_some
from dalirefurb.tuning.turns import Slice, Step, TimedStep, copied_s

Told = Callable[[str], None]

_SLICE_S = (0.3, 1.0)

_TURN_S = 0.8
"""What a turn takes beside its slice, about."""

PATIENCE = 1.15
"""Share of the time after which nothing more is measured."""

MEASURING = 0.75
"""Share of the limit that is for costs; the rest is for turns of what is to be recommended."""

_TO_SPARE = 1.1
"""What is said to be needed, in what it is computed to be."""

_LONG_S = 0.05
"""Batches that take longer are handed over in a time that hardly counts: it is measured once."""

_OTHERS = 0.2
"""Cores that other processes take of a machine that is not quiet."""

_AT_LEISURE = 1.5
"""Steps that take as many times as long as standard's batches are not waited for."""


def measure(
    source: Source,
    recipes: Mapping[str, Recipe],
    *,
    batch_size: int,
    epochs: int,
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
    variants = {
        ORDERS.get(name, name) + ("" if devices == ("cpu", "cpu") else f" on {'/'.join(devices)}"): Variant(
            name, recipe, devices
        )
        for devices in placements
        for name, recipe in recipes.items()
    }
    return _Measurement(source, variants, batch_size, epochs, TimedStep(step), disk, limit_s, told).run()


@dataclass
class _Measurement:
    source: Source
    variants: dict[str, Variant]
    batch_size: int
    epochs: int
    step: TimedStep
    disk: Path | None
    limit_s: float
    told: Told
    began: float = field(default_factory=time.perf_counter)
    notes: list[str] = field(default_factory=list)
    hand_over_s: dict[Key, list[float]] = field(default_factory=dict)

    def run(self) -> Costs:
        self.told("reading some samples")
        samples = read_some(self.source)
        if count := samples.unreadable:
            self.notes.append(f"{count} of the samples looked at cannot be read; they are left out")
        with ExitStack() as stack:
            subjects = Subjects(self.source, samples, self.variants, self.batch_size, self.notes, stack)
            self.told("compiling kernels, where they are not yet, and warming up")
            subjects.add_standard()
            self.began += self._warm(subjects)
            others = watch_others()
            self.told("measuring standard loading and every split")
            ready = self._elapsed()
            subjects.add_splits(self._elapsed)
            if self.disk is not None:
                subjects.add_disk(self.disk)
            filled = self._elapsed()
            self._take_turns(subjects)
            missing = self._missing(subjects, ready, filled)
            slices = {key: subject.slices for key, subject in subjects.items() if subject.slices}
            batch, _ = subjects[Key(subjects.first)].turns.batch()
        if (cores := others()) > _OTHERS:
            taken = f"other processes took {cores:.1f} cores while it measured"
            self.notes.append(f"{taken}: figures are those of what was left")
        costs = costs_of(
            Measured(
                variants=self.variants,
                encoded=self.source.encoded,
                batch_size=self.batch_size,
                epochs=self.epochs,
                samples=samples,
                sizes={key: each for key, each in subjects.sizes.items() if Key(key[0]) in slices},
                slices=slices,
                hand_over_s=self.hand_over_s,
                copy_s=copied_s(batch),
                step=self.step.costs(),
                disk_speeds=self._disk_speeds(),
                notes=tuple(self.notes),
            )
        )
        return replace(costs, limit_s=self.limit_s, missing=missing)

    def _elapsed(self) -> float:
        """Return the time since the measurement began, as a share of its limit, without that for compiling."""
        return (time.perf_counter() - self.began) / (MEASURING * self.limit_s)

    def _missing(self, subjects: Subjects, ready: float, filled: float) -> str:
        """Say what there was no time for; shares of it were over when splits were begun, and when turns were."""
        done: dict[tuple[str, int], bool] = dict.fromkeys(subjects.left_out, False)
        for key, subject in subjects.items():
            done[key[:2]] = done.get(key[:2], True) and len(subject.slices) == LEAST_ROUNDS
        kept, left_out = len(subjects) - len(self.variants), sum(subjects.left_out.values())
        turns = sum(len(subject.slices) for subject in subjects.values())
        filling = ready + (filled - ready) * (1 + left_out / max(1, kept))
        turning = (self._elapsed() - filled) * LEAST_ROUNDS * (len(subjects) + left_out) / turns
        needs_s = max(_TO_SPARE * max(filling / FILLING, filling + turning), 1.01) * self.limit_s
        said = f"measured {sum(done.values())} of {len(done)} splits"
        return "" if all(done.values()) else again(said, self.limit_s, needs_s)

    def _warm(self, subjects: Subjects) -> float:
        """Have each recipe serve a little, so that all is compiled; return the seconds it took."""
        began = time.perf_counter()
        first, *others = self.variants
        subjects[Key(first)].turns.slice(0.0)
        for name in others:
            with noted(self.notes, name):
                subjects[Key(name)].turns.slice(0.0)
                continue
            del subjects[Key(name)], self.variants[name]
        self.step.warm(subjects[Key(first)].turns)
        return time.perf_counter() - began

    def _take_turns(self, subjects: Subjects) -> None:
        """Give each subject a slice in each round, every second round backwards, as far as the time goes."""
        least, most = _SLICE_S
        left_s = MEASURING * self.limit_s * (1 - self._elapsed())
        weights = sum(each.weight for each in subjects.values())
        seconds = min(most, max(least, (left_s / LEAST_ROUNDS - _TURN_S * len(subjects)) / weights))
        order = list(subjects.items())
        standard = subjects[Key(subjects.first)]
        for number in range(LEAST_ROUNDS):
            self.step.take()
            for place, (key, subject) in enumerate(order if number % 2 == 0 else order[::-1], 1):
                if self._elapsed() > PATIENCE and standard.slices:
                    return
                if key not in subjects:  # It failed in an earlier round.
                    continue
                self.told(f"round {number + 1} of {LEAST_ROUNDS}: {place} of {len(order)}, {subjects.name_of(key)}")
                with nullcontext() if subject is standard else noted(self.notes, subjects.name_of(key)):
                    subject.slices.append(subject.turns.slice(seconds * subject.weight))
                    continue
                del subjects[key]
            self._hand_over(subjects)

    def _hand_over(self, subjects: Subjects) -> None:
        """Measure what is between steps that the loader keeps up with, without reuse and with it."""
        first = Key(subjects.first)
        batch_s = self.batch_size * float(np.median([each.image_s for each in subjects[first].slices]))
        if batch_s > _LONG_S and self.hand_over_s:
            return
        for key in (first, Key(subjects.first, self.variants[subjects.first].recipe.split, MIXED[0])):
            if key in subjects:
                with noted(self.notes, f"{subjects.name_of(key)}, what is between two steps"):
                    between_s = subjects[key].turns.hand_over(_AT_LEISURE * batch_s)
                    self.hand_over_s.setdefault(key, []).append(between_s)

    def _disk_speeds(self) -> tuple[float, float] | None:
        """Return the bytes a second that the disk takes, and that it gives."""
        if self.disk is not None:
            with noted(self.notes, f"the disk at {self.disk}"):
                written, read, _ = disk_speeds(self.disk)
                return written, read
        return None


_READ_BOUND = 0.9
"""Where reading takes this share of standard's time, the cores wait for it."""


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Attributes:
        variants: Recipes on devices, by name.
        encoded: Whether the source's images are encoded.
        batch_size: Rows of a batch.
        epochs: Number of epochs of the run.
        samples: Samples that were read.
        sizes: Sizes of partial images, by variant and split.
        slices: Slices of each loader.
        hand_over_s: Seconds between two steps that a loader keeps up with, in each round, of some loaders.
        copy_s: Seconds for an image to be copied to the model's device; 0: it is there.
        step: Costs of the step; None: not known.
        disk_speeds: Bytes a second that the disk takes, and that it gives; None: not known.
        notes: What could not be measured, a line each.
    """

    variants: Mapping[str, Variant]
    encoded: bool
    batch_size: int
    epochs: int
    samples: ReadSamples
    sizes: Mapping[tuple[str, int], PartialSizes]
    slices: Mapping[Key, Sequence[Slice]]
    hand_over_s: Mapping[Key, Sequence[float]]
    copy_s: float
    step: StepCosts | None
    disk_speeds: tuple[float, float] | None
    notes: tuple[str, ...]

    @property
    def first(self) -> str:
        """Name of the variant that is compared with."""
        return next(iter(self.variants))

    @property
    def usual(self) -> int:
        """Number of partial stages where that variant splits by default."""
        return self.variants[self.first].recipe.split

    def image_s(self, key: Key) -> Spread | None:
        """Return the seconds that an image took in some slices; None if there are none."""
        slices = self.slices.get(key)
        return Spread.of([each.image_s for each in slices]) if slices else None

    def standard_s(self, name: str) -> Spread:
        """Return what an image costs the cores without reuse: not the time in which they wait for the source."""
        slices = self.slices[Key(name)]
        spread = Spread.of([each.image_s for each in slices])
        if not self.encoded or self.samples.read_s < _READ_BOUND * spread.median:
            return spread
        return Spread.of([each.cpu_s / usable_cores() for each in slices])


def costs_of(measured: Measured) -> Costs:
    """Derive costs from what was measured."""
    slices = measured.slices[Key(measured.first)]
    mixed_s, _ = _fitted(_more_s(measured, measured.first, measured.usual))
    hand_over_s = {key: float(np.median(each)) for key, each in measured.hand_over_s.items()}
    of_standard = hand_over_s.get(Key(measured.first), 0.0)
    own_s = sum(each.stats.planning_s + each.stats.preparing_s for each in slices)
    return Costs(
        cores=usable_cores(),
        batch_size=measured.batch_size,
        splits=tuple(_splits(measured, mixed_s)),
        read_s=measured.samples.read_s if measured.encoded else 0.0,
        encoded_bytes=measured.samples.mean_bytes,
        serial_s=own_s / max(1, sum(each.stats.samples for each in slices)),
        mixed_s=mixed_s,
        hand_over_s=of_standard,
        reused_hand_over_s=hand_over_s.get(Key(measured.first, measured.usual, MIXED[0]), of_standard),
        copy_s=measured.copy_s,
        disk=_disk(measured),
        step=measured.step,
        miss_spread=Spread.of([seconds for each in slices for seconds in each.batch_s]).relative,
        notes=measured.notes,
    )


def _splits(measured: Measured, mixed_s: float) -> Iterator[SplitCosts]:
    puts = list(_puts(measured, mixed_s))
    for (name, split), sizes in measured.sizes.items():
        variant = measured.variants[name]
        recipe = variant.recipe.at(split)
        # Where files are kept as they were read, a hit costs the cores what standard does. Arrays are not kept so.
        hit_s = measured.standard_s(name) if split == 0 else measured.image_s(Key(name, split, None))
        if hit_s is None:
            continue
        factors = {1} if split == 0 and not recipe.encoded else {1, *REUSE_FACTORS, measured.epochs}
        put_s, nbytes = min(puts, key=lambda each: abs(each[1] - sizes.mean_bytes)) if puts else (0.0, 1.0)
        yield SplitCosts(
            recipe=variant.name,
            split=split,
            final=recipe.final[0].name if recipe.final else "output",
            image_bytes=sizes.mean_bytes,
            image_std_bytes=sizes.std_bytes,
            largest_bytes=sizes.largest_bytes,
            standard_s=measured.standard_s(name),
            put_s=put_s * sizes.mean_bytes / nbytes,
            hit_s=hit_s,
            kept={factor: recipe.diversity(factor) for factor in sorted(factors)},
            deterministic=split <= recipe.deterministic_prefix,
            devices=variant.devices,
            cached=recipe.partial[-1].name if recipe.partial else "",
        )


def _puts(measured: Measured, mixed_s: float) -> Iterator[tuple[float, float]]:
    """Yield what a miss costs more to be kept, and of how many bytes, at each split where that was measured."""
    for (name, split), sizes in measured.sizes.items():
        if more_s := _more_s(measured, name, split):
            yield _each_miss_s(more_s, mixed_s), sizes.mean_bytes


def _more_s(measured: Measured, name: str, split: int) -> dict[int, float]:
    """Return what epochs took beside standard's time for their misses and hits for the others, by reuse factor."""
    hits = measured.image_s(Key(name, split, None))
    taken = {factor: measured.image_s(Key(name, split, factor)) for factor in MIXED}
    standard_s = measured.standard_s(name).median
    return {
        factor: each.median - standard_s / factor - (1 - 1 / factor) * hits.median
        for factor, each in taken.items()
        if each is not None and hits is not None
    }


def _fitted(more_s: Mapping[int, float]) -> tuple[float, float]:
    """Split what epochs took more, by reuse factor, into what each image takes, and each miss."""
    few, many = (more_s.get(factor) for factor in reversed(MIXED))
    fixed_s = 0.0
    if few is not None and many is not None:
        small, large = (1 / factor for factor in reversed(MIXED))
        fixed_s = max(0.0, (few * large - many * small) / (large - small))
    return fixed_s, _each_miss_s(more_s, fixed_s)


def _each_miss_s(more_s: Mapping[int, float], fixed_s: float) -> float:
    """Return what each miss takes of what epochs took more, by least squares."""
    misses = [1 / factor for factor in more_s]
    left = sum(miss * (each - fixed_s) for miss, each in zip(misses, more_s.values(), strict=True))
    return left / sum(miss**2 for miss in misses) if misses else 0.0


def _disk(measured: Measured) -> DiskCosts | None:
    name, split = measured.first, measured.usual
    factors = (None, *MIXED)
    on_disk = [measured.image_s(Key(name, split, factor, on_disk=True)) for factor in factors]
    in_memory = [measured.image_s(Key(name, split, factor)) for factor in factors]
    more_s = {
        factor: slow.median - fast.median
        for factor, slow, fast in zip(factors, on_disk, in_memory, strict=True)
        if slow is not None and fast is not None
    }
    if measured.disk_speeds is None or len(more_s) < len(factors):
        return None
    get_s = max(0.0, more_s.pop(None))
    mixed_s, put_s = _fitted({factor: each - (1 - 1 / factor) * get_s for factor, each in more_s.items() if factor})
    nbytes = measured.sizes[name, split].mean_bytes
    written, read = measured.disk_speeds
    return DiskCosts(get_s / nbytes, max(0.0, put_s) / nbytes, read, written, mixed_s)
