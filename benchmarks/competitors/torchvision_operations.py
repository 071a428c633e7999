"""What does an operation of torchvision v2 cost an image, in CPU time? Asked by `kernels.py`, in turns with others.

python torchvision_operations.py PHOTOGRAPHS IMAGES     two `.npz` files with images, HWC uint8
    ◀ the names of what can be asked for, as JSON
    ▶ a name, a tab, and how many times all images are to be made      ◀ microseconds of CPU time an image
    ▶ end of input                                                     it ends
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from competitors.serving import answers
from competitors.torchvision_v2 import MEAN, STD, InterpolationMode, v2

made_by = v2.functional

Apply = Callable[[torch.Tensor], torch.Tensor]

_WAYS = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR}
_CROPPED = {**_WAYS, "bicubic": InterpolationMode.BICUBIC}


def of_photographs(size: int) -> dict[str, Apply]:
    """Return what is done to photographs, by the names of `kernels.py`."""
    crops = {
        f"crop, resize, {name}": v2.RandomResizedCrop(size, interpolation=way, antialias=True)
        for name, way in _CROPPED.items()
    }
    flipped = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])
    return {"crop, resize, flip": flipped, **crops}


def of_images(size: int) -> dict[str, Apply]:
    """Return what is done to images that are cropped already."""
    by_way: dict[str, Apply] = {}
    for name, way in _WAYS.items():
        by_way |= {
            f"random_rotation, {name}": v2.RandomRotation(30, way),
            f"random_affine, {name}": v2.RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, way),
            f"random_perspective, {name}": v2.RandomPerspective(p=1.0, interpolation=way),
            f"RandAugment layer, {name}": v2.RandAugment(num_ops=1, interpolation=way),
        }
    normalised = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return {
        **by_way,
        "vertical_flip": v2.RandomVerticalFlip(1.0),
        "random_crop": v2.RandomCrop(size, padding=4, padding_mode="reflect"),
        "- ShearX": lambda image: made_by.affine(image, 0.0, [0, 0], 1.0, [5.1, 0.0], center=[0, 0]),
        "- TranslateX": lambda image: made_by.affine(image, 0.0, [30, 0], 1.0, [0.0, 0.0]),
        "- Rotate": lambda image: made_by.rotate(image, 9.0),
        "- Brightness": lambda image: made_by.adjust_brightness(image, 1.27),
        "- Color": lambda image: made_by.adjust_saturation(image, 1.27),
        "- Contrast": lambda image: made_by.adjust_contrast(image, 1.27),
        "- Sharpness": lambda image: made_by.adjust_sharpness(image, 1.27),
        "- Posterize": lambda image: made_by.posterize(image, 7),
        "- Solarize": lambda image: made_by.solarize(image, 179),
        "- AutoContrast": made_by.autocontrast,
        "- Equalize": made_by.equalize,
        "ColorJitter": v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        "- hue alone": v2.ColorJitter(hue=0.1),
        "RandomGrayscale": v2.RandomGrayscale(1.0),
        "GaussianBlur, 23 pixels": v2.GaussianBlur(23),
        "- 3 pixels": v2.GaussianBlur(3),
        "AdjustSharpness": lambda image: made_by.adjust_sharpness(image, 2.0),
        "AutoContrast": made_by.autocontrast,
        "Equalize": made_by.equalize,
        "Invert": made_by.invert,
        "Posterize": lambda image: made_by.posterize(image, 4),
        "Solarize": lambda image: made_by.solarize(image, 128),
        "RandomErasing": v2.RandomErasing(p=1.0),
        "output": normalised,
    }


def main() -> None:
    """Answer what is asked."""
    told = answers()
    torch.set_num_threads(1)
    photographs = as_decoded(Path(sys.argv[1]))
    images = [image.contiguous() for image in as_decoded(Path(sys.argv[2]))]  # what most operations are faster with
    size = images[0].shape[-1]
    asked = {name: (apply, photographs) for name, apply in of_photographs(size).items()}
    asked |= {name: (apply, images) for name, apply in of_images(size).items()}
    told.write(json.dumps(list(asked)) + "\n")
    for line in sys.stdin:
        name, _, times = line.rstrip("\n").partition("\t")
        apply, given = asked[name]
        began = time.process_time()
        for _ in range(int(times)):
            for image in given:
                apply(image)
        told.write(f"{(time.process_time() - began) / int(times) / len(given) * 1e6}\n")


def as_decoded(path: Path) -> list[torch.Tensor]:
    """Read images, CHW, laid out as decoders leave them: so they are resized in two thirds of the time."""
    with np.load(path) as images:
        return [torch.from_numpy(images[name]).permute(2, 0, 1) for name in images.files]


if __name__ == "__main__":
    main()
