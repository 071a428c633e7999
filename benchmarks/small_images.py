"""What does reuse bring where images are small arrays in memory? CIFAR-10, against our own standard.

Aim, not reached on the machine of results/: at reuse factors 2 and 3 at least as fast as standard, for each policy.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 9 rounds (`--rounds`), each a slice of every loader in turn, at least 400 batches and 2 s timed in each.

There is nothing to read or decode, and augmenting 32 x 32 pixels takes microseconds: so little is saved, and what a
loader costs besides is much. The bound is c_P / reuse factor + c_F seconds an image, where c_P and c_F are the costs of
partial and final part, each alone on minimal pipelines, in batches of 1,000, at the replicas x threads that were
fastest in a calibration. The consumer does nothing (headspace).

    python benchmarks/small_images.py                        ten minutes on 2 cores
    python benchmarks/small_images.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import command
import harness
from choosers import SIZE, read
from harness import Claim, Contender, Slice, Spread
from loaders import default_placement, endless
from parts import Parts

from dalirefurb import Arrays, Frozen, Loader, MemoryStore, Recipe, Refurbish, Standard, auto_augment, rand_augment
from dalirefurb.planning.planner import Planner

STANDARD = "standard"
ALL_HITS = "every sample a hit"
REUSE_FACTORS = {"reuse factor 2": 2, "reuse factor 3": 3}
RECIPES: dict[str, Callable[[], Recipe]] = {
    "rand_augment": partial(rand_augment, SIZE, raw=True),
    "auto_augment": partial(auto_augment, SIZE, policy="cifar10", raw=True),
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

    data: str
    per_class: int = 5000
    batch_size: int = 128
    parts_rows: int = 1000
    timed_batches: int = 400
    timed_s: float = 2.0
    rounds: int = 9
    calibration_rounds: int = 1


@dataclass(frozen=True)
class CaseResult:
    """One policy.

    Attributes:
        policy: Its preset.
        images_per_s: Throughput of each contender over the rounds.
        claims: Ratios of figures of one round.
        placements: Replicas x threads of each contender.
        slices: Every slice of every round, without the time of each of its hundreds of batches.
    """

    policy: str
    images_per_s: dict[str, Spread]
    claims: list[Claim]
    placements: dict[str, str]
    slices: list[Slice]

    def show(self) -> str:
        """Write both tables."""
        speeds = [
            [name, self.placements[name], speed.show(0), f"{1e6 / speed.median:.1f}"]
            for name, speed in self.images_per_s.items()
        ]
        heading = ["contender", "replicas x threads", "images/s [quartiles]", "us an image"]
        claims = harness.table(["ratio", "median [quartiles]", ""], [claim.show() for claim in self.claims])
        return f"{self.policy}\n\n{harness.table(heading, speeds)}\n\n{claims}\n"


def run_case(config: Config, source: Arrays, policy: str) -> CaseResult:
    """Calibrate both parts, warm all loaders, and let all take turns."""
    recipe = RECIPES[policy]()
    parts = Parts(recipe, source, batch_size=config.parts_rows)
    few = max(2, config.timed_batches * config.batch_size // config.parts_rows)
    calibrate = partial(
        harness.calibrate, rounds=config.calibration_rounds, timed_batches=few, timed_s=config.timed_s / 2
    )
    partial_placement, _ = calibrate(parts.partial_only)
    parts.make_partial_images(partial_placement)
    final_placement, _ = calibrate(parts.final_only)
    partial_only, final_only = parts.partial_only(partial_placement), parts.final_only(final_placement)
    with ExitStack() as stack:
        for part in (partial_only, final_only):
            stack.callback(part.batches.close)
        loaders = [_contender(stack, source, recipe, name, planner) for name, planner in _planners(config, source)]
        contenders = [*loaders, partial_only, final_only]
        slices = harness.interleave(
            contenders,
            rounds=config.rounds,
            timed_batches=config.timed_batches,
            timed_s=config.timed_s,
        )
    speeds = {each.name: harness.per_round(slices, each.name) for each in contenders}
    partial_speeds, final_speeds = speeds[partial_only.name], speeds[final_only.name]
    claims = [Claim.ratio(f"{name} / {STANDARD}", speeds[name], speeds[STANDARD], least=1.0) for name in REUSE_FACTORS]
    for name, reuse_factor in {STANDARD: 1, **REUSE_FACTORS}.items():
        bound = [1 / (1 / (reuse_factor * p) + 1 / f) for p, f in zip(partial_speeds, final_speeds, strict=True)]
        claims.append(Claim.ratio(f"{name} / its bound", speeds[name], bound))
    claims.append(Claim.ratio(f"{ALL_HITS} / {final_only.name}", speeds[ALL_HITS], final_speeds))
    return CaseResult(
        policy,
        {name: Spread.of(figures) for name, figures in speeds.items()},
        claims,
        {each.name: str(each.placement) for each in contenders},
        [replace(each, batch_s=[]) for each in slices],
    )


def _planners(config: Config, source: Arrays) -> list[tuple[str, Planner]]:
    count, batch_size = len(source), config.batch_size
    refurbished = [
        (name, Refurbish(count, batch_size=batch_size, reuse_factor=reuse_factor, drop_last=True))
        for name, reuse_factor in REUSE_FACTORS.items()
    ]
    standard = Standard(count, batch_size=batch_size, drop_last=True)
    return [(STANDARD, standard), *refurbished, (ALL_HITS, Frozen(count, batch_size=batch_size, drop_last=True))]


def _contender(stack: ExitStack, source: Arrays, recipe: Recipe, name: str, planner: Planner) -> Contender:
    """Make a loader with a store of its own where the plan keeps anything, and serve its first epoch."""
    store = stack.enter_context(MemoryStore()) if planner.peak_slots else None
    loader = stack.enter_context(Loader(source, recipe, planner, store))
    batches = endless(loader)
    for _ in islice(batches, len(planner)):
        pass
    return Contender(name, default_placement(), loader.batches_ahead, batches)


def main() -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args()
    command.check_mosaics(options.data)
    config, environment = _config(options), harness.environment()
    source = read(options.data, "train", config.per_class)
    results = []
    for policy in RECIPES:
        results.append(run_case(config, source, policy))
        print(results[-1].show(), flush=True)
    command.write(options, environment=environment, config=config, results=results)
    return 0


def _config(options: argparse.Namespace) -> Config:
    config = Config(options.data.resolve().name)
    if options.quick:
        config = replace(config, per_class=32, batch_size=16, parts_rows=32, timed_batches=4, timed_s=0.0, rounds=2)
    return replace(config, rounds=options.rounds or config.rounds)


def _parser() -> argparse.ArgumentParser:
    return command.arguments(
        "Compare reuse with standard on small arrays.",
        result="small_images.json",
        rounds=9,
        data=harness.CIFAR10,
        kind="of CIFAR-10 as mosaics",
    )


if __name__ == "__main__":
    sys.exit(main())
