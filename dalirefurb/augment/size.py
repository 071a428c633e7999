"""Size of images: one number for squares, else height and width."""

from __future__ import annotations

from dalirefurb.checks import require

Size = int | tuple[int, int]
"""Side of squares in pixels, or (height, width)."""


def checked_size(name: str, size: object, *, side: str = "the side in pixels") -> Size:
    """Return a size as it is written down: an int for squares, else a tuple.

    Args:
        name: Name of the argument.
        size: Value of the argument, an int or two.
        side: What a single number stands for, for messages.

    Raises:
        ConfigurationError: If it is not one or two positive integers.
    """
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    holds = len(sides) == 2 and all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in sides)
    wanted = "a positive integer, or two as (height, width)"
    require(holds, name, wanted, size, f"pass {side}, such as 224, or (256, 128)")
    height, width = sides
    return height if not isinstance(size, (tuple, list)) or height == width else (height, width)


def sides_of(size: Size) -> tuple[int, int]:
    """Return height and width."""
    return (size, size) if isinstance(size, int) else size
