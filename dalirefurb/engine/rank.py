"""This process's rank. It is asked for late, since a process group may be made at any time before.

what the caller says ─▶ else torch.distributed, once initialised ─▶ else the launcher's environment ─▶ else 0 of 1

Where two of these differ the first one counts. The launcher is torchrun, mpirun or srun, and how many processes share
a machine is found out, see `system/processes.py`.
"""

from __future__ import annotations

import torch.distributed

from dalirefurb.checks import integer, plain, rank_of, require
from dalirefurb.system.processes import Rank as Rank
from dalirefurb.system.processes import launched

ALONE = Rank(0, 1)
"""The only process."""


def chosen(rank: Rank | tuple[int, int] | tuple[int, int, int] | None) -> Rank | None:
    """Return what the caller says; None if nothing.

    Raises:
        ConfigurationError: If it is neither a pair nor a `Rank`, or there is no such rank.
    """
    if rank is None:
        return None
    rank = plain(rank)
    remedy = "pass this process's number and how many there are, or leave it out to have both found"
    require(isinstance(rank, tuple) and len(rank) in (2, 3), "rank", "(rank, world_size)", rank, remedy)
    here = Rank(*rank).local_world_size
    if here is not None:
        here = integer("local_world_size", here, 1, None, "pass the number of processes on this machine, or None")
    return Rank(*rank_of(*rank[:2]), here)


def present() -> Rank:
    """Find out what is true now.

    Raises:
        ConfigurationError: If the environment names a rank that there is not.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Rank(torch.distributed.get_rank(), torch.distributed.get_world_size())
    launcher = launched()
    return ALONE if launcher is None else Rank(*rank_of(*launcher[:2]))
