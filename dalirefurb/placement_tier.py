"""What lives in one of several tiers, and which of it is used last?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

Pair = tuple[int, int]
"""An index and a version."""

Use = tuple[Pair, int]
"""A version, and when it is used next."""

_STALE = 64


class PlacementTier:
    """The versions that live in one tier, sorted by their next use or only counted, and its spare copies of others.

    Args:
        slots: How many can live here.
        is_sorted: Whether to begin with they are sorted.

    Attributes:
        is_sorted: Whether they are sorted by now: only then it is known what is used last.
        spares: Copies of versions that live in faster tiers, the oldest first.
    """

    def __init__(self, slots: int, *, is_sorted: bool) -> None:
        self.is_sorted = is_sorted
        self.spares: dict[Pair, None] = {}
        self._slots = slots
        self._count = 0
        self._versions_of: dict[int, dict[Pair, None]] = {}
        # Next uses, negated, the last one first; some are of no version any more, and some are there twice.
        self._uses: list[int] = []

    @property
    def is_overfull(self) -> bool:
        """Whether more versions live here than have a slot."""
        return self._count > self._slots

    def take(self, arriving: Sequence[Use]) -> tuple[Sequence[Use], list[Use]]:
        """Let versions live here, in turn, but those that would be the first to go; return the former and the latter.

        A version would go if no slot is free, and it is used no sooner than any other here.
        """
        if not self.is_sorted:
            self._count += len(arriving)
            return arriving, []
        entering: list[Use] = []
        sinking: list[Use] = []
        last = self._last_use() if self._count else -math.inf
        for version in arriving:
            use = version[1]
            if self._count >= self._slots and use >= last:
                sinking.append(version)
            else:
                self.add(*version)
                entering.append(version)
                last = max(last, use)
        return entering, sinking

    def add(self, pair: Pair, use: int) -> None:
        """Let a version live here."""
        self._count += 1
        if self.is_sorted:
            self._insert(pair, use)

    def remove(self, pair: Pair, use: int) -> None:
        """Let a version live here no longer."""
        self._count -= 1
        if self.is_sorted:
            versions = self._versions_of[use]
            del versions[pair]
            if not versions:
                del self._versions_of[use]

    def sort(self, versions: Iterable[Use]) -> None:
        """Sort what lives here, from now on, too."""
        self.is_sorted = True
        for pair, use in versions:
            self._insert(pair, use)

    def give_up(self) -> list[Use]:
        """Remove what is used last and has no slot."""
        given_up = []
        while self.is_overfull:
            use = self._last_use()
            pair = next(reversed(self._versions_of[use]))
            self.remove(pair, use)
            given_up.append((pair, use))
        return given_up

    def _insert(self, pair: Pair, use: int) -> None:
        if use not in self._versions_of:
            self._versions_of[use] = {}
            heappush(self._uses, -use)
            if len(self._uses) > 2 * len(self._versions_of) + _STALE:
                self._uses = [-use for use in self._versions_of]
                heapify(self._uses)
        self._versions_of[use][pair] = None

    def _last_use(self) -> int:
        """Return the last of the next uses; something must live here."""
        while -self._uses[0] not in self._versions_of:
            heappop(self._uses)
        return -self._uses[0]

    def give_up_spares(self) -> list[Pair]:
        """Remove the oldest spare copies that have no slot."""
        surplus = max(0, self._count + len(self.spares) - self._slots)
        given_up = [pair for pair, _ in zip(self.spares, range(surplus), strict=False)]
        for pair in given_up:
            del self.spares[pair]
        return given_up
