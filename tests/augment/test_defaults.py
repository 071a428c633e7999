"""What stages, outputs and presets are where nothing else is said: others' trainings depend on it."""

import inspect
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dalirefurb import augment
from dalirefurb.augment import (
    AdjustSharpness,
    AugMix,
    AutoAugmentFirst,
    ColorJitter,
    CopyPaste,
    Cutout,
    GaussianBlur,
    HorizontalFlip,
    MagnitudeNoise,
    MixUp,
    Mosaic,
    Posterize,
    RandAugmentLayer,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    ScaleJitter,
    Solarize,
    SolarizeAdd,
    TimmRandAugmentLayer,
    TimmWeightedLayers,
    TrivialAugmentLayer,
    VerticalFlip,
    presets,
    published,
)
from dalirefurb.augment.importing.timm import CreateTransform
from dalirefurb.augment.output import Output
from dalirefurb.augment.presets import rand_augment
from dalirefurb.augment.published import airbench, large_scale_jitter, segmentation, yolo
from dalirefurb.errors import ConfigurationError

DEFAULTS = """
AdjustSharpness: name='adjust_sharpness'
AugMix: name='aug_mix' interpolation='bilinear' fill=0 severity=3.0 mixture_width=3 chain_depth=-1 alpha=1.0
  noise=MagnitudeNoise(std=0.0, most=10.0, uniform=True)
AutoAugmentFirst: name='auto_augment_1' interpolation='nearest' fill=0 policy='imagenet'
AutoAugmentSecond: name='auto_augment_2' interpolation='nearest' fill=0 policy='imagenet' first='auto_augment_1'
AutoContrast: name='auto_contrast'
CenterCrop: name='center_crop'
CenterCrop3D: fill=0.0 name='center_crop'
ColorJitter: brightness=0 contrast=0 saturation=0 hue=0 name='color_jitter'
CopyPaste: share=0.5 probability=1.0 min_visible=0.1 name='copy_paste'
CreateTransform: input_size=224 is_training=False no_aug=False train_crop_mode=None scale=None ratio=None hflip=0.5
  vflip=0.0 color_jitter=0.4 color_jitter_prob=None grayscale_prob=0.0 gaussian_blur_prob=0.0 auto_augment=None
  interpolation='bilinear' mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225) re_prob=0.0 re_mode='const' re_count=1
  re_num_splits=0 crop_pct=None crop_mode=None crop_border_pixels=None tf_preprocessing=False use_prefetcher=False
  normalize=True separate=False naflex=False patchify=False
Custom: revision=1 size=None
Cutout: probability=1.0 fill=0 holes=1 name='cutout'
Decode: name='decode'
Equalize: name='equalize'
GaussianBlur: sigma=(0.1, 2.0) name='gaussian_blur'
HorizontalFlip: probability=0.5 name='flip'
HostStage: size=None keeps_place=False revision=1
IntensityWindow: name='window'
Invert: name='invert'
KernelStage: uniforms=0 size=None revision=1 cuda=''
Letterbox: fill=114 enlarge=True place='center' interpolation='bilinear' name='letterbox'
MagnitudeNoise: std=0.0 most=10.0 uniform=False
MixUp: alpha=32.0 probability=1.0 name='mix_up'
Mosaic: fill=114 images=4 name='mosaic'
Output: dtype='float32' mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225) channels_last=False channels=3
Parameter: shape=()
Posterize: name='posterize'
RandAugmentLayer: name='rand_augment' interpolation='nearest' fill=0 magnitude=9 num_magnitude_bins=31
RandomAffine: translate=None scale=None shear=None interpolation='nearest' fill=0 name='random_affine'
RandomAffine3D: foreground=0.0 fill=0.0 name='affine' degrees=30.0 scale=(0.7, 1.4) turned=0.2 scaled=0.2
RandomApply: probability=0.5 name=''
RandomChoice: probabilities=None name=''
RandomContrast: factor=(0.75, 1.25) probability=0.15 name='contrast'
RandomCrop: margin=None padding=0 name='random_crop' padding_mode='constant'
RandomCrop3D: foreground=0.0 fill=0.0 name='crop'
RandomErasing: probability=0.5 scale=(0.02, 0.33) ratio=(0.3, 3.3) value='mean' count=1 mean=(0.485, 0.456, 0.406)
  std=(0.229, 0.224, 0.225) name='random_erasing'
RandomFlip3D: axes=(0, 1, 2) probability=0.5 name='flip'
RandomGamma: gamma=(0.7, 1.5) probability=0.3 invert=False name='gamma'
RandomGaussianNoise: std=0.1 probability=0.1 name='gaussian_noise'
RandomGaussianSmooth: sigma=(0.5, 1.0) probability=0.2 name='gaussian_smooth'
RandomGrayscale: probability=0.1 name='random_grayscale'
RandomLowResolution: zoom=(0.5, 1.0) probability=0.25 name='low_resolution'
RandomPerspective: distortion_scale=0.5 probability=0.5 interpolation='bilinear' fill=0 name='random_perspective'
RandomResizedCrop: scale=(0.08, 1.0) ratio=(0.75, 1.3333333333333333) interpolation='bilinear'
  name='random_resized_crop'
RandomRotate90: probability=0.1 axes=(0, 1) max_quarters=3 name='rotate90'
RandomRotation: interpolation='nearest' fill=0 name='random_rotation'
RandomScaleIntensity: factor=0.1 probability=0.5 name='scale_intensity'
RandomShiftIntensity: offset=0.1 probability=0.5 name='shift_intensity'
Resize: interpolation='bilinear' name='resize'
ScaleJitter: scale=(0.1, 2.0) cover=False fill=0 place='corner' interpolation='bilinear' name='scale_jitter'
Solarize: threshold=128 name='solarize'
SolarizeAdd: threshold=128 name='solarize_add'
TimmPolicyFirst: name='timm_policy_1' interpolation='bilinear' fill=128 noise=MagnitudeNoise(std=0.0, most=10.0,
  uniform=False) policy='original'
TimmPolicySecond: name='timm_policy_2' interpolation='bilinear' fill=128 noise=MagnitudeNoise(std=0.0, most=10.0,
  uniform=False) first='timm_policy_1' policy='original'
TimmRandAugmentLayer: name='timm_rand_augment' interpolation='bilinear' fill=128 operations='decreasing'
  magnitude=10.0 noise=MagnitudeNoise(std=0.0, most=10.0, uniform=False) probability=0.5
TimmWeightedFirst: name='timm_weighted_1' interpolation='bilinear' fill=128 noise=MagnitudeNoise(std=0.0, most=10.0,
  uniform=False) operations='weights' magnitude=10.0 probability=0.5
TimmWeightedLayers: name='timm_weighted' interpolation='bilinear' fill=128 operations='weights' layers=3
  magnitude=10.0 noise=MagnitudeNoise(std=0.0, most=10.0, uniform=False) probability=0.5
TimmWeightedSecond: name='timm_weighted_2' interpolation='bilinear' fill=128 noise=MagnitudeNoise(std=0.0, most=10.0,
  uniform=False) first='timm_weighted_1' operations='weights' magnitude=10.0 probability=0.5
TrivialAugmentLayer: name='trivial_augment' interpolation='nearest' fill=0 num_magnitude_bins=31
VerticalFlip: probability=0.5 name='vertical_flip'
VolumeOutput: dtype='float32' mean=0.0 std=1.0 channels_last=False channels=1 mask_dtype='int64'
airbench: size=32 translate=4 cutout=12 split=None dtype='float32' channels_last=False mean=(0.4914, 0.4822, 0.4465)
  std=(0.247, 0.2435, 0.2616)
auto_augment: size=224 policy='imagenet' order='paper' interpolation='nearest' fill=0 scale=(0.08, 1.0) ratio=(0.75,
  1.3333333333333333) crop_interpolation='bilinear' flip=0.5 split=None raw=False dtype='float32' channels=3
  channels_last=False mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225)
convnext: size=224 erasing=0.25 crop_interpolation='bicubic' split=None dtype='float32' channels_last=False
  mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225)
deit3: size=224 crop='random_resized' color_jitter=0.3 crop_interpolation='bicubic' split=None dtype='float32'
  channels_last=False mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225)
evaluate: size=224 resize=None interpolation='bilinear' split=None raw=False dtype='float32' channels=3
  channels_last=False mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225)
large_scale_jitter: size=1024 scale=(0.1, 2.0) margin=0 fill=(123, 117, 104) split=None dtype='float32'
  channels_last=False mean=0.0 std=1.0
nn_unet: foreground=0.33
rand_augment: size=224 layers=2 magnitude=9 num_magnitude_bins=31 order='paper' interpolation='nearest' fill=0
  scale=(0.08, 1.0) ratio=(0.75, 1.3333333333333333) crop_interpolation='bilinear' flip=0.5 split=None raw=False
  dtype='float32' channels=3 channels_last=False mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225)
resnet_strikes_back: size=None procedure='A2' crop_interpolation='bicubic' split=None dtype='float32'
  channels_last=False mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225)
segmentation: size=480 shorter=(260, 1040) margin=0 fill=0 split=None dtype='float32' channels_last=False mean=(0.485,
  0.456, 0.406) std=(0.229, 0.224, 0.225)
simclr: size=224 strength=1.0 blur=0.5 crop_interpolation='bicubic' split=None dtype='float32' channels_last=False
  mean=0.0 std=1.0
simple: size=224 scale=(0.08, 1.0) ratio=(0.75, 1.3333333333333333) crop_interpolation='bilinear' flip=0.5 split=None
  raw=False dtype='float32' channels=3 channels_last=False mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225)
simplified: layers=1
timm_augment: size=224 config='rand-m9-mstd0.5-inc1' color_jitter=None order='paper' interpolation='bilinear'
  fill=(124, 116, 104) scale=(0.08, 1.0) ratio=(0.75, 1.3333333333333333) crop_interpolation='bilinear' flip=0.5
  split=None raw=False dtype='float32' channels=3 channels_last=False mean=(0.485, 0.456, 0.406) std=(0.229, 0.224,
  0.225)
timm_auto_augment: interpolation='bilinear' fill=(124, 116, 104)
trivial_augment: size=224 num_magnitude_bins=31 order='paper' interpolation='nearest' fill=0 scale=(0.08, 1.0)
  ratio=(0.75, 1.3333333333333333) crop_interpolation='bilinear' flip=0.5 split=None raw=False dtype='float32'
  channels=3 channels_last=False mean=(0.485, 0.456, 0.406) std=(0.229, 0.224, 0.225)
yolo: size=640 mosaic=True translate=0.1 scale=0.5 hsv_h=0.015 hsv_s=0.7 hsv_v=0.4 fliplr=0.5 dtype='float32'
  channels_last=False mean=0.0 std=1.0
"""


def named(name: str) -> Callable[..., Any]:
    """Return the stage, output or preset of a name."""
    others = {"Output": Output, "CreateTransform": CreateTransform}
    found: Callable[..., Any] = {**vars(augment), **vars(presets), **vars(published), **others}[name]
    return found


@pytest.mark.parametrize(("name", "defaults"), re.findall(r"^(\w+): (.*(?:\n  .*)*)", DEFAULTS, re.MULTILINE))
def test_what_is_not_given_is_as_it_always_was(name: str, defaults: str) -> None:
    parameters = inspect.signature(named(name)).parameters.values()
    told = [f"{each.name}={each.default!r}" for each in parameters if each.default is not each.empty]
    assert " ".join(told) == " ".join(defaults.split())


LIMITS: list[tuple[Callable[[Any], object], tuple[Any, ...], tuple[Any, ...]]] = [
    *(
        (partial(lambda stage, share: stage(probability=share), stage), (0, 1), (-0.01, 1.01))
        for stage in (HorizontalFlip, VerticalFlip, RandomErasing, RandomGrayscale, RandomPerspective, MixUp, CopyPaste)
    ),
    (lambda share: Cutout(8, share), (0, 1), (-0.01, 1.01)),
    (lambda share: RandomApply(HorizontalFlip(), share), (0, 1), (-0.01, 1.01)),
    *(
        (partial(lambda name, change: ColorJitter(**{name: change}), name), (0, 9, (0, 9)), (-0.01, math.inf, (-1, 0)))
        for name in ("brightness", "contrast", "saturation")
    ),
    (lambda hue: ColorJitter(hue=hue), (0, 0.5, (-0.5, 0.5)), (-0.01, 0.51, (-0.51, 0), (0, 0.51), (0.2, 0.1))),
    (lambda sigma: GaussianBlur(3, sigma), (0.001, (0.001, 0.001), 99), (0.0009, math.inf, (0.0009, 1), (2, 1))),
    (lambda size: GaussianBlur(size), (1, 3), (0, 2)),
    (lambda threshold: SolarizeAdd(1, threshold), (0, 256), (-1, 257)),
    (lambda addition: SolarizeAdd(addition), (-255, 0, 255), (-256, 256)),
    (lambda padding: RandomCrop(8, padding=padding), (0, 1), (-1,)),
    (lambda margin: RandomCrop(8, margin), (0, 1), (-1,)),
    (lambda scale: RandomErasing(scale=scale), ((1e-9, 1), (1, 1)), ((0, 1), (0.5, 1.01), (0.5, 0.4))),
    (lambda ratio: RandomErasing(ratio=ratio), ((1e-9, 1e9), (1, 1)), ((0, 1), (1, math.inf), (2, 1))),
    (lambda count: RandomErasing(count=count), (1, (1, 1), (2, 3)), (0, (0, 1), (2, 1))),
    (lambda mean: RandomErasing(mean=(0.5, mean, mean)), (0, 1), (-0.01, 1.01)),
    (lambda std: RandomErasing(std=(0.5, std, std)), (0, 1), (-0.01, 1.01)),
    (lambda holes: Cutout(8, holes=holes), (1, 2), (0,)),
    (lambda scale: ScaleJitter(8, scale), ((1e-9, 1e9), (1, 1)), ((0, 1), (1, math.inf), (2, 1))),
    (lambda scale: RandomResizedCrop(8, scale), ((1e-9, 1), (1, 1)), ((0, 1), (0.5, 1.01), (0.5, 0.4))),
    (lambda ratio: RandomResizedCrop(8, ratio=ratio), ((1e-9, 1e9), (1, 1)), ((0, 1), (1, math.inf), (2, 1))),
    (lambda degrees: RandomRotation(degrees), (0, 999, (-999, 999)), (-0.01, math.inf, (0, math.inf), (2, 1))),
    (lambda share: RandomAffine(0, translate=share), ((0, 0), (1, 1)), ((-0.01, 0), (0, -0.01), (1.01, 0), (0, 1.01))),
    (lambda scale: RandomAffine(0, scale=scale), ((1e-9, 1e9), (1, 1)), ((0, 1), (1, math.inf), (2, 1))),
    (
        lambda shear: RandomAffine(0, shear=shear),
        (0, 89.9, (-89.9, 89.9), (0, 0, -89.9, 89.9)),
        (-0.01, 90, (-90, 0), (0, 90), (2, 1), (0, 0, -90, 0), (0, 0, 0, 90), (0, 0, 2, 1)),
    ),
    (lambda share: RandomPerspective(share), (0, 1), (-0.01, 1.01)),
    (lambda alpha: MixUp(alpha), (1e-9, 999), (0, math.inf)),
    (lambda share: CopyPaste(share), (0, 1), (-0.01, 1.01)),
    (lambda share: CopyPaste(min_visible=share), (0, 1), (-0.01, 1.01)),
    (lambda images: Mosaic(8, images=images), (4, 9), (1, 5, 16)),
    (lambda severity: AugMix(severity=severity), (0, 99), (-0.01, math.inf)),
    (lambda width: AugMix(mixture_width=width), (1, 9), (0,)),
    (lambda depth: AugMix(chain_depth=depth), (-1, 1, 9), (-2, 0)),
    (lambda alpha: AugMix(alpha=alpha), (1e-9, 99), (0, math.inf)),
    (lambda share: AutoAugmentFirst(policy=[("Invert", share, 3, "Invert", 0, 3)]), (0, 1), (-0.01, 1.01)),
    (lambda share: AutoAugmentFirst(policy=[("Invert", 0, 3, "Invert", share, 3)]), (0, 1), (-0.01, 1.01)),
    (lambda magnitude: AutoAugmentFirst(policy=[("Rotate", 0, magnitude, "Invert", 0, 3)]), (0, 9), (-1, 10)),
    (lambda magnitude: AutoAugmentFirst(policy=[("Invert", 0, 3, "Rotate", 0, magnitude)]), (0, 9), (-1, 10)),
    (Solarize, (0, 256), (-1, 257)),
    (Posterize, (0, 8), (-1, 9)),
    (AdjustSharpness, (0, 99), (-0.01, math.inf)),
    (lambda magnitude: RandAugmentLayer(magnitude=magnitude), (0, 30), (-1, 31)),
    (lambda bins: RandAugmentLayer(magnitude=0, num_magnitude_bins=bins), (2, 99), (1,)),
    (lambda bins: TrivialAugmentLayer(num_magnitude_bins=bins), (2, 99), (1,)),
    (lambda magnitude: TimmRandAugmentLayer(magnitude=magnitude), (0, 99), (-0.01, math.inf)),
    (lambda share: TimmRandAugmentLayer(probability=share), (0, 1), (-0.01, 1.01)),
    (lambda layers: TimmWeightedLayers(layers=layers), (1, 3), (0,)),
    (lambda std: TimmRandAugmentLayer(noise=MagnitudeNoise(std)), (0, 99), (-0.01, math.inf)),
    (lambda most: TimmRandAugmentLayer(noise=MagnitudeNoise(most=most)), (1e-9, 99), (0, math.inf)),
    (lambda layers: rand_augment(layers=layers), (1, 9), (0,)),
    (lambda cutout: airbench(cutout=cutout), (0, 31), (-1, 32)),
    (lambda translate: airbench(translate=translate), (0, 9), (-1,)),
    (lambda translate: yolo(translate=translate), (0, 1), (-0.01, 1.01)),
    (lambda scale: yolo(scale=scale), (0, 0.99), (-0.01, 1)),
    (lambda margin: large_scale_jitter(margin=margin), (0, 9), (-1,)),
    (lambda margin: segmentation(margin=margin), (0, 9), (-1,)),
]
"""Of each: what is taken still, and what is refused."""


@pytest.mark.parametrize(("make", "taken", "refused"), LIMITS, ids=range(len(LIMITS)))
def test_numbers_are_taken_up_to_their_limits(
    make: Callable[[Any], object], taken: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    for number in taken:
        make(number)
    for number in refused:
        with pytest.raises(ConfigurationError):
            make(number)
