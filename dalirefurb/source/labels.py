"""Numbers for labels as they are written: their own, or places among the sorted names."""

from __future__ import annotations

import json
import mimetypes
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dalirefurb.errors import ConfigurationError

TARGETS = (
    "what would have to move with the image, as masks, boxes and keypoints do, is not supported yet: keep it outside, "
    "by the indices that Loader(..., with_indices=True) serves, with a recipe that moves nothing"
)
"""What to do with labels of another kind than those of a whole image."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def number_labels(values: Sequence[Any], where: Callable[[int], str]) -> tuple[list[Any], list[str] | None]:
    """Turn texts into numbers: all are numbers, or all are names of classes; what is no text stays as it is.

    Args:
        values: Labels as they were found, one per sample.
        where: Function that tells where value `i` was found, for messages.

    Returns:
        One label per value, and the sorted names, or None where there are none.

    Raises:
        ConfigurationError: A label is missing or has fields, or some are numbers and some are names.

    >>> number_labels(["3", "1.5"], str)
    ([3, 1.5], None)
    >>> number_labels(["dog", "cat", "dog"], str)
    ([1, 0, 1], ['cat', 'dog'])
    """
    for row, value in enumerate(values):
        if value is None or (isinstance(value, str) and not value):
            raise ConfigurationError(
                f"every sample must have a label, but {where(row)} has none: write one or remove it"
            )
        if target := _target(value):
            raise ConfigurationError(
                f"a label must be a number or a name, but that of {where(row)} {target}; {TARGETS}"
            )
    labels = [_number(value) if isinstance(value, str) else value for value in values]
    named = [isinstance(label, str) for label in labels]
    if not any(named):
        return labels, None
    if not all(named):
        name, number = named.index(True), named.index(False)
        raise ConfigurationError(
            f"labels must be all numbers or all names, but {where(name)} is labelled {values[name]!r} and "
            f"{where(number)} {values[number]!r}: write all in one way"
        )
    classes: list[str] = sorted(set(values))
    if (mimetypes.guess_type(classes[0])[0] or "").startswith("image/"):
        raise ConfigurationError(
            f"labels must be numbers or names, but are paths of images, as {classes[0]}: {TARGETS}"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    return [numbers[name] for name in values], classes


def warn_of_many(classes: Sequence[str], count: int, stacklevel: int) -> None:
    """Warn where most of `count` samples have a class to themselves, so that the names are hardly those of classes."""
    if len(classes) * 2 > count >= 20:
        warnings.warn(
            f"{len(classes):,} classes are nearly as many as the {count:,} samples, as ids, paths or texts would be, "
            f"such as {classes[0]!r:.80}: name what holds the classes by label=, or pass numbers",
            stacklevel=stacklevel + 1,
        )


def _target(value: Any) -> str | None:
    """Say why a value cannot be a label, where it has fields, itself, or in JSON, or in a list."""
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError):
            value = json.loads(value)
    inner = value[0] if isinstance(value, list) and value else value
    if not isinstance(inner, dict):
        return None
    names = ", ".join(map(str, inner))
    return (
        f"has the fields {names:.80}: choose one (of JSON, TarShards(..., label='json.{next(iter(inner), '')}') does)"
    )


def _number(text: str) -> int | float | str:
    """Return the number that a text writes, or the text if it writes none."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return int(text) if match[1].isdigit() and not match[2] else float(text)
