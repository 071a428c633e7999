"""How much of its speed does a loader keep where other processes want the same cores? As much as stock DALI.

Each loader, made once a round, is timed beside 0, 1, 2 and 4 processes of the same session that each want a core for
themselves (`while True: pass`): what a second training in the same terminal, container or job does.

Claims, on any machine, beside each number of processes: standard and reuse factor 3 keep at least 0.95 of the share of
their own speed that stock DALI keeps of its.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 5 rounds (`--rounds`), each a turn of every loader; shares are of one turn.

The consumer does nothing. Stock DALI interpolates as ours does, to the nearest pixel, at its best number of pipelines.

    python benchmarks/contention.py                        about 15 minutes on 2 cores
    python benchmarks/contention.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import command
import harness
from harness import Claim, Contender, Entrant, MadeAnew, Placement, Slice, Spread
from loaders import LoaderTurns, layered, repeated
from stock_dali import NEAREST, placements, stock

from dalirefurb import FileList, Refurbish, Standard

STANDARD = "standard"
LEAST_OF_STOCK = 0.95


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set; its images are repeated to fill an epoch.
        busy: Processes that want a core each, beside the loader.
        reuse_factor: Of the loader that reuses.
        layers: Of RandAugment.
        size: Side of the images, in pixels.
        batch_size: Images of a batch.
        epoch_batches: Batches of an epoch.
        rounds: Turns of each loader.
        timed_s: Seconds that are timed beside each number of processes, at least.
    """

    data: str
    busy: tuple[int, ...] = (0, 1, 2, 4)
    reuse_factor: int = 3
    layers: int = 2
    size: int = 224
    batch_size: int = 64
    epoch_batches: int = 96
    rounds: int = 5
    timed_s: float = 3.0

    @property
    def refurbish(self) -> str:
        """Name of the loader that reuses."""
        return f"reuse factor {self.reuse_factor}"


@dataclass(frozen=True)
class Row:
    """A loader beside a number of processes.

    Attributes:
        contender: The loader.
        busy: Processes beside it.
        images_per_s: Over the rounds.
        share: Of its own speed beside none, over the rounds.
    """

    contender: str
    busy: int
    images_per_s: Spread
    share: Spread

    def show(self) -> list[str]:
        """Write a row of the table."""
        return [self.contender, str(self.busy), self.images_per_s.show(0), self.share.show(2)]


@dataclass(frozen=True)
class Beside:
    """A slice beside some processes.

    Attributes:
        busy: How many.
        slice: What was timed.
    """

    busy: int
    slice: Slice


@dataclass(frozen=True)
class Results:
    """Everything that was measured.

    Attributes:
        contention: Each loader beside each number of processes.
        claims: Shares of ours over that of stock DALI, of one round.
        slices: Every slice of every round.
        calibration: How stock DALI's number of pipelines was chosen.
    """

    contention: list[Row]
    claims: list[Claim]
    slices: list[Beside]
    calibration: list[Slice]

    def show(self) -> str:
        """Write both tables."""
        heading = ["loader", "busy processes", "images/s [quartiles]", "share kept"]
        claims = harness.table(["share kept, over stock DALI's", "median", ""], [each.show() for each in self.claims])
        return f"{harness.table(heading, [row.show() for row in self.contention])}\n\n{claims}\n"


def compare(config: Config, data: Path) -> Results:
    """Let all take turns, each beside every number of processes."""
    source = repeated(data, config.epoch_batches * config.batch_size)
    make_stock = partial(_stock, config, source)
    placement, calibration = harness.calibrate(
        make_stock, rounds=min(config.rounds, 2), timed_batches=2, timed_s=config.timed_s, among=placements()
    )
    with ExitStack() as stack:
        recipe = layered(config.size, config.layers)
        planners = {
            STANDARD: Standard(len(source), batch_size=config.batch_size),
            config.refurbish: Refurbish(len(source), batch_size=config.batch_size, reuse_factor=config.reuse_factor),
        }
        ours = [LoaderTurns(stack, name, source, recipe, planner) for name, planner in planners.items()]
        for each in ours:
            each.settle()
        slices = _take_turns(config, [*ours, MadeAnew(NEAREST, partial(make_stock, placement))])
    speeds = {
        (name, busy): [each.slice.images_per_s for each in slices if (each.slice.contender, each.busy) == (name, busy)]
        for name in (*planners, NEAREST)
        for busy in config.busy
    }
    shares = {
        (name, busy): [beside / alone for beside, alone in zip(own, speeds[name, 0], strict=True)]
        for (name, busy), own in speeds.items()
    }
    rows = [Row(*key, Spread.of(own), Spread.of(shares[key])) for key, own in speeds.items()]
    claims = [
        Claim.ratio(f"{name}, beside {busy}", shares[name, busy], shares[NEAREST, busy], LEAST_OF_STOCK)
        for name in planners
        for busy in config.busy
        if busy
    ]
    return Results(rows, claims, slices, calibration)


def _stock(config: Config, source: FileList, placement: Placement) -> Contender:
    return stock(
        source,
        size=config.size,
        batch_size=config.batch_size,
        layers=config.layers,
        nearest=True,
        placement=placement,
    )


def _take_turns(config: Config, entrants: Sequence[Entrant]) -> list[Beside]:
    """Time every loader beside each number of processes; every second round runs backwards."""
    slices = []
    for number in range(config.rounds):
        step = 1 if number % 2 == 0 else -1
        for entrant in entrants[::step]:
            with entrant.turn() as contender:
                for count in config.busy[::step]:
                    with busy(count):
                        taken = harness.time_slice(contender, number, timed_batches=2, timed_s=config.timed_s)
                    slices.append(Beside(count, replace(taken, contender=entrant.name)))
    return slices


@contextmanager
def busy(count: int) -> Generator[None, None, None]:
    """Have so many processes of this session want a core each meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args(arguments)
    command.check_photographs(options.data)
    harness.keep_memory()
    config, environment = _config(options), harness.environment()
    results = compare(config, options.data)
    print(results.show(), flush=True)
    command.write(options, environment=environment, config=config, results=results)
    return 0


def _config(options: argparse.Namespace) -> Config:
    config = Config(options.data.resolve().name)
    if options.quick:
        config = replace(config, busy=(0, 2), layers=0, size=32, batch_size=12, epoch_batches=4, rounds=1, timed_s=0.1)
    return replace(config, rounds=options.rounds or config.rounds)


def _parser() -> argparse.ArgumentParser:
    return command.arguments(
        "Compare how much of their speed loaders keep beside busy processes.", result="contention.json", rounds=5
    )


if __name__ == "__main__":
    sys.exit(main())
