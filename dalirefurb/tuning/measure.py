"""Measurement: what a source, recipes and a step cost on this machine, in a minute or so.

    read some samples ─▶ in turns, three rounds: standard of each recipe ▏ hits at each split ▏ reuse factors 2 and 4 at
                         some splits ▏ the same on the disk ▏ the step on a batch that is at hand

A loader is measured as it is, so everything it does is in its figures; only what differs from one configuration to the
next is told apart. A hit's cost is that of a plan which only hits. What is left of reuse factors 2 and 4, half and a
quarter of whose rows miss, is what a miss costs more than standard, to be kept, and what both cost together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dalirefurb.augment.recipe import Recipe
from dalirefurb.doctor.storage import disk_speeds
from dalirefurb.source import Source
from dalirefurb.tuning.costs import Costs, Placement
from dalirefurb.tuning.derive import Measured, costs_of
from dalirefurb.tuning.subjects import MIXED, Key, Subjects, Variant, noted, read_some
from dalirefurb.tuning.turns import Step, TimedStep, copied_s

Told = Callable[[str], None]

ROUNDS = 3
"""Slices of each subject; of fewer, nothing is concluded."""

_SLICE_S = (0.3, 1.0)

_TURN_S = 0.8
"""What a turn takes beside its slice, about."""

_PATIENCE = 1.15
"""Share of the time after which nothing more is measured."""

_LONG_S = 0.05
"""Batches that take longer are handed over in a time that hardly counts: it is measured once."""

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
        self._hand_over_s: dict[Key, list[float]] = {}

    def run(self) -> Costs:
        self._told("reading some samples")
        samples = read_some(self._source)
        if count := samples.unreadable:
            self._notes.append(f"{count} of the samples looked at cannot be read; they are left out")
        with ExitStack() as stack:
            subjects = Subjects(self._source, samples, self._variants, self._batch_size, self._notes, stack)
            self._told("compiling kernels, where they are not yet, and warming up")
            subjects.add_standard()
            self._began += self._warm(subjects)
            self._told("measuring standard loading and every split")
            subjects.add_splits(self._elapsed)
            if self._disk is not None:
                subjects.add_disk(self._disk)
            self._take_turns(subjects)
            batch, _ = subjects[Key(subjects.first)].turns.batch()
        return costs_of(
            Measured(
                variants=self._variants,
                encoded=self._source.encoded,
                batch_size=self._batch_size,
                epochs=self._epochs,
                samples=samples,
                sizes=subjects.sizes,
                slices={key: subject.slices for key, subject in subjects.items() if subject.slices},
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

    def _warm(self, subjects: Subjects) -> float:
        """Have each recipe serve a little, so that all is compiled; return the seconds it took."""
        began = time.perf_counter()
        first, *others = self._variants
        subjects[Key(first)].turns.slice(0.0)
        for name in others:
            with noted(self._notes, name):
                subjects[Key(name)].turns.slice(0.0)
                continue
            del subjects[Key(name)], self._variants[name]
        self._step.warm(subjects[Key(first)].turns)
        return time.perf_counter() - began

    def _take_turns(self, subjects: Subjects) -> None:
        """Give each subject a slice in each round, every second round backwards, as far as the time goes."""
        least, most = _SLICE_S
        left_s = self._limit_s * (1 - self._elapsed())
        weights = sum(each.weight for each in subjects.values())
        seconds = min(most, max(least, (left_s / ROUNDS - _TURN_S * len(subjects)) / weights))
        order = list(subjects.items())
        standard = subjects[Key(subjects.first)]
        for number in range(ROUNDS):
            self._step.take()
            for place, (key, subject) in enumerate(order if number % 2 == 0 else order[::-1], 1):
                if self._elapsed() > _PATIENCE and standard.slices:
                    over = f"the time, {self._limit_s:g} s, was over in round {number + 1} of {ROUNDS}"
                    self._notes.append(f"{over}: measure for longer, or when the machine is quiet")
                    return
                self._told(f"round {number + 1} of {ROUNDS}: {place} of {len(order)}, {key}")
                with noted(self._notes, str(key)):
                    subject.slices.append(subject.turns.slice(seconds * subject.weight))
            self._hand_over(subjects)

    def _hand_over(self, subjects: Subjects) -> None:
        """Measure what is between steps that the loader keeps up with, without reuse and with it."""
        first = Key(subjects.first)
        batch_s = self._batch_size * float(np.median([each.image_s for each in subjects[first].slices]))
        if batch_s > _LONG_S and self._hand_over_s:
            return
        for key in (first, Key(subjects.first, self._variants[subjects.first].recipe.split, MIXED[0])):
            if key in subjects:
                with noted(self._notes, f"{key}, what is between two steps"):
                    between_s = subjects[key].turns.hand_over(_AT_LEISURE * batch_s)
                    self._hand_over_s.setdefault(key, []).append(between_s)

    def _disk_speeds(self) -> tuple[float, float] | None:
        """Return the bytes a second that the disk takes, and that it gives."""
        if self._disk is not None:
            with noted(self._notes, f"the disk at {self._disk}"):
                written, read, _ = disk_speeds(self._disk)
                return written, read
        return None
