"""Finding: what an examination says of one thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


def size_text(nbytes: float) -> str:
    """Return bytes as people write them.

    >>> size_text(24_650_000_000), size_text(3_000_000), size_text(12)
    ('24.6 GB', '3.0 MB', '12 bytes')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} bytes"
