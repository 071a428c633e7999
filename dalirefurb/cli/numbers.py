"""Numbers within a range, and paths, as options take them; refused before anything slow is imported."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Number:
    """Turns text into a number within limits.

    Attributes:
        kind: Type of the number: int or float.
        least: The least number allowed.
        most: The greatest number allowed.
        refusal: Message for a number below `least`, with a place for the number; by default it says what must hold.
    """

    kind: type[int] | type[float]
    least: float = -math.inf
    most: float = math.inf
    refusal: str = ""

    @property
    def __name__(self) -> str:
        """For argparse, which says that this is an invalid ... value."""
        return self.kind.__name__

    def __call__(self, text: str) -> float:
        """Parse a number."""
        number = self.kind(text)
        noun = "an int" if self.kind is int else "a number"
        if not number >= self.least:
            message = self.refusal or f"must be {noun} of at least {self.least}, got {{}}"
            raise argparse.ArgumentTypeError(message.format(number))
        if number > self.most:
            raise argparse.ArgumentTypeError(f"must be {noun} of at most {self.most}, got {number}")
        return number


def learning_rate(text: str) -> float:
    """Parse a learning rate."""
    number = float(text)
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"the learning rate must be a positive number, got {number}")
    if number > 1000:
        raise argparse.ArgumentTypeError(f"the learning rate must be at most 1000, got {number}: 0.01 is usual")
    return number


def path(text: str) -> Path:
    """Parse a path; an empty one would be the present folder."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"must be a path, got {text!r}")
    return Path(text)
