"""Stages: steps of a recipe, drawn on the host and applied as DALI operators."""

from dalirefurb.augment.policies.aug_mix import AugMix
from dalirefurb.augment.policies.auto_augment import AutoAugmentFirst, AutoAugmentSecond
from dalirefurb.augment.policies.magnitude_noise import MagnitudeNoise
from dalirefurb.augment.policies.one_operation import (
    AdjustSharpness,
    AutoContrast,
    Equalize,
    Invert,
    Posterize,
    Solarize,
)
from dalirefurb.augment.policies.rand_augment import RandAugmentLayer
from dalirefurb.augment.policies.timm_policies import TimmPolicyFirst, TimmPolicySecond
from dalirefurb.augment.policies.timm_rand_augment import TimmRandAugmentLayer
from dalirefurb.augment.policies.timm_strings import timm_auto_augment
from dalirefurb.augment.policies.timm_weighted import TimmWeightedFirst, TimmWeightedSecond
from dalirefurb.augment.policies.timm_weighted_layers import TimmWeightedLayers
from dalirefurb.augment.policies.trivial_augment import TrivialAugmentLayer
from dalirefurb.augment.stage import Parameter, Stage
from dalirefurb.augment.stages.blur import GaussianBlur
from dalirefurb.augment.stages.choice import RandomApply, RandomChoice
from dalirefurb.augment.stages.color import ColorJitter, RandomGrayscale, SolarizeAdd
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop, VerticalFlip
from dalirefurb.augment.stages.custom import Custom
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.erasing import Cutout, RandomErasing
from dalirefurb.augment.stages.geometry import RandomAffine, RandomPerspective, RandomRotation
from dalirefurb.augment.stages.kernel_stage import KernelStage
from dalirefurb.augment.stages.resize import RandomResizedCrop, Resize

__all__ = [
    "AdjustSharpness",
    "AugMix",
    "AutoAugmentFirst",
    "AutoAugmentSecond",
    "AutoContrast",
    "CenterCrop",
    "ColorJitter",
    "Custom",
    "Cutout",
    "Decode",
    "Equalize",
    "GaussianBlur",
    "HorizontalFlip",
    "Invert",
    "KernelStage",
    "MagnitudeNoise",
    "Parameter",
    "Posterize",
    "RandAugmentLayer",
    "RandomAffine",
    "RandomApply",
    "RandomChoice",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomPerspective",
    "RandomResizedCrop",
    "RandomRotation",
    "Resize",
    "Solarize",
    "SolarizeAdd",
    "Stage",
    "TimmPolicyFirst",
    "TimmPolicySecond",
    "TimmRandAugmentLayer",
    "TimmWeightedFirst",
    "TimmWeightedLayers",
    "TimmWeightedSecond",
    "TrivialAugmentLayer",
    "VerticalFlip",
    "timm_auto_augment",
]
