"""Training processes that are killed and resumed, as often as it takes, train on the stream of one that never was."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dalirefurb import AutoAssist, DiskStore, ImageFolder, MemoryStore, Refurbish, simple
from dalirefurb.dali import Graph
from tests.in_turn import EACH_CHANGE
from tests.loading import flat_loader
from tests.pictures import write_folder
from tests.resuming import losses_of

NUM_SAMPLES = 23
REFURBISH = Refurbish(NUM_SAMPLES, batch_size=6, reuse_factor=3, seed=7)
PLANNERS = {"refurbished, on disk": REFURBISH, "assisted": AutoAssist(REFURBISH, lag=9, accuracy_momentum=0.5)}
MOST_BATCHES = 12
LIMIT_S = 600


def train(name: str, source: ImageFolder, folder: Path, batches: int) -> None:
    """Go on from the state in a folder; log each row's index and image, and save the state after each batch."""
    store = DiskStore(folder / "cache") if "disk" in name else MemoryStore()
    state = folder / "state"
    planner = PLANNERS[name]
    prefetch = {"num_threads": 1, "with_indices": True}
    with store, flat_loader(source, simple(32), planner, store, kernels="dali", **prefetch) as loader:
        if state.exists():
            loader.load_state_dict(json.loads(state.read_text()))
        with (folder / "log").open("a") as log:
            while loader.epoch * len(loader) < batches:
                for images, _, indices in loader:
                    if isinstance(planner, AutoAssist):
                        loader.observe(losses_of(images))
                    place = loader.state_dict()
                    hashes = [hashlib.blake2b(image.numpy().tobytes(), digest_size=8).hexdigest() for image in images]
                    rows = " ".join(f"{index}:{each}" for index, each in zip(indices.tolist(), hashes, strict=True))
                    print(place["epoch"], place["batch"], rows, file=log, flush=True)
                    (folder / "new").write_text(json.dumps(place))
                    (folder / "new").replace(state)


def logged(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def kill(name: str, root: Path, whole: Path, killed: Path, processes: int) -> None:
    """Train once in one go, and once in processes that are killed a random time after a random number of batches."""
    source, rng, serialize = ImageFolder(root), random.Random(0), Graph.serialize

    def traced(graph: Graph, **options: Any) -> bytes:
        """Trace a graph in the first process alone: that takes longer than all of a training."""
        place = whole / hashlib.blake2b(repr((graph, options)).encode()).hexdigest()
        if not place.exists():
            place.write_bytes(serialize(graph, **options))
        return place.read_bytes()

    Graph.serialize = traced  # type: ignore[assignment,method-assign]
    batches = processes * (MOST_BATCHES + 8) // 4 * 4

    def start(folder: Path) -> int:
        """Fork before DALI is used: only imported, it need not be imported again."""
        if pid := os.fork():
            return pid
        train(name, source, folder, batches)
        os._exit(0)

    def wait(pid: int, until: float) -> int | None:
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.001)
        return None

    assert wait(start(whole), time.monotonic() + LIMIT_S) == 0
    for _ in range(processes):
        pid = start(killed)
        wanted, deadline = len(logged(killed)) + rng.randint(0, MOST_BATCHES), time.monotonic() + LIMIT_S
        while len(logged(killed)) < wanted and time.monotonic() < deadline:
            assert wait(pid, time.monotonic() + 0.002) is None, "it ended by itself"
        time.sleep(rng.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        assert wait(pid, deadline) == -signal.SIGKILL, "it ended by itself"
    assert wait(start(killed), time.monotonic() + LIMIT_S) == 0
    assert len(logged(whole)) == batches
    assert list(dict.fromkeys(logged(killed))) == logged(whole)


@pytest.mark.parametrize("name", ["refurbished, on disk", pytest.param("assisted", marks=pytest.mark.weekly)])
def test_trainings_that_are_killed_and_resumed_serve_the_stream_of_one(name: str, tmp_path: Path) -> None:
    processes = os.environ.get("DALIREFURB_KILLED_TRAININGS", "2" if EACH_CHANGE else "5")
    root = write_folder(tmp_path / "pictures", num_samples=NUM_SAMPLES)
    folders = [tmp_path / "whole", tmp_path / "killed"]
    for folder in folders:
        folder.mkdir()
    program = (
        "import sys; from pathlib import Path; from tests.store.test_killed import kill; "
        "kill(sys.argv[1], *map(Path, sys.argv[2:5]), int(sys.argv[5]))"
    )
    command = [sys.executable, "-W", "error", "-c", program, name, str(root), *map(str, folders), processes]
    subprocess.run(command, check=True)
