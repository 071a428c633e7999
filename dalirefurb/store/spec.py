"""StoreSpec: shapes and number of samples, source and partial augmentation that a store is opened for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dalirefurb.checks import require
from dalirefurb.errors import ConfigurationError, StoreError
from dalirefurb.image_batch import Image, Images

_SHOWN_DIFFERENCES = 5
_SHOWN_CHARACTERS = 80
_NOTHING = object()


@dataclass(frozen=True)
class StoreSpec:
    """What a store is opened for.

    Attributes:
        slot_shape: (H, W, C) of every sample, or None when samples vary in size and share one byte arena.
        slots: The most versions held at one time, evicted ones that are still lent included.
        fingerprint: Identifies the source and the partial augmentation that the samples come from, in JSON values.
        arena_bytes: Size of the arena in bytes; 0 with fixed slots.
    """

    slot_shape: tuple[int, int, int] | None
    slots: int
    fingerprint: Mapping[str, Any]
    arena_bytes: int = 0

    def __post_init__(self) -> None:
        shape = self.slot_shape
        sized, remedy = shape is None or (len(shape) == 3 and min(shape) >= 1), "pass None if samples vary in size"
        require(sized, "slot_shape", "(height, width, channels), each at least 1", shape, remedy)
        require(self.slots >= 0, "slots", "at least 0", self.slots, "pass the plan's peak_slots")
        if (shape is None) != (self.arena_bytes > 0):
            raise ConfigurationError(
                f"arena_bytes must be positive if slot_shape is None, otherwise 0, but is {self.arena_bytes} "
                f"with slot_shape {shape}: size the arena, or fix the slots"
            )
        try:
            fingerprint = json.loads(json.dumps(self.fingerprint, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"a store's fingerprint must consist of JSON values, but {error}: use numbers, strings, lists and dicts"
            ) from error
        object.__setattr__(self, "fingerprint", fingerprint)

    @property
    def nbytes(self) -> int:
        """Bytes set aside for samples."""
        return self.arena_bytes if self.slot_shape is None else self.slots * math.prod(self.slot_shape)

    def check_same(self, other: StoreSpec) -> None:
        """Refuse to open an open store for something else.

        Raises:
            StoreError: An attribute differs; the message names each with both values.
        """
        differing = differences(vars(self), vars(other))
        if differing:
            raise StoreError(
                f"the store is open for {differing}: close it first, or give each loader that differs (one to train, "
                f"one to validate) a store of its own"
            )

    def check_samples(self, samples: Sequence[Image], count: int) -> None:
        """Refuse samples that do not fit the slots.

        Raises:
            ConfigurationError: There are not `count`, or one is no HWC uint8 image of the slots' shape.
        """
        if len(samples) != count:
            raise ConfigurationError(f"put needs one sample per index, but got {len(samples)} for {count} indices")
        if isinstance(samples, Images) and samples.kinds <= {(np.dtype(np.uint8), self.slot_shape)}:
            return
        for row, sample in enumerate(samples):
            if sample.dtype != np.uint8 or sample.ndim != 3 or sample.size == 0:
                raise ConfigurationError(
                    f"samples must be non-empty HWC uint8 images, but number {row} is {sample.dtype} of "
                    f"shape {sample.shape}: end the partial augmentation with a stage that returns HWC uint8"
                )
            if self.slot_shape is not None and sample.shape != self.slot_shape:
                raise ConfigurationError(
                    f"samples must have the slots' shape {self.slot_shape}, but number {row} has "
                    f"{sample.shape}: open the store with slot_shape=None if samples vary in size"
                )


def differences(present: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Name the leaves at which two trees of JSON values differ, with both values; say what it means if a content does.

    Example:
        >>> differences({"seed": 1, "stages": [{"layers": 2}]}, {"seed": 1, "stages": [{"layers": 3}]})
        'stages[0].layers 2, not 3'
    """
    leaves = [f"{path} {_shown(one)}, not {_shown(other)}" for path, one, other in differing(present, asked)]
    more = len(leaves) - _SHOWN_DIFFERENCES
    of_content = any("content" in leaf.partition(" ")[0].split(".") for leaf in leaves)
    return (
        "; ".join(leaves[:_SHOWN_DIFFERENCES])
        + (f"; and {more} more" if more > 0 else "")
        + (" (content: files of the source were changed, replaced or copied since then, or its array)" * of_content)
    )


def differing(present: Any, asked: Any, path: str = "", kinds: Sequence[str] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Yield the leaves at which two trees of JSON values differ: the path to each, and both values.

    What is not there is as None, and 1 as 1.0, but not as True.

    >>> list(differing({"a": 1, "b": None, "c": [1, 2]}, {"a": 1.0, "c": [True, 2]}))
    [('c[0]', 1, True)]

    Args:
        present: One tree.
        asked: The other one.
        path: Path to both.
        kinds: Keys by which a mapping within them says what it is of; of two that are not of one kind nothing further
            is told.
    """
    if isinstance(present, dict) and isinstance(asked, dict):
        if path and any(any(differing(present.get(kind), asked.get(kind))) for kind in kinds):
            yield path, present, asked
            return
        for key in sorted(present.keys() | asked.keys(), key=str):
            place = f"{path}.{key}" if path else str(key)
            yield from differing(present.get(key, _NOTHING), asked.get(key, _NOTHING), place, kinds)
    elif isinstance(present, list) and isinstance(asked, list) and len(present) == len(asked):
        for number, pair in enumerate(zip(present, asked, strict=True)):
            yield from differing(*pair, f"{path}[{number}]", kinds)
    else:
        one, other = (None if each is _NOTHING else each for each in (present, asked))
        types = {type(one), type(other)}
        if one != other or (len(types) > 1 and types != {int, float}):  # A bool is no 1.
            yield path, present, asked


def _shown(value: Any) -> str:
    """Return a short text, with names in the place of what has them, such as stages."""
    if isinstance(value, list):
        value = [each.get("name", each) if isinstance(each, dict) else each for each in value]
    text = "nothing" if value is _NOTHING else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
