"""Stages: steps of a recipe, drawn on the host and applied as DALI operators."""

from dalirefurb.augment.custom import Custom
from dalirefurb.augment.geometry import Decode, HorizontalFlip, RandomCrop, RandomResizedCrop, Resize
from dalirefurb.augment.rand_augment import RandAugmentLayer
from dalirefurb.augment.stage import Parameter, Stage

__all__ = [
    "Custom",
    "Decode",
    "HorizontalFlip",
    "Parameter",
    "RandAugmentLayer",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "Stage",
]
