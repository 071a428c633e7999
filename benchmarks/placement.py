"""Where should augmentation run? Every placement with 1 .. 16 CPU cores, alone and feeding a model.

Loading alone: images/s that reach the device where the model is. Feeding: images/s of training in bf16, against
headspace, the same step on one batch that is there already; and how much longer the device works on a step than in
headspace: the GPU time that the feed takes from the model, waiting for the CPU to launch its work included.

Feeds of one unit (data, cores, model, round) take turns in a process that has so many cores; where one ends that
process, or hangs, this is its result, and another process goes on with the next. A unit that is done is in the JSON,
and the next call goes on with those that are left. Where there is no GPU, only what needs none is run.

    python benchmarks/placement.py                          nine minutes of it; call it until nothing is left
    python benchmarks/placement.py --cores 16 8             these only
    python benchmarks/placement.py --quick --out q.json     seconds; its figures mean nothing
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median

import harness
from claims import Spread, table
from experiment import CIFAR10, Experiment, Options, Record, check_mosaics
from placement_units import PHOTOGRAPHS, Config, Turn, Unit, Workload, feed_names, take_turns
from training_steps import ALONE, HEADSPACE

_ENDING_S = 20


def left(config: Config, turns: Sequence[Turn]) -> list[Unit]:
    """List the units that are not done: one round of everything first, loading alone before models."""
    units = [
        Unit(workload, cores, model, number)
        for number, place in product(range(config.rounds), range(max(len(each.models) for each in config.workloads)))
        for workload in config.workloads
        for model in workload.models[place : place + 1]
        for cores in config.cores
        if cores <= harness.cores()
    ]
    return [unit for unit in units if not any(turn.is_of(unit) for turn in turns)]


def show(config: Config, turns: Sequence[Turn]) -> str:
    """Write a table for each workload and model: a row for each feed, a column for each number of cores."""
    tables = []
    for workload in config.workloads:
        for model in workload.models:
            mine = [turn for turn in turns if (turn.data, turn.model) == (workload.data, model)]
            cores = sorted({turn.cores for turn in mine})
            feeds = dict.fromkeys(turn.feed for turn in mine)
            rows = [[feed, *(_cell(mine, feed, count) for count in cores)] for feed in feeds]
            if rows:
                unit = "images/s" if model == ALONE else "images/s, and ms a step taken from the model"
                heading = [f"{workload.data}, {model}: {unit}", *(f"{count} cores" for count in cores)]
                tables.append(table(heading, rows))
    return "\n\n".join(tables) + "\n"


def taken_ms(turns: Sequence[Turn], feed: str) -> list[float]:
    """Return how much longer a step takes than in headspace, one figure for each round of both."""
    own, alone = (
        {turn.round: turn.step_ms for turn in turns if turn.feed == name and turn.step_ms is not None}
        for name in (feed, HEADSPACE)
    )
    return [own[number] - alone[number] for number in sorted(own.keys() & alone.keys())]


def measure(config: Config, options: Options) -> None:
    """Go on where the last call ended, as long as there is time; the JSON is written unit by unit."""
    check_mosaics(options.arrays, "--arrays")
    ends = time.time() + 60 * options.minutes
    record = Record(options.out, config, {"turns": Turn})
    turns = record.rows["turns"]
    longest = 0.0
    asked = options.of_cores or config.cores
    for unit in left(config, turns):
        began = time.time()
        if unit.cores not in asked or began + longest >= ends:
            continue
        turns.extend(turns_of(config, unit, options.data, options.arrays, feed_names(unit)))
        record.write()
        longest = max(longest, time.time() - began)
        done = f"{unit.workload.data}, {unit.model}, {unit.cores} cores, round {unit.round}: {longest:.0f} s"
        print(done, file=sys.stderr, flush=True)
    print(show(config, turns))
    if todo := sum(unit.cores in asked for unit in left(config, turns)):
        print(f"{todo} units are left; call this again", file=sys.stderr)


def turns_of(config: Config, unit: Unit, photographs: Path, arrays: Path, feeds: Sequence[str]) -> Iterator[Turn]:
    """Have processes let feeds take their turns: one, and another after each that ended before its time.

    Raises:
        RuntimeError: If a process ended before the first of its feeds began.
    """
    context, waiting = get_context("spawn"), list(feeds)
    while waiting:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=take_turns, args=(config, unit, photographs, arrays, waiting, theirs))
        process.start()
        theirs.close()
        feed = None
        try:
            while waiting:
                told = _told(ours, config.turn_limit_s)
                if isinstance(told, Turn):
                    waiting.remove(told.feed)
                    yield told
                elif told is not None:
                    feed = told
                else:
                    failure = _end(process)
                    if feed is None or feed not in waiting:
                        raise RuntimeError(f"the process for {unit} {failure} before one of {waiting} began")
                    waiting.remove(feed)
                    yield unit.turn(feed, images=0, seconds=0.0, step_ms=None, failure=failure)
                    break
        finally:
            _end(process)
            ours.close()


def _told(report: Connection, limit_s: float) -> Turn | str | None:
    """Receive what a process reports next; None if it ends or hangs."""
    try:
        told: Turn | str | None = report.recv() if report.poll(limit_s) else None
    except EOFError:
        return None
    return told


def _end(process: BaseProcess) -> str:
    """Wait a moment for a process to end, else end it; return how it ended."""
    process.join(_ENDING_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        return "hung"
    return f"ended with {process.exitcode}"


def _cell(turns: Sequence[Turn], feed: str, cores: int) -> str:
    mine = [turn for turn in turns if turn.cores == cores]
    speeds = [turn.images / turn.seconds for turn in mine if turn.feed == feed and turn.failure is None]
    taken = taken_ms(mine, feed)
    failures = dict.fromkeys(turn.failure for turn in mine if turn.feed == feed and turn.failure is not None)
    said = ", ".join([*([f"{Spread.of(speeds):0}"] if speeds else []), *failures])
    return f"{said} {median(taken):+.1f} ms" if taken else said


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(batch_size=10, cores=(1,), rounds=1, workloads=(Workload(PHOTOGRAPHS, 48, 2, 2, ("resnet8",)),)),
    options={
        "--arrays": {"type": Path, "default": CIFAR10, "help": "a folder of CIFAR-10 as mosaics"},
        "--cores": {
            "dest": "of_cores",
            "type": int,
            "nargs": "+",
            "help": "of those in the configuration, all by default",
        },
        "--minutes": {"type": float, "default": 9, "help": "after which a call stops, 9 by default"},
    },
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
