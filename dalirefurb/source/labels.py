"""Numbers for labels as they are written: their own, or places among the sorted names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from dalirefurb.errors import ConfigurationError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def number_labels(values: Sequence[Any], where: Callable[[int], str]) -> tuple[list[Any], list[str] | None]:
    """Turn texts into numbers: all are numbers, or all are names of classes; what is no text stays as it is.

    Args:
        values: Labels as they were found, one per sample.
        where: Function that tells where value `i` was found, for messages.

    Returns:
        One label per value, and the sorted names, or None where there are none.

    Raises:
        ConfigurationError: A label is missing, or some are numbers and some are names.

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
    numbers = {name: number for number, name in enumerate(classes)}
    return [numbers[name] for name in values], classes


def _number(text: str) -> int | float | str:
    """Return the number that a text writes, or the text if it writes none."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return int(text) if match[1].isdigit() and not match[2] else float(text)
