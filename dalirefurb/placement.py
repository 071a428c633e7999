"""In which of several tiers does each version live? The sooner it is used again, the faster.

When a version was served or computed it is at hand, so it can go to any tier; at any time it can sink to a slower one.
After each batch

    the fastest tier keeps, of what it holds and what is at hand, what is used again soonest;
    each slower tier does so with what it holds and what the tier above it gives up;
    what the slowest gives up is computed again.

This is Belady's rule, with bypass, tier by tier, and no placement serves more. A version is held from one use to the
next, an interval, and a fast hit if it spent all of it in a fast tier. For each k, what the k fastest tiers hold
together is what one tier of all their slots would hold: they give up nothing before all of them are full, and then the
interval that ends last, which for intervals that compete for equal slots leaves as many as can be. So hits in the k
fastest tiers are at their most for every k at once, whatever a hit in each of them is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

from dalirefurb.placement_tier import Pair, PlacementTier, Use

UNKNOWN = -1
"""Stands for a next use that nobody told: it counts as the soonest, so the version stays where it is."""


@dataclass
class Moves:
    """What a decision asks for. Tiers are numbered from the fastest, 0.

    Attributes:
        copies: Versions with the tier that holds them and the one that is to hold them.
        frees: Versions with a tier that is to hold them no longer, once they are copied.
        targets: Where versions that no tier holds are to be put; None for nowhere.
    """

    copies: list[tuple[Pair, int, int]] = field(default_factory=list)
    frees: list[tuple[Pair, int]] = field(default_factory=list)
    targets: dict[Pair, int | None] = field(default_factory=dict)


class Placement:
    """Knows which tier each version lives in and when it is used next, and decides what moves. It holds no bytes.

    A version that rises leaves a spare copy below, which is given up when its slot is needed: to sink again costs
    nothing while it is there.

    Args:
        slots: Of each tier, from the fastest.

    Example:
        >>> placement = Placement([1, 1])
        >>> placement.settle({(7, 0): 5, (8, 0): 4}).targets
        {(7, 0): 1, (8, 0): 0}
        >>> placement.settle({(9, 0): 3})
        Moves(copies=[((8, 0), 0, 1)], frees=[((8, 0), 0), ((7, 0), 1)], targets={(9, 0): 0})
    """

    def __init__(self, slots: Sequence[int]) -> None:
        # What the slowest tier keeps need not be sorted before it is full, if that ever happens.
        self._tiers = [PlacementTier(count, is_sorted=number < len(slots)) for number, count in enumerate(slots, 1)]
        # The tier and the next use of each version; only what is given up for good is ever deleted.
        self._places: dict[Pair, tuple[int, int]] = {}
        self._versions: dict[int, tuple[int, ...]] = {}

    def __contains__(self, pair: Pair) -> bool:
        """Tell whether a version lives in any tier."""
        return pair in self._places

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._places)

    @property
    def num_spares(self) -> int:
        """Spare copies in all tiers."""
        return sum(len(tier.spares) for tier in self._tiers)

    def tier(self, pair: Pair) -> int | None:
        """Return the tier a version lives in, or None."""
        place = self._places.get(pair)
        return None if place is None else place[0]

    def tiers(self, pairs: Iterable[Pair]) -> list[int]:
        """Return the tier that each version lives in, or -1."""
        return [number for number, _ in map(self._places.get, pairs, repeat((-1, UNKNOWN)))]

    def versions(self, index: int) -> tuple[int, ...]:
        """Return the versions of an index that live in any tier."""
        return self._versions.get(index, ())

    def copies(self, pair: Pair) -> list[int]:
        """Return the tiers that hold a version, spare copies included."""
        return [n for n, tier in enumerate(self._tiers) if self.tier(pair) == n or pair in tier.spares]

    def settle(self, uses: Mapping[Pair, int]) -> Moves:
        """Decide where versions live from now on, given when those at hand are used next."""
        origins: dict[Pair, int | None] = {}
        # Of equal uses the last to arrive go down first: those for which it costs nothing.
        at_home: list[list[Use]] = [[] for _ in self._tiers]
        new: list[Use] = []
        for pair, use in uses.items():
            place = self._places.get(pair)
            if place is None:
                origins[pair] = None
                new.append((pair, use))
            else:
                origins[pair], last = place
                self._tiers[place[0]].remove(pair, last)
                at_home[place[0]].append((pair, use))
        arriving = [*at_home[0], *new, *chain.from_iterable(at_home[1:])]
        for number, tier in enumerate(self._tiers):
            entering, sinking = tier.take(arriving)
            for pair, use in entering:
                self._record(pair, number, use)
            given_up = self._given_up(number)
            for pair, _ in given_up:
                origins.setdefault(pair, number)
            arriving = sinking + given_up
        for pair, _ in arriving:
            self._delete(pair)
        moves = Moves()
        for pair, origin in origins.items():
            if origin is None or origin != self.tier(pair):
                self._move(pair, origin, moves)
        for number, tier in enumerate(self._tiers):
            moves.frees += [(pair, number) for pair in tier.give_up_spares()]
        return moves

    def relocate(self, pair: Pair, target: int | None) -> None:
        """Take note that a version lives in another tier than was decided, or in none, there being no faster copy."""
        place = self._places.get(pair)
        if place is not None:
            self._tiers[place[0]].remove(pair, place[1])
        for tier in self._tiers[: None if target is None else target + 1]:
            tier.spares.pop(pair, None)
        if target is None:
            self._delete(pair)
        else:
            use = UNKNOWN if place is None else place[1]
            self._tiers[target].add(pair, use)
            self._record(pair, target, use)

    def add_spare(self, pair: Pair, tier: int) -> None:
        """Take note of a copy in a slower tier than the one that the version lives in."""
        self._tiers[tier].spares[pair] = None

    def _given_up(self, number: int) -> list[tuple[Pair, int]]:
        """Remove what a tier has no slots for, and return it with its next uses."""
        tier = self._tiers[number]
        if tier.is_overfull and not tier.is_sorted:
            tier.sort((pair, use) for pair, (place, use) in self._places.items() if place == number)
        return tier.give_up()

    def _record(self, pair: Pair, number: int, use: int) -> None:
        """Write down that a version lives in a tier, which knows."""
        if pair not in self._places:
            self._versions[pair[0]] = (*self.versions(pair[0]), pair[1])
        self._places[pair] = number, use

    def _delete(self, pair: Pair) -> None:
        if self._places.pop(pair, None) is not None:
            rest = tuple(version for version in self._versions.pop(pair[0]) if version != pair[1])
            if rest:
                self._versions[pair[0]] = rest

    def _move(self, pair: Pair, origin: int | None, moves: Moves) -> None:
        """Note what it takes to bring a version from `origin` to where it lives now."""
        target = self.tier(pair)
        if origin is None:
            moves.targets[pair] = target
            return
        if target is None or target > origin:
            moves.frees.append((pair, origin))
        else:
            self._tiers[origin].spares[pair] = None
        if target is not None and pair not in self._tiers[target].spares:
            moves.copies.append((pair, origin, target))
        # Spare copies are in slower tiers only.
        for number, tier in enumerate(self._tiers):
            if pair in tier.spares and (target is None or number <= target):
                del tier.spares[pair]
                if number != target:
                    moves.frees.append((pair, number))
