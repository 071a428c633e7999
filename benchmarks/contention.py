"""How much of its speed does a loader keep where other processes want the same cores? As much as stock DALI.

Each loader, made once a round, is timed beside 0, 1, 2 and 4 processes of the same session that each want a core for
themselves (`while True: pass`): what a second training in the same terminal, container or job does.

Claims, on any machine, beside each number of processes: standard and reuse factor 3 keep at least 0.95 of the share of
their own speed that stock DALI keeps of its.
Bound: beside others nobody is faster than alone.
n: 5 rounds (`--rounds`), each a turn of every loader; shares are of one turn.

The consumer does nothing. Stock DALI interpolates as ours does, to the nearest pixel, at its best number of pipelines.

    python benchmarks/contention.py                        about 10 minutes on 2 cores
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import harness
from claims import Claim, Spread, claim_table, say, table
from experiment import Experiment, Options
from harness import Entrant, MadeAnew, Slice
from loaders import STANDARD, Loading, reuse, settled
from stock_dali import NEAREST, placements, stock

LEAST_OF_STOCK = 0.95


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        busy: Processes that want a core each, beside the loader.
        reuse_factor: Of the loader that reuses.
        timed_s: Seconds that are timed beside each number of processes, at least.
    """

    busy: tuple[int, ...] = (0, 1, 2, 4)
    reuse_factor: int = 3
    timed_s: float = 2.0


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Let all take turns, each beside every number of processes."""
    source = config.source(options.data)
    make_stock = partial(stock, config, source)
    placement, calibration = harness.calibrate(
        make_stock, rounds=min(config.rounds, 2), timed_batches=2, timed_s=config.timed_s, among=placements()
    )
    with ExitStack() as stack:
        ours = settled(stack, source, config.recipe(), config.planners(config.reuse_factor))
        slices = _take_turns(config, [*ours, MadeAnew(NEAREST, partial(make_stock, placement))])
    speeds = {
        (name, busy): [each.images_per_s for count, each in slices if (each.contender, count) == (name, busy)]
        for name in (STANDARD, reuse(config.reuse_factor), NEAREST)
        for busy in config.busy
    }
    shares = {
        (name, busy): [beside / alone for beside, alone in zip(own, speeds[name, 0], strict=True)]
        for (name, busy), own in speeds.items()
    }
    found = {key: (Spread.of(own), Spread.of(shares[key])) for key, own in speeds.items()}
    claims = [
        Claim.ratio(f"{name}, beside {busy}", own, shares[NEAREST, busy], LEAST_OF_STOCK)
        for (name, busy), own in shares.items()
        if busy and name != NEAREST
    ]
    claims += [
        Claim.ratio(f"{name}, beside {busy} / beside none", own, [1.0] * len(own), bound=1.0)
        for (name, busy), own in shares.items()
        if busy
    ]
    rows = [[name, str(busy), f"{speed:0}", f"{share:2}"] for (name, busy), (speed, share) in found.items()]
    say(
        table(["loader", "busy processes", "images/s [quartiles]", "share kept"], rows),
        claim_table(claims, "share kept, over stock DALI's"),
    )
    contention = [
        {"contender": name, "busy": busy, "images_per_s": speed, "share": share}
        for (name, busy), (speed, share) in found.items()
    ]
    beside = [{"busy": count, "slice": each} for count, each in slices]
    return {"contention": contention, "claims": claims, "slices": beside, "calibration": calibration}


def _take_turns(config: Config, entrants: Sequence[Entrant]) -> list[tuple[int, Slice]]:
    """Time every loader beside each number of processes; every second round runs backwards."""
    slices = []
    for number in range(config.rounds):
        step = 1 if number % 2 == 0 else -1
        for entrant in entrants[::step]:
            with entrant.turn() as contender:
                for count in config.busy[::step]:
                    with busy(count):
                        taken = harness.time_slice(contender, number, timed_batches=2, timed_s=config.timed_s)
                    slices.append((count, replace(taken, contender=entrant.name)))
    return slices


_BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True: pass
"""
"""Ends with the process that has started it, however that one ends."""


@contextmanager
def busy(count: int) -> Generator[None, None, None]:
    """Have so many processes of this session want a core each meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=64, epoch_batches=96, rounds=5),
    quick=Config(layers=0, size=32, batch_size=12, epoch_batches=4, rounds=1, busy=(0, 2), timed_s=0.1),
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
