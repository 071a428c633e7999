"""Verdict: whether training waits for data, by how much faster it would be if data cost nothing."""

from __future__ import annotations

from enum import Enum

DETECTED_ABOVE = 1.5
POTENTIAL_ABOVE = 1.1


class Verdict(str, Enum):
    """Whether the loader holds training back.

    Attributes:
        DETECTED: It does; training would be more than 1.5 times as fast with data at no cost.
        POTENTIAL: It does a little; training would be more than 1.1 times as fast.
        NOT_DETECTED: It does not.
        INCONCLUSIVE: What was measured is too little, or varies too much, to tell.
    """

    DETECTED = "DETECTED"
    POTENTIAL = "POTENTIAL"
    NOT_DETECTED = "NOT DETECTED"
    INCONCLUSIVE = "INCONCLUSIVE"

    def __str__(self) -> str:
        return self.value


def verdict_of(headspace: float) -> Verdict:
    """Return the verdict for how many times as fast training would be if data cost nothing.

    NaN, which nothing measured leaves, is inconclusive.

    >>> str(verdict_of(1.6)), str(verdict_of(1.5)), str(verdict_of(1.0))
    ('DETECTED', 'POTENTIAL', 'NOT DETECTED')
    """
    if headspace != headspace:
        return Verdict.INCONCLUSIVE
    if headspace > DETECTED_ABOVE:
        return Verdict.DETECTED
    return Verdict.POTENTIAL if headspace > POTENTIAL_ABOVE else Verdict.NOT_DETECTED
