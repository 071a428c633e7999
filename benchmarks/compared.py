"""Which techniques are compared, and where does each split the recipe?"""

from __future__ import annotations

from dataclasses import dataclass

from dalirefurb import (
    AutoAssist,
    BatchEcho,
    Echo,
    Frozen,
    Recipe,
    Refurbish,
    SmartCache,
    Standard,
    rand_augment,
    simplified,
)
from dalirefurb.planning.planner import Planner

STANDARD = "standard"


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set; its images are repeated to fill an epoch.
        factors: Reuse factors and echoing factors.
        layers: Numbers of layers that are left out.
        size: Side of the images the model receives, in pixels.
        batch_size: Images of a batch.
        epoch_batches: Batches of an epoch that serves each sample once.
        parts_batches: Batches that the parts are measured on.
        buffer_batches: Batches in the shuffle buffer of example echoing.
        replace_percent: Share of SmartCache's window, half the data, that is replaced after each round.
        lag: Batches between a loss and the first plan that AutoAssist makes with it.
        timed_batches: Of a slice.
        rounds: Slices of each contender.
        calibration_rounds: Slices of each part at each placement.
    """

    data: str
    factors: tuple[int, ...] = (2, 3)
    layers: tuple[int, ...] = (1, 2)
    size: int = 224
    batch_size: int = 64
    epoch_batches: int = 32
    parts_batches: int = 6
    buffer_batches: int = 4
    replace_percent: float = 0.1
    lag: int = 32
    timed_batches: int = 128
    rounds: int = 5
    calibration_rounds: int = 1


@dataclass(frozen=True)
class Technique:
    """What is compared.

    Attributes:
        name: For tables and results.
        recipe: Where it splits.
        planner: What it serves.
    """

    name: str
    recipe: Recipe
    planner: Planner

    @property
    def parts(self) -> str:
        """Which of the measured parts are its own, by how many stages are in each."""
        return f", {len(self.recipe.partial)} + {len(self.recipe.final)} stages"


def techniques(config: Config) -> list[Technique]:
    """List all, with the recipe of each split where the technique wants it."""
    count, batch_size = config.epoch_batches * config.batch_size, config.batch_size
    recipe = rand_augment(config.size)
    decoded, finished = recipe.at(1), recipe.at(len(recipe.stages))
    standard = Standard(count, batch_size=batch_size)
    compared = [
        Technique(STANDARD, recipe, standard),
        *(Technique(f"simplified by {layers}", simplified(recipe, layers), standard) for layers in config.layers),
    ]
    for factor in config.factors:
        planner = Refurbish(count, batch_size=batch_size, reuse_factor=factor)
        compared.append(Technique(f"reuse factor {factor}", recipe, planner))
    for factor in config.factors:
        echo = Echo(standard, echoing_factor=factor, buffer_size=config.buffer_batches * batch_size)
        compared.append(Technique(f"echo before augmentation {factor}", decoded, echo))
        compared.append(Technique(f"echo after augmentation {factor}", finished, echo))
        compared.append(Technique(f"batch echo {factor}", finished, BatchEcho(standard, echoing_factor=factor)))
    smart_cache = SmartCache(
        count,
        batch_size=batch_size,
        num_cache_objects=config.epoch_batches // 2 * batch_size,
        replace_percent=config.replace_percent,
    )
    return [
        *compared,
        Technique("SmartCache", recipe.at(recipe.deterministic_prefix), smart_cache),
        Technique("AutoAssist", recipe, AutoAssist(standard, lag=config.lag)),
        Technique("frozen", recipe, Frozen(count, batch_size=batch_size)),
    ]
