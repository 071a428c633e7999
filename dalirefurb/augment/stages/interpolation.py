"""Interpolations of resizes, all anti-aliased but nearest; one may be drawn for each image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Arrays, Node, Parameter
from dalirefurb.checks import require

ResizeInterpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "random"]

RANDOM: tuple[ResizeInterpolation, ...] = ("bilinear", "bicubic")
"""Among which "random" chooses, each with the same probability, as timm."""

INTERPOLATION: Mapping[str, Parameter] = {"interpolation": Parameter("int32")}
"""What is drawn where an interpolation is "random": a place in `RANDOM`."""

REACH: Mapping[ResizeInterpolation, float] = {"nearest": 1, "bilinear": 1, "bicubic": 2, "lanczos": 3, "random": 2}
"""How far filters reach, at most, in pixels of the larger image."""


def check_resize_interpolation(name: str, interpolation: object) -> None:
    """Refuse an interpolation of a resize of this name that there is not.

    Raises:
        ConfigurationError: If there is no such interpolation.
    """
    names = get_args(ResizeInterpolation)
    known = isinstance(interpolation, str) and interpolation in names
    wanted = " or ".join([", ".join(f'"{each}"' for each in names[:-1]), f'"{names[-1]}"'])
    require(known, f"{name}: interpolation", wanted, interpolation, "choose one")


def draw_interpolation(uniforms: NDArray[np.float64]) -> Arrays:
    """Turn uniforms, shape (n,), into `INTERPOLATION`."""
    return {"interpolation": np.floor(uniforms * len(RANDOM)).astype(np.int32)}


def resize_type(interpolation: ResizeInterpolation, parameters: Mapping[str, Node]) -> Any:
    """Return DALI's name for an interpolation, or a node of such names if it is "random"."""
    from nvidia.dali import fn
    from nvidia.dali.types import DALIDataType, DALIInterpType

    types = {
        "nearest": DALIInterpType.INTERP_NN,
        "bilinear": DALIInterpType.INTERP_LINEAR,
        "bicubic": DALIInterpType.INTERP_CUBIC,
        "lanczos": DALIInterpType.INTERP_LANCZOS3,
    }
    if interpolation != "random":
        return types[interpolation]
    first, second = (int(types[each]) for each in RANDOM)
    number = parameters["interpolation"] * (second - first) + first
    return fn.reinterpret(fn.cast(number, dtype=DALIDataType.INT32), dtype=DALIDataType.INTERP_TYPE)
