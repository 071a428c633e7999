"""Checks of a stage that makes one image of several of a batch: whether it can be done, and its targets be known."""

from __future__ import annotations

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stages.mix_up import MixUp
from dalirefurb.augment.stages.partners import PairStage, PartnerStage
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.targets.kinds import ObjectTarget
from dalirefurb.targets.mask_images import Masks
from dalirefurb.targets.pasting import shapes_of


def check_partners(source: Source, recipe: Recipe, planner: Planner, *, partial: bool, views: int) -> None:
    """Refuse such a stage where it cannot be done, or would make images of which no target is right.

    Args:
        source: Source of the images.
        recipe: Recipe, which may have such a stage.
        planner: Planner of the batches.
        partial: Whether partial images are served.
        views: Number of further views.

    Raises:
        ConfigurationError: If it cannot be done.
    """
    stage = recipe.partner_stage
    if stage is None:
        return
    if isinstance(planner, Evaluate):
        raise ConfigurationError(
            f"Evaluate is to judge each image as it is, but {stage.name!r} shows several of a batch in one: validate "
            f"with a recipe without it"
        )
    if partial or views:
        raise ConfigurationError(
            f"a recipe with a {type(stage).__name__} cannot be served "
            f"{'by a PartialSource' if partial else 'in several views'} yet: "
            f"{'pass it to a Loader' if partial else 'leave views out'}, or leave {stage.name!r} out"
        )
    if isinstance(stage, PairStage):
        _check_size(source, recipe, stage)
        _check_objects(source, stage)


def _check_size(source: Source, recipe: Recipe, stage: PartnerStage) -> None:
    """Refuse partial images of several sizes."""
    shape = source.image_shape
    if recipe.partial_size(None if shape is None else shape[:2]) is None:
        raise ConfigurationError(
            f"{stage.name!r} takes two partial images of one size, but those before it have sizes that depend on the "
            f"input: end the partial part with a stage to one size, such as Letterbox(640), RandomCrop(640) or "
            f"ScaleJitter(640)"
        )


def _check_objects(source: Source, stage: PartnerStage) -> None:
    """Refuse a source that does not say what is needed of its objects, or whose targets the stage cannot make."""
    targets, named = source.annotations or {}, f"{type(stage).__name__} {stage.name!r}"
    if not any(isinstance(each, ObjectTarget) for each in targets.values()):
        remedy = "blend images and labels of a batch by dalirefurb.Mix" if isinstance(stage, MixUp) else "leave it out"
        raise ConfigurationError(
            f"{named} is for sources with targets of objects, such as Boxes, but there are none, and the labels served "
            f"would be those of one image alone: {remedy}"
        )
    if masks := [name for name, each in targets.items() if isinstance(each, Masks)]:
        raise ConfigurationError(
            f"{named} cannot be done with a number for each pixel, but the source has {', '.join(map(repr, masks))} of "
            f"Masks: leave it, or the stage, out"
        )
    if not isinstance(stage, MixUp) and shapes_of(targets) is None:
        raise ConfigurationError(
            f"{named} pastes the shapes of objects, but the source has none, only {', '.join(map(repr, targets))}: add "
            f"a target of InstanceMasks or Polygons, such as by CocoDetection(..., masks=True)"
        )
