"""Numbers within a range, as options take them; refused before anything is imported."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Whole:
    """Turns text into a whole number within limits.

    Attributes:
        least: The least number allowed; None for no limit.
        most: The greatest number allowed; None for no limit.
        refusal: Message for a number below `least`, with a place for the number; by default it says what must hold.
    """

    least: int | None = None
    most: int | None = None
    refusal: str = ""

    __name__ = "int"
    """For argparse, which says that this is an invalid ... value."""

    def __call__(self, text: str) -> int:
        """Parse a number."""
        number = int(text)
        if self.least is not None and number < self.least:
            raise argparse.ArgumentTypeError(
                self.refusal.format(number) or f"must be an int of at least {self.least}, got {number}"
            )
        if self.most is not None and number > self.most:
            raise argparse.ArgumentTypeError(f"must be an int of at most {self.most}, got {number}")
        return number


@dataclass(frozen=True)
class Number:
    """Turns text into a number within limits.

    Attributes:
        least: The smallest number allowed.
        most: The largest number allowed.
    """

    least: float
    most: float

    __name__ = "float"

    def __call__(self, text: str) -> float:
        """Parse a number."""
        number = float(text)
        if not number >= self.least:
            raise argparse.ArgumentTypeError(f"must be a number of at least {self.least:g}, got {number}")
        if number > self.most:
            raise argparse.ArgumentTypeError(f"must be a number of at most {self.most:g}, got {number}")
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
