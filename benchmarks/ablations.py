"""What do the two shufflers of Revamper buy? Misses and time per batch with each of them, and without.

    refurbish          balanced eviction, cache-aware batches
    reference counts   versions that began together end together: misses burst in one epoch of three      figure 7
    plain shuffle      batches that ignore the cache: some miss more than others                          figure 8

Claims, on any machine, at batches of 256:
    the 99th over the 50th percentile of time per batch is at most 1.15 times standard's;
    with reference counts it is at least 1.5 times as large. With a plain shuffle batches differ in misses, which shows
    in their time by less than the threads of the loader get in each other's way, so nothing is promised of that.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 9 rounds (`--rounds`), each a slice of every contender in turn, 3 epochs of 24 batches timed in each, so that every
slice holds each epoch of the cycle once.

The consumer does nothing; time per batch is from one arrival to the next. How steady the machine itself is, is told by
fixed work that takes as long as a batch of standard's and one of refurbish's (`fixed_work`).

    python benchmarks/ablations.py                        about 12 minutes on 2 cores
    python benchmarks/ablations.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import command
import harness
import numpy as np
from fixed_work import FixedWork
from harness import Claim, Slice, Spread
from loaders import LoaderTurns, layered, repeated

from dalirefurb import Refurbish, Standard
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import ReferenceCount
from dalirefurb.planning.shuffle import PlainShuffler

STANDARD = "standard"
REFURBISH = "refurbish"
REFERENCE_COUNTS = "reference counts"
PLAIN_SHUFFLE = "plain shuffle"
MOST_OF_STANDARD = 1.15
FIXED = {STANDARD: "fixed work, as long as standard", REFURBISH: "fixed work, as long as refurbish"}
LEAST_WORSE = {REFERENCE_COUNTS: 1.5, PLAIN_SHUFFLE: None}


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set; its images are repeated to fill an epoch.
        reuse_factor: Of all but standard; a slice holds as many epochs.
        layers: Of RandAugment.
        size: Side of the images, in pixels.
        batch_size: Images of a batch.
        epoch_batches: Batches of an epoch.
        rounds: Slices of each contender.
    """

    data: str
    reuse_factor: int = 3
    layers: int = 2
    size: int = 224
    batch_size: int = 256
    epoch_batches: int = 24
    rounds: int = 9

    def planners(self) -> dict[str, Planner]:
        """Make what is compared."""
        count, batch_size = self.epoch_batches * self.batch_size, self.batch_size
        refurbish = Refurbish(count, batch_size=batch_size, reuse_factor=self.reuse_factor)
        return {
            STANDARD: Standard(count, batch_size=batch_size),
            REFURBISH: refurbish,
            REFERENCE_COUNTS: replace(refurbish, evict_shuffler=ReferenceCount()),
            PLAIN_SHUFFLE: replace(refurbish, batch_shuffler=PlainShuffler()),
        }


@dataclass(frozen=True)
class Ablation:
    """One contender.

    Attributes:
        name: As in the slices.
        misses: Of each batch in the epochs 1, 2, ... of one cycle, by the plan.
        batch_s: Time per batch over a slice, of each round.
        images_per_s: Throughput over the rounds.
        tail: 99th over 50th percentile of time per batch, over the rounds.
        misses_peak: Most misses of a batch over their mean.
    """

    name: str
    misses: list[list[int]]
    batch_s: list[list[float]]
    images_per_s: Spread
    tail: Spread
    misses_peak: float

    def row(self) -> list[str]:
        """Write a row of the table."""
        return [self.name, self.images_per_s.show(0), f"{self.misses_peak:.2f}", self.tail.show(2)]


@dataclass(frozen=True)
class Steadiness:
    """Fixed work.

    Attributes:
        name: As in the slices.
        tail: 99th over 50th percentile of time per batch, over the rounds.
    """

    name: str
    tail: Spread

    def row(self) -> list[str]:
        """Write a row of the table."""
        return [self.name, "", "", self.tail.show(2)]


@dataclass(frozen=True)
class Results:
    """Everything that was measured.

    Attributes:
        ablations: One each.
        machine: How steady it is.
        claims: Ratios of tails of one round.
        slices: Every slice of every round.
    """

    ablations: list[Ablation]
    machine: list[Steadiness]
    claims: list[Claim]
    slices: list[Slice]

    def show(self) -> str:
        """Write both tables."""
        heading = ["contender", "images/s [quartiles]", "misses, most / mean", "time per batch, p99 / p50"]
        return (
            f"{harness.table(heading, [each.row() for each in (*self.ablations, *self.machine)])}\n\n"
            f"{harness.table(['ratio of p99 / p50', 'median [quartiles]', ''], [c.show() for c in self.claims])}\n"
        )


def compare(config: Config, data: Path) -> Results:
    """Let all take turns of whole cycles."""
    source = repeated(data, config.epoch_batches * config.batch_size)
    planners = config.planners()
    with ExitStack() as stack:
        recipe = layered(config.size, config.layers)
        turns = [LoaderTurns(stack, name, source, recipe, planner) for name, planner in planners.items()]
        for each in turns:
            each.settle()
        cycle = config.reuse_factor * config.epoch_batches
        trial = harness.interleave([each for each in turns if each.name in FIXED], rounds=1, timed_batches=cycle)
        fixed = [FixedWork(FIXED[each.contender], float(np.median(each.batch_s))) for each in trial]
        slices = harness.interleave([*turns, *fixed], rounds=config.rounds, timed_batches=cycle)
    taken = {each.name: harness.by_round(slices, each.name) for each in (*turns, *fixed)}
    tails = {name: [tail(each.batch_s) for each in own] for name, own in taken.items()}
    ablations = []
    for name, planner in planners.items():
        epochs = range(1, config.reuse_factor + 1)
        misses = [[int(plan.miss.sum()) for plan in planner.epoch(epoch)] for epoch in epochs]
        ablations.append(
            Ablation(
                name,
                misses,
                [each.batch_s for each in taken[name]],
                Spread.of([each.images_per_s for each in taken[name]]),
                Spread.of(tails[name]),
                float(np.max(misses) / np.mean(misses)),
            )
        )
    claims = [
        Claim.ratio(f"{REFURBISH} / {STANDARD}", tails[REFURBISH], tails[STANDARD], most=MOST_OF_STANDARD),
        *(
            Claim.ratio(f"{name} / {REFURBISH}", tails[name], tails[REFURBISH], least)
            for name, least in LEAST_WORSE.items()
        ),
        Claim.ratio("fixed work, as long as the one / the other", tails[FIXED[REFURBISH]], tails[FIXED[STANDARD]]),
        Claim.ratio(f"{REFURBISH} / {FIXED[REFURBISH]}", tails[REFURBISH], tails[FIXED[REFURBISH]]),
        Claim.ratio(f"{STANDARD} / {FIXED[STANDARD]}", tails[STANDARD], tails[FIXED[STANDARD]]),
    ]
    machine = [Steadiness(name, Spread.of(tails[name])) for name in FIXED.values()]
    return Results(ablations, machine, claims, slices)


def tail(values: Sequence[float]) -> float:
    """Return the 99th over the 50th percentile."""
    median, high = np.quantile(values, [0.5, 0.99])
    return float(high / median)


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
        config = replace(config, layers=0, size=32, batch_size=12, epoch_batches=4, rounds=1)
    return replace(config, rounds=options.rounds or config.rounds)


def _parser() -> argparse.ArgumentParser:
    return command.arguments(
        "Compare refurbishing with what it is without each shuffler.", result="ablations.json", rounds=9
    )


if __name__ == "__main__":
    sys.exit(main())
