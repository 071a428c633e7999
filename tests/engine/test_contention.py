"""Beside other processes that want the cores: slower, and nothing else."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest

from dalirefurb import ImageFolder, Loader, MemoryStore, Refurbish, rand_augment
from dalirefurb.engine.backend_factory import Kernels
from tests.pictures import jpeg, picture

LIMIT_S = 900
BUSY = 8

TRAINING = """
import hashlib, sys
import numpy as np
import dalirefurb.engine.engine
from dalirefurb import ImageFolder, Loader, MemoryStore, Refurbish, rand_augment

root, kernels, end = sys.argv[1:]
dalirefurb.engine.engine._END_S = 0.35  # As if a third of a second were a minute.
source = ImageFolder(root)
planner = Refurbish(len(source), batch_size=8, reuse_factor=2)
loader = Loader(source, rand_augment(64), planner, MemoryStore(), kernels=kernels)
next(iter(loader))
print("ready", flush=True)
sys.stdin.readline()
for epoch in range(2):  # Left early, so that threads have to end in the middle of their work.
    next(iter(loader))
digest = hashlib.blake2b()
loader.set_epoch(3)
for _ in range(2):
    for images, labels in loader:
        digest.update(images.numpy()), digest.update(labels.numpy())
next(iter(loader))
if end == "close":
    loader.close()
print(digest.hexdigest(), flush=True)
if end == "raise":
    raise RuntimeError("the user's")
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs large enough that a batch takes a while."""
    root = tmp_path_factory.mktemp("photos")
    (root / "all").mkdir()
    for index in range(40):
        (root / "all" / f"{index}.jpg").write_bytes(jpeg(picture(index, height=600, width=800)))
    return root


ENDS: list[tuple[Kernels, str, int]] = [("numba", "close", 0), ("numba", "raise", 1), ("dali", "exit", 0)]


def test_beside_eight_busy_processes_every_batch_comes_and_every_end_is_clean(root: Path) -> None:
    expected = {kernels: served(root, kernels) for kernels, _, _ in ENDS}
    with ExitStack() as stack:
        command = [sys.executable, "-X", "faulthandler", "-c", TRAINING, str(root)]
        trainings = [
            stack.enter_context(
                subprocess.Popen([*command, kernels, end], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
            )
            for kernels, end, _ in ENDS
        ]
        for training in trainings:
            stack.callback(training.kill)
            assert training.stdout is not None
            assert training.stdout.readline() == "ready\n"  # It has imported and built in peace.
        for _ in range(BUSY):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
            stack.callback(busy.kill)
        for training in trainings:
            assert training.stdin is not None
            training.stdin.write("\n")
            training.stdin.flush()
        for training, (kernels, _, code) in zip(trainings, ENDS, strict=True):
            out, said = training.communicate(timeout=LIMIT_S)
            assert out.strip() == expected[kernels], said
            assert training.returncode == code, said
            assert said.count("Traceback") == code, said
            assert "terminate" not in said


def served(root: Path, kernels: Kernels) -> str:
    """Return the digest of what the script serves, made where nobody else works."""
    source = ImageFolder(root)
    planner = Refurbish(len(source), batch_size=8, reuse_factor=2)
    digest = hashlib.blake2b()
    with Loader(source, rand_augment(64), planner, MemoryStore(), kernels=kernels) as loader:
        loader.set_epoch(3)
        for _ in range(2):
            for images, labels in loader:
                digest.update(images.numpy()), digest.update(labels.numpy())
    return digest.hexdigest()
