"""Costs of loading on a machine, as measured: seconds, bytes, and diversity that is kept.

standard     read, decode, augment, normalise          standard_s
a miss       the same, and its partial image is kept    standard_s + put_s
a hit        the partial image is fetched and finished  hit_s
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

LIMIT_S = 120.0
"""Seconds to measure for, by default."""

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

    median: float
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
    put_s: float
    hit_s: Spread
    kept: Mapping[int, float]
    deterministic: bool = False
    devices: Placement = ("cpu", "cpu")
    cached: str = ""

    @property
    def place(self) -> str:
        """Where in the recipe the cache is, in words."""
        return place_of(self.cached) if self.cached else f"before the {self.final}"

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
    read_bytes_per_s: float
    write_bytes_per_s: float
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
        """Return what `as_dict` was made of."""
        splits = tuple(
            SplitCosts(
                **{
                    **each,
                    "standard_s": Spread(**each["standard_s"]),
                    "hit_s": Spread(**each["hit_s"]),
                    "devices": tuple(each.get("devices", ("cpu", "cpu"))),
                    "kept": {int(factor): kept for factor, kept in each["kept"].items()},
                }
            )
            for each in values["splits"]
        )
        step, disk = values.get("step"), values.get("disk")
        return cls(
            **{
                **values,
                "splits": splits,
                "disk": None if disk is None else DiskCosts(**disk),
                "step": None if step is None else StepCosts(Spread(**step["wall_s"]), step["cpu_s"]),
                "notes": tuple(values.get("notes", ())),
            }
        )


def place_of(stage: str) -> str:
    """Return in words that what comes out of a stage is cached.

    >>> place_of("random_resized_crop"), place_of("rand_augment_1")
    ('after the resized crop', 'after operation 1 of rand_augment')
    """
    kind, _, number = stage.rpartition("_")
    if number.isdigit():
        return f"after operation {number} of {kind}"
    return f"after the {stage.removeprefix('random_').replace('_', ' ')}"
