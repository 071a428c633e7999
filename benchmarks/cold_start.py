"""How long does the first loader of a machine take, and the next one? Kernels are compiled once, then found on disk.

Each start is a process of its own. Cold: in an empty folder of kernels; warm: in the folder that the start before left.

    python benchmarks/cold_start.py                        two minutes on 2 quiet cores
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from claims import Claim, Spread, claim_table, say, table
from experiment import Experiment, Options

LONGEST_S = 8.0
"""What a cold `Loader()` is promised to take at most, on 2 quiet cores."""

_START = """
import json, sys, time

began = time.perf_counter()
import torch

torch_there = time.perf_counter()
from dalirefurb import ImageFolder, Loader, Standard, {preset}

source = ImageFolder(sys.argv[1])
imported = time.perf_counter()
loader = Loader(source, {preset}(224), Standard(len(source), batch_size=min(32, len(source))))
made = time.perf_counter()
next(iter(loader))
served = time.perf_counter()
print(json.dumps({{"torch_s": torch_there - began, "source_s": imported - torch_there, "loader_s": made - imported,
                  "batch_s": served - made}}))
loader.close()
"""


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set.
        presets: Recipes that a loader is made of.
        rounds: Starts of each, cold and warm.
    """

    data: str = ""
    presets: tuple[str, ...] = ("simple", "rand_augment", "auto_augment")
    rounds: int = 5


def start(preset: str, data: Path, kernels: Path) -> dict[str, float]:
    """Return the seconds of each step of one start, with a folder where kernels are kept."""
    command = [sys.executable, "-c", _START.format(preset=preset), str(data)]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(kernels)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def starts(config: Config, data: Path) -> Iterator[dict[str, Any]]:
    """Start each preset cold, then warm, in turns."""
    for number in range(config.rounds):
        for preset in config.presets:
            with TemporaryDirectory() as folder:
                for kind in ("cold", "warm"):
                    yield {"preset": preset, "kind": kind, "round": number, **start(preset, data, Path(folder))}


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Take every figure, and print a table."""
    rows = list(starts(config, options.data))
    steps = ("torch_s", "source_s", "loader_s", "batch_s")
    lines, claims = [], []
    for preset in config.presets:
        for kind in ("cold", "warm"):
            some = [row for row in rows if (row["preset"], row["kind"]) == (preset, kind)]
            spreads = {step: Spread.of([row[step] for row in some]) for step in steps}
            lines.append([preset, kind, *(f"{spreads[step]:2}" for step in steps)])
            if kind == "cold":
                claims.append(Claim(f"seconds of a cold Loader(), {preset}", spreads["loader_s"], most=LONGEST_S))
    heading = ["recipe", "kernels", "import torch", "source", "Loader()", "first batch"]
    say(table(heading, lines), claim_table(claims, "seconds"))
    return {"starts": rows, "claims": claims}


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(presets=("simple",), rounds=1),
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
