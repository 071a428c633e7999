"""Checks of recipes: of stages that make one image of several, and of what is behind a source's images."""

from __future__ import annotations

from itertools import zip_longest

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import Stage, renamed
from dalirefurb.augment.stages.partners import CopyPaste, MixUp, PairStage
from dalirefurb.engine.kernel_choice import Devices, Kernels, done_by
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.bad_samples import BadSamplePolicy
from dalirefurb.source import Source
from dalirefurb.targets.kinds import ObjectTarget
from dalirefurb.targets.mask_images import Masks
from dalirefurb.targets.objects import shapes_of


def check_partners(source: Source, recipe: Recipe, planner: Planner, *, partial: bool, views: int) -> None:
    """Refuse such a stage where it cannot be done, as partial images or views are served, or no target would be right.

    Raises:
        ConfigurationError: If it cannot be done.
    """
    stage = recipe.partner_stage
    if stage is None:
        return
    kind, name = type(stage).__name__, repr(stage.name)
    if isinstance(planner, Evaluate):
        raise ConfigurationError(
            f"Evaluate is to judge each image as it is, but {name} shows several of a batch in one: validate with a "
            f"recipe without it"
        )
    if partial or views:
        raise ConfigurationError(
            f"a recipe with a {kind} cannot be served {'by a PartialSource' if partial else 'in several views'} yet: "
            f"{'pass it to a Loader' if partial else 'leave views out'}, or leave {name} out"
        )
    if not isinstance(stage, PairStage):
        return
    targets, shape = source.annotations or {}, source.image_shape
    masks = [each for each, target in targets.items() if isinstance(target, Masks)]
    instead = "blend images and labels of a batch by dalirefurb.Mix" if isinstance(stage, MixUp) else "leave it out"
    for fails, why in (
        (
            recipe.partial_size(None if shape is None else shape[:2]) is None,
            "takes two partial images of one size, but those before it have sizes that depend on the input: end the "
            "partial part with a stage to one size, such as Letterbox(640) or ScaleJitter(640)",
        ),
        (
            not any(isinstance(each, ObjectTarget) for each in targets.values()),
            f"is for sources with targets of objects, such as Boxes, but there are none, and what is served beside "
            f"images would be of one of the two alone: {instead}",
        ),
        (
            len(masks) > 0,
            f"cannot be done with a number for each pixel, but the source has Masks, {', '.join(masks)}: take the "
            f"source without them, or leave the stage out",
        ),
        (
            isinstance(stage, CopyPaste) and shapes_of(targets) is None,
            f"pastes the shapes of objects, but the source has none, only {', '.join(targets)}: add a target of "
            f"InstanceMasks or Polygons, such as by CocoDetection(..., masks=True)",
        ),
    ):
        if fails:
            raise ConfigurationError(f"{kind} {name} {why}")


def makes_alike(one: Stage, other: Stage) -> bool:
    """Tell whether two stages make the same of an image: names matter where something is random."""
    if one == other:
        return True
    return type(one) is type(other) and not one.random and renamed(other, lambda _: one.name) == one


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
