"""The techniques of the command line, each with planner, options and recipe; and options that are numbers or paths."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dalirefurb.augment.presets import simplified
from dalirefurb.augment.recipe import Recipe
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.auto_assist import AutoAssist
from dalirefurb.planning.echo import BatchEcho, Echo
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import Frozen, Refurbish, Standard
from dalirefurb.planning.smart_cache import SmartCache


@dataclass(frozen=True)
class Number:
    """Turns text into a number within limits.

    `refusal` is what is said of one below `least`, with a place for it, if not what must hold.
    """

    kind: type[int] | type[float]
    least: float = -math.inf
    most: float = math.inf
    refusal: str = ""

    @property
    def __name__(self) -> str:
        """For argparse, which says that this is an invalid ... value."""
        return self.kind.__name__

    def __call__(self, text: str) -> float:
        """Parse a number."""
        number = self.kind(text)
        noun = "an int" if self.kind is int else "a number"
        if not number >= self.least:
            message = self.refusal or f"must be {noun} of at least {self.least}, got {{}}"
            raise argparse.ArgumentTypeError(message.format(number))
        if number > self.most:
            raise argparse.ArgumentTypeError(f"must be {noun} of at most {self.most}, got {number}")
        return number


def learning_rate(text: str) -> float:
    """Parse a learning rate."""
    number = float(text)
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"the learning rate must be a positive number, got {number}")
    if number > 1000:
        raise argparse.ArgumentTypeError(f"the learning rate must be at most 1000, got {number}: 0.01 is usual")
    return number


def path(text: str) -> Path:
    """Parse a path; an empty one would be the present folder."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"must be a path, got {text!r}")
    return Path(text)


MOST_REUSE = 1000
"""Epochs in which a cached image can be used, on the command line. More epochs than that are `frozen`."""

OPTIONS = {
    "reuse_factor": (
        Number(int, 1, MOST_REUSE),
        "epochs in which a cached image is used before it is made anew. 2 and 3 are usual, 1 caches nothing: "
        "standard training. More is faster, but the network sees fewer different images",
    ),
    "echoing_factor": (Number(float, 1, 1000), "how often an image, or a batch, is served on average, at least 1"),
    "buffer_size": (
        Number(int, 0),
        "images among which repeats are shuffled, 0 for none; by default those of 16 batches. With batch_echo batches, "
        "by default none",
    ),
    "num_cache_objects": (
        Number(int, 1),
        "images of an epoch, all of them cached; by default the whole batches in half of the images",
    ),
    "replace_percent": (Number(float, 0, 1), "share of them that is replaced after an epoch, 0 .. 1"),
    "lag": (Number(int, 1, 100_000), "batches between a loss and the first choice that knows of it"),
    "remove_layers": (Number(int, 1), "operations left out, the last ones"),
}
"""Numbers that some techniques ask for, and what they mean, by name as a parameter has it."""


@dataclass(frozen=True)
class Technique:
    """A way to reuse what is computed, or something to compare with.

    Attributes:
        summary: What it does, for the help.
        make: Function that makes the planner, given the number of samples, `batch_size`, `seed` and the technique's
            options.
        options: The technique's own options by name, None where other numbers decide.
        change: Function that makes the technique's recipe of a preset, given the technique's options.
    """

    name: str
    summary: str
    make: Callable[..., Planner]
    options: dict[str, Any] = field(default_factory=dict)
    change: Callable[..., Recipe] = lambda recipe, **_: recipe

    def planner(self, num_samples: int, *, batch_size: int, seed: int) -> Planner:
        """Make the planner."""
        return self.make(num_samples, batch_size=batch_size, seed=seed, **self.options)

    def recipe(self, preset: Recipe, split: int | str | None) -> Recipe:
        """Make the recipe of a preset, split at a stage, after so many stages, at "end", or as the technique says."""
        recipe = self.change(preset, **self.options)
        if split is None:
            return recipe
        return recipe.at(len(recipe.stages) if split == "end" else split)

    def describe(self, planner: Planner) -> str:
        """Name the technique, and the numbers it was given or chose."""
        numbers = {name: getattr(planner, name, value) for name, value in self.options.items()}
        return ", ".join([self.name, *(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items())])


def _of_standard(kind: Callable[..., Planner]) -> Callable[..., Planner]:
    """Return a function that makes a planner that derives its plans from standard ones."""

    def make(num_samples: int, *, batch_size: int, seed: int, **options: float) -> Planner:
        return kind(Standard(num_samples, batch_size=batch_size, seed=seed), **options)

    return make


def _echo(standard: Standard, *, echoing_factor: float, buffer_size: int | None) -> Planner:
    rows = 16 * standard.batch_size if buffer_size is None else buffer_size
    return Echo(standard, echoing_factor=echoing_factor, buffer_size=rows)


def _smartcache(num_samples: int, *, batch_size: int, num_cache_objects: int | None, **others: Any) -> Planner:
    if num_cache_objects is None:
        num_cache_objects = batch_size * max(1, num_samples // 2 // batch_size)
    return SmartCache(num_samples, batch_size=batch_size, num_cache_objects=num_cache_objects, **others)


_ALL = (
    Technique("standard", "everything is computed anew", Standard),
    Technique("refurbish", "partly augmented images are used in some epochs", Refurbish, {"reuse_factor": 3}),
    Technique(
        "echo",
        "images are served several times; --split says what is repeated",
        _of_standard(_echo),
        {"echoing_factor": 2.0, "buffer_size": None},
        lambda recipe, **_: recipe.at(1),
    ),
    Technique(
        "batch_echo",
        "whole batches are, in a row or shuffled",
        _of_standard(BatchEcho),
        {"echoing_factor": 2.0, "buffer_size": 0},
        lambda recipe, **_: recipe.at(1),
    ),
    Technique(
        "smartcache",
        "only what is cached is trained on, a part of it is replaced",
        _smartcache,
        {"num_cache_objects": None, "replace_percent": 0.1},
        lambda recipe, **_: recipe.at(recipe.deterministic_prefix),
    ),
    Technique("autoassist", "images that are learned already are left out", _of_standard(AutoAssist), {"lag": 32}),
    Technique("frozen", "the first version of an image is used for ever", Frozen),
    Technique(
        "simplified",
        "everything is computed anew, with fewer layers",
        _of_standard(lambda standard, **_: standard),
        {"remove_layers": 1},
        lambda recipe, remove_layers: simplified(recipe, remove_layers),
    ),
)
TECHNIQUES = {technique.name: technique for technique in _ALL}
"""By name on the command line, with the defaults of their options."""


def choose(name: str, options: argparse.Namespace) -> Technique:
    """Return a technique with the options that were given, and defaults for others; refuse options of another one."""
    technique = TECHNIQUES[name]
    given = {option: value for option in OPTIONS if (value := getattr(options, option)) is not None}
    for option in given:
        if option not in technique.options:
            owners = owners_of(option)
            raise ConfigurationError(
                f"{flag(option)} is for --technique {' and '.join(owners)}, but the technique is {name}; "
                f"leave it out, or pass --technique {owners[0]}"
            )
    return replace(technique, options={**technique.options, **given})


def owners_of(option: str) -> list[str]:
    """Return the names of the techniques that ask for an option."""
    return [name for name, technique in TECHNIQUES.items() if option in technique.options]


def flag(option: str) -> str:
    """Write an option as on the command line."""
    return f"--{option.replace('_', '-')}"
