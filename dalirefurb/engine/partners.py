"""Checks of a stage that makes one image of several of a batch: whether it can be done, and its targets be known."""

from __future__ import annotations

from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stages.partners import CopyPaste, MixUp, PairStage
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.evaluate import Evaluate
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.targets.kinds import ObjectTarget
from dalirefurb.targets.mask_images import Masks
from dalirefurb.targets.pasting import shapes_of


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
