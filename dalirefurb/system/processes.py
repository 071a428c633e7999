"""Processes: which of several this is, as torchrun, mpirun or srun says it, and how many share this machine.

    torchrun, Ray Train          RANK             WORLD_SIZE           LOCAL_WORLD_SIZE
    Open MPI                     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE
    MPICH, Intel MPI (Hydra)     PMI_RANK         PMI_SIZE             MPI_LOCALNRANKS
    SLURM, a step of srun        SLURM_PROCID     SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE[SLURM_NODEID]

The first one that is there counts, since the upper ones are started by the lower ones: torchrun on each node by srun.
What it does not say of this machine is taken from another one that says the same rank: srun sets Hydra's first two
(`--mpi=pmi2`), and many a batch script RANK and WORLD_SIZE.

    what the caller says ─▶ else the launcher, if torch.distributed has the same rank or none
                         ─▶ else the larger of what the launcher says and of what the ranks say to each other

Lightning and `torch.multiprocessing` start processes without saying how many are on a machine. Where torch.distributed
is initialised each rank leaves its machine's name in the group's store, and waits, for a limited time, for the names of
the others. It is no collective: a rank that never comes costs the others that time and a warning, and nothing else of
the group is touched.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from dalirefurb.checks import require
from dalirefurb.errors import warn
from dalirefurb.system.control_groups import text

_SPECIAL_STEPS = 0xFFFFFFF0
"""From here on SLURM numbers steps that are no srun's: a batch script, an interactive shell."""

_SHELLS = {"bash", "interactive"}
"""Names that SLURM gives to jobs that are shells: what is started from these is one process."""

_NAMES = (
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)
"""Variables of launchers: rank, world size, local world size."""

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class Rank(NamedTuple):
    """A place among the processes that train together.

    Attributes:
        rank: This process's number, from 0.
        world_size: Number of processes that train together.
        local_world_size: Number of processes that share this machine's cores and memory, this one included; None: it
            is found out, see `Loader`.
    """

    rank: int
    world_size: int
    local_world_size: int | None = None


def told(name: str) -> int | None:
    """Return the whole number that an environment variable must hold; None if it is not set."""
    value = os.environ.get(name)
    if value is None:
        return None
    decimal, remedy = value.strip().isdecimal(), "start with torchrun, or unset it"
    require(decimal, f"the environment variable {name}", "a whole number", value, remedy)
    return int(value)


def launched() -> Rank | None:
    """Return what the launcher says; None where none has started this process.

    Raises:
        ConfigurationError: If a variable is not a whole number.
    """
    launchers = [each for each in (*map(_by_names, _NAMES), _by_srun()) if each is not None]
    if not launchers:
        return None
    first = launchers[0]
    here = (each.local_world_size for each in launchers if each[:2] == first[:2] and each.local_world_size is not None)
    return first._replace(local_world_size=next(here, None))


def _by_names(names: tuple[str, str, str]) -> Rank | None:
    """Return what variables of these names say, of rank, world and this machine."""
    rank, world_size, here = map(told, names)
    return None if rank is None or world_size is None else Rank(rank, world_size, here)


def _by_srun() -> Rank | None:
    """Return what srun says. A batch script has its job's variables, too, and is one process, whatever they say."""
    step = told("SLURM_STEP_ID")
    if step is None or step >= _SPECIAL_STEPS or os.environ.get("SLURM_JOB_NAME") in _SHELLS:
        return None
    rank, of_step, of_job = map(told, ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    tasks = of_job if of_step is None else of_step
    return None if rank is None or tasks is None else Rank(rank, tasks, _tasks_of_node())


def _tasks_of_node() -> int | None:
    """Return the tasks of this node: SLURM writes those of all nodes like "4(x2),3", which is 4, 4 and 3."""
    name = next((name for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if name in os.environ), None)
    if name is None:
        return told("SLURM_NTASKS_PER_NODE")
    value, node = os.environ[name], told("SLURM_NODEID") or 0
    forms = [_TASKS.fullmatch(words.strip()) for words in value.split(",")]
    wanted, remedy = "tasks of nodes, such as '4(x2),3'", "start with srun, or unset it"
    require(all(forms), f"the environment variable {name}", wanted, value, remedy)
    tasks = [int(form[1]) for form in forms if form for _ in range(int(form[2] or 1))]
    return tasks[node] if node < len(tasks) else None


_PATIENCE_S = 30.0
"""How long the other ranks are waited for, once for each process group."""

_stated: ContextVar[int | None] = ContextVar("local_world_size", default=None)

_counted: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Number of ranks on this machine, of each process group."""

_named: WeakSet[Any] = WeakSet()
"""Process groups whose ranks can read this machine's name."""


def local_processes() -> int:
    """Count the processes that share this machine, this one included.

    Where torch.distributed is initialised this may wait for the other ranks to ask for it, too, once.

    Raises:
        ConfigurationError: If a launcher's variable is not a whole number.
    """
    stated = _stated.get()
    if stated is not None:
        return stated
    launcher = launched()
    here = told("LOCAL_WORLD_SIZE") if launcher is None else launcher.local_world_size
    distributed: Any = sys.modules.get("torch.distributed")  # Who has not imported it has no process group.
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        known = here is not None and launcher is not None and launcher[:2] == (rank, world_size)
        found = _found(distributed, rank, world_size, wait=not known)
        here = here if known else max(here or 1, found)
    return max(1, here or 1)


@contextmanager
def shared_by(processes: int | None) -> Iterator[None]:
    """Let `local_processes` return a number that the caller says, inside the context; None changes nothing."""
    token = _stated.set(_stated.get() if processes is None else processes)
    try:
        yield
    finally:
        _stated.reset(token)


def boot_id() -> str:
    """Return what tells this start of the machine from others; nothing where Linux does not say it."""
    return text(Path("/proc/sys/kernel/random/boot_id"))


def _found(distributed: Any, rank: int, world_size: int, *, wait: bool) -> int:
    """Count the ranks on this machine; 1 if it is not to wait, but the others are told of this one even then."""
    group = distributed.group.WORLD
    if group in _counted:
        return _counted[group]
    keys = [f"dalirefurb/machine/{each}" for each in range(world_size)]
    machine = _machine()
    try:
        store = distributed.distributed_c10d._get_default_store()
        if group not in _named:
            store.set(keys[rank], machine)
            _named.add(group)
        if not wait:
            return 1
        silent = _silent(store, keys)
        names = [store.get(key).decode() for key in keys if key not in silent]
    except (AttributeError, RuntimeError, ValueError) as error:  # A group of MPI has no store, and a store can be lost.
        if not wait:
            return 1
        silent, names, reason = keys, [], f"torch.distributed's store cannot be asked ({error})"
    else:
        ranks = ", ".join(key.rpartition("/")[2] for key in silent)
        reason = f"in {_PATIENCE_S:.0f} s nothing was heard of rank {ranks}"
    _counted[group] = found = names.count(machine) + len(silent)
    if silent:
        warn(
            f"which processes share this machine must be known to share its cores and memory, but {reason}, so "
            f"{found} of {world_size} are taken to be here: let all ranks make a loader, or say how many are here by "
            f"Loader(..., rank=Rank({rank}, {world_size}, local_world_size=...))",
        )
    return found


def _silent(store: Any, keys: list[str]) -> list[str]:
    """Wait until all keys are there, or for no longer; return those that are not."""
    give_up, pause_s = time.monotonic() + _PATIENCE_S, 0.002
    while not store.check(keys):
        if time.monotonic() > give_up:
            return [key for key in keys if not store.check([key])]
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.25)
    return []


def _machine() -> str:
    """Return a name that no other machine has: its own, which containers change, and its kernel's since it started."""
    return f"{socket.gethostname()} {boot_id().strip()}"
