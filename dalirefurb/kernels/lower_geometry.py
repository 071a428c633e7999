"""Lowering of flips and of stages that map coordinates: which kernels they call, and with which numbers."""

from __future__ import annotations

from functools import partial

from dalirefurb.augment.stage import Stage
from dalirefurb.augment.stages.crop import VerticalFlip
from dalirefurb.augment.stages.geometry import RandomAffine, RandomPerspective, RandomRotation
from dalirefurb.kernels.call import Call, if_drawn, write_map, write_same


def calls_of(stage: Stage) -> tuple[Call, ...] | None:
    """Return the calls of a stage; None if it is none of these, or a user's own that may do something else."""
    if type(stage) is VerticalFlip:
        return (Call(("crop_flip.flip_over",), partial(write_same, ()), partial(if_drawn, "mirror")),)
    if type(stage) is RandomRotation or type(stage) is RandomAffine:
        return (Call((f"warp.{stage.interpolation}",), partial(write_map, stage.fill_levels)),)
    if type(stage) is RandomPerspective:
        kernels, write = (f"perspective.{stage.interpolation}",), partial(write_map, stage.fill_levels)
        return (Call(kernels, write, partial(if_drawn, "warped")),)
    return None
