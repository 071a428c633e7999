"""How much of what reuse can give does the loader reach? Images/s against the amortised bound.

Claims, on any machine:
    at reuse factors 2, 3 and 4 at least 0.95 of the amortised bound, in batches of 256;
    with every sample a hit at least 0.95 of the final part alone, likewise;
    at reuse factor 3 at least 2.0 times our own standard in the paper's order, 2.3 times with the crop last.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, at least 4,096 images and 3 s timed in each.

The amortised bound is c_P / reuse factor + c_F seconds an image, where c_P is the cost of reading, decoding and the
partial part, c_F that of the final part. Each is taken in the same round by itself, with nothing around it, at the
replicas x threads that were fastest for it in a calibration. Loaders run at their default replicas x threads. The
consumer does nothing (headspace). All are made anew for each slice, but for the stores, in the memory that the one
before let go. What only writes to memory can take 1.7 times as long for a minute, on a virtual machine whose cores are
moved; so the final part alone comes right after the loader that does little else. Figures are medians of per-round
ratios, with quartiles.

    python benchmarks/throughput.py                        about half an hour on 2 cores
    python benchmarks/throughput.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import argparse
import gc
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import command
import harness
from harness import Claim, MadeAnew, Placement, Slice, Spread
from loaders import LoaderTurns, default_placement, repeated
from parts import Parts

from dalirefurb import FileList, Frozen, Refurbish, Standard, rand_augment
from dalirefurb.augment.presets import Order
from dalirefurb.engine.backend_factory import Kernels
from dalirefurb.planning.planner import Planner

STANDARD = "standard"
ALL_HITS = "every sample a hit"
PARTIAL_ONLY = "partial-only"
FINAL_ONLY = "final-only"
REUSE_FACTORS = {STANDARD: 1, "reuse factor 2": 2, "reuse factor 3": 3, "reuse factor 4": 4}


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set; its images are repeated to fill an epoch.
        orders: Of the recipe's stages.
        batch_sizes: Every order is run at each.
        size: Side of the images the model receives, in pixels.
        epoch_batches: Batches of an epoch.
        timed_images: Of a slice, at least.
        timed_batches: Of a slice, at least.
        timed_s: Of a slice, at least, in seconds; in a calibration half as much.
        rounds: Slices of each contender.
        calibration_rounds: Slices of partial-only and final-only at each placement.
        sweep: Whether reuse factor 3 also runs at every placement.
        kernels: Of loaders and parts; None: Numba's if it is installed.
    """

    data: str
    orders: tuple[Order, ...]
    batch_sizes: tuple[int, ...]
    size: int = 224
    epoch_batches: int = 60
    timed_images: int = 4096
    timed_batches: int = 16
    timed_s: float = 3.0
    rounds: int = 5
    calibration_rounds: int = 2
    sweep: bool = False
    kernels: Kernels | None = None

    def timed(self, batch_size: int) -> int:
        """Batches timed in a slice: a multiple of a loader's replicas, which finish their batches together."""
        least = max(self.timed_batches, self.timed_images // batch_size)
        return -(-least // default_placement().replicas) * default_placement().replicas


@dataclass(frozen=True)
class CaseResult:
    """One order at one batch size.

    Attributes:
        order: Of the recipe's stages.
        batch_size: Images of a batch.
        images_per_s: Throughput of each contender over the rounds.
        bound: Images/s of the amortised bound over the rounds, for each contender that has one.
        claims: Ratios of figures of one round.
        placements: Replicas x threads of each contender.
        slices: Every slice of every round.
        calibration: Slices at every placement that partial-only and final-only were tried at.
    """

    order: Order
    batch_size: int
    images_per_s: dict[str, Spread]
    bound: dict[str, Spread]
    claims: list[Claim]
    placements: dict[str, str]
    slices: list[Slice]
    calibration: list[Slice]

    def show(self) -> str:
        """Write both tables."""
        speeds = [
            [
                name,
                self.placements[name],
                speed.show(0),
                f"{1e6 / speed.median:.0f}",
                f"{self.bound[name].median:.0f}" if name in self.bound else "",
            ]
            for name, speed in self.images_per_s.items()
        ]
        claims = [claim.show() for claim in self.claims]
        heading = ["contender", "replicas x threads", "images/s [quartiles]", "us an image", "bound, images/s"]
        return (
            f"order {self.order}, batches of {self.batch_size}\n\n{harness.table(heading, speeds)}\n\n"
            f"{harness.table(['ratio', 'median [quartiles]', ''], claims)}\n"
        )


def run_case(config: Config, data: Path, order: Order, batch_size: int) -> CaseResult:
    """Build all contenders of one case, calibrate, and let them take turns."""
    source = repeated(data, config.epoch_batches * batch_size)
    recipe = rand_augment(config.size, order=order)
    timed = config.timed(batch_size)
    parts = Parts(recipe, source, batch_size=batch_size, kernels=config.kernels)
    calibrate = partial(
        harness.calibrate,
        rounds=config.calibration_rounds,
        timed_batches=config.timed(batch_size) // 2,
        timed_s=config.timed_s / 2,
    )
    partial_placement, partial_slices = calibrate(parts.partial_only)
    parts.make_partial_images(partial_placement)
    final_placement, final_slices = calibrate(parts.final_only)
    with ExitStack() as stack:

        def make(name: str, planner: Planner, placement: Placement | None = None) -> LoaderTurns:
            return LoaderTurns(stack, name, source, recipe, planner, placement=placement, kernels=config.kernels)

        loaders = [make(name, planner) for name, planner in _planners(source, batch_size)]
        if config.sweep:
            planner = Refurbish(len(source), batch_size=batch_size, reuse_factor=3, drop_last=True)
            loaders += [make(f"reuse factor 3, {each}", planner, placement=each) for each in harness.placements()]
        for loader in loaders:
            loader.settle()
        alone = [
            MadeAnew(FINAL_ONLY, partial(parts.final_only, final_placement)),
            MadeAnew(PARTIAL_ONLY, partial(parts.partial_only, partial_placement)),
        ]
        entrants = [*loaders, *alone]
        slices = harness.interleave(
            entrants,
            rounds=config.rounds,
            timed_batches=timed,
            timed_s=config.timed_s,
        )
    speeds = {each.name: harness.per_round(slices, each.name) for each in entrants}
    bounds = _bounds(speeds)
    return CaseResult(
        order=order,
        batch_size=batch_size,
        images_per_s={name: Spread.of(rounds) for name, rounds in speeds.items()},
        bound={name: Spread.of(rounds) for name, rounds in bounds.items()},
        claims=_claims(speeds, bounds, order, batch_size),
        placements={each.contender: each.placement for each in slices},
        slices=slices,
        calibration=[*partial_slices, *final_slices],
    )


def _planners(source: FileList, batch_size: int) -> list[tuple[str, Planner]]:
    count = len(source)
    refurbished = [
        (name, Refurbish(count, batch_size=batch_size, reuse_factor=reuse_factor, drop_last=True))
        for name, reuse_factor in REUSE_FACTORS.items()
        if name != STANDARD
    ]
    standard = Standard(count, batch_size=batch_size, drop_last=True)
    return [(STANDARD, standard), *refurbished, (ALL_HITS, Frozen(count, batch_size=batch_size, drop_last=True))]


def _bounds(speeds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the amortised bound in images/s for each reuse factor, one figure per round."""
    costs = [(1 / partial, 1 / final) for partial, final in zip(speeds[PARTIAL_ONLY], speeds[FINAL_ONLY], strict=True)]
    return {
        name: [1 / (partial_s / reuse_factor + final_s) for partial_s, final_s in costs]
        for name, reuse_factor in REUSE_FACTORS.items()
    }


def _claims(
    speeds: dict[str, list[float]], bounds: dict[str, list[float]], order: Order, batch_size: int
) -> list[Claim]:
    """Divide figures of one round by each other."""
    paper, bound = order == "paper", 0.95 if batch_size == 256 else None
    claims = [
        Claim.ratio(f"{name} / its bound", speeds[name], bounds[name], None if name == STANDARD else bound)
        for name in REUSE_FACTORS
    ]
    for name in (name for name in REUSE_FACTORS if name != STANDARD):
        least = (2.0 if paper else 2.3) if name == "reuse factor 3" else None
        claims.append(Claim.ratio(f"{name} / {STANDARD}", speeds[name], speeds[STANDARD], least))
    hits, final = speeds[ALL_HITS], speeds[FINAL_ONLY]
    claims.append(Claim.ratio(f"{ALL_HITS} / {FINAL_ONLY}", hits, final, bound))
    overhead = [1e6 / hit - 1e6 / alone for hit, alone in zip(hits, final, strict=True)]
    claims.append(Claim(f"{ALL_HITS} - {FINAL_ONLY}, us an image", Spread.of(overhead)))
    return claims


def main() -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args()
    data: Path = options.data
    config = _config(options)
    command.check_photographs(data)
    harness.keep_memory()
    environment = harness.environment()
    results = []
    for order in config.orders:
        for batch_size in config.batch_sizes:
            results.append(run_case(config, data, order, batch_size))
            print(results[-1].show(), flush=True)
            gc.collect()
    command.write(options, environment=environment, config=config, results=results)
    return 0


def _config(options: argparse.Namespace) -> Config:
    config = Config(options.data.resolve().name, tuple(options.order), tuple(options.batch_size or (64, 256)))
    if options.quick:
        config = replace(
            config,
            batch_sizes=tuple(options.batch_size or (8,)),
            size=48,
            epoch_batches=4,
            timed_images=16,
            timed_batches=2,
            timed_s=0,
            rounds=2,
            calibration_rounds=1,
        )
    return replace(
        config,
        rounds=options.rounds or config.rounds,
        epoch_batches=options.epoch_batches or config.epoch_batches,
        sweep=options.sweep,
        kernels=options.kernels,
    )


def _parser() -> argparse.ArgumentParser:
    parser = command.arguments("Compare the loader with the amortised bound.", result="throughput.json", rounds=5)
    parser.add_argument("--order", nargs="+", choices=get_args(Order), default=get_args(Order))
    parser.add_argument("--batch-size", nargs="+", type=int, help="64 256 by default")
    parser.add_argument("--epoch-batches", type=int, help="batches of an epoch, 60 by default")
    parser.add_argument("--kernels", choices=get_args(Kernels), help="Numba's by default, if it is installed")
    parser.add_argument("--sweep", action="store_true", help="also run reuse factor 3 at every replicas x threads")
    return parser


if __name__ == "__main__":
    sys.exit(main())
