"""Finding: what an examination says of one thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

State = Literal["good", "note", "slow", "wrong", "unknown"]
"""All is well; to be known when figures are read; a loader will be slower than it could be; something will fail."""


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        topic: Thing that was examined, such as "memory".
        state: How it is.
        said: What was found, in words.
        remedy: What to do about it; empty if nothing is to be done.
        values: Figures, each with its unit in its name.
    """

    topic: str
    state: State
    said: str
    remedy: str = ""
    values: Mapping[str, float | str | None] = field(default_factory=dict)

    def unless(self, holds: bool, state: State, remedy: str) -> Finding:
        """Return this finding, or where something holds one in another state, with what to do about it."""
        return replace(self, state=state, remedy=remedy) if holds else self
