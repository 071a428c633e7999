"""Labels: numbers as they are written, or places among the sorted names; what would have to be augmented is refused."""

from __future__ import annotations

import itertools
import json
import mimetypes
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError, warn

TARGETS = (
    "what has to move with the image, as masks, boxes and keypoints do, is a target, and no label: pass such as "
    'Annotated(source, {"boxes": Boxes(boxes)}), see docs/how-to/targets.md'
)
"""What to do with labels of another kind than those of a whole image."""

WORDS = str, dict, NoneType
"""Kinds of labels, or of what is none, that an array is not made of."""

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


def checked_labels(
    labels: Any, count: int, items: str, where: Callable[[int], str]
) -> tuple[NDArray[Any], list[str] | None]:
    """Return labels as a C-contiguous numeric array of `count` rows, and the names that they stand for, if any."""
    if count == 0:
        raise ConfigurationError(f"there must be at least one sample, but {items} is empty: check where they come from")
    values, classes = labels, None
    # An array of texts would give each the room of the longest.
    if not isinstance(labels, list) or not any(isinstance(each, WORDS) for each in labels):
        values = as_array(labels, "labels", f"; {TARGETS}")
    given = len(values) if getattr(values, "ndim", 1) else "a single number"
    if given != count:
        raise ConfigurationError(f"there must be one label per sample, but there are {given} for {count} {items}")
    if isinstance(values, list) or values.dtype.kind in "OTU":
        values, classes = number_labels(values if isinstance(values, list) else values.tolist(), where)
    array = as_array(values, "labels", f"; {TARGETS}")
    if array.dtype.kind not in "biuf":
        raise ConfigurationError(f"labels must be numbers, or one name each, but are {array.dtype}: {TARGETS}")
    check_int64(array, "integer labels", "number them by np.unique(labels, return_inverse=True)[1]")
    return np.ascontiguousarray(array), classes


def check_assigned(labels: Any, count: int | None) -> None:
    """Refuse labels, as a source has them, that are no numbers in an array, or not one for each of `count` samples.

    Raises:
        ConfigurationError: If they are.
    """
    if not isinstance(labels, np.ndarray):
        raise ConfigurationError(
            f"labels must be a NumPy array of numbers, but are a {type(labels).__name__}: assign np.array(labels)"
        )
    if labels.dtype.kind not in "biuf":
        raise ConfigurationError(
            f"labels must be numbers, but are {labels.dtype}: number names by np.unique(labels, return_inverse=True)[1]"
        )
    if count not in (None, len(labels)):
        raise ConfigurationError(
            f"there must be one label per sample, but there are {len(labels)} for {count}: assign as many, and choose "
            f"samples by source.subset(indices)"
        )


def as_array(values: Any, what: str, more: str = "") -> NDArray[Any]:
    """Turn an array, a tensor or nested sequences of numbers into an array, without a copy if possible."""
    try:
        if not isinstance(values, np.ndarray) and hasattr(values, "numpy"):
            values = values.numpy()
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"{what} must be convertible to one NumPy array, but are not ({error}): give all rows "
            f"one shape, and move tensors by .detach().cpu(){more}"
        ) from error


def check_int64(array: NDArray[Any], what: str, remedy: str) -> None:
    """Refuse numbers that int64 would change.

    Raises:
        ConfigurationError: If one is larger than it can be.
    """
    if array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max:
        raise ConfigurationError(f"{what} must fit into int64, but one is {array.max()}: {remedy}")


def refuse_mask(label: Any, where: str, sides: Callable[[], tuple[int, ...]] = tuple) -> None:
    """Refuse a label that is an image: one of PIL, or an array that has the sides of the image, (height, width)."""
    drawn, shape = hasattr(label, "getbands"), getattr(label, "shape", ())
    pairs = [sorted(pair) for pair in itertools.pairwise(shape)]
    if drawn or (pairs and sorted(sides()) in pairs):
        given = "a PIL image" if drawn else f"an array of the image's sides, {tuple(shape)}"
        raise ConfigurationError(
            f"a label must belong to its image as a whole, but that of {where} is {given}, and only the image would be "
            f"augmented: {TARGETS}"
        )


def check_dali_labels(labels: NDArray[Any]) -> None:
    """Refuse labels that int32 of shape (B, 1) would change: those of DALI's readers are so.

    Raises:
        ConfigurationError: If they are not one whole number of 32 bits for each sample.
    """
    limits = np.iinfo(np.int32)
    whole = labels.ndim == 1 and labels.dtype.kind in "biu"
    if not (whole and limits.min <= labels.min(initial=0) and labels.max(initial=0) <= limits.max):
        reach = f" from {labels.min()} to {labels.max()}" if whole else f" of shape {labels.shape}"
        raise ConfigurationError(
            f"labels must be one whole number of 32 bits for each sample where dali_labels=True, but are "
            f"{labels.dtype}{reach}: leave it out, which serves them as they are"
        )


def warn_of_many(classes: Sequence[str], count: int) -> None:
    """Warn where most of `count` samples have a class to themselves, so that the names are hardly those of classes."""
    if len(classes) * 2 > count >= 20:
        warn(
            f"{len(classes):,} classes are nearly as many as the {count:,} samples, as ids, paths or texts would be, "
            f"such as {classes[0]!r:.80}: name what holds the classes by label=, or pass numbers",
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
