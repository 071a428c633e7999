"""Functions among transforms: those that convert images to RGB, or repeat a grey channel, and do nothing else."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

_OF_TENSORS = {"repeat", "expand", "repeat_interleave", "cat", "stack", "squeeze", "shape", "size", "torch", "dim"}
_OF_IMAGES = {"convert", "mode", "isinstance", "Image", "PIL"}
"""All that a function may name, so that what it does to noise it does to any image, always."""


def channels_after(transform: Any, channels: int, *, image: bool) -> int | None:
    """Return how many channels a function makes, each like that which was there; None where it does anything else.

    Args:
        transform: A function, an object that is called or whose `forward` is, or a `Lambda` of it.
        channels: Number of channels of what it is given, 1 or 3.
        image: Whether that is Pillow's image, not a tensor.
    """
    function = getattr(transform, "lambd", transform)
    call: Any = function if inspect.isroutine(function) else getattr(function, "forward", function.__call__)
    code = getattr(call, "__code__", None)
    if code is None or not {*code.co_names} <= (_OF_IMAGES if image else _OF_TENSORS):
        return None
    if code.co_freevars or call.__defaults__ or call.__kwdefaults__ or any(map(inspect.iscode, code.co_consts)):
        return None
    noise = np.random.default_rng(0).integers(0, 256, (6, 7, channels), np.uint8)
    try:
        if image:
            from PIL import Image

            levels = np.atleast_3d(call(Image.fromarray(noise.squeeze())))
        else:
            import torch

            levels = np.moveaxis(np.asarray(call(torch.from_numpy(np.moveaxis(noise, 2, 0)))), 0, 2)
    except Exception:  # Whatever a user's function raises.
        return None
    made = levels.shape[-1]
    alike = made in (1, 3) and levels.shape == (6, 7, made) and levels.dtype == np.uint8 and (levels == noise).all()
    return made if alike else None
