"""Costs of loading on a machine: seconds, bytes, and diversity that is kept; and how they follow from what was timed.

standard     read, decode, augment, normalise          standard_s
a miss       the same, and its partial image is kept    standard_s + put_s
a hit        the partial image is fetched and finished  hit_s

A loader is timed as it is, so everything it does is in its figures; only what differs from one configuration to the
next is told apart. A hit's cost is that of a plan which only hits. What is left of reuse factors 2 and 4, half and a
quarter of whose rows miss, is what a miss costs more than standard, to be kept, and what both cost together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, Literal, NamedTuple

import numpy as np

from dalirefurb.augment.recipe import Recipe
from dalirefurb.checks import Positive, Signed, dataclass_of, require
from dalirefurb.engine.partial_sizes import PartialSizes

LIMIT_S = 120.0
"""Seconds to measure for, by default."""

LEAST_ROUNDS = 3
"""Of what was measured less often, nothing is concluded."""

REUSE_FACTORS = (2, 3, 4, 5)

MIXED = (2, 4)
"""Reuse factors whose epochs, of hits and misses, tell what both cost together."""

ORDERS: Mapping[str, str] = {"paper": "crop first", "crop_last": "crop last"}
"""Orders of a preset's stages, in words."""

Placement = tuple[Literal["cpu", "gpu"], Literal["cpu", "gpu"]]
"""Devices of the partial and of the final part."""


@dataclass(frozen=True)
class Spread:
    """A figure that was measured several times.

    Attributes:
        median: The median.
        low: The lower quartile.
        high: The upper quartile.
        n: How many times it was measured.
    """

    median: Positive
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up what was measured.

        >>> Spread.of([1.0, 3.0, 2.0])
        Spread(median=2.0, low=1.5, high=2.5, n=3)
        """
        low, median, high = np.percentile(values, [25, 50, 75]).tolist()
        return cls(median, low, high, len(values))

    @property
    def relative(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        return (self.high - self.low) / self.median


@dataclass(frozen=True)
class SplitCosts:
    """What one split of one recipe costs, on all cores together, in seconds for each image.

    Attributes:
        recipe: Name of the recipe.
        split: Number of its stages that are partial.
        final: Name of the first final stage, or "output".
        image_bytes: Mean bytes of a partial image.
        image_std_bytes: Standard deviation of these bytes; 0: every image has as many.
        largest_bytes: Bytes of the largest partial image.
        standard_s: An image that is computed whole, and not kept.
        put_s: What a miss costs more than that, kept in memory; below 0 where hits and misses take less together.
        hit_s: A hit in memory.
        kept: Share of standard training's different images that is kept, by reuse factor.
        deterministic: Whether nothing in the partial part is random, so that it can be kept for ever.
        devices: Devices of the partial and of the final part; with both on the GPU a `DeviceStore` is the cache.
        cached: Name of the last partial stage; "" where there is none.
    """

    recipe: str
    split: int
    final: str
    image_bytes: float
    image_std_bytes: float
    largest_bytes: float
    standard_s: Spread
    put_s: Signed
    hit_s: Spread
    kept: Mapping[int, float]
    deterministic: bool = False
    devices: Placement = ("cpu", "cpu")
    cached: str = ""

    @property
    def place(self) -> str:
        """Where in the recipe the cache is, in words."""
        return place_of(self.cached, self.final)

    @property
    def on_device(self) -> bool:
        """Whether partial images are made, kept and finished in a GPU's memory."""
        return self.devices == ("gpu", "gpu")


@dataclass(frozen=True)
class DiskCosts:
    """What a `DiskStore` costs beside memory, in seconds for each byte, and how fast its disk is.

    Attributes:
        get_s: More than memory takes to lend a byte that the page cache holds.
        put_s: More than memory takes to keep a byte.
        read_bytes_per_s: Bytes a second that the disk gives where the page cache has no room for the file.
        write_bytes_per_s: Bytes a second that the disk takes.
        mixed_s: What an image takes more, on average, in epochs that have both hits and misses, in seconds.
    """

    get_s: float
    put_s: float
    read_bytes_per_s: Positive
    write_bytes_per_s: Positive
    mixed_s: float = 0.0


@dataclass(frozen=True)
class StepCosts:
    """What the model's step takes on a batch that is at hand.

    Attributes:
        wall_s: Seconds of a step.
        cpu_s: CPU seconds of a step on the cores that the loader works on; 0: a device computes.
    """

    wall_s: Spread
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Costs:
    """What was measured on one machine, of one source.

    Attributes:
        cores: Number of cores that the loader worked on.
        batch_size: Rows of a batch.
        splits: Costs of every split that was measured.
        read_s: Seconds for an image that is read by the loader's reading threads together, and is not computed.
        encoded_bytes: Mean bytes of an image as it is read.
        serial_s: Seconds for an image that the loader's own threads need, however many cores there are.
        mixed_s: What an image takes more, on average, in epochs that have both hits and misses.
        hand_over_s: Seconds between two steps, for a batch to be handed over while others are made.
        reused_hand_over_s: The same with reuse.
        copy_s: Seconds for an image that is finished on the CPU to be copied to a GPU; 0: no GPU.
        disk: Costs of a disk; None: not measured.
        step: Costs of the model's step; None: not known.
        miss_spread: Quartile distance of standard's time for a batch, as a share of its median.
        notes: What could not be measured, and why, a line each.
        limit_s: Seconds that tuning was given.
        missing: What there was no time for, and the time that it needs; "" where there is nothing.
    """

    cores: int
    batch_size: int
    splits: tuple[SplitCosts, ...]
    read_s: float
    encoded_bytes: float
    serial_s: float
    mixed_s: float = 0.0
    hand_over_s: float = 0.0
    reused_hand_over_s: float = 0.0
    copy_s: float = 0.0
    disk: DiskCosts | None = None
    step: StepCosts | None = None
    miss_spread: float = 0.0
    notes: tuple[str, ...] = field(default=())
    limit_s: float = LIMIT_S
    missing: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values; `from_dict` makes the same of them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Costs:
        """Return what `as_dict` was made of.

        Raises:
            ConfigurationError: If it was made of none, as it has been changed.
        """
        made: Costs = dataclass_of(cls, values, "costs")
        remedy = "leave it as it was written"
        require(len(made.splits) > 0, "costs.splits", "of a split at least", [], remedy)
        require(made.cores > 0, "costs.cores", "at least 1", made.cores, remedy)
        return made


def place_of(cached: str, final: str) -> str:
    """Return in words where the cache is: after the last partial stage, or if none is, before the first final one.

    >>> place_of("random_resized_crop", "flip"), place_of("rand_augment_1", "rand_augment_2"), place_of("", "decode")
    ('after the resized crop', 'after operation 1 of rand_augment', 'before the decode')
    """
    if not cached:
        return f"before the {final}"
    kind, _, number = cached.rpartition("_")
    if number.isdigit():
        return f"after operation {number} of {kind}"
    return f"after the {cached.removeprefix('random_').replace('_', ' ')}"


def named(recipe: str, devices: Placement) -> str:
    """Return a recipe's name, that of a preset's order in words, and where it works if that is not the CPU alone."""
    where = "" if devices == ("cpu", "cpu") else f" on {'/'.join(devices)}"
    return f"{ORDERS.get(recipe, recipe)}{where}"


def again(said: str, limit_s: float, needs_s: float = 0.0) -> str:
    """Say what is missing, and by which measurement it is had: a longer one, or another one on a quiet machine."""
    longer = 10 * ceil(max(limit_s, needs_s) / 10)
    more = longer - limit_s if needs_s > limit_s else longer
    when = "" if needs_s > limit_s else ", while nothing else works on this machine"
    return f"{said}; needs about {more:.0f} s more{when}: tune(limit_s={longer}), or --limit {longer}"


class Key(NamedTuple):
    """What a loader serves.

    Attributes:
        recipe: Name of the recipe.
        devices: Devices of the partial and of the final part.
        split: Number of partial stages; 0 for standard.
        reuse_factor: Uses of a version; 1: standard; None: every row is a hit.
        on_disk: Whether the partial images are on a disk.
    """

    recipe: str
    devices: Placement = ("cpu", "cpu")
    split: int = 0
    reuse_factor: int | None = 1
    on_disk: bool = False

    @property
    def standard(self) -> Key:
        """The same recipe on the same devices, without reuse."""
        return Key(self.recipe, self.devices)


@dataclass(frozen=True)
class Measured:
    """What was measured, for costs to be derived from.

    Attributes:
        recipes: Recipes by name.
        usual: What only hits where the recipe that is compared with splits by default.
        image_s: Seconds that an image takes the cores, by loader.
        hand_over_s: Seconds between two steps that a loader keeps up with, in each round, of some loaders.
        sizes: Sizes of the partial images of each split, by what only hits there.
        disk_speeds: Bytes a second that the disk takes, and that it gives; None: not known.
    """

    recipes: Mapping[str, Recipe]
    usual: Key
    image_s: Mapping[Key, Spread]
    hand_over_s: Mapping[Key, Sequence[float]]
    sizes: Mapping[Key, PartialSizes]
    disk_speeds: tuple[float, float] | None

    def more_s(self, hits: Key) -> dict[int, float]:
        """Return what epochs took beside standard's time for their misses and hits for the others, by reuse factor."""
        image_s, standard = self.image_s, hits.standard
        return {
            factor: image_s[mixed].median - image_s[standard].median / factor - (1 - 1 / factor) * image_s[hits].median
            for factor in MIXED
            if hits in image_s and (mixed := hits._replace(reuse_factor=factor)) in image_s
        }


def costs_of(measured: Measured, **others: Any) -> Costs:
    """Derive costs from what was measured; `others` are costs that were measured as they are."""
    mixed_s, _ = _fitted(measured.more_s(measured.usual))
    hand_over_s = {key: float(np.median(each)) for key, each in measured.hand_over_s.items()}
    of_standard = hand_over_s.get(measured.usual.standard, 0.0)
    return Costs(
        splits=tuple(_splits(measured, mixed_s)),
        mixed_s=mixed_s,
        hand_over_s=of_standard,
        reused_hand_over_s=hand_over_s.get(measured.usual._replace(reuse_factor=MIXED[0]), of_standard),
        disk=_disk(measured),
        **others,
    )


def _splits(measured: Measured, mixed_s: float) -> Iterator[SplitCosts]:
    # What a miss costs more to be kept, and of how many bytes, at each split where that was measured.
    puts = [
        (_each_miss_s(more_s, mixed_s), sizes.mean_bytes)
        for hits, sizes in measured.sizes.items()
        if (more_s := measured.more_s(hits))
    ]
    for hits, sizes in measured.sizes.items():
        recipe, standard_s = measured.recipes[hits.recipe].at(hits.split), measured.image_s[hits.standard]
        # Where files are kept as they were read, a hit costs the cores what standard does. Arrays are not kept so.
        hit_s = standard_s if hits.split == 0 else measured.image_s.get(hits)
        if hit_s is None:
            continue
        factors = {1} if hits.split == 0 and not recipe.encoded else {1, *REUSE_FACTORS}
        put_s, nbytes = min(puts, key=lambda each: abs(each[1] - sizes.mean_bytes)) if puts else (0.0, 1.0)
        yield SplitCosts(
            recipe=hits.recipe,
            split=hits.split,
            final=recipe.final[0].name if recipe.final else "output",
            image_bytes=sizes.mean_bytes,
            image_std_bytes=sizes.std_bytes,
            largest_bytes=sizes.largest_bytes,
            standard_s=standard_s,
            put_s=put_s * sizes.mean_bytes / nbytes,
            hit_s=hit_s,
            kept={factor: recipe.diversity(factor) for factor in sorted(factors)},
            deterministic=hits.split <= recipe.deterministic_prefix,
            devices=hits.devices,
            cached=recipe.partial[-1].name if recipe.partial else "",
        )


def _fitted(more_s: Mapping[int, float]) -> tuple[float, float]:
    """Split what epochs took more, by reuse factor, into what each image takes, and each miss."""
    fixed_s = 0.0
    if len(more_s) == len(MIXED):
        fixed_s = max(0.0, float(np.polyfit([1 / factor for factor in more_s], [*more_s.values()], 1)[1]))
    return fixed_s, _each_miss_s(more_s, fixed_s)


def _each_miss_s(more_s: Mapping[int, float], fixed_s: float) -> float:
    """Return what each miss takes of what epochs took more, by least squares."""
    misses, left_s = 1 / np.array([*more_s]), np.array([*more_s.values()]) - fixed_s
    return float(misses @ left_s / (misses @ misses)) if more_s else 0.0


def _disk(measured: Measured) -> DiskCosts | None:
    hits, image_s = measured.usual, measured.image_s
    more_s = {
        factor: image_s[slow].median - image_s[fast].median
        for factor in (None, *MIXED)
        if (fast := hits._replace(reuse_factor=factor)) in image_s and (slow := fast._replace(on_disk=True)) in image_s
    }
    if measured.disk_speeds is None or len(more_s) <= len(MIXED):
        return None
    get_s = max(0.0, more_s.pop(None))
    mixed_s, put_s = _fitted({factor: each - (1 - 1 / factor) * get_s for factor, each in more_s.items() if factor})
    nbytes = measured.sizes[hits].mean_bytes
    written, read = measured.disk_speeds
    return DiskCosts(get_s / nbytes, max(0.0, put_s) / nbytes, read, written, mixed_s)
