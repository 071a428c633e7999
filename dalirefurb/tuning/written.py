"""Dataclasses made of JSON values that somebody may have edited: what does not fit is refused by its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from dalirefurb.checks import choice, flag, integer, number
from dalirefurb.errors import ConfigurationError

_WITHIN: Mapping[str, Callable[[float], bool]] = {
    "of at least 0": lambda each: 0 <= each < math.inf,
    "above 0": lambda each: 0 < each < math.inf,
    "that is finite": math.isfinite,
}
"""What holds of numbers, by the words that `Annotated` has for it; of others the first."""

Positive: TypeAlias = Annotated[float, "above 0"]
Signed: TypeAlias = Annotated[float, "that is finite"]

_REMEDY = "leave it as it was written"


def read(kind: Any, value: Any, place: str) -> Any:
    """Return a dataclass, or a value of a field's type, that JSON values say.

    Args:
        kind: Dataclass, or type: a number, a bool, a text, a `Literal`, a tuple, a mapping by integers, or one of these
            or None.
        value: JSON values, as `dataclasses.asdict` made them.
        place: Name of what they are, for messages.

    Raises:
        ConfigurationError: If one of them is of another type, is missing, or is none that is known.
    """
    origin, kinds = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if value is None else read(kinds[0], value, place)
    if origin is Literal:
        choice(place, value, kind, _REMEDY)
    elif is_dataclass(kind):
        return _made(kind, value, place)
    elif origin is tuple:
        _check(isinstance(value, (list, tuple)), place, "a list", value)
        kinds = (kinds[0],) * len(value) if kinds[-1] is ... else kinds
        _check(len(value) == len(kinds), place, f"a list of {len(kinds)}", value)
        return tuple(read(*pair, f"{place}[{number}]") for number, pair in enumerate(zip(kinds, value, strict=True)))
    elif origin is Mapping:
        _check(isinstance(value, Mapping), place, "a mapping", value)
        _check(all(str(key).isdecimal() for key in value), place, "a mapping by integers", value)
        return {int(key): read(kinds[1], each, f"{place}.{key}") for key, each in value.items()}
    elif kind is bool:
        return flag(place, value, _REMEDY)
    elif kind is int:
        return integer(place, value, 0, None, _REMEDY)
    elif float in (kind, *kinds):
        limits = "of at least 0" if kind is float else kinds[1]
        return number(place, value, limits, _WITHIN[limits], _REMEDY)
    else:
        _check(isinstance(value, str), place, "a text", value)
    return value


def _made(kind: Any, value: Any, place: str) -> Any:
    _check(isinstance(value, Mapping), place, "a mapping", value)
    hints = get_type_hints(kind, include_extras=True)
    for name in value:
        _check(name in hints, place, f"of {', '.join(hints)}", name)
    for each in fields(kind):
        needed = each.default is MISSING and each.default_factory is MISSING
        _check(each.name in value or not needed, f"{place}.{each.name}", "there", "nothing")
    return kind(**{name: read(hints[name], each, f"{place}.{name}") for name, each in value.items()})


def _check(holds: bool, place: str, wanted: str, value: object) -> None:
    if not holds:
        raise ConfigurationError(argument=place, requirement=wanted, given=f"{value!r:.80}", remedy=_REMEDY)
