"""Several processes that train together: joined, their rows are the batches of one, whatever their number."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.stateful import Stateful

from dalirefurb import (
    AutoAssist,
    DiskStore,
    Echo,
    Evaluate,
    ImageFolder,
    Loader,
    MemoryStore,
    Refurbish,
    SmartCache,
    Standard,
    Stats,
    simple,
)
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.errors import ConfigurationError, LoaderError, NothingKeptWarning, StateMismatchError, StoreError
from dalirefurb.planning import BatchEcho, Fresh, Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.store import Store
from dalirefurb.system.resources import available_bytes
from dalirefurb.testing.plans import owned
from tests.loading import flat_loader
from tests.pictures import write_folder
from tests.planners import untried
from tests.rank_worker import SHARDS, SIZE, planner_for

pytestmark = [
    pytest.mark.usefixtures("traced_once"),
    pytest.mark.filterwarnings("ignore:with SmartCache the partial part should not be random"),
]

ROOT = Path(__file__).resolve().parents[2]
NUM_SAMPLES = 61
ARGUMENTS: dict[str, Any] = {"batch_size": 16, "shards": SHARDS, "seed": 5}
WORLD_SIZES = [1, 2, 4, 8]
BATCHES = 12
PLANNERS: dict[str, Planner] = {
    "standard": Standard(NUM_SAMPLES, **ARGUMENTS),
    "refurbished": Refurbish(NUM_SAMPLES, reuse_factor=3, **ARGUMENTS),
    "partly cached": Refurbish(NUM_SAMPLES, reuse_factor=2, coverage=0.6, **ARGUMENTS),
    "frozen": Frozen(NUM_SAMPLES, **ARGUMENTS),
    "a control": Fresh(Refurbish(NUM_SAMPLES, reuse_factor=3, **ARGUMENTS)),
    "echoed": Echo(Refurbish(NUM_SAMPLES, reuse_factor=2, **ARGUMENTS), echoing_factor=1.7, buffer_size=40),
    "batches echoed": BatchEcho(Standard(NUM_SAMPLES, **ARGUMENTS), echoing_factor=2.3, buffer_size=4),
    "running window": SmartCache(NUM_SAMPLES, num_cache_objects=48, replace_percent=0.3, **ARGUMENTS),
}
OF_ONE_RANK = Evaluate(NUM_SAMPLES, batch_size=16), AutoAssist(PLANNERS["standard"], lag=2)
"""What has tests of its own: evaluation has no shards, and with AutoAssist each rank chooses by its own losses."""
PLANNERS |= untried([*PLANNERS.values(), *OF_ONE_RANK], num_samples=NUM_SAMPLES, **ARGUMENTS)
STORES: dict[str, Callable[[], Store | None]] = {"stored": MemoryStore, "not stored": lambda: None}

Batch = tuple[torch.Tensor, ...]

only_thorough = pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "thorough", reason="takes minutes: set HYPOTHESIS_PROFILE=thorough"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = write_folder(tmp_path_factory.mktemp("pictures"), num_samples=NUM_SAMPLES)
    return root


@pytest.fixture(scope="module")
def source(root: Path) -> ImageFolder:
    return ImageFolder(root)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def launched(monkeypatch: pytest.MonkeyPatch, rank: int | str, world_size: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))


def make(source: ImageFolder, planner: Planner, store: Store | None = None, **arguments: Any) -> Loader:
    return flat_loader(source, simple(SIZE), planner, store, **{"num_threads": 1, "with_indices": True, **arguments})


def endless(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader


def joined(parts: list[Batch]) -> Batch:
    """Put the rows of all ranks under each other."""
    return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))


def assert_same(expected: list[Batch], served: list[Batch]) -> None:
    assert len(served) == len(expected)
    for one, other in zip(expected, served, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def serve(source: ImageFolder, planner: Planner, batches: int = BATCHES) -> list[Batch]:
    """What one process is served, without a store."""
    with make(source, planner) as loader:
        return [tuple(tensor.clone() for tensor in batch) for batch in islice(endless(loader), batches)]


@pytest.fixture(scope="module")
def alone(source: ImageFolder) -> dict[str, list[Batch]]:
    return {name: serve(source, planner) for name, planner in PLANNERS.items()}


def of_ranks() -> Iterator[Any]:
    """Yield planners and numbers of ranks, with and without a store.

    Which rank serves which rows has nothing to do with a store: all world sizes are tried with one. Each planner is
    tried with 4 or 2 ranks always, and one with each number; the rest weekly.
    """
    always = {("stored", name, 2 + 2 * (place % 2)) for place, name in enumerate(PLANNERS)}
    always |= {("stored", "refurbished", world_size) for world_size in WORLD_SIZES}
    always |= {("not stored", name, 2) for name in ("standard", "echoed")}
    cases = {("stored", name, world_size) for name in PLANNERS for world_size in WORLD_SIZES}
    cases |= {("not stored", name, 4) for name in PLANNERS}
    for case in sorted(always | cases):
        yield pytest.param(*case, marks=[] if case in always else pytest.mark.weekly)


@pytest.mark.parametrize(("stored", "name", "world_size"), list(of_ranks()))
def test_the_rows_of_all_ranks_are_the_batches_of_one_process(
    source: ImageFolder, alone: dict[str, list[Batch]], name: str, stored: str, world_size: int
) -> None:
    planner = PLANNERS[name]
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(make(source, planner, STORES[stored](), rank=(rank, world_size)))
            for rank in range(world_size)
        ]
        assert {len(loader) for loader in loaders} == {len(planner)}
        assert {loader.batch_size for loader in loaders} == {16 // world_size}
        served = [joined(parts) for parts in islice(zip(*map(endless, loaders), strict=True), BATCHES)]
        assert_same(alone[name], served)
        for loader in loaders:
            stats = loader.stats()
            assert stats.samples == BATCHES * 16 // world_size
            # Each rank's store holds just what its part of the plan needs.
            assert stats.declined == 0
            assert (stats.recomputed == 0) == (stored == "stored" or name == "standard")


# A rank whose file has another share begins without hits.
@pytest.mark.filterwarnings("ignore::dalirefurb.errors.NothingKeptWarning")
@pytest.mark.parametrize("name", ["refurbished", "echoed", "batches echoed", "running window"])
def test_a_run_goes_on_with_another_number_of_ranks_from_the_state_of_any_rank(
    source: ImageFolder, alone: dict[str, list[Batch]], tmp_path: Path, name: str
) -> None:
    planner, served, states = PLANNERS[name], [], [{}]
    for world_size, batches in ((2, 4), (1, 4), (4, 3)):
        with ExitStack() as stack:
            loaders = []
            for rank in range(world_size):
                store = stack.enter_context(DiskStore(tmp_path / f"cache-{rank}"))
                loaders.append(stack.enter_context(make(source, planner, store, rank=(rank, world_size))))
                if served:
                    loaders[-1].load_state_dict(states[rank % len(states)])
            assert {loader.epoch for loader in loaders} == {len(served) // len(planner)}
            served += [joined(parts) for parts in islice(zip(*map(endless, loaders), strict=True), batches)]
            states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
            assert all(state == states[0] for state in states)
            assert states[0]["batch"] > 0
            assert loaders[0].stats().hits > 0
    assert_same(alone[name][: len(served)], served)


def test_what_another_number_of_ranks_left_in_a_file_is_used_as_far_as_it_is_this_ranks(
    source: ImageFolder, alone: dict[str, list[Batch]], tmp_path: Path
) -> None:
    planner = PLANNERS["frozen"]

    def epoch(path: Path, rank: int, world_size: int) -> tuple[list[Batch], Stats]:
        with DiskStore(path) as store, make(source, planner, store, rank=(rank, world_size)) as loader:
            return list(loader), loader.stats()

    epoch(tmp_path / "left", 1, 4)  # Of shards 2 and 3, in 3 batches of 4 rows.
    for rank, hits in ((0, 12), (1, 0)):  # Of shards 0 to 3, and 4 to 7.
        path = Path(shutil.copy(tmp_path / "left", tmp_path / f"of-{rank}"))
        nothing_kept = pytest.warns(NothingKeptWarning, match="each rank with its own path")
        with nullcontext() if hits else nothing_kept:
            served, stats = epoch(path, rank, 2)
        rows = slice(8 * rank, 8 * rank + 8)
        assert_same([tuple(tensor[rows] for tensor in batch) for batch in alone["frozen"][: len(planner)]], served)
        assert (stats.hits, stats.misses) == (hits, 24 - hits)


def test_two_ranks_cannot_use_one_file(source: ImageFolder, tmp_path: Path) -> None:
    planner, path = PLANNERS["refurbished"], tmp_path / "cache"
    with (
        DiskStore(path) as store,
        DiskStore(path) as other_store,
        make(source, planner, store, rank=(0, 2)) as loader,
        make(source, planner, other_store, rank=(1, 2)) as other,
    ):
        next(iter(loader))
        with pytest.raises(StoreError, match=r"is in use by .*use another path \(each rank of a run needs its own\)"):
            next(iter(other))


# Which rank this is, and when it is asked.


def test_the_rank_is_found_at_the_first_use_and_not_at_construction(
    source: ImageFolder, alone: dict[str, list[Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    with make(source, PLANNERS["refurbished"], store) as loader:
        assert loader.stats() == Stats()
        assert "0 steps of training are too few" in str(loader.diagnose())
        assert store.nbytes == 0
        launched(monkeypatch, 1, 2)
        assert loader.batch_size == 8
        assert loader.num_samples == NUM_SAMPLES
        served = list(loader)
        assert store.nbytes > 0
    assert_same([tuple(tensor[8:] for tensor in batch) for batch in alone["refurbished"][:3]], served)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_an_initialised_group_counts_more_than_the_environment_and_arguments_more_than_both(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, 3, 4)
    with make(source, PLANNERS["standard"]) as loader:
        assert loader.batch_size == 16
    with make(source, PLANNERS["standard"], rank=(1, 8)) as loader:
        assert loader.batch_size == 2


def test_a_rank_that_changes_is_refused_and_one_that_ends_is_not(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(source, PLANNERS["standard"]) as loader:
        list(loader)
        launched(monkeypatch, 1, 2)
        with pytest.raises(LoaderError, match=r"first used as rank 0 of 1, and now this process is rank 1 of 2: init"):
            next(iter(loader))
    with make(source, PLANNERS["standard"]) as loader:
        list(loader)
        monkeypatch.delenv("RANK")
        assert len(next(iter(loader))[0]) == 8


def test_a_planner_of_one_shard_serves_one_process_unless_each_is_to_serve_all(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Standard(NUM_SAMPLES, batch_size=16)
    message = "world_size must divide shards, got world_size=2 and shards=1: give the planner shards=2 .*rank=.0, 1"
    launched(monkeypatch, 1, 2)
    with make(source, planner) as loader, pytest.raises(ConfigurationError, match=message):
        next(iter(loader))
    with pytest.raises(ConfigurationError, match=message):
        make(source, planner, rank=(1, 2))
    with make(source, planner, rank=(0, 1)) as loader:
        assert sum(len(labels) for _, labels, _ in loader) == NUM_SAMPLES


def test_a_world_that_does_not_divide_the_shards_is_refused_with_both_numbers(
    source: ImageFolder, alone: dict[str, list[Batch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, 1, 3)
    with make(source, PLANNERS["standard"]) as loader:
        for use in (lambda: next(iter(loader)), lambda: loader.batch_size):
            with pytest.raises(ConfigurationError, match="got world_size=3 and shards=8: give the planner shards=3"):
                use()
        launched(monkeypatch, 1, 2)
        served = list(loader)  # Nothing was lost by trying.
    assert_same([tuple(tensor[8:] for tensor in batch) for batch in alone["standard"][:3]], served)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 1}, r"rank must be \(rank, world_size\), got 1: pass this process's number and how many there are"),
        ({"rank": (1,)}, r"rank must be \(rank, world_size\), got \(1,\)"),
        ({"rank": (2, 2)}, "rank must be an int in 0..1, got 2: ranks count from 0"),
        ({"rank": (0, 0)}, "world_size must be an int of at least 1, got 0: pass the number of processes"),
        ({"rank": (0, 16)}, "got world_size=16 and shards=8"),
        ({"num_threads": 0}, "num_threads must be an int in 1..65536"),
        ({"max_pixels": 0}, "max_pixels must be an int of at least 1"),
        ({"partial_device": "gpu"}, r"must be one of .*got \('gpu', 'cpu'\)"),
    ],
)
def test_what_no_rank_could_work_with_is_refused_at_construction(
    source: ImageFolder, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(source, PLANNERS["standard"], **arguments)


@pytest.mark.parametrize("value", ["", "one", "-1"])
def test_an_environment_that_names_no_rank_is_refused(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    launched(monkeypatch, value, 2)
    message = f"RANK must be a whole number, got '{value}': start with torchrun, or unset it"
    with make(source, PLANNERS["standard"]) as loader, pytest.raises(ConfigurationError, match=message):
        next(iter(loader))


def test_processes_on_one_machine_share_its_memory_and_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 8000 kB\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    for processes, replicas in ((1, 8), (4, 3), (16, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert available_bytes(tmp_path) == 8_192_000 // processes
        depths = Prefetch().depths(PLANNERS["standard"])
        assert (depths.replicas, depths.threads_each) == (replicas, -(-max(1, 12 // processes) // replicas))


# Checkpoints.


@pytest.mark.usefixtures("process_group")
def test_a_loader_is_stateful_as_torch_understands_it_and_holds_its_place_in_a_distributed_checkpoint(
    source: ImageFolder, alone: dict[str, list[Batch]], tmp_path: Path
) -> None:
    with make(source, PLANNERS["refurbished"]) as loader, make(source, PLANNERS["refurbished"]) as other:
        assert isinstance(loader, Stateful)
        list(islice(loader, 2))
        torch.distributed.checkpoint.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
        torch.distributed.checkpoint.load({"loader": other}, checkpoint_id=tmp_path / "saved")
        assert_same(alone["refurbished"][2:6], list(islice(endless(other), 4)))


def test_an_assistant_serves_its_ranks_rows_and_is_loaded_by_that_rank_of_as_many(source: ImageFolder) -> None:
    planner = AutoAssist(Refurbish(NUM_SAMPLES, reuse_factor=2, **ARGUMENTS), lag=9, accuracy_momentum=0.5)
    mine = {index for shard in (4, 5, 6, 7) for index in owned(planner, shard).tolist()}

    def batches(loader: Loader) -> Iterator[Batch]:
        for images, labels, indices in endless(loader):
            loader.observe(images.mean(dim=(1, 2, 3)) + 3)
            assert len(images) == 8
            assert set(indices.tolist()) <= mine
            yield images.clone(), labels, indices

    with make(source, planner, MemoryStore(), rank=(1, 2)) as loader:
        list(islice(batches(loader), 10))
        state = json.loads(json.dumps(loader.state_dict()))
        expected = list(islice(batches(loader), 14))
        assert loader.assistant_report().saved > 0
    with make(source, planner, MemoryStore(), rank=(1, 2)) as resumed:
        resumed.load_state_dict(state)
        assert_same(expected, list(islice(batches(resumed), 14)))
    for place, differing in (((0, 2), "rank"), ((1, 4), "world_size")):
        with make(source, planner, rank=place) as other, pytest.raises(StateMismatchError) as refusal:
            other.load_state_dict(state)
        assert refusal.value.keys == (differing,)


# Real processes.


def run_ranks(world_size: int, root: Path, out: Path, batches: int) -> list[Batch]:
    """Serve batches by torchrun, or alone, from the state that is in `out`, if one is; return them joined."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    command += ["-m", "tests.rank_worker", str(root), str(out), str(batches)]
    if world_size == 1:
        command = [sys.executable, *command[-5:]]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"} if world_size == 1 else {}
    environment = {**os.environ, **alone, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stderr
    states = [(out / f"state-{rank}.json").read_text() for rank in range(world_size)]
    assert len(set(states)) == 1
    (out / "state.json").write_text(states[-1])
    parts = [torch.load(out / f"{rank}.pt") for rank in range(world_size)]
    return [joined([tuple(tensors) for tensors in batch]) for batch in zip(*parts, strict=True)]


@pytest.mark.weekly  # Ranks in one process are tried above, and in processes of their own in tests/trainers.
def test_torchrun_serves_the_global_batches_and_goes_on_with_fewer_ranks(
    root: Path, source: ImageFolder, alone: dict[str, list[Batch]], tmp_path: Path
) -> None:
    assert planner_for(source) == PLANNERS["refurbished"]
    served = run_ranks(2, root, tmp_path, 4)
    with (
        DiskStore(tmp_path / "cache-0") as store,
        make(source, PLANNERS["refurbished"], store, rank=(0, 1)) as loader,
    ):
        loader.load_state_dict(json.loads((tmp_path / "state.json").read_text()))
        served += [tuple(tensor.clone() for tensor in batch) for batch in islice(endless(loader), 4)]
        assert loader.stats().hits > 0
    assert_same(alone["refurbished"][:8], served)


@only_thorough
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_torchrun_serves_the_same_global_batches_with_any_number_of_ranks(
    root: Path, alone: dict[str, list[Batch]], tmp_path: Path, world_size: int
) -> None:
    assert_same(alone["refurbished"], run_ranks(world_size, root, tmp_path, BATCHES))


@only_thorough
def test_torchrun_with_4_then_2_then_8_ranks_serves_the_uninterrupted_stream(
    root: Path, alone: dict[str, list[Batch]], tmp_path: Path
) -> None:
    served = [batch for world_size in (4, 2, 8) for batch in run_ranks(world_size, root, tmp_path, 4)]
    assert_same(alone["refurbished"], served)
