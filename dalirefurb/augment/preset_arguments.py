"""What arguments of presets mean, written once: `preset` shows it in the documentation of each."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import TypeVar

from dalirefurb.augment.recipe import Recipe
from dalirefurb.calls import explains

Preset = TypeVar("Preset", bound=Callable[..., Recipe])

ARGUMENTS = {
    "size": "Side of the images that the model receives, in pixels, or (height, width).",
    "resize": "Length in pixels that the shorter side is resized to before the crop, or height and width of what is "
    "resized without regard to the aspect ratio, as torchvision's `Resize`; None: 8/7 of `size`, of both sides if it "
    "has two.",
    "layers": "Number of operations that are applied to an image, one after the other: the paper's N.",
    "magnitude": "Magnitude of the operations, 0 .. num_magnitude_bins - 1: the paper's M.",
    "num_magnitude_bins": "Number of magnitudes between no effect and the strongest, at least 2.",
    "policy": 'Policy of the paper\'s appendix, "imagenet", "cifar10" or "svhn".',
    "config": "String of timm's, see `dalirefurb.augment.timm_auto_augment`.",
    "color_jitter": "Greatest change of brightness, contrast and saturation after the operations, 0 for none; None: "
    "0.4 after 3-Augment, none after others, as timm.",
    "order": '"paper": crop, flip, operations; the last operation is final. "crop_last": the operations work on an '
    "image a little larger, and a random crop and a flip come last and are final. These cost next to nothing and keep "
    "nearly all diversity, so the cached part can be all the rest.",
    "fill": "Level 0 .. 255 where an operation moves a border into the image, or one for each of three channels.",
    "scale": "Least and greatest share of the image's area that the random resized crop takes.",
    "ratio": "Least and greatest width divided by height of what the random resized crop takes.",
    "crop_interpolation": 'Interpolation of the random resized crop, "nearest", "bilinear", "bicubic", "lanczos", or '
    '"random": for each image bilinear or bicubic, as timm.',
    "flip": "Probability that an image is mirrored.",
    "split": 'Name of a stage ("the final part begins here"), a count of partial stages, or None: what the preset '
    "says.",
    "raw": "Whether the recipe is for arrays of the size of `size`, in place of encoded images.",
    "dtype": 'Type of the images that the model receives, "float32", "float16" or "bfloat16".',
    "channels": "Number of channels that the model receives: 3, or 1 for grey images, made after all operations.",
    "channels_last": "Whether the images' memory is in NHWC order; the shape is (B, channels, height, width) all the "
    "same.",
    "mean": "Means of the channels, subtracted from pixels in 0..1; one number is for all of them, and for one channel "
    "three are averaged.",
    "std": "Standard deviations of the channels, by which the pixels are divided after that; likewise.",
}
"""What arguments mean that several presets have; `interpolation` is told with the stage that it is of."""


def preset(interpolated: str | None = None, *names: str, **own: str) -> Callable[[Preset], Preset]:
    """Show in a preset's documentation what its arguments mean, in the signature's order.

    Args:
        interpolated: What its argument `interpolation` is of.
        names: Interpolations that there are; by default "nearest" and "bilinear".
        own: What arguments mean that this preset alone has, or that mean something else in it.
    """
    *others, last = (f'"{name}"' for name in names or ("nearest", "bilinear"))
    interpolation = f"Interpolation of {interpolated}, {', '.join(others)} or {last}."
    meanings = {**ARGUMENTS, "interpolation": interpolation, **own}

    def with_arguments(preset: Preset) -> Preset:
        names = inspect.signature(preset).parameters
        told = "\n".join(
            textwrap.fill(f"{name}: {meanings[name]}", 100, initial_indent=" " * 4, subsequent_indent=" " * 8)
            for name in names
        )
        preset.__doc__ = f"{inspect.cleandoc(preset.__doc__ or '')}\n\nArgs:\n{told}\n"
        return explains(preset)

    return with_arguments
