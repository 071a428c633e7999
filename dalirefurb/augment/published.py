"""Recipes of published trainings, with the papers' numbers.

Each says where its numbers are from, and what of the training is not augmentation of single images, with the numbers
that `dalirefurb.Mix` takes. The default split is the last one that keeps 0.95 of standard training's different images
at reuse factor 3; `print(recipe)` shows what every split keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dalirefurb.augment.importing.assembly import erasing_after, maybe, parts_of
from dalirefurb.augment.importing.timm import CreateTransform
from dalirefurb.augment.output import Channels as Channels
from dalirefurb.augment.output import Dtype as Dtype  # The types of shared arguments are looked up here.
from dalirefurb.augment.output import Output
from dalirefurb.augment.presets import SERVING, Shared, output_of, preset
from dalirefurb.augment.presets import Split as Split
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.stage import LONGEST_SIDE, Fill, Size, Stage, sides_of
from dalirefurb.augment.stages.choice import RandomApply
from dalirefurb.augment.stages.color import ColorJitter, GaussianBlur, RandomGrayscale
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.stages.frame import Letterbox, Place, ScaleJitter
from dalirefurb.augment.stages.geometry import RandomAffine
from dalirefurb.augment.stages.partners import Mosaic
from dalirefurb.augment.stages.resize import RandomResizedCrop, Resize, ResizeInterpolation
from dalirefurb.checks import flag, integer, interval, number, require

if TYPE_CHECKING:
    from typing_extensions import Unpack

CIFAR10_MEAN, CIFAR10_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class _Cropping(Shared, total=False):
    """Arguments of those that crop."""

    crop_interpolation: ResizeInterpolation


_SERVED: Mapping[str, Any] = {name: SERVING[name] for name in Shared.__annotations__}
_CROPPED: Mapping[str, Any] = {"crop_interpolation": "bicubic", **_SERVED}
_SPLIT = "Name of a stage, or a count of partial stages; None: the last one that keeps 0.95 at reuse factor 3."


@preset(
    shared=_CROPPED,
    procedure='"A1", "A2" or "A3".',
    size="Side of the images that the model receives, in pixels, or (height, width); None: 160 for A3, or else 224.",
    split=_SPLIT,
)
def resnet_strikes_back(
    size: Size | None = None,
    *,
    procedure: Literal["A1", "A2", "A3"] = "A2",
    **shared: Unpack[_Cropping],
) -> Recipe:
    """Make the recipe of "ResNet strikes back" (Wightman, Touvron, Jegou 2021, table 2): crop, flip, RandAugment.

    The magnitude is 7, 6 of A3, each with a standard deviation of 0.5. Beside it: `Mix(num_classes, mixup=0.2,
    cutmix=1.0, label_smoothing=0.1)` for A1, `Mix(num_classes, mixup=0.1, cutmix=1.0)` for A2 and A3, binary
    cross-entropy, and of A1 and A2 three augmentations of a sample in a batch. Evaluate at 224 of 236 pixels:
    `evaluate(224, resize=236, interpolation="bicubic")`.

    The stages are named decode, random_resized_crop, flip, rand_augment_1, rand_augment_2.
    """
    require(procedure in ("A1", "A2", "A3"), "procedure", "A1, A2 or A3", procedure, "choose one")
    third = procedure == "A3"
    policy = f"rand-m{6 if third else 7}-mstd0.5-inc1"
    side = 160 if third else 224
    output, stages = _timm(side if size is None else size, shared, auto_augment=policy)
    return Recipe(*parts_of(stages, output, shared["split"]))


@preset(
    shared=_CROPPED,
    crop='"random_resized", or "simple" as for ImageNet-21k: the shorter side is resized to the size, four pixels '
    "around the image mirror it, and a crop of the size is taken.",
    color_jitter="Greatest change of brightness, contrast and saturation after the operations, 0 for none.",
    split=_SPLIT,
)
def deit3(
    size: Size = 224,
    *,
    crop: Literal["random_resized", "simple"] = "random_resized",
    color_jitter: float = 0.3,
    **shared: Unpack[_Cropping],
) -> Recipe:
    """Make the recipe of "DeiT III" (Touvron, Cord, Jegou, ECCV 2022, section 3.2): 3-Augment, then colour jitter.

    3-Augment does one of grey, solarize and Gaussian blur. Beside it: `Mix(num_classes, mixup=0.8, cutmix=1.0)`, on
    ImageNet-21k `Mix(num_classes, cutmix=1.0, label_smoothing=0.1)`, and three augmentations of a sample in a batch on
    ImageNet-1k.

    The stages are named decode, random_resized_crop or resize and random_crop, flip, three_augment, color_jitter.
    """
    require(crop in ("random_resized", "simple"), "crop", "random_resized or simple", crop, "choose one")
    output, stages = _timm(size, shared, auto_augment="3a", color_jitter=color_jitter)
    if crop == "simple":
        shorter = min(output.sides)
        require(output.sides == (shorter, shorter), "size", "one number with crop='simple'", size, "pass the side")
        padded = RandomCrop(shorter, padding=4, padding_mode="reflect")
        stages[:1] = [Resize(shorter, shared["crop_interpolation"]), padded]
    return Recipe(*parts_of(stages, output, shared["split"]))


@preset(shared=_CROPPED, erasing="Probability of random erasing.", split=_SPLIT)
def convnext(
    size: Size = 224,
    *,
    erasing: float = 0.25,
    **shared: Unpack[_Cropping],
) -> Recipe:
    """Make the recipe of "A ConvNet for the 2020s" (Liu et al., CVPR 2022, table 5): RandAugment and random erasing.

    Swin's is the same. Beside it: `Mix(num_classes, mixup=0.8, cutmix=1.0, label_smoothing=0.1)`. Evaluate at 224 of
    256 pixels: `evaluate(224, interpolation="bicubic")`.

    The stages are named decode, random_resized_crop, flip, rand_augment_1, rand_augment_2, random_erasing.
    """
    policy = "rand-m9-mstd0.5-inc1"
    output, stages = _timm(size, shared, auto_augment=policy, re_prob=erasing, re_mode="pixel")
    return Recipe(*parts_of(stages, output, shared["split"]))


@preset(
    shared={**_SERVED, "mean": CIFAR10_MEAN, "std": CIFAR10_STD},
    size="Side of the arrays in pixels, or (height, width).",
    translate="Greatest shift in pixels; what comes into the image mirrors it.",
    cutout="Side of the square that is painted over with the mean colour, 0 for none.",
    split=_SPLIT,
)
def airbench(
    size: Size = 32,
    *,
    translate: int = 4,
    cutout: int = 12,
    **shared: Unpack[Shared],
) -> Recipe:
    """Make the recipe of "94 % on CIFAR-10 in 3.29 Seconds" (Jordan 2024), for arrays: flip, translate, cut out.

    Defaults are those of `airbench96.py`; `airbench94.py` and `airbench95.py` have `translate=2, cutout=0`. There an
    image is mirrored in every other epoch, from a random one on; here each time at random, which costs 0.04 points of
    accuracy by the script's header. Beside it: `Mix(10, label_smoothing=0.2)`.

    The stages are named flip, random_crop, random_erasing.
    """
    output = output_of(size, shared)
    height, width = output.sides
    stages: list[Stage] = [HorizontalFlip()]
    if integer("translate", translate, 0, None, "4 is airbench96's"):
        stages.append(RandomCrop(output.size, 2 * translate, translate, padding_mode="reflect"))
    if integer("cutout", cutout, 0, None, "12 is airbench96's"):
        require(cutout < min(height, width), "cutout", f"less than {min(height, width)}", cutout, "12 is airbench96's")
        share = cutout**2 / (height * width)
        square = {"probability": 1.0, "scale": (share, share), "ratio": (1.0, 1.0)}
        stages.append(erasing_after(output.means, output.stds, "mean", **square))
    return Recipe(*parts_of(stages, output, shared["split"], raw=True))


@preset(
    shared={**_CROPPED, "mean": 0.0, "std": 1.0},
    strength="Strength of the colour jitter; the paper takes 0.5 for CIFAR-10.",
    blur="Probability of a blur, whose kernel is a tenth of the size; the paper has none for CIFAR-10.",
    split=_SPLIT,
)
def simclr(
    size: Size = 224,
    *,
    strength: float = 1.0,
    blur: float = 0.5,
    **shared: Unpack[_Cropping],
) -> Recipe:
    """Make the recipe of SimCLR (Chen et al., ICML 2020, appendix A): crop, flip, colour jitter, grey, blur.

    It is one view of a sample. For two, with a cached version each, `Loader(..., views=2)`. The paper
    does not normalise. Nothing is mixed.

    The stages are named decode, random_resized_crop, flip, random_color_jitter, random_grayscale, random_gaussian_blur.
    """
    output = output_of(size, shared)
    jitter = ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    kernel = min(sides_of(output.size)) // 10 | 1
    stages = [
        RandomResizedCrop(output.size, interpolation=shared["crop_interpolation"]),
        HorizontalFlip(),
        RandomApply(jitter, 0.8),
        RandomGrayscale(0.2),
        *maybe(GaussianBlur(kernel), blur),
    ]
    return Recipe(*parts_of(stages, output, shared["split"]))


_REMEDY = "pass pixels, such as a tenth of the size"
_MARGIN = (
    "Pixels by which each side of what the jitter makes exceeds `size`; then a random crop of `size` comes, so that "
    "all before it can be cached. 0: none, as published."
)


@preset(
    shared={**_SERVED, "mean": 0.0, "std": 1.0},
    scale="Least and greatest factor on the size at which the image just fits; (0.8, 1.25) is standard scale jitter.",
    margin=_MARGIN,
    fill="Level around images that are smaller, or one for each channel; the reference has ImageNet's mean.",
    split=_SPLIT,
)
def large_scale_jitter(
    size: Size = 1024,
    *,
    scale: tuple[float, float] = (0.1, 2.0),
    margin: int = 0,
    fill: Fill = (123, 117, 104),
    **shared: Unpack[Shared],
) -> Recipe:
    """Make the recipe of detectors with large scale jitter (Ghiasi et al., CVPR 2021), as torchvision's "lsj".

    It does not normalise: torchvision's detection models do. Copy and paste is not made. Nothing is mixed.

    The stages are named decode, scale_jitter, random_crop if there is a margin, flip.
    """
    output = output_of(size, shared)
    wanted, remedy = "two finite numbers with 0 < low <= high", "pass such as (0.5, 2.0)"
    low, high = interval("scale", scale, wanted, lambda low, high: 0 < low <= high < float("inf"), remedy)
    # The margin is for the crop alone: images are as large as without it, of the shorter side.
    share = min(output.sides) / (min(output.sides) + integer("margin", margin, 0, None, _REMEDY))
    stages = _jittered(output, margin, scale=(share * low, share * high), fill=fill)
    return Recipe(*parts_of(stages, output, shared["split"]))


@preset(
    shared=_SERVED,
    shorter="Least and greatest length of the shorter side in pixels, before the crop.",
    margin=_MARGIN,
    fill="Level around images that are smaller, or one for each channel.",
    split=_SPLIT,
)
def segmentation(
    size: Size = 480,
    *,
    shorter: tuple[int, int] = (260, 1040),
    margin: int = 0,
    fill: Fill = 0,
    **shared: Unpack[Shared],
) -> Recipe:
    """Make the recipe of torchvision's segmentation reference: the shorter side at random, crop, flip.

    Nothing is mixed. Masks have their own `fill` where a smaller image is filled up: 255 in `MaskFolder`, which losses
    ignore.

    The stages are named decode, scale_jitter, random_crop if there is a margin, flip.
    """
    output = output_of(size, shared)
    height, width = output.sides
    require(height == width, "size", "one number, since the shorter side is resized", size, "pass the side")
    wanted, remedy = "two numbers of pixels with 0 < low <= high", "leave it out for the reference's"
    low, high = interval("shorter", shorter, wanted, lambda low, high: 0 < low <= high < LONGEST_SIDE, remedy)
    whole = height + integer("margin", margin, 0, None, _REMEDY)
    stages = _jittered(output, margin, scale=(low / whole, high / whole), cover=True, fill=fill)
    return Recipe(*parts_of(stages, output, shared["split"]))


@preset(
    shared={name: each for name, each in {**_SERVED, "mean": 0.0, "std": 1.0}.items() if name != "split"},
    mosaic="Whether four images are put together; False: each is alone in a frame, as in the last epochs.",
    translate="Greatest shift, as a share of `size`.",
    scale="Greatest change s of the scale, which is in 1 - s .. 1 + s.",
    hsv_h="Greatest turn of the hue, as a share of the circle of colours.",
    hsv_s="Greatest change s of the saturation, whose factor is in 1 - s .. 1 + s.",
    hsv_v="The same of the brightness.",
    fliplr="Probability that an image is mirrored.",
)
def yolo(
    size: Size = 640,
    *,
    mosaic: bool = True,
    translate: float = 0.1,
    scale: float = 0.5,
    hsv_h: float = 0.015,
    hsv_s: float = 0.7,
    hsv_v: float = 0.4,
    fliplr: float = 0.5,
    **shared: Unpack[Shared],
) -> Recipe:
    """Make the recipe of YOLO detectors, by the defaults that Ultralytics documents: mosaic, affine, flip, colours.

    It is split before the mosaic, so nothing that is random is cached. For the last epochs, there `close_mosaic=10`,
    make a loader of `mosaic=False` with the same store. The shorter side is resized to three quarters of the size;
    there the longer one is to all of it, which is the same of photographs of 4:3. Saturation is torchvision's, not that
    of HSV. Nothing is mixed.

    The stages are named decode, resize, mosaic, random_affine, center_crop, flip, color_jitter; without the mosaic
    letterbox is in its place, and no crop.
    """
    output, fill = output_of(size, shared), 114
    flag("mosaic", mosaic, "it is done always or never")
    number("translate", translate, "in 0..1", lambda share: 0 <= share <= 1, "it is a share of the size")
    number("scale", scale, "from 0 to below 1", lambda change: 0 <= change < 1, "0.5 is usual")
    height, width = output.sides
    frame: Stage = Mosaic((2 * height, 2 * width), fill) if mosaic else Letterbox(output.size, fill)
    shift = translate / 2 if mosaic else translate
    affine = RandomAffine(0, (shift, shift), (1 - scale, 1 + scale), interpolation="bilinear", fill=fill)
    crops = [CenterCrop(output.size)] if mosaic else []
    colours = ColorJitter(brightness=hsv_v, saturation=hsv_s, hue=hsv_h)
    stages = [Resize(max(1, 3 * min(output.sides) // 4)), frame, affine, *crops, HorizontalFlip(fliplr), colours]
    return Recipe(*parts_of(stages, output, frame.name))


def _jittered(output: Output, margin: int, **jitter: Any) -> list[Stage]:
    """Return a scale jitter, a crop of its margin if it has one, and a flip."""
    height, width = output.sides
    crops = [RandomCrop(output.size, margin)] if margin else []
    # Of a small image in a corner the crop would cut off more than of one at the centre.
    place: Place = "center" if margin else "corner"
    return [ScaleJitter((height + margin, width + margin), place=place, **jitter), *crops, HorizontalFlip()]


def _timm(size: Size, shared: _Cropping, **arguments: Any) -> tuple[Output, list[Stage]]:
    """Return the output, and timm's stages for training."""
    output, interpolation = output_of(size, shared), shared["crop_interpolation"]
    transform = CreateTransform(
        output.size, is_training=True, interpolation=interpolation, mean=output.mean, std=output.std, **arguments
    )
    return output, transform.stages
