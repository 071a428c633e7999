"""Costs of each split, derived from what loaders did in their turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dalirefurb.reading.partial_sizes import PartialSizes
from dalirefurb.system.cores import usable_cores
from dalirefurb.tuning.choice import REUSE_FACTORS
from dalirefurb.tuning.costs import Costs, DiskCosts, SplitCosts, Spread, StepCosts
from dalirefurb.tuning.subjects import MIXED, Key, ReadSamples, Variant
from dalirefurb.tuning.turns import Slice

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
