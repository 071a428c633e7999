"""Checks of arguments, with one form of refusal: what must hold, what was given, the remedy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from dalirefurb.errors import ConfigurationError

Interval = tuple[float, float]
"""A low number and a high one."""


def require(holds: bool, name: str, wanted: str, value: object, remedy: str) -> None:
    """Refuse an argument of which something must hold, and does not.

    Raises:
        ConfigurationError: If it does not hold.
    """
    if not holds:
        raise ConfigurationError(f"{name} must be {wanted}, got {value!r}: {remedy}")


def integer(name: str, value: object, least: int | None, most: int | None, remedy: str) -> int:
    """Return an integer argument as a plain int; NumPy's integers pass, bools and floats do not.

    Raises:
        ConfigurationError: If `value` is not an integer in least..most; None is no limit.
    """
    limits = "" if least is None else f" in {least}..{most}" if most is not None else f" of at least {least}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        holds = False
    else:
        inside = (least is None or number >= least) and (most is None or number <= most)
        holds = inside and not isinstance(value, (bool, np.bool_))
    require(holds, name, f"an int{limits}", value, remedy)
    return number


def positive(name: str, value: object, remedy: str) -> None:
    """Refuse what is not a plain int of at least 1.

    Raises:
        ConfigurationError: If `value` is something else.
    """
    holds = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    require(holds, name, "a positive integer", value, remedy)


def rank_of(rank: object, world_size: object) -> tuple[int, int]:
    """Return a rank, and how many there are, as plain ints.

    Raises:
        ConfigurationError: If there is no such rank.
    """
    processes = integer("world_size", world_size, 1, None, "pass the number of processes")
    return integer("rank", rank, 0, processes - 1, "ranks count from 0"), processes


def number(name: str, value: Any, limits: str, within: Callable[[float], bool], remedy: str) -> float:
    """Return a real argument as a plain float; bools do not pass.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        limits: The words for what `within` tells, such as "in 0..1".
        within: Whether a number is allowed.
        remedy: What to pass.

    Raises:
        ConfigurationError: If `value` is not a number, or not an allowed one.
    """
    holds = isinstance(value, Real) and not isinstance(value, bool) and within(value)  # type: ignore[arg-type]
    require(holds, name, f"a number {limits}", value, remedy)
    return float(value)


def interval(name: str, value: object, wanted: str, within: Callable[[float, float], bool], remedy: str) -> Interval:
    """Return two real numbers, a low and a high one, as plain floats; bools do not pass.

    Args:
        name: Name of the argument.
        value: Value of the argument.
        wanted: The words for what `within` tells, such as "two numbers with 0 < low <= high".
        within: Whether a low and a high number are allowed.
        remedy: What to pass.

    Raises:
        ConfigurationError: If `value` is not two numbers, or not allowed ones.
    """
    pair: Any = value if isinstance(value, (tuple, list)) and len(value) == 2 else (None, None)
    holds = all(isinstance(each, Real) and not isinstance(each, bool) for each in pair) and within(*pair)
    require(holds, name, wanted, value, remedy)
    return float(pair[0]), float(pair[1])
