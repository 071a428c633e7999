"""Which kernel does each group of operations have?

group                            beside DALI's operators
identity, posterize, solarize    exact
brightness, contrast             exact
color, sharpness                 exact on processors that multiply and add in one step, else within 1 level
warp, nearest                    exact on such processors, else either of two pixels that are as near
warp, bilinear                   within 1 level
equalize, auto contrast          exact
"""

from __future__ import annotations

from typing import Any

from dalirefurb.augment.operations import Group
from dalirefurb.kernels.blends import color, sharpness
from dalirefurb.kernels.compiled import compiled
from dalirefurb.kernels.levels import auto_contrast, brightness, contrast, equalize, posterize, solarize
from dalirefurb.kernels.warp import warp_bilinear, warp_nearest

_IDENTITY, _POSTERIZE, _SOLARIZE = int(Group.IDENTITY), int(Group.POSTERIZE), int(Group.SOLARIZE)
_BRIGHTNESS, _CONTRAST, _COLOR = int(Group.BRIGHTNESS), int(Group.CONTRAST), int(Group.COLOR)
_SHARPNESS, _WARP, _EQUALIZE = int(Group.SHARPNESS), int(Group.WARP), int(Group.EQUALIZE)


@compiled
def operate(image: Any, height: Any, width: Any, group: Any, matrix: Any, bilinear: Any, fill: Any, out: Any) -> bool:
    """Apply one operation; return False if nothing is to be done and nothing was.

    Args:
        image: The source.
        height: Of source and result.
        width: Likewise.
        group: The operation's, an `operations.Group`.
        matrix: Its numbers, float32 (9,).
        bilinear: Whether warps interpolate.
        fill: Levels where a warp shows no source, uint8 (3,).
        out: The result.
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
            warp_bilinear(image, height, width, matrix, fill, out)
        else:
            warp_nearest(image, height, width, matrix, fill, out)
    elif group == _EQUALIZE:
        equalize(image, out)
    else:
        auto_contrast(image, out)
    return True
