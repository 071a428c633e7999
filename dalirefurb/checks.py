"""Checks of arguments that many modules take."""

from __future__ import annotations

import operator

import numpy as np

from dalirefurb.errors import ConfigurationError


def integer(name: str, value: object, least: int | None, most: int | None, remedy: str) -> int:
    """Return an integer argument as a plain int; NumPy's integers pass, bools and floats do not.

    Raises:
        ConfigurationError: If `value` is not an integer in least..most; None is no limit.
    """
    limits = "" if least is None else f" in {least}..{most}" if most is not None else f" of at least {least}"
    refusal = ConfigurationError(f"{name} must be an int{limits}, got {value!r}: {remedy}")
    if isinstance(value, (bool, np.bool_)):
        raise refusal
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise refusal from None
    if (least is not None and number < least) or (most is not None and number > most):
        raise refusal
    return number


def require_positive(what: str, value: int) -> None:
    """Refuse a size that is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{what} must be a positive integer, got {value!r}")
