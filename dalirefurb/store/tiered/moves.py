"""Copies and deletions that bring versions to where they should live."""

from __future__ import annotations

from typing import NamedTuple

from dalirefurb.store.base import NO_KEYS, Keys
from dalirefurb.store.key_index import Numbers


class Copies(NamedTuple):
    """Versions to be copied, n of them.

    Attributes:
        keys: Indices and versions of the samples, each of shape (n,).
        origins: The tiers that hold the versions, shape (n,).
        targets: The tiers that are to hold the versions, shape (n,).
    """

    keys: Keys
    origins: Numbers
    targets: Numbers


class Frees(NamedTuple):
    """Versions to be forgotten, n of them.

    Attributes:
        keys: Indices and versions of the samples, each of shape (n,).
        tiers: The tiers that are to hold the versions no longer, shape (n,).
    """

    keys: Keys
    tiers: Numbers


class Moves(NamedTuple):
    """What a decision asks for.

    Attributes:
        copies: Versions to be copied, which is done first.
        frees: Versions to be forgotten after that: other ones, or the same ones.
    """

    copies: Copies
    frees: Frees


NO_MOVES = Moves(Copies(NO_KEYS, *NO_KEYS), Frees(NO_KEYS, NO_KEYS[0]))
"""None at all."""
