"""Processes that share a machine are found without a launcher: they tell each other where they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed
import torch.multiprocessing
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - a group without other processes

from dalirefurb import Arrays, Loader, MemoryStore, Rank, Refurbish, Standard, simple
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.errors import ConfigurationError
from dalirefurb.system import processes
from dalirefurb.system.processes import local_processes, shared_by
from dalirefurb.system.resources import available_bytes, budget_bytes

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


class Group:
    """A process group of which this process is rank 1 of 4; what the others say is written by the test."""

    def __init__(self) -> None:
        self.store = torch.distributed.HashStore()
        torch.distributed.init_process_group("fake", store=self.store, rank=1, world_size=4)

    def say(self, rank: int, machine: str | None = None) -> None:
        store = torch.distributed.distributed_c10d._get_default_store()
        store.set(f"dalirefurb/machine/{rank}", processes._machine() if machine is None else machine)

    def said(self, rank: int) -> bool:
        store = torch.distributed.distributed_c10d._get_default_store()
        return bool(store.check([f"dalirefurb/machine/{rank}"]))


@pytest.fixture
def group() -> Iterator[Group]:
    yield Group()
    torch.distributed.destroy_process_group()


def test_ranks_of_one_machine_are_counted_by_its_name(group: Group) -> None:
    for rank, machine in ((0, None), (2, "another"), (3, None)):
        group.say(rank, machine)
    assert local_processes() == 3
    group.say(2)
    assert local_processes() == 3  # Asked once for each group.


def test_a_machine_is_known_by_its_name_and_by_its_start(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many machines have one name, and containers of one machine have several."""

    def be(name: str, start: str) -> None:
        monkeypatch.setattr(processes.socket, "gethostname", lambda: name)
        monkeypatch.setattr(processes, "boot_id", lambda: f"{start}\n")

    for rank, machine in ((0, ("node", "2")), (2, ("another", "1")), (3, ("node", "1"))):
        be(*machine)
        group.say(rank)
    assert local_processes() == 2


def test_ranks_that_come_later_are_waited_for(group: Group) -> None:
    def come() -> None:
        time.sleep(0.1)
        for rank in (0, 2, 3):
            group.say(rank)

    thread = threading.Thread(target=come)
    thread.start()
    assert local_processes() == 4
    thread.join()


def test_ranks_that_never_come_are_taken_to_be_here_with_a_warning(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.05)
    group.say(3, "another")
    message = r"nothing was heard of rank 0, 2, so 3 of 4 are taken to be here: let all ranks make a loader, or say"
    with pytest.warns(UserWarning, match=message):
        assert local_processes() == 3
    assert local_processes() == 3  # It neither waits nor warns again.


def test_a_store_that_cannot_be_asked_is_a_warning(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.distributed.distributed_c10d, "_get_default_store")
    with pytest.warns(UserWarning, match=r"store cannot be asked \(.*_get_default_store.*so 4 of 4 are taken to be"):
        assert local_processes() == 4


def test_a_launcher_that_has_the_groups_rank_is_believed_and_nobody_waits(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(LAUNCHERS, "142", strict=False):
        monkeypatch.setenv(name, value)
    assert local_processes() == 2
    assert group.said(1)  # The other ranks may have another environment, and wait.


def test_a_launcher_that_has_the_groups_rank_is_believed_without_a_store(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(LAUNCHERS, "142", strict=False):
        monkeypatch.setenv(name, value)
    monkeypatch.delattr(torch.distributed.distributed_c10d, "_get_default_store")
    assert local_processes() == 2


@pytest.mark.parametrize(("said", "expected"), [("8", 8), ("2", 4)])
def test_of_a_launcher_that_has_another_rank_and_the_group_the_larger_number_counts(
    group: Group, monkeypatch: pytest.MonkeyPatch, said: str, expected: int
) -> None:
    for name, value in zip(LAUNCHERS, ("0", "1", said), strict=False):
        monkeypatch.setenv(name, value)
    for rank in (0, 2, 3):
        group.say(rank)
    assert local_processes() == expected


def test_the_caller_counts_more_than_all(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dalirefurb.engine.prefetch.usable_cores", lambda: 6)
    source = Arrays(np.zeros((16, 8, 8, 3), np.uint8), np.arange(16))
    arguments: Any = source, simple(8, raw=True), Standard(16, batch_size=4, shards=4)
    with Loader(*arguments, rank=Rank(1, 4, local_world_size=3)) as loader:
        depths = loader._assembler.depths
        assert depths.replicas * depths.threads_each == 2
        next(iter(loader))
    assert not group.said(1)
    with Loader(*arguments, rank=(1, 4, 6)) as loader:
        assert loader._assembler.depths.replicas == 1
    for wrong in (0, 1.5):
        with pytest.raises(ConfigurationError, match=f"local_world_size must be an int of at least 1, got {wrong}: p"):
            Loader(*arguments, rank=(1, 4, wrong))  # type: ignore[arg-type]


def test_what_the_caller_says_holds_for_the_stores_share_of_memory() -> None:
    class Watched(MemoryStore):
        def _open(self, spec: Any) -> Any:
            self.processes = local_processes()
            return super()._open(spec)

    source, store = Arrays(np.zeros((16, 8, 8, 3), np.uint8), np.arange(16)), Watched()
    with Loader(source, simple(8, raw=True), Refurbish(16, batch_size=4, reuse_factor=2), store, rank=(0, 1, 5)):
        assert store.processes == 5
    assert local_processes() == 1


def test_a_statement_ends_with_its_context_and_none_is_no_statement() -> None:
    with shared_by(3), shared_by(None):
        assert local_processes() == 3
        with shared_by(5):
            assert local_processes() == 5
        assert local_processes() == 3
    assert local_processes() == 1


def test_who_has_no_torch_is_answered_without_it() -> None:
    program = (
        "import sys; from dalirefurb.system.processes import local_processes as n; print(n(), 'torch' in sys.modules)"
    )
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.stdout.split() == ["3", "False"], done.stderr


def share(rank: int, folder: str) -> None:
    """Say what this process, one of two, takes by default, as Lightning's or spawn's processes would."""
    warnings.simplefilter("error")
    root = Path(folder)
    torch.distributed.init_process_group("gloo", init_method=f"file://{root / 'group'}", rank=rank, world_size=2)
    os.sched_getaffinity = lambda _: set(range(12))  # type: ignore[assignment]
    depths = Prefetch().depths(Standard(64, batch_size=8))
    said = [depths.replicas * depths.threads_each, available_bytes(root)]
    said.append(budget_bytes("60%", available=lambda: available_bytes(root)))
    (root / f"{rank}.json").write_text(json.dumps(said))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.weekly  # What a group says is always told above, by one process.
def test_two_spawned_processes_share_cores_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 8000 kB\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.multiprocessing.spawn(share, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [6, 4_096_000, 2_457_600]
