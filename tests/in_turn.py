"""What is tried where each change is tested, of what is tried weekly: each value of several factors once, for one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

EACH_CHANGE = os.environ.get("HYPOTHESIS_PROFILE") == "ci"
"""Whether this is a run for each change, which leaves out what is marked weekly."""


def in_turn(longest: Sequence[Any], *others: Sequence[Any]) -> list[Any]:
    """Return all cases for `parametrize`; those are weekly in which the other factors' values are not those in turn.

    Along the longest factor the first of the others changes with every value, the second whenever the first begins
    anew, and so on.
    """
    cases = []
    for (number, value), *rest in product(*map(enumerate, (longest, *others))):
        turn, is_chosen = number, True
        for place, factor in zip((place for place, _ in rest), others, strict=True):
            turn, due = divmod(turn, len(factor))
            is_chosen &= place == due
        cases.append(pytest.param(value, *(each for _, each in rest), marks=[] if is_chosen else pytest.mark.weekly))
    return cases


def for_one(chosen: Any, values: Sequence[Any], usual: Any, other: Any) -> list[Any]:
    """Return all pairs for `parametrize`: each value with the usual one, one with the other, which costs more."""
    return [
        pytest.param(value, by, marks=[] if by == (other if value == chosen else usual) else pytest.mark.weekly)
        for value, by in product(values, (usual, other))
    ]


def weekly(*cases: Any) -> list[Any]:
    """Return cases for `parametrize` that are weekly; a tuple has several arguments."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.weekly) for case in cases]
