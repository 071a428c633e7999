"""How much of what reuse can give does the loader reach? Images/s against the amortised bound.

Claims, on any machine:
    at reuse factors 2, 3 and 4 at least 0.90 of the amortised bound, in batches of 256;
    with every sample a hit at least 0.95 of the final part alone, likewise;
    at reuse factor 3 at least 2.0 times our own standard in the paper's order, 2.3 times with the crop last.
Bound: the amortised one; and a reuse factor of n brings at most n times standard.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, at least 4,096 images and 2 s timed in each.

The amortised bound is c_P / reuse factor + c_F seconds an image, where c_P is the cost of reading, decoding and the
partial part, c_F that of the final part. They are the least that was seen in the same round: c_F of the final part by
itself, with nothing around it, and of a loader of which every sample is a hit; c_P + c_F of both parts by themselves,
and of standard. Parts run at the replicas x threads that were fastest for them in a calibration, loaders at their
default. The consumer does nothing (headspace). All are made anew for each slice, but for the stores, in the memory that
the one before let go. What only writes to memory can take 1.7 times as long for a minute, on a virtual machine whose
cores are moved; so the final part alone comes right after the loader that does little else. Figures are medians of
per-round ratios, with quartiles.

    python benchmarks/throughput.py                        about 30 minutes on 2 cores
"""

from __future__ import annotations

import gc
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import harness
from claims import Claim, Speeds, Spread, claim_table, say, table
from experiment import Experiment, Options
from harness import MadeAnew
from loaders import STANDARD, LoaderTurns, planners, reuse
from parts import FINAL_ONLY, PARTIAL_ONLY, Parts, both, bound, fastest
from sources import repeated

from dalirefurb import rand_augment
from dalirefurb.augment.presets import Order
from dalirefurb.engine.kernel_choice import Kernels
from dalirefurb.planning import Frozen

ALL_HITS = "every sample a hit"
LEAST_OF_BOUND, LEAST_OF_FINAL = 0.90, 0.95
REUSE_FACTORS = {STANDARD: 1, **{reuse(factor): factor for factor in (2, 3, 4)}}


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
        kernels: Of loaders and parts; None: Numba's if it is installed.
    """

    data: str = ""
    orders: tuple[Order, ...] = get_args(Order)
    batch_sizes: tuple[int, ...] = (64, 256)
    size: int = 224
    epoch_batches: int = 60
    timed_images: int = 4096
    timed_batches: int = 16
    timed_s: float = 2.0
    rounds: int = 5
    calibration_rounds: int = 2
    kernels: Kernels | None = None

    def timed(self, batch_size: int) -> int:
        """Batches timed in a slice."""
        return max(self.timed_batches, self.timed_images // batch_size)


def run_case(config: Config, data: Path, order: Order, batch_size: int) -> dict[str, Any]:
    """Build all contenders of one order at one batch size, calibrate, and let them take turns."""
    source = repeated(data, config.epoch_batches * batch_size)
    recipe = rand_augment(config.size, order=order)
    timed = config.timed(batch_size)
    parts = Parts(recipe, source, batch_size=batch_size, kernels=config.kernels)
    partial_placement, final_placement, calibration = parts.calibrate(
        rounds=config.calibration_rounds, timed_batches=timed // 2, timed_s=config.timed_s / 2
    )
    with ExitStack() as stack:
        plans = planners(len(source), batch_size, (2, 3, 4), drop_last=True)
        plans[ALL_HITS] = Frozen(len(source), batch_size=batch_size, drop_last=True)
        loaders = [
            LoaderTurns(stack, name, source, recipe, planner, kernels=config.kernels) for name, planner in plans.items()
        ]
        for loader in loaders:
            loader.settle()
        alone = [
            MadeAnew(FINAL_ONLY, partial(parts.final_only, final_placement)),
            MadeAnew(PARTIAL_ONLY, partial(parts.partial_only, partial_placement)),
        ]
        slices = harness.interleave(
            [*loaders, *alone], rounds=config.rounds, timed_batches=timed, timed_s=config.timed_s
        )
    speeds = harness.speeds_of(slices)
    whole = fastest(both(speeds[PARTIAL_ONLY], speeds[FINAL_ONLY]), speeds[STANDARD])
    final = fastest(speeds[FINAL_ONLY], speeds[ALL_HITS])
    bounds = {name: bound(whole, final, 1 / n) for name, n in REUSE_FACTORS.items()}
    case: dict[str, Any] = {
        "order": order,
        "batch_size": batch_size,
        "images_per_s": {name: Spread.of(rounds) for name, rounds in speeds.items()},
        "bound": {name: Spread.of(rounds) for name, rounds in bounds.items()},
        "claims": claims(speeds, bounds, order, batch_size),
        "placements": {each.contender: each.placement for each in slices},
        "slices": slices,
        "calibration": calibration,
    }
    say(f"order {order}, batches of {batch_size}", _table(case), claim_table(case["claims"]))
    return case


def claims(speeds: Speeds, bounds: Speeds, order: Order, batch_size: int) -> list[Claim]:
    """Divide figures of one round by each other."""
    held = batch_size == 256
    refurbished = [name for name in REUSE_FACTORS if name != STANDARD]
    least = LEAST_OF_BOUND if held else None
    made = [Claim.possible(f"{name} / its bound", speeds[name], bounds[name], least) for name in refurbished]
    gains = {reuse(3): 2.0 if order == "paper" else 2.3}
    made += [Claim.between(speeds, name, STANDARD, gains.get(name), bound=REUSE_FACTORS[name]) for name in refurbished]
    made.append(Claim.between(speeds, ALL_HITS, FINAL_ONLY, LEAST_OF_FINAL if held else None))
    overhead = [1e6 / hit - 1e6 / final for hit, final in zip(speeds[ALL_HITS], speeds[FINAL_ONLY], strict=True)]
    return [*made, Claim(f"{ALL_HITS} - {FINAL_ONLY}, us an image", Spread.of(overhead))]


def _table(case: dict[str, Any]) -> str:
    heading = ["contender", "replicas x threads", "images/s [quartiles]", "us an image", "bound, images/s"]
    rows = [
        [
            name,
            case["placements"][name],
            f"{speed:0}",
            f"{1e6 / speed.median:.0f}",
            f"{case['bound'][name].median:.0f}" if name in case["bound"] else "",
        ]
        for name, speed in case["images_per_s"].items()
    ]
    return table(heading, rows)


def measure(config: Config, options: Options) -> list[dict[str, Any]]:
    """Run every order at every batch size."""
    cases = []
    for order in config.orders:
        for batch_size in config.batch_sizes:
            cases.append(run_case(config, options.data, order, batch_size))
            gc.collect()
    return cases


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(
        batch_sizes=(8,),
        size=48,
        epoch_batches=4,
        timed_images=16,
        timed_batches=2,
        timed_s=0,
        rounds=2,
        calibration_rounds=1,
    ),
    options={
        "--order": {"dest": "orders", "nargs": "+", "choices": get_args(Order), "help": "both by default"},
        "--batch-size": {"dest": "batch_sizes", "nargs": "+", "type": int, "help": "64 256 by default"},
        "--epoch-batches": {"type": int, "help": "batches of an epoch, 60 by default"},
        "--kernels": {"choices": get_args(Kernels), "help": "Numba's by default, if it is installed"},
    },
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
