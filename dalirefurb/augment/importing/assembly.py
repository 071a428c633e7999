"""What becomes a recipe: stages with names of their own, the output, and the default split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count
from typing import Any, NoReturn

from dalirefurb.augment.diversity import diversity
from dalirefurb.augment.output import Output
from dalirefurb.augment.stage import AnyStage, Stage, renamed
from dalirefurb.augment.stages.choice import RandomApply
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.erasing import RandomErasing
from dalirefurb.errors import ConfigurationError

LEAST_KEPT, REUSE_FACTOR = 0.95, 3
"""Share of standard training's different images that the default split keeps at least, and the reuse factor of that."""


Parts = tuple[list[Stage], Output, int | str]
"""The arguments of a `Recipe`."""


def refuse(given: str, remedy: str) -> NoReturn:
    """Refuse what cannot be imported.

    Raises:
        ConfigurationError: Always.
    """
    raise ConfigurationError(refusal(given, remedy))


def refusal(given: str, remedy: str) -> str:
    """Return why something is refused."""
    return f"{given} cannot be imported: {remedy}"


def parts_of(stages: Sequence[Stage], output: Output, split: int | str | None, *, raw: bool = False) -> Parts:
    """Return what becomes a recipe.

    Args:
        stages: Stages in order, without `Decode`, with names that may repeat.
        output: What the model receives.
        split: Where the final part begins; None: see `default_split`.
        raw: Whether the recipe is for arrays, in place of encoded images.
    """
    named = distinct([*([] if raw else [Decode()]), *stages])
    return named, output, default_split(named) if split is None else split


def default_split(stages: Sequence[Stage]) -> int:
    """Return the last split that keeps `LEAST_KEPT` of standard training's different images at `REUSE_FACTOR`."""
    places = range(len(stages) + 1)
    return max(place for place in places if diversity(stages, place, REUSE_FACTOR) >= LEAST_KEPT)


def distinct(stages: Sequence[AnyStage]) -> list[AnyStage]:
    """Return stages with a number after each name that was there before; who follows one follows the last so named."""
    latest: dict[str, str] = {}
    made: dict[str, AnyStage] = {}
    for stage in stages:
        numbered = (f"{stage.name}_{number}" for number in count(2))
        latest[stage.name] = own = next(name for name in chain([stage.name], numbered) if name not in made)
        made[own] = stage if own == stage.name else renamed(stage, latest.__getitem__)
    return [*made.values()]


def maybe(stage: Stage, probability: float) -> list[Stage]:
    """Return a stage that is applied with a probability; none where that is 0."""
    if not probability:
        return []
    return [stage if probability == 1 else RandomApply(stage, probability)]


def three(numbers: Sequence[float]) -> tuple[float, float, float]:
    """Return numbers of the channels, of which one is for all three."""
    red, green, blue = map(float, numbers if len(numbers) == 3 else [*numbers] * 3)
    return red, green, blue


def erasing_after(mean: Sequence[float], std: Sequence[float], value: str, **arguments: Any) -> RandomErasing:
    """Return random erasing after normalisation, where 0 is the mean colour, and normal noise has its deviation.

    Args:
        mean: Means of the channels, for pixels in 0..1; one is for all.
        std: Standard deviations of the channels, likewise.
        value: What is painted, "mean", "channel" or "pixel".
        arguments: Other arguments of `RandomErasing`.
    """
    return RandomErasing(value=value, mean=three(mean), std=three(std), **arguments)  # type: ignore[arg-type]
