"""Size of images: one number for squares, else height and width."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import plain, require

Size = int | tuple[int, int]
"""Side of squares in pixels, or (height, width)."""

Sizes = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Image heights and widths in pixels, each of shape (n,)."""

LONGEST_SIDE = 2**24
"""Pixels, of what a stage makes: DALI takes sizes in single precision."""


def checked_size(name: str, size: object, *, side: str = "the side in pixels") -> Size:
    """Return a size as it is written down: an int for squares, else a tuple.

    Args:
        name: Name of the argument.
        size: Value of the argument, an int or two.
        side: What a single number stands for, for messages.

    Raises:
        ConfigurationError: If it is not one or two positive integers.
    """
    given = plain(size)
    sides = given if isinstance(given, tuple) else (given, given)
    holds = len(sides) == 2 and all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in sides)
    wanted = "a positive integer, or two as (height, width)"
    require(holds, name, wanted, given, f"pass {side}, such as 224, or (256, 128)")
    height, width = sides
    return height if height == width else (height, width)


def sides_of(size: Size) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else size


def too_large(name: str, entered: Sizes, made: Sizes, max_pixels: int | None) -> tuple[int, str] | None:
    """Find an image of which a stage makes too large a one: its row, and why; None if there is none.

    Args:
        name: Name of the stage.
        entered: Sizes of the images that enter the stage.
        made: Sizes of those that it makes of them.
        max_pixels: The most pixels that one may have; None: any number.
    """
    heights, widths = made
    long = np.maximum(heights, widths) > LONGEST_SIDE
    vast = heights * widths > (np.inf if max_pixels is None else max_pixels)
    if not (long | vast).any():
        return None
    row = int((long | vast).argmax())
    most, remedy = f"{LONGEST_SIDE:,} pixels a side", "leave it out"
    if not long[row]:
        most, remedy = f"{max_pixels:,} pixels", "pass a larger max_pixels to the loader if it is genuine"
    return row, (
        f"{name}: an image must have {most} at most, but one of {entered[0][row]} x {entered[1][row]} would "
        f"become {heights[row]} x {widths[row]}: {remedy}, or crop right after it, in the same part"
    )
