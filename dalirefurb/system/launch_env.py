"""Launchers' environment: which process of several this is, as torchrun, mpirun or srun says it.

    torchrun, Ray Train          RANK             WORLD_SIZE           LOCAL_WORLD_SIZE
    Open MPI                     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE
    MPICH, Intel MPI (Hydra)     PMI_RANK         PMI_SIZE             MPI_LOCALNRANKS
    SLURM, a step of srun        SLURM_PROCID     SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE[SLURM_NODEID]

The first one that is there counts, since the upper ones are started by the lower ones: torchrun on each node by srun.
What it does not say of this machine is taken from another one that says the same rank: srun sets Hydra's first two
(`--mpi=pmi2`), and many a batch script RANK and WORLD_SIZE.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from dalirefurb.checks import require

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
