"""How much more do several trainings cost the cores than one, where they share the batches of one loader?

    1 attached, 4 attached    trainings in processes of their own, which take the batches of one loader (`Broadcast`)
    loader                    the same loader in the process that iterates it

Claims, on any machine, at each reuse factor: the CPU time of loading for 4 attached trainings is at most 1.1 times that
for 1. It is that of all processes: what makes the batches, and what takes them, which looks at a number of each image.
Bound: none is known; it would be 1 if taking a batch cost nothing.
n: 5 rounds (`--rounds`), each a turn of every contender at every reuse factor: 2 epochs, beside the first of each.

    python benchmarks/broadcast.py                        about 8 minutes on 2 cores
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from claims import Claim, Spread, claim_table, say, table
from experiment import Experiment, Options
from loaders import Loading

from dalirefurb import Broadcast, Loader, MemoryStore
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.system.threads import wait_until_idle

ALONE = "loader"
MOST_OF_ONE = 1.1

_TRAINING = """
import resource, sys
import torch
from dalirefurb import Attached

torch.set_num_threads(1)

def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

with Attached(sys.argv[1]) as loader:
    for epoch in range(loader.epoch, int(sys.argv[2])):
        if epoch == 1:
            print("ready", flush=True)
            sys.stdin.readline()
            began = cpu_s()
        for batch, _ in loader:
            batch[:, 0, 0, 0].sum().item()
    print(cpu_s() - began, flush=True)
    sys.stdin.readline()
"""
"""Waits after the first epoch, and says what CPU time it took for the others."""

_IDLE_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        attached: Trainings that share a loader.
        reuse_factors: Of the loaders that reuse, beside standard.
        epochs: Of each turn; the first one is not counted.
    """

    attached: tuple[int, ...] = (1, 4)
    reuse_factors: tuple[int, ...] = (3,)
    epochs: int = 3


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Let all take turns, and compare the CPU time of an image."""
    source = config.source(options.data)
    planners = config.planners(*config.reuse_factors)
    rows: list[dict[str, Any]] = []
    for number in range(config.rounds):
        turns = [(name, count) for name in planners for count in (0, *config.attached)]
        for name, count in turns if number % 2 == 0 else turns[::-1]:
            taken = take_turn(config, source, planners[name], count)
            rows.append({"loader": name, "attached": count, "round": number, **taken})
    claims, lines = [], []
    for name in planners:
        spent = {count: sorted_by_round(rows, name, count) for count in (0, *config.attached)}
        for count, costs in spent.items():
            label = f"{count} attached" if count else ALONE
            lines.append([f"{name}, {label}", f"{Spread.of([1e3 * each for each in costs]):2}"])
        least, *more = config.attached
        for count in more:
            told = f"{name}: {count} attached / {least} attached"
            claims.append(Claim.ratio(told, spent[count], spent[least], most=MOST_OF_ONE))
        claims.append(Claim.ratio(f"{name}: {least} attached / {ALONE}", spent[least], spent[0]))
    say(table(["contender", "CPU ms an image [quartiles]"], lines), claim_table(claims, "CPU time of an image"))
    return {"claims": claims, "turns": rows}


def sorted_by_round(rows: list[dict[str, Any]], name: str, count: int) -> list[float]:
    """Return a contender's CPU time of an image, one a round."""
    chosen = [row for row in rows if (row["loader"], row["attached"]) == (name, count)]
    return [row["cpu_s"] / row["images"] for row in sorted(chosen, key=lambda row: row["round"])]


def take_turn(config: Config, source: Source, planner: Planner, count: int) -> dict[str, Any]:
    """Serve some epochs to so many trainings, or to a loop of this process; return what the later ones took."""
    with ExitStack() as stack:
        store = stack.enter_context(MemoryStore()) if planner.peak_slots else None
        loader = stack.enter_context(Loader(source, config.recipe(), planner, store))
        images, trainings_s = (config.epochs - 1) * planner.num_samples, list[float]()
        if not count:
            served = (batch for _ in range(config.epochs) for batch in loader)
            for _ in islice(served, len(planner)):
                pass
            began = _at_rest()
            for batch, _ in served:
                batch[:, 0, 0, 0].sum().item()
        else:
            name, pipe = f"benchmark-{os.getpid()}", subprocess.PIPE
            stack.enter_context(Broadcast(loader, name, trainings=count))
            command = [sys.executable, "-c", _TRAINING, name, str(config.epochs)]
            trainings = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
            for training in trainings:
                stack.enter_context(training)
            _told(trainings)
            began = _at_rest()
            for training in trainings:
                _go_on(training)
            trainings_s = [float(line) for line in _told(trainings)]
        cpu_s = _at_rest() - began + sum(trainings_s)
        for training in trainings if count else []:
            _go_on(training)
    return {"images": images, "cpu_s": cpu_s, "trainings_s": trainings_s}


def _at_rest() -> float:
    """Wait until as much is made ahead as can be; return the CPU time of this process."""
    if not wait_until_idle(_IDLE_LIMIT_S):
        raise RuntimeError(f"a loader must come to rest, but worked on for {_IDLE_LIMIT_S:.0f} s")
    return time.process_time()


def _told(trainings: list[subprocess.Popen[str]]) -> list[str]:
    return [training.stdout.readline() for training in trainings if training.stdout is not None]


def _go_on(training: subprocess.Popen[str]) -> None:
    assert training.stdin is not None
    training.stdin.write("\n")
    training.stdin.flush()


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=64, epoch_batches=48, rounds=5),
    quick=Config(layers=0, size=32, batch_size=4, epoch_batches=6, rounds=1, attached=(1, 2), epochs=2),
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    raise SystemExit(EXPERIMENT.main())
