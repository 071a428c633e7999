"""What do the two shufflers of Revamper buy? Misses and time per batch with each of them, and without.

    refurbish          balanced eviction, cache-aware batches
    reference counts   versions that began together end together: misses burst in one epoch of three      figure 7
    plain shuffle      batches that ignore the cache: some miss more than others                          figure 8

Claims, on any machine, at batches of 256:
    the 99th over the 50th percentile of time per batch is at most 1.15 times standard's;
    with reference counts it is at least 1.5 times as large. With a plain shuffle batches differ in misses, which shows
    in their time by less than the threads of the loader get in each other's way, so nothing is promised of that.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, 3 epochs of 24 batches timed in each, so that every
slice holds each epoch of the cycle once.

The consumer does nothing; time per batch is from one arrival to the next. How steady the machine itself is, is told by
fixed work that takes as long as a batch of standard's and one of refurbish's: its time varies only by the machine's
clock, neighbours and scheduler.

    python benchmarks/ablations.py                        about 8 minutes on 2 cores
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import harness
import numpy as np
from claims import Claim, Spread, claim_table, say, table
from experiment import Experiment, Options
from harness import Contender
from loaders import STANDARD, Loading, settled

from dalirefurb import Refurbish
from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import ReferenceCount
from dalirefurb.planning.shuffle import PlainShuffler

REFURBISH = "refurbish"
REFERENCE_COUNTS = "reference counts"
PLAIN_SHUFFLE = "plain shuffle"
MOST_OF_STANDARD = 1.15
FIXED = {STANDARD: "fixed work, as long as standard", REFURBISH: "fixed work, as long as refurbish"}
LEAST_WORSE = {REFERENCE_COUNTS: 1.5, PLAIN_SHUFFLE: None}

_TRIAL_S = 0.5
_LEVELS = np.random.default_rng(0).integers(0, 8, 1 << 15, np.uint8).tobytes()


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        reuse_factor: Of all but standard; a slice holds as many epochs.
    """

    reuse_factor: int = 3

    def contenders(self) -> dict[str, Planner]:
        """Make what is compared."""
        refurbish = Refurbish(self.samples, batch_size=self.batch_size, reuse_factor=self.reuse_factor)
        return {
            **self.planners(),
            REFURBISH: refurbish,
            REFERENCE_COUNTS: replace(refurbish, evict_shuffler=ReferenceCount()),
            PLAIN_SHUFFLE: replace(refurbish, batch_shuffler=PlainShuffler()),
        }


class FixedWork:
    """Batches of so many pieces that each takes as long as asked, about, on all cores.

    Args:
        name: For tables and results.
        batch_s: How long a batch takes, in seconds.
    """

    def __init__(self, name: str, batch_s: float) -> None:
        self.name = name
        with ThreadPoolExecutor(harness.cores()) as pool:
            pieces, began = 0, time.perf_counter()
            while time.perf_counter() - began < _TRIAL_S:
                pieces += _batch(pool, 64)
            self._pieces = max(1, round(pieces * batch_s / (time.perf_counter() - began)))

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Have threads for one turn."""
        with ThreadPoolExecutor(harness.cores()) as pool:
            yield Contender(self.name, f"{harness.cores()} threads", 0, self._batches(pool))

    def _batches(self, pool: ThreadPoolExecutor) -> Generator[int, None, None]:
        while True:
            yield _batch(pool, self._pieces)


def _batch(pool: ThreadPoolExecutor, pieces: int) -> int:
    """Do so many pieces, some hundred microseconds each, without Python's lock."""
    turns = count()

    def work() -> None:
        while next(turns) < pieces:
            zlib.compress(_LEVELS, 1)

    for job in [pool.submit(work) for _ in range(harness.cores())]:
        job.result()
    return pieces


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Let all take turns of whole cycles."""
    planners = config.contenders()
    cycle = config.reuse_factor * config.epoch_batches
    with ExitStack() as stack:
        turns = settled(stack, config.source(options.data), config.recipe(), planners)
        trial = harness.interleave([each for each in turns if each.name in FIXED], rounds=1, timed_batches=cycle)
        fixed = [FixedWork(FIXED[each.contender], float(np.median(each.batch_s))) for each in trial]
        slices = harness.interleave([*turns, *fixed], rounds=config.rounds, timed_batches=cycle)
    speeds = harness.speeds_of(slices)
    taken = {name: [each.batch_s for each in harness.by_round(slices, name)] for name in speeds}
    tails = {name: [tail(batch_s) for batch_s in own] for name, own in taken.items()}
    ablations: list[dict[str, Any]] = []
    for name, planner in planners.items():
        epochs = range(1, config.reuse_factor + 1)
        misses = [[int(plan.miss.sum()) for plan in planner.epoch(epoch)] for epoch in epochs]
        ablations.append(
            {
                "name": name,
                "misses": misses,
                "batch_s": taken[name],
                "images_per_s": Spread.of(speeds[name]),
                "tail": Spread.of(tails[name]),
                "misses_peak": float(np.max(misses) / np.mean(misses)),
            }
        )
    machine = [{"name": name, "tail": Spread.of(tails[name])} for name in FIXED.values()]
    judged = claims(tails)
    rows = [
        [each["name"], f"{each['images_per_s']:0}", f"{each['misses_peak']:.2f}", f"{each['tail']:2}"]
        for each in ablations
    ]
    rows += [[name, "", "", f"{Spread.of(tails[name]):2}"] for name in FIXED.values()]
    heading = ["contender", "images/s [quartiles]", "misses, most / mean", "time per batch, p99 / p50"]
    say(table(heading, rows), claim_table(judged, "ratio of p99 / p50"))
    return {"ablations": ablations, "machine": machine, "claims": judged, "slices": slices}


def claims(tails: Mapping[str, Sequence[float]]) -> list[Claim]:
    """Divide tails of one round by each other."""
    work = "fixed work, as long as the one / the other"
    return [
        Claim.between(tails, REFURBISH, STANDARD, most=MOST_OF_STANDARD),
        *(Claim.between(tails, name, REFURBISH, least) for name, least in LEAST_WORSE.items()),
        Claim.ratio(work, tails[FIXED[REFURBISH]], tails[FIXED[STANDARD]]),
        *(Claim.between(tails, name, FIXED[name]) for name in (REFURBISH, STANDARD)),
    ]


def tail(values: Sequence[float]) -> float:
    """Return the 99th over the 50th percentile."""
    median, high = np.quantile(values, [0.5, 0.99])
    return float(high / median)


EXPERIMENT = Experiment(
    measure,
    Config(epoch_batches=24, rounds=5),
    quick=Config(layers=0, size=32, batch_size=12, epoch_batches=4, rounds=1),
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
