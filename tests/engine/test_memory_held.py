"""What a loader takes of memory, in processes of their own: never more than is counted, and in a container neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.in_turn import EACH_CHANGE

GROWTH = """
import gc, json, os, sys
from importlib.util import find_spec
import numpy as np
import nvidia.dali.fn, nvidia.dali.pipeline
import torch
from dalirefurb import Arrays, Loader, MemoryStore, Prefetch, Refurbish, Standard, simple
from dalirefurb.engine.memory import Account, HOST, STORE
if find_spec("numba"):
    import dalirefurb.kernels.runner

def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

needed = []
fitted = Account.fitted
Account.fitted = lambda *arguments: needed.append(fitted(*arguments)) or needed[-1]
source = Arrays(np.zeros((2048, 96, 96, 3), np.uint8), np.zeros(2048, np.int64))
planners = {"reuse": Refurbish(2048, batch_size=64, reuse_factor=3), "standard": Standard(2048, batch_size=64)}

def serve(batches, kernels, technique, **given):
    store = MemoryStore() if technique == "reuse" else None
    with Loader(source, simple(96, raw=True), planners[technique], store, kernels=kernels,
                prefetch=Prefetch(**given)) as loader:
        served = 0
        while served < batches:
            for _ in loader:
                served += 1

for kernels, technique, threads in json.loads(sys.argv[1]):  # Each in a process of its own, which imports nothing.
    child = os.fork()
    if not child:
        break
    if os.waitpid(child, 0)[1]:
        sys.exit("it failed with " + " ".join([kernels, technique, str(threads)]))
else:
    sys.exit()
serve(1, kernels, technique, num_threads=1, look_ahead=1, batches_per_group=1)  # What is loaded and compiled stays.
gc.collect()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = resident("VmRSS")
serve(32, kernels, technique, num_threads=threads)
counted = needed[-1][1][HOST]
print(json.dumps([resident("VmHWM") - before, sum(counted.values()), counted[STORE]]), flush=True)
"""

CONTAINER = """
import json, logging, sys
import numpy as np
from dalirefurb import FileList, Loader, MemoryStore, Prefetch, Refurbish, rand_augment
from dalirefurb.errors import OutOfMemoryError

paths, samples_of_runs = map(json.loads, sys.argv[1:])
for samples in samples_of_runs:
    source = FileList([paths[row % len(paths)] for row in range(samples)], np.zeros(samples, np.int64))
    try:
        loader = Loader(source, rand_augment(224), Refurbish(samples, batch_size=32, reuse_factor=3), MemoryStore(),
                        prefetch=Prefetch(num_threads=2))
    except OutOfMemoryError as error:
        print(json.dumps(str(error)))
    else:
        with loader:
            served = sum(len(labels) for _, labels in loader)
            print(json.dumps([served, loader.batches_ahead]))
"""


def run(code: str, *arguments: Any, **options: Any) -> list[Any]:
    """Return what each line of a script's output says."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, **options)
    return [json.loads(line) for line in done.stdout.splitlines()]


CASES = [("numba", "reuse", 2)]
if not EACH_CHANGE:
    CASES += [("dali", "reuse", 4), ("numba", "standard", 8)]


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, str, int], Any]:
    """How many bytes each case's process has grown by, how many were counted, and how many of them of a store."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the system does not measure how large a process gets")
    cases = [case for case in CASES if case[0] == "dali" or find_spec("numba")]
    return dict(zip(cases, run(GROWTH, json.dumps(cases)), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_process_grows_by_no_more_than_is_counted(
    case: tuple[str, str, int], measured: dict[tuple[str, str, int], Any]
) -> None:
    _, technique, _ = case
    if case not in measured:
        pytest.skip("numba is not installed")
    grown, counted, store = measured[case]
    assert grown <= counted
    # Nor is it counted many times: how much of it is there at a time depends on who is faster.
    assert counted < 5 * grown
    assert (store > 0) == (technique == "reuse")


LIMIT = 900_000_000


@pytest.fixture
def container() -> Iterator[Path]:
    """A control group below this process's own, of 900 MB."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            parent = Path("/sys/fs/cgroup", controllers, path.lstrip("/"))
            group = parent / f"dalirefurb-test-{os.getpid()}"
            try:
                group.mkdir()
            except OSError:
                continue
            try:
                limit = group / ("memory.limit_in_bytes" if controllers else "memory.max")
                limit.write_text(str(LIMIT))
            except OSError:
                group.rmdir()
                continue
            yield group
            group.rmdir()
            return
    pytest.skip("no control group with a limit can be made here")


@pytest.mark.weekly  # What is counted is compared with what is taken above, and with limits in test_memory.
def test_in_a_container_a_loader_works_or_says_why_not(container: Path, photos: list[Path]) -> None:
    """The store of 574 MB is one that fits by itself."""
    pytest.importorskip("numba")
    paths = json.dumps([str(path) for path in photos])

    join = lambda: (container / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
    samples = [574_000_000 // (224 * 224 * 3) * 3 // 2, 160]
    why, (served, ahead) = run(CONTAINER, paths, json.dumps(samples), preexec_fn=join)
    assert why.startswith("memory must hold what the loader takes, ")
    for part in ("the store's slots 7", "samples as they were read", "final images on their way"):
        assert part in why
    assert served == samples[1]
    assert ahead < 20
