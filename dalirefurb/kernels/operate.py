"""The kernels of augmentation policies' operations, by group.

group                            beside DALI's operators
identity, posterize, solarize    exact
brightness, contrast             exact
color, sharpness                 exact on processors that multiply and add in one step, else within 1 level
warp, nearest                    exact on such processors, else either of two pixels that are as near
warp, bilinear                   within 1 level
auto contrast                    exact
equalize                         exactly Pillow's, which DALI's is not in small pictures
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dalirefurb.augment.operations import Group
from dalirefurb.kernels.filters import color, sharpness
from dalirefurb.kernels.levels import LEVELS_BYTES, auto_contrast, brightness, contrast, equalize, posterize, solarize
from dalirefurb.kernels.llvm import compiled
from dalirefurb.kernels.one_module import choosing
from dalirefurb.kernels.warp import COLUMN_BYTES, warp_bilinear, warp_nearest

_IDENTITY, _POSTERIZE, _SOLARIZE = int(Group.IDENTITY), int(Group.POSTERIZE), int(Group.SOLARIZE)
_BRIGHTNESS, _CONTRAST, _COLOR = int(Group.BRIGHTNESS), int(Group.CONTRAST), int(Group.COLOR)
_SHARPNESS, _WARP, _EQUALIZE = int(Group.SHARPNESS), int(Group.WARP), int(Group.EQUALIZE)


def operate_bytes(width: Any) -> Any:
    """Return the bytes of memory that `operate` needs beside images, at most."""
    return np.maximum(COLUMN_BYTES * width, LEVELS_BYTES)


@compiled
@choosing
def operate(
    image: Any, height: Any, width: Any, group: Any, matrix: Any, bilinear: Any, fill: Any, room: Any, out: Any
) -> bool:
    """Apply one operation; return False if nothing is to be done and nothing was.

    Args:
        image: Levels of the source image, pixel after pixel.
        height: Height of source and result in pixels.
        width: Width of source and result in pixels.
        group: Group of the operation, an `operations.Group`.
        matrix: Numbers of the operation, a 3x3 matrix row by row, float32 of shape (9,).
        bilinear: Whether warps interpolate.
        fill: Levels of the channels where a warp shows no source, uint8 of shape (3,).
        room: Address of the memory that the kernel works in, as many bytes as `operate_bytes` returns.
        out: Levels of the result, pixel after pixel.
    """
    if group == _IDENTITY:
        return False
    if group == _POSTERIZE:
        posterize(image, matrix[0], out)
    elif group == _SOLARIZE:
        solarize(image, -matrix[0], out)
    elif group == _BRIGHTNESS:
        brightness(image, matrix[0], out)
    elif group == _CONTRAST:
        contrast(image, matrix[0], out)
    elif group == _COLOR:
        color(image, matrix[0], matrix[3], out)
    elif group == _SHARPNESS:
        sharpness(image, height, width, matrix, out)
    elif group == _WARP:
        if bilinear:
            warp_bilinear(image, height, width, matrix, fill, room, out)
        else:
            warp_nearest(image, height, width, matrix, fill, room, out)
    elif group == _EQUALIZE:
        equalize(image, room, out)
    else:
        auto_contrast(image, room, out)
    return True
