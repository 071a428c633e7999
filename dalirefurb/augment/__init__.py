"""Stages: steps of a recipe, drawn on the host and applied as DALI operators."""

from dalirefurb.augment.aug_mix import AugMix
from dalirefurb.augment.auto_augment import AutoAugmentFirst, AutoAugmentSecond
from dalirefurb.augment.blur import GaussianBlur
from dalirefurb.augment.choice import RandomApply, RandomChoice
from dalirefurb.augment.color import ColorJitter, RandomGrayscale, SolarizeAdd
from dalirefurb.augment.crop import CenterCrop, HorizontalFlip, RandomCrop, VerticalFlip
from dalirefurb.augment.custom import Custom
from dalirefurb.augment.decode import Decode
from dalirefurb.augment.erasing import Cutout, RandomErasing
from dalirefurb.augment.geometry import RandomAffine, RandomPerspective, RandomRotation
from dalirefurb.augment.kernel_stage import KernelStage
from dalirefurb.augment.magnitude_noise import MagnitudeNoise
from dalirefurb.augment.one_operation import AdjustSharpness, AutoContrast, Equalize, Invert, Posterize, Solarize
from dalirefurb.augment.rand_augment import RandAugmentLayer
from dalirefurb.augment.resize import RandomResizedCrop, Resize
from dalirefurb.augment.stage import Parameter, Stage
from dalirefurb.augment.timm_policies import TimmPolicyFirst, TimmPolicySecond
from dalirefurb.augment.timm_rand_augment import TimmRandAugmentLayer
from dalirefurb.augment.timm_strings import timm_auto_augment
from dalirefurb.augment.timm_weighted import TimmWeightedFirst, TimmWeightedSecond
from dalirefurb.augment.timm_weighted_layers import TimmWeightedLayers
from dalirefurb.augment.trivial_augment import TrivialAugmentLayer

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
