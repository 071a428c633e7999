"""Beside other processes that want the cores: slower, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest

from dalirefurb import ImageFolder, Loader, MemoryStore, Refurbish, rand_augment, simple
from dalirefurb.engine.kernel_choice import Kernels
from tests.pictures import jpeg, picture

LIMIT_S = 900
BUSY = 8

TRAININGS = """
import hashlib, json, os, sys
import numpy as np
import torch
import nvidia.dali.fn, nvidia.dali.pipeline
import dalirefurb.engine.engine, dalirefurb.kernels.runner
from dalirefurb import ImageFolder, Loader, MemoryStore, Refurbish, rand_augment, simple

folder, ends = sys.argv[1], json.loads(sys.argv[2])
begin, begun = os.pipe()
children = []
for number, (kernels, end) in enumerate(ends):  # Forked before DALI is used: it is imported once.
    child = os.fork()
    if not child:
        break
    children.append(child)
else:
    sys.stdin.readline()
    os.close(begun)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
    sys.exit()

os.close(begun)
os.dup2(os.open(f"{folder}/said-{number}", os.O_CREAT | os.O_WRONLY), 2)
dalirefurb.engine.engine._END_S = 0.35  # As if a third of a second were a minute.
source = ImageFolder(folder + "/photos")
planner = Refurbish(len(source), batch_size=8, reuse_factor=2)
recipe = rand_augment(64) if kernels == "numba" else simple(64)
loader = Loader(source, recipe, planner, MemoryStore(), kernels=kernels)
next(iter(loader))
os.write(1, b"ready\\n")
os.read(begin, 1)  # Until all may begin.
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
with open(f"{folder}/served-{number}", "w") as file:
    file.write(digest.hexdigest())
if end == "raise":
    raise RuntimeError("the user's")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has photographs large enough that a batch takes a while."""
    (tmp_path / "photos" / "all").mkdir(parents=True)
    for index in range(40):
        (tmp_path / "photos" / "all" / f"{index}.jpg").write_bytes(jpeg(picture(index, height=600, width=800)))
    return tmp_path


ENDS: list[tuple[Kernels, str, int]] = [("numba", "close", 0), ("numba", "raise", 1), ("dali", "exit", 0)]


@pytest.mark.weekly
def test_beside_eight_busy_processes_every_batch_comes_and_every_end_is_clean(folder: Path) -> None:
    kinds: list[Kernels] = ["numba", "dali"]
    expected = {kernels: served(folder / "photos", kernels) for kernels in kinds}
    ends = json.dumps([(kernels, end) for kernels, end, _ in ENDS])
    command = [sys.executable, "-X", "faulthandler", "-c", TRAININGS, str(folder), ends]
    with ExitStack() as stack:
        trainings = stack.enter_context(
            subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True)
        )
        stack.callback(kill_all, trainings)
        assert trainings.stdout is not None
        for _ in ENDS:
            assert trainings.stdout.readline() == "ready\n"  # It has built in peace.
        for _ in range(BUSY):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
            stack.callback(busy.kill)
        codes, _ = trainings.communicate("\n", timeout=LIMIT_S)
    for number, (kernels, _, code) in enumerate(ENDS):
        said = (folder / f"said-{number}").read_text()
        assert json.loads(codes)[number] == code, said
        assert (folder / f"served-{number}").read_text() == expected[kernels], said
        assert said.count("Traceback") == code, said
        assert "terminate" not in said


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a process that leads a session, and those that it has forked, if it is still there."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def served(root: Path, kernels: Kernels) -> str:
    """Return the digest of what the script serves, made where nobody else works."""
    source = ImageFolder(root)
    planner = Refurbish(len(source), batch_size=8, reuse_factor=2)
    recipe = rand_augment(64) if kernels == "numba" else simple(64)
    digest = hashlib.blake2b()
    with Loader(source, recipe, planner, MemoryStore(), kernels=kernels) as loader:
        loader.set_epoch(3)
        for _ in range(2):
            for images, labels in loader:
                digest.update(images.numpy()), digest.update(labels.numpy())
    return digest.hexdigest()
