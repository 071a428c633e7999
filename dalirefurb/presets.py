"""Recipes as published, ready to use.

Each preset is for encoded images or, with `raw=True`, for small HWC uint8 arrays such as CIFAR-10's: there the random
resized crop is replaced by padding and a random crop, as is customary.
"""

from __future__ import annotations

from typing import Literal

from dalirefurb.augment.geometry import Decode, HorizontalFlip, RandomCrop, RandomResizedCrop
from dalirefurb.augment.rand_augment import RandAugmentLayer
from dalirefurb.augment.stage import Interpolation, Stage
from dalirefurb.errors import ConfigurationError
from dalirefurb.recipe import IMAGENET_MEAN, IMAGENET_STD, Output, Recipe

Order = Literal["paper", "crop_last"]


def simple(
    size: int = 224,
    *,
    split: int | str | None = None,
    raw: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
) -> Recipe:
    """Crop and flip.

    Args:
        size: Side of the images the model receives, in pixels.
        split: A stage's name ("the final part begins here"), a count of partial stages, or None: the flip is final.
        raw: For arrays of `size` x `size` in place of encoded images.
        dtype: Of the images the model receives.
        mean: Subtracted from pixels in 0..1, per channel.
        std: Divided by afterwards.
    """
    stages = [*_crop(size, raw=raw), HorizontalFlip()]
    return Recipe(stages, Output(size, dtype, mean, std), "flip" if split is None else split)


def rand_augment(
    size: int = 224,
    *,
    layers: int = 2,
    magnitude: int = 9,
    order: Order = "paper",
    interpolation: Interpolation = "nearest",
    split: int | str | None = None,
    raw: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
) -> Recipe:
    """RandAugment (Cubuk et al. 2019, section 3), with torchvision's table of magnitudes.

    The stages are named decode, random_resized_crop or random_crop, flip, rand_augment_1, rand_augment_2, ...

    Args:
        size: Side of the images the model receives, in pixels.
        layers: Operations applied to an image one after the other, N in the paper.
        magnitude: Of all operations, 0..30, M in the paper.
        order: "paper": crop, flip, layers. "crop_last": the layers work on an image a little larger, and a random crop
            and a flip come last. These cost next to nothing and keep nearly all diversity, so the cached part can be
            all the rest.
        interpolation: Of the geometric operations.
        split: A stage's name ("the final part begins here"), a count of partial stages, or None: the last layer is
            final in the paper's order, crop and flip are with "crop_last".
        raw: For arrays of `size` x `size` in place of encoded images.
        dtype: Of the images the model receives.
        mean: Subtracted from pixels in 0..1, per channel.
        std: Divided by afterwards.
    """
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise ConfigurationError(f"layers must be a positive integer, got {layers!r}; use simple() for none")
    augmentation: list[Stage] = [
        RandAugmentLayer(f"rand_augment_{layer}", magnitude=magnitude, interpolation=interpolation)
        for layer in range(1, layers + 1)
    ]
    if order == "paper":
        stages = [*_crop(size, raw=raw), HorizontalFlip(), *augmentation]
        default = augmentation[-1].name
    elif order == "crop_last":
        stages = [*_crop_last_head(size, raw=raw), *augmentation, _last_crop(size, raw=raw), HorizontalFlip()]
        default = "random_crop"
    else:
        raise ConfigurationError(f"order must be 'paper' or 'crop_last', got {order!r}")
    return Recipe(stages, Output(size, dtype, mean, std), default if split is None else split)


def _crop(size: int, *, raw: bool) -> list[Stage]:
    return [_padded_crop(size)] if raw else [Decode(), RandomResizedCrop(size)]


def _crop_last_head(size: int, *, raw: bool) -> list[Stage]:
    return [] if raw else [Decode(), RandomResizedCrop(size + _margin(size))]


def _last_crop(size: int, *, raw: bool) -> RandomCrop:
    return _padded_crop(size) if raw else RandomCrop(size, margin=_margin(size))


def _padded_crop(size: int) -> RandomCrop:
    """Pad by an eighth on each side: 4 pixels for 32 x 32."""
    padding = max(1, size // 8)
    return RandomCrop(size, margin=2 * padding, padding=padding)


def _margin(size: int) -> int:
    """Leave room for 9 x 9 crops at 224 pixels, 3.6 % of the side."""
    return max(2, round(size / 28))
