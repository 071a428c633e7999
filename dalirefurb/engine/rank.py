"""This process's rank. It is asked for late, since a process group may be made at any time before.

what the caller says ─▶ else torch.distributed, once initialised ─▶ else torchrun's environment ─▶ else 0 of 1
"""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed

from dalirefurb.checks import rank_of
from dalirefurb.errors import ConfigurationError
from dalirefurb.system.launch_env import told


class Rank(NamedTuple):
    """A place among the processes that train together.

    Attributes:
        rank: This process's number, from 0.
        world_size: Number of processes that train together.
    """

    rank: int
    world_size: int


ALONE = Rank(0, 1)
"""The only process."""


def chosen(rank: Rank | tuple[int, int] | None) -> Rank | None:
    """Return what the caller says; None if nothing.

    Raises:
        ConfigurationError: If it is no pair, or there is no such rank.
    """
    if rank is None:
        return None
    if not isinstance(rank, tuple) or len(rank) != 2:
        raise ConfigurationError(
            f"rank must be (rank, world_size), got {rank!r}: pass this process's number and how many there are, or "
            f"leave it out to have both found"
        )
    return Rank(*rank_of(*rank))


def present() -> Rank:
    """Find out what is true now.

    Raises:
        ConfigurationError: If the environment names a rank that there is not.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Rank(torch.distributed.get_rank(), torch.distributed.get_world_size())
    rank, world_size = told("RANK"), told("WORLD_SIZE")
    if rank is None or world_size is None:
        return ALONE
    return chosen((rank, world_size)) or ALONE
