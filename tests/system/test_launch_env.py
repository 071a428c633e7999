"""Each launcher's variables say which process this is, and how many share its machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from dalirefurb.engine.rank import ALONE, Rank, present
from dalirefurb.errors import ConfigurationError
from dalirefurb.system.processes import launched, local_processes

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "train",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "11",
    "SLURM_TASKS_PER_NODE": "4(x2),3",
    "SLURM_NTASKS_PER_NODE": "4",
}
STEP = {
    **BATCH_SCRIPT,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "SLURM_PROCID": "9",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "1",
}
OLD_STEP = {name: value for name, value in STEP.items() if not name.startswith("SLURM_STEP_N")}


def without(variables: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in names}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "MPI_")) or name in TORCHRUN:
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (TORCHRUN, Rank(5, 8, 4)),
        (without(TORCHRUN, "LOCAL_WORLD_SIZE"), Rank(5, 8, None)),
        (without(TORCHRUN, "RANK", "LOCAL_WORLD_SIZE"), None),  # Lightning's own processes.
        (TORCHRUN | {"RANK": "0"}, Rank(0, 8, 4)),
        (OPEN_MPI, Rank(2, 6, 3)),
        (HYDRA, Rank(1, 2, 2)),
        (STEP, Rank(9, 11, 3)),
        (OLD_STEP, Rank(9, 11, 3)),
        (STEP | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}, Rank(0, 11, 4)),
        (STEP | {"SLURM_NODEID": "1"}, Rank(9, 11, 4)),
        (STEP | {"SLURM_STEP_NUM_TASKS": "10", "SLURM_STEP_TASKS_PER_NODE": "10", "SLURM_NODEID": "0"}, (9, 10, 10)),
        (without(STEP, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), Rank(9, 11, 4)),
        (without(STEP, "SLURM_NODEID"), Rank(9, 11, 4)),  # of one node, which is the first
        (BATCH_SCRIPT, None),
        (BATCH_SCRIPT | {"SLURM_STEP_ID": "4294967291"}, None),  # How SLURM numbers a batch script,
        (STEP | {"SLURM_STEP_ID": "4294967290"}, None),  # and an interactive shell.
        (STEP | {"SLURM_JOB_NAME": "bash"}, None),
        (STEP | {"SLURM_JOB_NAME": "interactive"}, None),
        (STEP | TORCHRUN, Rank(5, 8, 4)),  # torchrun on each node by srun
        (STEP | OPEN_MPI, Rank(2, 6, 3)),
        (OPEN_MPI | TORCHRUN, Rank(5, 8, 4)),
        (STEP | {"PMI_RANK": "9", "PMI_SIZE": "11"}, Rank(9, 11, 3)),  # srun --mpi=pmi2
        (STEP | {"PMI_RANK": "9", "PMI_SIZE": "12"}, Rank(9, 12, None)),
        (TORCHRUN | {"RANK": " 5\n"}, Rank(5, 8, 4)),
        (STEP | {"SLURM_STEP_ID": "4294967279"}, Rank(9, 11, 3)),
        (STEP | {"SLURM_STEP_ID": "4294967280"}, None),  # From here on steps are no srun's.
        (STEP | {"SLURM_NODEID": "3"}, Rank(9, 11, None)),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "4(x2), 3"}, Rank(9, 11, 3)),
        (STEP | {"RANK": "9", "WORLD_SIZE": "11"}, Rank(9, 11, 3)),  # a script that sets them for torch
        (STEP | {"RANK": "1", "WORLD_SIZE": "2"}, Rank(1, 2, None)),
    ],
)
def test_a_launchers_variables_are_understood(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], expected: Rank | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched() == expected
    assert present() == (ALONE if expected is None else Rank(*expected[:2]))
    assert local_processes() == ((expected and expected[2]) or 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK must be a whole number, got 'x'"),
        (HYDRA | {"PMI_SIZE": "-2"}, "PMI_SIZE must be a whole number, got '-2'"),
        (STEP | {"SLURM_STEP_ID": "one"}, "SLURM_STEP_ID must be a whole number, got 'one'"),
        (
            STEP | {"SLURM_STEP_TASKS_PER_NODE": "4(x2),many"},
            r"SLURM_STEP_TASKS_PER_NODE must be tasks of nodes, such as '4\(x2\),3', got '4\(x2\),many': start with",
        ),
        (TORCHRUN | {"RANK": "8"}, r"rank must be an int in 0..7, got 8: ranks count from 0"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "0"}, "world_size must be an int of at least 1, got 0"),
    ],
)
def test_what_no_launcher_says_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=message):
        present()
