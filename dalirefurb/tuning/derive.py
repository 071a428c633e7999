"""Costs of each split, derived from what loaders did in their turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dalirefurb.augment.recipe import Recipe
from dalirefurb.reading.partial_sizes import PartialSizes
from dalirefurb.system.cores import usable_cores
from dalirefurb.tuning.choice import REUSE_FACTORS
from dalirefurb.tuning.costs import Costs, DiskCosts, Placement, SplitCosts, Spread, StepCosts
from dalirefurb.tuning.samples import Samples
from dalirefurb.tuning.turns import Slice

MIXED = 2
"""Reuse factor that tells what a miss costs more to be kept."""

_READ_BOUND = 0.9
"""Where reading takes this share of standard's time, the cores wait for it."""


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
        slices: Slices by name: "standard NAME", "hits NAME SPLIT", "mixed NAME SPLIT", "disk hits", "disk mixed".
        hand_over_s: Seconds between two steps, in several rounds.
        copy_s: Seconds for an image to be copied to the model's device; 0: it is there.
        step: Costs of the step; None: not known.
        disk_speeds: Bytes a second that the disk takes, and that it gives; None: not known.
        notes: What could not be measured, a line each.
    """

    variants: Mapping[str, Variant]
    encoded: bool
    batch_size: int
    epochs: int
    samples: Samples
    sizes: Mapping[tuple[str, int], PartialSizes]
    slices: Mapping[str, Sequence[Slice]]
    hand_over_s: Sequence[float]
    copy_s: float
    step: StepCosts | None
    disk_speeds: tuple[float, float] | None
    notes: tuple[str, ...]

    @property
    def first(self) -> str:
        """Name of the variant that is compared with."""
        return next(iter(self.variants))

    def image_s(self, name: str) -> Spread | None:
        """Return the seconds that an image took in some slices; None if there are none."""
        slices = self.slices.get(name)
        return Spread.of([each.image_s for each in slices]) if slices else None

    def standard_s(self, name: str) -> Spread:
        """Return what an image costs the cores without reuse: not the time in which they wait for the source."""
        slices = self.slices.get(f"standard {name}") or self.slices[f"standard {self.first}"]
        spread = Spread.of([each.image_s for each in slices])
        if not self.encoded or self.samples.read_s < _READ_BOUND * spread.median:
            return spread
        return Spread.of([each.cpu_s / usable_cores() for each in slices])


def costs_of(measured: Measured) -> Costs:
    """Derive costs from what was measured."""
    slices = measured.slices[f"standard {measured.first}"]
    own_s = sum(each.stats.planning_s + each.stats.preparing_s for each in slices)
    return Costs(
        cores=usable_cores(),
        batch_size=measured.batch_size,
        splits=tuple(_splits(measured)),
        read_s=measured.samples.read_s if measured.encoded else 0.0,
        encoded_bytes=measured.samples.mean_bytes,
        serial_s=own_s / max(1, sum(each.stats.samples for each in slices)),
        hand_over_s=float(np.median(measured.hand_over_s)) if measured.hand_over_s else 0.0,
        copy_s=measured.copy_s,
        disk=_disk(measured),
        step=measured.step,
        miss_spread=Spread.of([seconds for each in slices for seconds in each.batch_s]).relative,
        notes=measured.notes,
    )


def _splits(measured: Measured) -> Iterator[SplitCosts]:
    puts = list(_puts(measured))
    for (name, split), sizes in measured.sizes.items():
        variant = measured.variants[name]
        recipe = variant.recipe.at(split)
        # Where files are kept as they were read, a hit costs the cores what standard does. Arrays are not kept so.
        hit_s = measured.standard_s(name) if split == 0 else measured.image_s(f"hits {name} {split}")
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
        )


def _puts(measured: Measured) -> Iterator[tuple[float, float]]:
    """Yield what a miss costs more to be kept, and of how many bytes, at each split where that was measured."""
    for (name, split), sizes in measured.sizes.items():
        mixed, hits = (measured.image_s(f"{kind} {name} {split}") for kind in ("mixed", "hits"))
        if mixed is not None and hits is not None:
            put_s = MIXED * mixed.median - measured.standard_s(name).median - (MIXED - 1) * hits.median
            yield put_s, sizes.mean_bytes


def _disk(measured: Measured) -> DiskCosts | None:
    name = measured.first
    split = measured.variants[name].recipe.split
    on_disk = [measured.image_s(f"disk {kind}") for kind in ("hits", "mixed")]
    in_memory = [measured.image_s(f"{kind} {name} {split}") for kind in ("hits", "mixed")]
    medians = [each.median for each in (*on_disk, *in_memory) if each is not None]
    if measured.disk_speeds is None or len(medians) < 4:
        return None
    get_s = medians[0] - medians[2]
    put_s = MIXED * (medians[1] - medians[3]) - (MIXED - 1) * get_s
    nbytes = measured.sizes[name, split].mean_bytes
    written, read = measured.disk_speeds
    return DiskCosts(max(0.0, get_s) / nbytes, max(0.0, put_s) / nbytes, read, written)
