"""What does reuse bring where images are small arrays in memory? CIFAR-10, against our own standard.

Aim, not reached on the machine of results/: at reuse factors 2 and 3 at least as fast as standard, for each policy.
Bound: the amortised one; and a reuse factor of n brings at most n times standard.
n: 7 rounds (`--rounds`), each a slice of every loader in turn, at least 400 batches and 1 s timed in each.

There is nothing to read or decode, and augmenting 32 x 32 pixels takes microseconds: so little is saved, and what a
loader costs besides is much. The bound is c_P / reuse factor + c_F seconds an image, where c_P and c_F are the costs of
partial and final part: the least that was seen in the same round, of each alone, in batches of 1,000, at the replicas x
threads that were fastest in a calibration, and of standard and of a loader of which every sample is a hit. The consumer
does nothing (headspace).

    python benchmarks/small_images.py                        eight minutes on 2 cores
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import harness
from claims import Claim, Spread, claim_table, say, table
from experiment import CIFAR10, Experiment, Options
from harness import Contender
from loaders import STANDARD, default_placement, endless, period, planners, reuse, rotation_of
from parts import FINAL_ONLY, PARTIAL_ONLY, Parts, both, bound, fastest
from sources import SIDE, read_mosaics

from dalirefurb import Arrays, Loader, MemoryStore, Recipe, auto_augment, rand_augment
from dalirefurb.planning import Frozen
from dalirefurb.planning.planner import Planner

ALL_HITS = "every sample a hit"
REUSE_FACTORS = {STANDARD: 1, reuse(2): 2, reuse(3): 3}
RECIPES: dict[str, Callable[[], Recipe]] = {
    "rand_augment": partial(rand_augment, SIDE, raw=True),
    "auto_augment": partial(auto_augment, SIDE, policy="cifar10", raw=True),
}


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set.
        per_class: Images of each class.
        batch_size: Images of a batch.
        parts_rows: Of a batch of one part alone.
        timed_batches: Of a slice, at least.
        timed_s: Of a slice, at least, in seconds.
        rounds: Slices of each contender.
        calibration_rounds: Slices of each part at each placement.
    """

    data: str = ""
    per_class: int = 5000
    batch_size: int = 128
    parts_rows: int = 1000
    timed_batches: int = 400
    timed_s: float = 1.0
    rounds: int = 7
    calibration_rounds: int = 1


def run_case(config: Config, source: Arrays, policy: str) -> dict[str, Any]:
    """Calibrate both parts, warm all loaders, and let all take turns."""
    recipe = RECIPES[policy]()
    parts = Parts(recipe, source, batch_size=config.parts_rows)
    few = max(2, config.timed_batches * config.batch_size // config.parts_rows)
    partial_placement, final_placement, _ = parts.calibrate(
        rounds=config.calibration_rounds, timed_batches=few, timed_s=config.timed_s / 2
    )
    plans = planners(len(source), config.batch_size, (2, 3), drop_last=True)
    plans[ALL_HITS] = Frozen(len(source), batch_size=config.batch_size, drop_last=True)
    with ExitStack() as stack:
        loaders = [_contender(stack, source, recipe, name, planner) for name, planner in plans.items()]
        contenders = [*loaders, *parts.alone(stack, partial_placement, final_placement)]
        slices = harness.interleave(
            contenders, rounds=config.rounds, timed_batches=config.timed_batches, timed_s=config.timed_s
        )
    speeds = harness.speeds_of(slices)
    refurbished = {name: factor for name, factor in REUSE_FACTORS.items() if name != STANDARD}
    claims = [Claim.between(speeds, name, STANDARD, least=1.0, bound=n) for name, n in refurbished.items()]
    whole = fastest(both(speeds[PARTIAL_ONLY], speeds[FINAL_ONLY]), speeds[STANDARD])
    final = fastest(speeds[FINAL_ONLY], speeds[ALL_HITS])
    for name, factor in REUSE_FACTORS.items():
        claims.append(Claim.possible(f"{name} / its bound", speeds[name], bound(whole, final, 1 / factor)))
    claims.append(Claim.between(speeds, ALL_HITS, FINAL_ONLY))
    placements = {each.name: str(each.placement) for each in contenders}
    spreads = {name: Spread.of(figures) for name, figures in speeds.items()}
    rows = [[name, placements[name], f"{each:0}", f"{1e6 / each.median:.1f}"] for name, each in spreads.items()]
    heading = ["contender", "replicas x threads", "images/s [quartiles]", "us an image"]
    say(policy, table(heading, rows), claim_table(claims))
    return {
        "policy": policy,
        "images_per_s": spreads,
        "claims": claims,
        "placements": placements,
        # Not the times of hundreds of batches.
        "slices": [replace(each, batch_s=[]) for each in slices],
    }


def _contender(stack: ExitStack, source: Arrays, recipe: Recipe, name: str, planner: Planner) -> Contender:
    """Make a loader with a store of its own where the plan keeps anything, and serve its first epoch."""
    store = stack.enter_context(MemoryStore()) if planner.peak_slots else None
    loader = stack.enter_context(Loader(source, recipe, planner, store))
    batches = endless(loader)
    for _ in islice(batches, len(planner)):
        pass
    return Contender(name, default_placement(), loader.batches_ahead, batches, rotation_of(loader, period(planner)))


def measure(config: Config, options: Options) -> list[dict[str, Any]]:
    """Run every policy."""
    source = read_mosaics(options.data, "train", config.per_class)
    return [run_case(config, source, policy) for policy in RECIPES]


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(per_class=32, batch_size=16, parts_rows=32, timed_batches=4, timed_s=0.0, rounds=2),
    data=CIFAR10,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
