"""Copies and deletions that bring versions to where they should live."""

from __future__ import annotations

from typing import NamedTuple

from dalirefurb.store.base import NO_KEYS, Keys
from dalirefurb.store.key_index import Numbers


class Copies(NamedTuple):
    """Versions to be copied, n of them.

    Attributes:
        keys: Which.
        origins: The tiers that hold them, shape (n,).
        targets: Those that are to hold them, shape (n,).
    """

    keys: Keys
    origins: Numbers
    targets: Numbers


class Frees(NamedTuple):
    """Versions to be forgotten, n of them.

    Attributes:
        keys: Which.
        tiers: Those that are to hold them no longer, shape (n,).
    """

    keys: Keys
    tiers: Numbers


class Moves(NamedTuple):
    """What a decision asks for.

    Attributes:
        copies: First, versions are copied.
        frees: Then others, or the same ones, are forgotten.
    """

    copies: Copies
    frees: Frees


NO_MOVES = Moves(Copies(NO_KEYS, *NO_KEYS), Frees(NO_KEYS, NO_KEYS[0]))
"""None at all."""
