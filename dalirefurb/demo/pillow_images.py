"""Images as users of Pillow make them, in processes of a `DataLoader`: nothing else is imported there."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.utils.data import Dataset

from dalirefurb.augment.output import IMAGENET_MEAN, IMAGENET_STD

MEAN, STD = (255 * np.array(values, np.float32) for values in (IMAGENET_MEAN, IMAGENET_STD))


class PillowImages(Dataset[torch.Tensor]):
    """Files' images, float32, (3, size, size): a random resized crop, a flip, two operations, normalised."""

    def __init__(self, paths: list[str], size: int) -> None:
        self._paths, self._sides = paths, (size, size)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self._paths[index]) as file:
            image = file.convert("RGB")
        area, ratio = image.width * image.height * random.uniform(0.08, 1), random.uniform(3 / 4, 4 / 3)
        width, height = min(image.width, math.sqrt(area * ratio)), min(image.height, math.sqrt(area / ratio))
        left, top = random.uniform(0, image.width - width), random.uniform(0, image.height - height)
        image = image.resize(self._sides, Image.Resampling.BILINEAR, (left, top, left + width, top + height))
        for operation in (random.choice(_FLIPS), *random.choices(_OPERATIONS, k=2)):
            image = operation(image)
        return torch.from_numpy(((np.asarray(image, np.float32) - MEAN) / STD).transpose(2, 0, 1))


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[[Image.Image], Image.Image]:
    return lambda image: kind(image).enhance(random.choice((0.73, 1.27)))


_FLIPS = (ImageOps.mirror, lambda image: image)
_OPERATIONS = (
    lambda image: image,
    *(lambda image: image.rotate(random.choice((-9, 9))),) * 5,  # For shears and translations, too: they cost the same.
    *map(_enhance, (ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness)),
    lambda image: ImageOps.posterize(image, 7),
    lambda image: ImageOps.solarize(image, 178),
    ImageOps.autocontrast,
    ImageOps.equalize,
)
"""RandAugment's at magnitude 9, as often as there."""
