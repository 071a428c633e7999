"""Recipes as published, ready to use.

Each preset is for encoded images or, with `raw=True`, for small HWC uint8 arrays such as CIFAR-10's: there the random
resized crop is replaced by padding and a random crop, as is customary. Signatures are written out, so that `help` and
editors show every argument.

Arguments that all presets have:
    size: Side of the images the model receives, in pixels.
    split: A stage's name ("the final part begins here"), a count of partial stages, or None: what the preset says.
    raw: Whether the recipe is for arrays of `size` x `size` in place of encoded images.
    dtype: Type of the images that the model receives.
    channels_last: Whether the images' memory is in NHWC order; the shape is (B, 3, H, W) all the same.
    mean: Means of the channels, subtracted from pixels in 0..1.
    std: Standard deviations of the channels, by which the pixels are divided after that.

Those of the augmenting ones:
    order: "paper": crop, flip, operations; the last operation is final. "crop_last": the operations work on an image a
        little larger, and a random crop and a flip come last and are final. These cost next to nothing and keep nearly
        all diversity, so the cached part can be all the rest.
    interpolation: Interpolation of shears, translations and rotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dalirefurb.augment.auto_augment import AutoAugmentFirst, AutoAugmentSecond, Policy
from dalirefurb.augment.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.decode import Decode
from dalirefurb.augment.operation_layer import OperationLayer
from dalirefurb.augment.output import IMAGENET_MEAN, IMAGENET_STD, Output
from dalirefurb.augment.rand_augment import RandAugmentLayer
from dalirefurb.augment.recipe import Recipe
from dalirefurb.augment.resize import RandomResizedCrop, Resize
from dalirefurb.augment.stage import Interpolation, Stage
from dalirefurb.augment.trivial_augment import TrivialAugmentLayer
from dalirefurb.checks import positive, require
from dalirefurb.errors import ConfigurationError

Order = Literal["paper", "crop_last"]
Dtype = Literal["float32", "float16"]
Split = int | str | None
Channels = tuple[float, float, float]


def simple(
    size: int = 224,
    *,
    split: Split = None,
    raw: bool = False,
    dtype: Dtype = "float32",
    channels_last: bool = False,
    mean: Channels = IMAGENET_MEAN,
    std: Channels = IMAGENET_STD,
) -> Recipe:
    """Crop and flip. By default the flip is final.

    The stages are named decode, random_resized_crop or random_crop, flip. For the arguments see the module.
    """
    return _around([], Output(size, dtype, mean, std, channels_last), order="paper", split=split, raw=raw)


def evaluate(
    size: int = 224,
    *,
    split: Split = None,
    raw: bool = False,
    dtype: Dtype = "float32",
    channels_last: bool = False,
    mean: Channels = IMAGENET_MEAN,
    std: Channels = IMAGENET_STD,
) -> Recipe:
    """Resize the shorter side to 8/7 of `size`, and crop the centre: 256 and 224. Arrays stay as they are.

    Nothing is random, and by default everything is partial: an image can be cached whole.

    The stages are named decode, resize, center_crop. For the arguments see the module.
    """
    stages: list[Stage] = [] if raw else [Decode(), Resize(round(size * 8 / 7)), CenterCrop(size)]
    return Recipe(stages, Output(size, dtype, mean, std, channels_last), len(stages) if split is None else split)


def rand_augment(
    size: int = 224,
    *,
    layers: int = 2,
    magnitude: int = 9,
    order: Order = "paper",
    interpolation: Interpolation = "nearest",
    split: Split = None,
    raw: bool = False,
    dtype: Dtype = "float32",
    channels_last: bool = False,
    mean: Channels = IMAGENET_MEAN,
    std: Channels = IMAGENET_STD,
) -> Recipe:
    """RandAugment (Cubuk et al. 2019, section 3), with torchvision's table of magnitudes.

    `layers` operations (the paper's N) are applied to an image one after the other, all with `magnitude` (its M),
    0 .. 30. Their stages are named rand_augment_1, rand_augment_2, ...; for the other arguments see the module.
    """
    positive("layers", layers, "use simple() for none")
    operations = [
        RandAugmentLayer(f"rand_augment_{layer}", interpolation, magnitude=magnitude) for layer in range(1, layers + 1)
    ]
    return _around(operations, Output(size, dtype, mean, std, channels_last), order=order, split=split, raw=raw)


def auto_augment(
    size: int = 224,
    *,
    policy: Policy = "imagenet",
    order: Order = "paper",
    interpolation: Interpolation = "nearest",
    split: Split = None,
    raw: bool = False,
    dtype: Dtype = "float32",
    channels_last: bool = False,
    mean: Channels = IMAGENET_MEAN,
    std: Channels = IMAGENET_STD,
) -> Recipe:
    """AutoAugment (Cubuk et al., CVPR 2019), a stage for each of the two operations of a sub-policy.

    `policy` is "imagenet" or "cifar10", as the paper's appendix lists them. The operations' stages are named
    auto_augment_1 and auto_augment_2; for the other arguments see the module.
    """
    first = AutoAugmentFirst("auto_augment_1", interpolation, policy=policy)
    operations = [first, AutoAugmentSecond("auto_augment_2", interpolation, policy=policy, first=first.name)]
    return _around(operations, Output(size, dtype, mean, std, channels_last), order=order, split=split, raw=raw)


def trivial_augment(
    size: int = 224,
    *,
    order: Order = "paper",
    interpolation: Interpolation = "nearest",
    split: Split = None,
    raw: bool = False,
    dtype: Dtype = "float32",
    channels_last: bool = False,
    mean: Channels = IMAGENET_MEAN,
    std: Channels = IMAGENET_STD,
) -> Recipe:
    """TrivialAugment (Müller and Hutter, ICCV 2021), with the paper's wide ranges: one operation at any magnitude.

    The operation's stage is named trivial_augment; for the arguments see the module.
    """
    operations = [TrivialAugmentLayer(interpolation=interpolation)]
    return _around(operations, Output(size, dtype, mean, std, channels_last), order=order, split=split, raw=raw)


def simplified(recipe: Recipe, layers: int = 1) -> Recipe:
    """Leave the last operations out: augmentation that costs less, to compare reuse with.

    What was final stays so; where none of it is left, the last stage becomes final. So `simplified(rand_augment())` is
    `rand_augment(layers=1)`, and `simplified(rand_augment(), 2)` is `simple()`.

    Args:
        recipe: A recipe with operations: RandAugment, AutoAugment, TrivialAugment.
        layers: Number of operations to leave out, at least 1; the last ones are left out.

    Raises:
        ConfigurationError: If the recipe does not have as many.
    """
    operations = [stage.name for stage in recipe.stages if isinstance(stage, OperationLayer)]
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= len(operations):
        raise ConfigurationError(
            f"layers must be a positive integer, at most the recipe's operations, got {layers!r} for "
            f"{', '.join(operations) or 'none'}: leave fewer out, or begin with a recipe that has more"
        )
    left = [stage for stage in recipe.stages if stage.name not in operations[-layers:]]
    split = sum(stage in left for stage in recipe.partial)
    if recipe.final and split == len(left):
        split = max(split - 1, 0)
    return Recipe(left, recipe.output, split)


def _around(operations: Sequence[Stage], output: Output, *, order: Order, split: Split, raw: bool) -> Recipe:
    """Crop and flip, before operations or after them as `order` says."""
    stages: list[Stage]
    size = output.size
    margin = max(2, round(size / 28))  # room for 9 x 9 crops at 224 pixels, 3.6 % of the side
    padding = max(1, size // 8)  # 4 pixels for 32 x 32
    padded_crop = RandomCrop(size, margin=2 * padding, padding=padding)
    if order == "paper":
        first = [padded_crop] if raw else [Decode(), RandomResizedCrop(size)]
        stages = [*first, HorizontalFlip(), *operations]
        final = stages[-1].name
    else:
        require(order == "crop_last", "order", "'paper' or 'crop_last'", order, "choose one")
        first = [] if raw else [Decode(), RandomResizedCrop(size + margin)]
        last = padded_crop if raw else RandomCrop(size, margin=margin)
        stages = [*first, *operations, last, HorizontalFlip()]
        final = last.name
    return Recipe(stages, output, final if split is None else split)
