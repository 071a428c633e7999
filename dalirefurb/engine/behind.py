"""What is left to do of recipes where a source's images have gone through their first stages already."""

from __future__ import annotations

from itertools import zip_longest

from dalirefurb.augment.recipe import Recipe
from dalirefurb.engine.configuration import makes_alike
from dalirefurb.engine.kernel_choice import Devices, Kernels, done_by
from dalirefurb.errors import ConfigurationError
from dalirefurb.reading.bad_sample_policy import BadSamplePolicy
from dalirefurb.source import Source


def behind(
    source: Source, recipes: tuple[Recipe, ...], kernels: Kernels, devices: Devices, bad_samples: BadSamplePolicy
) -> tuple[Recipe, ...]:
    """Return what is left to do of recipes with alike partial parts, where the source has a `prefix`; else the recipes.

    Raises:
        ConfigurationError: If something else would be made than of the images as they were.
    """
    prefix, most = source.prefix, BadSamplePolicy().max_pixels
    if not prefix:
        return recipes
    if source.annotations is not None:
        raise ConfigurationError(
            "the source has targets, but its images have gone through stages, with which targets would not move: pass "
            "Kept form='decoded', or take the source without its targets"
        )
    count, names = len(prefix), " > ".join(stage.name for stage in prefix)
    for recipe in recipes:
        for done, own in zip_longest(prefix, recipe.stages[:count]):
            if own is None or not makes_alike(done, own):
                raise ConfigurationError(
                    f"the source keeps images that have gone through {names}, so the recipe must begin with these "
                    f"stages, but in the place of {done} it has {own or 'none'}: pass that, or Kept another folder "
                    f"and form=recipe.stages[:n]"
                )
        if recipe.split < count:
            raise ConfigurationError(
                f"the source keeps images that have gone through {names}, so these must be partial, got split "
                f"{recipe.split}: pass recipe.at({count}), or a split behind it"
            )
        done = done_by(kernels, recipe, devices) or 0
        if done < count or (kernels == "numba" and done == count < len(recipe.stages)):
            raise ConfigurationError(
                f"the source keeps images that compiled kernels have made by {names}, so kernels must make these and "
                f"the next stage, but with kernels={kernels!r}, partial_device={devices.partial!r} DALI's operators do "
                f"{recipe.stages[done].name!r}, whose pixels are others: leave both out, or pass Kept fewer stages, or "
                f"form='decoded'"
            )
    if bad_samples.max_pixels != most:
        raise ConfigurationError(
            f"the source keeps images that have gone through {names}, of files of {most:,} pixels at most, got "
            f"max_pixels={bad_samples.max_pixels}: leave it out, or pass Kept form='decoded'"
        )
    return tuple(Recipe(each.stages[count:], each.output, each.split - count) for each in recipes)
