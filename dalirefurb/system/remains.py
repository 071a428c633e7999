"""Values that are found again once their owners are gone."""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from typing import Any, Generic, TypeVar

_Value = TypeVar("_Value")


class _Remainder(weakref.ref[Any], Generic[_Value]):
    """What one owner leaves."""

    __slots__ = ("value",)
    value: _Value


class Remains(Generic[_Value]):
    """What owners leave when they are gone, the latest last; any thread may let an owner go.

    No line of Python runs when an owner goes, as one of `weakref.finalize` would: an interrupt from the keyboard that
    came in it would be lost, and the value with it.

    Args:
        most: Largest number of values kept until they are taken: of more, the earliest go. None keeps all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._left: deque[_Remainder[_Value]] = deque(maxlen=most)
        self._expected: dict[int, tuple[weakref.ref[Any], ...]] = {}

    def __len__(self) -> int:
        """Count the values that are left."""
        return len(self._left)

    def expect(self, owner: object, value: _Value) -> None:
        """Have a value be left once nobody refers to its owner any more."""
        remainder = _Remainder[_Value](owner, self._left.append)
        remainder.value = value
        key = id(remainder)
        self._expected[key] = remainder, weakref.ref(owner, partial(self._expected.pop, key))

    def take(self) -> _Value:
        """Take the value that was left last.

        Raises:
            IndexError: If none is left.
        """
        return self._left.pop().value
