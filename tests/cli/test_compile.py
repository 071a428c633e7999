"""`dalirefurb compile` keeps what a loader needs, so that nothing is compiled in a container."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dalirefurb

pytest.importorskip("numba")

USING = """
import numpy as np
from numba.core import event
compiled = []

class Listener(event.Listener):
    def on_start(self, happened): compiled.append(happened.data["dispatcher"].py_func.__qualname__)
    def on_end(self, happened): pass

event.register("numba:compile", Listener())
from dalirefurb import Arrays, Loader, MemoryStore, Prefetch, Refurbish, rand_augment
source = Arrays(np.zeros((8, 32, 32, 3), np.uint8), np.arange(8))
planner = Refurbish(8, batch_size=4, reuse_factor=2)
with Loader(source, rand_augment(32, raw=True), planner, MemoryStore(), prefetch=Prefetch(num_threads=2)) as loader:
    for _ in range(2):
        for images, labels in loader:
            pass
print(compiled)
"""


def carry_out(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    where = {"NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": str(Path(dalirefurb.__file__).parents[1]), **more}
    return subprocess.run(
        [sys.executable, *command], env=os.environ | where, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.mark.weekly
def test_what_is_compiled_ahead_is_all_that_a_loader_needs(tmp_path: Path) -> None:
    made = carry_out(tmp_path, "-m", "dalirefurb", "compile")
    assert made.returncode == 0
    told = "dalirefurb: compiles its kernels for this processor, once: this can take a minute\n"
    assert made.stderr in ("", told)  # on a fast processor it takes less than what is told of
    first, last = made.stdout.splitlines()
    assert first == "compiling the kernels for this processor"
    assert re.fullmatch(rf"they are there after \d+\.\d s, kept in {re.escape(str(tmp_path))}/.*", last)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb*")}
    from dalirefurb.kernels.kernel import kernel_names
    from dalirefurb.kernels.normalize import OUTPUTS

    functions = 7 + len(kernel_names()) + len(OUTPUTS)
    assert len(kept) == 2 * functions  # and an index of each
    used = carry_out(tmp_path, "-c", USING)
    assert (used.stdout, used.returncode) == ("[]\n", 0), used.stderr
    again = carry_out(tmp_path, "-m", "dalirefurb", "compile")
    assert again.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb*")} == kept


def test_where_nothing_can_be_kept_that_is_an_error(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    program = (
        "import sys; from dalirefurb.kernels import ahead; ahead.compile_ahead = lambda: None; "
        "from dalirefurb.cli import main; sys.exit(main(['compile']))"
    )
    refused = carry_out(taken, "-c", program)
    assert refused.returncode == 2
    assert "dalirefurb: error: compiled kernels must be kept in a folder that can be written" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
