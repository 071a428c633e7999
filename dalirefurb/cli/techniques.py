"""The techniques of the command line, each with the planner it makes, its own options and its recipe.

A function makes the planner from the number of samples, the batch size and the seed. Its keyword-only parameters are
the technique's own options, with their defaults.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dalirefurb.cli.numbers import Number, Whole
from dalirefurb.errors import ConfigurationError

if TYPE_CHECKING:
    from dalirefurb.augment.recipe import Recipe
    from dalirefurb.planning.planner import Planner


@dataclass(frozen=True)
class Option:
    """A number that some techniques ask for.

    Attributes:
        kind: Function that turns the option's text into a number.
        letter: Letter that stands for the number in the help.
        help: What the number means, for the help.
    """

    kind: Callable[[str], float]
    letter: str
    help: str


MOST_REUSE = 1000
"""Epochs in which a cached image can be used, on the command line. More epochs than that are `frozen`."""

OPTIONS = {
    "reuse_factor": Option(
        Whole(1, MOST_REUSE),
        "N",
        "epochs in which a cached image is used before it is made anew. 2 and 3 are usual, 1 caches nothing: "
        "standard training. More is faster, but the network sees fewer different images",
    ),
    "echoing_factor": Option(Number(1, 1000), "X", "how often an image, or a batch, is served on average, at least 1"),
    "buffer_size": Option(
        Whole(0),
        "N",
        "images among which repeats are shuffled, 0 for none; by default those of 16 batches. With batch_echo batches, "
        "by default none",
    ),
    "num_cache_objects": Option(
        Whole(1), "N", "images of an epoch, all of them cached; by default the whole batches in half of the images"
    ),
    "replace_percent": Option(Number(0, 1), "X", "share of them that is replaced after an epoch, 0 .. 1"),
    "lag": Option(Whole(1, 100_000), "N", "batches between a loss and the first choice that knows of it"),
    "remove_layers": Option(Whole(1), "N", "operations left out, the last ones"),
}
"""By name, as a parameter has it; on the command line with hyphens."""


def _standard(num_samples: int, batch_size: int, seed: int) -> Planner:
    from dalirefurb.planning.refurbish import Standard

    return Standard(num_samples, batch_size=batch_size, seed=seed)


def _refurbish(num_samples: int, batch_size: int, seed: int, *, reuse_factor: int = 3) -> Planner:
    from dalirefurb.planning.refurbish import Refurbish

    return Refurbish(num_samples, batch_size=batch_size, seed=seed, reuse_factor=reuse_factor)


def _echo(
    num_samples: int, batch_size: int, seed: int, *, echoing_factor: float = 2.0, buffer_size: int | None = None
) -> Planner:
    from dalirefurb.planning.echo import Echo

    rows = 16 * batch_size if buffer_size is None else buffer_size
    return Echo(_standard(num_samples, batch_size, seed), echoing_factor=echoing_factor, buffer_size=rows)


def _batch_echo(
    num_samples: int, batch_size: int, seed: int, *, echoing_factor: float = 2.0, buffer_size: int = 0
) -> Planner:
    from dalirefurb.planning.batch_echo import BatchEcho

    inner = _standard(num_samples, batch_size, seed)
    return BatchEcho(inner, echoing_factor=echoing_factor, buffer_size=buffer_size)


def _smartcache(
    num_samples: int,
    batch_size: int,
    seed: int,
    *,
    num_cache_objects: int | None = None,
    replace_percent: float = 0.1,
) -> Planner:
    from dalirefurb.planning.smart_cache import SmartCache

    if num_cache_objects is None:
        batches = num_samples // 2 // max(1, batch_size)
        num_cache_objects = batch_size * max(1, batches)
    return SmartCache(
        num_samples,
        batch_size=batch_size,
        seed=seed,
        num_cache_objects=num_cache_objects,
        replace_percent=replace_percent,
    )


def _autoassist(num_samples: int, batch_size: int, seed: int, *, lag: int = 32) -> Planner:
    from dalirefurb.planning.auto_assist import AutoAssist

    return AutoAssist(_standard(num_samples, batch_size, seed), lag=lag)


def _frozen(num_samples: int, batch_size: int, seed: int) -> Planner:
    from dalirefurb.planning.frozen import Frozen

    return Frozen(num_samples, batch_size=batch_size, seed=seed)


def _simplified(num_samples: int, batch_size: int, seed: int, *, remove_layers: int = 1) -> Planner:
    return _standard(num_samples, batch_size, seed)


def _as_it_is(recipe: Recipe, options: dict[str, Any]) -> Recipe:
    return recipe


def _after_decoding(recipe: Recipe, options: dict[str, Any]) -> Recipe:
    return recipe.at(1)


def _after_what_is_not_random(recipe: Recipe, options: dict[str, Any]) -> Recipe:
    return recipe.at(recipe.deterministic_prefix)


def _with_fewer_layers(recipe: Recipe, options: dict[str, Any]) -> Recipe:
    from dalirefurb.augment.presets import simplified

    removed = options["remove_layers"]
    operations = [stage.name for stage in recipe.stages if stage.name.startswith("rand_augment")]
    if removed > len(operations):
        raise ConfigurationError(
            f"--remove-layers must be at most the number of operations, got {removed} for {', '.join(operations)}: "
            f"leave fewer out, or begin with more --layers"
        )
    return simplified(recipe, removed)


@dataclass(frozen=True)
class Technique:
    """A way to reuse what is computed, or something to compare with.

    Attributes:
        summary: Summary of the technique, for the help.
        make: Function that makes the planner.
        change: Function that makes the technique's recipe of a preset, given the technique's options.
    """

    summary: str
    make: Callable[..., Planner]
    change: Callable[[Recipe, dict[str, Any]], Recipe] = _as_it_is

    @property
    def options(self) -> dict[str, Any]:
        """The defaults of its own options by name, None where other numbers decide."""
        parameters = inspect.signature(self.make).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


TECHNIQUES = {
    "standard": Technique("everything is computed anew", _standard),
    "refurbish": Technique("partly augmented images are used in some epochs", _refurbish),
    "echo": Technique("images are served several times; --split says what is repeated", _echo, _after_decoding),
    "batch_echo": Technique("whole batches are, in a row or shuffled", _batch_echo, _after_decoding),
    "smartcache": Technique(
        "only what is cached is trained on, a part of it is replaced", _smartcache, _after_what_is_not_random
    ),
    "autoassist": Technique("images that are learned already are left out", _autoassist),
    "frozen": Technique("the first version of an image is used for ever", _frozen),
    "simplified": Technique("everything is computed anew, with fewer layers", _simplified, _with_fewer_layers),
}
"""By name on the command line."""


@dataclass(frozen=True)
class Chosen:
    """A technique and its options.

    Attributes:
        name: Name of the technique.
        options: The technique's own options, by name.
    """

    name: str
    options: dict[str, Any]

    def planner(self, num_samples: int, *, batch_size: int, seed: int) -> Planner:
        """Make the planner."""
        return TECHNIQUES[self.name].make(num_samples, batch_size, seed, **self.options)

    def recipe(self, preset: Recipe, split: int | str | None) -> Recipe:
        """Make the recipe of a preset, split where the technique says if `split` is None."""
        recipe = TECHNIQUES[self.name].change(preset, self.options)
        return recipe if split is None else split_at(recipe, split)

    def describe(self, planner: Planner) -> str:
        """Name the technique, and the numbers it was given or chose."""
        numbers = {name: getattr(planner, name, value) for name, value in self.options.items()}
        return ", ".join([self.name, *(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items())])


def choose(technique: str, options: argparse.Namespace) -> Chosen:
    """Return a technique with the options that were given, and defaults for the others.

    Raises:
        ConfigurationError: If an option was given that is another technique's.
    """
    given = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    own = TECHNIQUES[technique].options
    for name in given:
        if name not in own:
            owners = owners_of(name)
            raise ConfigurationError(
                f"{flag(name)} is for --technique {' and '.join(owners)}, but the technique is {technique}; "
                f"leave it out, or pass --technique {owners[0]}"
            )
    return Chosen(technique, {**own, **given})


def owners_of(option: str) -> list[str]:
    """Return the names of the techniques that ask for an option."""
    return [name for name, technique in TECHNIQUES.items() if option in technique.options]


def flag(option: str) -> str:
    """Write an option as on the command line."""
    return f"--{option.replace('_', '-')}"


def split_at(recipe: Recipe, split: int | str) -> Recipe:
    """Split a recipe at a stage, after so many stages, or at "end": all is partial."""
    return recipe.at(len(recipe.stages) if split == "end" else split)
