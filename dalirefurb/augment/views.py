"""Views: the same stages with other names, which key other random numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from dalirefurb.augment.stage import Stage


def with_suffix(stages: Iterable[Stage], suffix: str) -> list[Stage]:
    """Return stages whose names end in a suffix, also where one follows another.

    Args:
        stages: Stages in order.
        suffix: What names end in.
    """
    made: list[Stage] = []
    for stage in stages:
        names = {"name": stage.name + suffix}
        if stage.follows is not None:
            names["first"] = stage.follows.name + suffix
        renamed: Any = dataclasses.replace(stage, **names)  # type: ignore[type-var]
        made.append(renamed)
    return made
