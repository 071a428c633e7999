"""Ray Train: workers that fail, and then are fewer, train on the global batches of a plain loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dalirefurb import ImageFolder, Loader, MemoryStore, Refurbish, rand_augment
from dalirefurb.errors import ConfigurationError
from tests.pictures import write_folder
from tests.trainers.plain import Batch, assert_stream, endless, train_loader
from tests.trainers.test_pages import scripts

ROOT = Path(__file__).resolve().parents[2]
LAST = "\n\nif __name__ =="

RECORDED_STEP = """

SERVED = os.path.abspath("served")


def recorded_step(model, optimizer, images, labels, step=step):
    world_size, rank = get_context().get_world_size(), get_context().get_world_rank()
    folder = os.path.join(SERVED, f"{world_size}-{rank}-{os.getpid()}")
    os.makedirs(folder, exist_ok=True)
    torch.save((images, labels), os.path.join(folder, f"{len(os.listdir(folder))}.pt"))
    once = os.path.join(SERVED, "failed")
    if rank == 1 and len(os.listdir(folder)) == 5 and not os.path.exists(once):
        open(once, "w").close()
        raise RuntimeError("a worker fails")
    return step(model, optimizer, images, labels)


step = recorded_step
"""
"""What the page trains by, which writes down what it is given, and fails once, in its second epoch."""


def run(script: str, folder: Path) -> str:
    (folder / "page.py").write_text(script)
    settings = {
        "PYTHONPATH": str(ROOT),
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    process = subprocess.Popen(
        [sys.executable, "page.py"],
        cwd=folder,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=900)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, said[-4000:]
    return said


def served(folder: Path) -> dict[int, list[list[Batch]]]:
    """Return what each group of workers was served, joined over its ranks, by their number and in order."""
    ranks: dict[int, list[list[tuple[float, list[Batch]]]]] = defaultdict(list)
    for path in sorted(folder.glob("*-*-*")):
        world_size, rank, _ = map(int, path.name.split("-"))
        files = sorted(path.iterdir(), key=lambda file: int(file.stem))
        ranks[world_size] += [[] for _ in range(rank + 1 - len(ranks[world_size]))]
        ranks[world_size][rank].append((files[0].stat().st_mtime, [torch.load(file) for file in files]))
    groups: dict[int, list[list[Batch]]] = defaultdict(list)
    for world_size, of_ranks in ranks.items():
        for parts in zip(*(sorted(each, key=lambda group: group[0]) for each in of_ranks), strict=True):
            steps = zip(*(batches for _, batches in parts), strict=False)
            groups[world_size].append(
                [
                    (torch.cat([images for images, _ in step]), torch.cat([labels for _, labels in step]))
                    for step in steps
                ]
            )
    return groups


@pytest.mark.filterwarnings("default")
def test_what_would_serve_the_dataset_without_its_recipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    train = pytest.importorskip("ray.train")
    utils = pytest.importorskip("ray.train.v2.torch.train_loop_utils")
    workers = SimpleNamespace(get_world_size=lambda: 2, get_world_rank=lambda: 0)
    monkeypatch.setattr(train, "get_context", lambda: workers)
    with train_loader() as loader:
        for given in (loader, loader.as_dicts()):
            with pytest.raises(ConfigurationError, match="Ray would serve its dataset without the recipe; iterate the"):
                utils.prepare_data_loader(given)


@pytest.mark.weekly
def test_failed_and_fewer_workers_train_on_the_batches_of_a_plain_loop(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch")
    source = ImageFolder(write_folder(tmp_path / "photos" / "train", num_samples=20))
    planner = Refurbish(len(source), batch_size=4, reuse_factor=2, shards=2)
    with Loader(source, rand_augment(96), planner, MemoryStore(), rank=(0, 1)) as loader:
        expected = list(islice(endless(loader), 12))
    page = scripts("ray")["ray"]
    head, last, tail = page.partition(LAST)
    assert last
    assert "'steps': 12" in run(head + RECORDED_STEP + last + tail, tmp_path)
    groups = served(tmp_path / "served")
    first, again = groups[2]
    assert 4 <= len(first) <= 5
    assert_stream(expected[: len(first)], first)
    assert_stream(expected[7 - len(again) : 7], again)
    assert len(again) in (
        4,
        7,
    )  # From the checkpoint after 3 steps, unless Ray had not taken it when the worker failed.
    (fewer,) = groups[1]
    assert_stream(expected[7:], fewer)
