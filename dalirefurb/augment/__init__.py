"""Stages: steps of a recipe, drawn on the host and applied as DALI operators."""

from dalirefurb.augment.auto_augment import AutoAugmentFirst, AutoAugmentSecond
from dalirefurb.augment.choice import RandomApply, RandomChoice
from dalirefurb.augment.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.custom import Custom
from dalirefurb.augment.decode import Decode
from dalirefurb.augment.kernel_stage import KernelStage
from dalirefurb.augment.rand_augment import RandAugmentLayer
from dalirefurb.augment.resize import RandomResizedCrop, Resize
from dalirefurb.augment.stage import Parameter, Stage
from dalirefurb.augment.trivial_augment import TrivialAugmentLayer

__all__ = [
    "AutoAugmentFirst",
    "AutoAugmentSecond",
    "CenterCrop",
    "Custom",
    "Decode",
    "HorizontalFlip",
    "KernelStage",
    "Parameter",
    "RandAugmentLayer",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "Stage",
    "TrivialAugmentLayer",
]
