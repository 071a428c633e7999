"""Checks of arguments, and of files that somebody may have edited: what must hold, what was given, the remedy."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np

from dalirefurb.errors import ConfigurationError

Interval = tuple[float, float]
"""A low number and a high one."""

LAST_EPOCH = 2**31 - 1
"""Versions, which are epochs, are looked up by numbers of 64 bits that sample and version share."""


def plain(value: Any) -> Any:
    """Return numbers of NumPy or torch as Python's, exactly, arrays and lists as tuples; anything else as it is.

    >>> plain(np.float32(0.5)), plain(np.array([[8, 9]])), plain([np.int64(3), "a"])
    (0.5, ((8, 9),), (3, 'a'))
    """
    if isinstance(value, np.floating):  # of which `tolist` leaves long doubles as they are
        return float(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    listed = isinstance(value, (tuple, list)) and not hasattr(value, "_fields")
    return tuple(map(plain, value)) if listed else value


def at_home(path: str | os.PathLike[str]) -> str:
    """Return a path or address, in which "~" at the beginning is the user's home folder, not a folder of that name."""
    return os.path.expanduser(path)  # noqa: PTH111 - of which no user is unknown


def path_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of `at_home`; an empty text, as of a variable that is not set, would be the working folder.

    >>> path_of("~/keep") == Path.home() / "keep"
    True

    Raises:
        ConfigurationError: If it is empty.
    """
    require(os.fspath(path) != "", "a path", "that of a file or a folder", path, "pass '.' for the working folder")
    return Path(at_home(path))


def require(holds: bool, name: str, wanted: str, value: object, remedy: str) -> None:
    """Raise a `ConfigurationError` of an argument of which something must hold, and does not."""
    if not holds:
        raise ConfigurationError(argument=name, requirement=wanted, given=repr(value), remedy=remedy)


def is_list(value: object) -> bool:
    """Tell whether something has entries in an order: a sequence that is no text, or an array with an axis."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def choice(name: str, value: object, kind: Any, remedy: str = "choose one") -> None:
    """Refuse, as `require` does, what is none of the texts of a `Literal`."""
    *others, last = (f'"{each}"' for each in get_args(kind))
    known = isinstance(value, str) and value in get_args(kind)
    require(known, name, f"{', '.join(others)} or {last}", value, remedy)


def flag(name: str, value: object, remedy: str = "pass a bool") -> bool:
    """Return an argument that is true or false as a plain bool; those of NumPy and torch pass, other values do not.

    Raises:
        ConfigurationError: If `value` is no bool.
    """
    given = plain(value)
    require(isinstance(given, bool), name, "True or False", given, remedy)
    return bool(given)


def integer(name: str, value: object, least: int | None, most: int | None, remedy: str) -> int:
    """Return an integer argument as a plain int; those of NumPy and torch pass, bools and floats do not.

    Raises:
        ConfigurationError: If `value` is not an integer in least..most; None is no limit.
    """
    limits = "" if least is None else f" in {least}..{most}" if most is not None else f" of at least {least}"
    given = plain(value)
    holds = isinstance(given, int) and not isinstance(given, bool)
    holds = holds and (least is None or given >= least) and (most is None or given <= most)
    require(holds, name, f"an int{limits}", given, remedy)
    return int(given)


def epoch_of(epoch: object) -> int:
    """Return the number of an epoch as a plain int; refuse one that cannot be."""
    remedy = "epochs are counted from 0"
    number = integer("epoch", epoch, 0, None, remedy)
    require(number <= LAST_EPOCH, "epoch", f"at most {LAST_EPOCH}", number, remedy)
    return number


def rank_of(rank: object, world_size: object) -> tuple[int, int]:
    """Return a rank, and how many there are, as plain ints; refuse one that cannot be."""
    processes = integer("world_size", world_size, 1, None, "pass the number of processes")
    return integer("rank", rank, 0, processes - 1, "ranks count from 0"), processes


def number(name: str, value: Any, limits: str, within: Callable[[float], bool], remedy: str) -> float:
    """Return a real argument as a plain float; bools do not pass.

    Raises:
        ConfigurationError: If `value` is not a number, or not one that is `within` limits, of which these are the
            words, such as "in 0..1".
    """
    given = plain(value)
    real = _real(given)
    require(real is not None and within(real), name, f"a number {limits}", given, remedy)
    return float(given)


def interval(name: str, value: object, wanted: str, within: Callable[[float, float], bool], remedy: str) -> Interval:
    """Return two real numbers, a low and a high one, as plain floats; bools do not pass.

    Raises:
        ConfigurationError: If `value` is not two numbers, or not such as are `wanted`, such as "two numbers with
            0 < low <= high".
    """
    given = plain(value)
    low, high = map(_real, given) if isinstance(given, tuple) and len(given) == 2 else (None, None)
    holds = low is not None and high is not None and within(low, high)
    require(holds, name, wanted, given, remedy)
    return float(given[0]), float(given[1])


def _real(value: object) -> float | None:
    """Return a real number as a plain float; None if it is none, or a bool, or larger than any float."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
    except OverflowError:
        return None


class CheckedFields:
    """Checks of a frozen dataclass's fields, where it is made; each is written down as it was checked."""

    def _called(self, field: str) -> str:
        """Return what messages call a field."""
        return field

    def _integer(self, field: str, least: int | None, most: int | None, remedy: str) -> None:
        """Check a field that is an int; see `integer`."""
        integer(self._called(field), getattr(self, field), least, most, remedy)

    def _number(self, field: str, limits: str, within: Callable[[float], bool], remedy: str) -> None:
        """Check a field that is a number, and make it a plain float; see `number`."""
        object.__setattr__(self, field, number(self._called(field), getattr(self, field), limits, within, remedy))

    def _share(self, field: str = "probability", remedy: str = "0.5 is usual") -> None:
        """Check a field that is a share, and make it a plain float."""
        self._number(field, "in 0..1", lambda share: 0 <= share <= 1, remedy)

    def _interval(self, field: str, wanted: str, within: Callable[[float, float], bool], remedy: str) -> None:
        """Check a field that is two numbers, and make them plain floats; see `interval`."""
        object.__setattr__(self, field, interval(self._called(field), getattr(self, field), wanted, within, remedy))


_WITHIN: Mapping[str, Callable[[float], bool]] = {
    "of at least 0": lambda each: 0 <= each < math.inf,
    "above 0": lambda each: 0 < each < math.inf,
    "that is finite": math.isfinite,
}
"""What holds of numbers, by the words that `Annotated` has for it; of others the first."""

Positive: TypeAlias = Annotated[float, "above 0"]
Signed: TypeAlias = Annotated[float, "that is finite"]

_REMEDY = "leave it as it was written"


def dataclass_of(kind: Any, value: Any, place: str) -> Any:
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
        return None if value is None else dataclass_of(kinds[0], value, place)
    if origin is Literal:
        choice(place, value, kind, _REMEDY)
    elif is_dataclass(kind):
        return _made(kind, value, place)
    elif origin is tuple:
        _check(isinstance(value, (list, tuple)), place, "a list", value)
        kinds = (kinds[0],) * len(value) if kinds[-1] is ... else kinds
        _check(len(value) == len(kinds), place, f"a list of {len(kinds)}", value)
        return tuple(
            dataclass_of(*pair, f"{place}[{number}]") for number, pair in enumerate(zip(kinds, value, strict=True))
        )
    elif origin is Mapping:
        _check(isinstance(value, Mapping), place, "a mapping", value)
        _check(all(str(key).isdecimal() for key in value), place, "a mapping by integers", value)
        return {int(key): dataclass_of(kinds[1], each, f"{place}.{key}") for key, each in value.items()}
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
    return kind(**{name: dataclass_of(hints[name], each, f"{place}.{name}") for name, each in value.items()})


def _check(holds: bool, place: str, wanted: str, value: object) -> None:
    if not holds:
        raise ConfigurationError(argument=place, requirement=wanted, given=f"{value!r:.80}", remedy=_REMEDY)
