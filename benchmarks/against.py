"""How fast is it beside what else there is? Images/s of every loader that runs here, at reuse factors 1 to 5.

Claims, on 2 cores:
    standard at least 1.8 times stock DALI with nearest interpolation, 2.5 times stock DALI as it comes, and 2.0 times
    the better of PyTorch's DataLoaders;
    refurbished at reuse factor 3, in the paper's order, at least 4, 6 and 5 times these; more with the crop last.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 4 rounds (`--rounds`), each a slice of every contender in turn, 10 batches of 256 timed in each.

Like for like: the same files from the page cache; decode, random resized crop of 0.08 .. 1 of the area with
anti-aliasing, flip, two layers of RandAugment of magnitude 9 with nearest interpolation but where a row says default,
float32 (256, 3, 224, 224), normalised. The consumer does nothing. Each competitor runs as was fastest for it in a
calibration; our loaders run as they come, are made anew for each slice, and serve an epoch before it. Competitors with
an environment of their own (competitors/build.py) are processes that take turns with the others and rest between;
without it the suite runs on what is there.

    python benchmarks/competitors/build.py              once, minutes
    python benchmarks/against.py                        about twenty minutes on 2 cores
    python benchmarks/against.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import stock_dali
import workers
from claims import Claim, Spread, claim_table, say, table_of
from competitors.rows import Job
from experiment import Experiment, Options
from harness import Contender, Slice
from loaders import STANDARD, LoaderTurns, Loading, default_placement, for_all_replicas, reuse

from dalirefurb import FileList
from dalirefurb.augment.presets import Order

DATA_LOADER = "DataLoader"


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        reuse_factors: Of our loaders, beside standard.
        orders: Of the recipe's stages.
        timed_batches: Of a slice.
        calibration_batches: Timed at each setting of a competitor.
        calibration_rounds: Of stock DALI, whose two settings are nearly as fast.
    """

    reuse_factors: tuple[int, ...] = (2, 3, 4, 5)
    orders: tuple[Order, ...] = ("paper", "crop_last")
    timed_batches: int = 10
    calibration_batches: int = 4
    calibration_rounds: int = 3


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Calibrate the competitors, and let all take turns."""
    source = config.source(options.data)
    there = workers.available(options.competitors)
    calibration: list[Slice] = []
    with ExitStack() as stack:
        entrants = our_loaders(stack, config, source)
        loaders = [loader for loader, *_ in entrants]
        for nearest in (True, False):
            contender = _stock_dali(config, source, nearest, calibration)
            stack.callback(contender.batches.close)
            entrants.append((contender, str(contender.placement), None, 1))
        for row, settings in there.settings.items():
            worker = _worker(config, source, row, settings, calibration)
            stack.callback(worker.close)
            entrants.append((worker, worker.setting, None, 1))
        for loader in loaders:
            loader.settle()
        timed = for_all_replicas(config.timed_batches)
        slices = harness.interleave([each for each, *_ in entrants], rounds=config.rounds, timed_batches=timed)
    speeds, judged = harness.speeds_of(slices), claims(slices)
    competitors = [
        {
            "name": each.name,
            "setting": setting,
            "ours": order is not None,
            "order": order,
            "reuse_factor": factor,
            "images_per_s": Spread.of(speeds[each.name]),
        }
        for each, setting, order, factor in entrants
    ]
    say(
        table_of(competitors, {"loader": "{name}", "setting": "{setting}", "images/s [quartiles]": "{images_per_s:0}"}),
        claim_table(judged),
        *(f"left out: {name}: {reason}" for name, reason in there.missing.items()),
    )
    return {
        "competitors": competitors,
        "claims": judged,
        "missing": there.missing,
        "versions": there.versions,
        "slices": slices,
        "calibration": calibration,
    }


def our_loaders(stack: ExitStack, config: Config, source: FileList) -> list[tuple[Any, str, Order | None, int]]:
    """Make standard once, and every reuse factor in every order; return also setting, order and reuse factor."""
    planners = config.planners(*config.reuse_factors, drop_last=True)

    def made(name: str, order: Order, factor: int) -> tuple[Any, str, Order | None, int]:
        planner = planners[reuse(factor) if factor > 1 else STANDARD]
        turns = LoaderTurns(stack, name, source, config.recipe(order), planner)
        return turns, str(default_placement()), order, factor

    return [
        made(STANDARD, config.orders[0], 1),
        *(made(ours_name(order, factor), order, factor) for order in config.orders for factor in config.reuse_factors),
    ]


def ours_name(order: Order, reuse_factor: int) -> str:
    """Name a loader of ours."""
    return f"{reuse(reuse_factor)}, {'paper' if order == 'paper' else 'crop last'}"


def claims(slices: Sequence[Slice]) -> list[Claim]:
    """Divide figures of one round by each other; what did not run is left out."""
    speeds = harness.speeds_of(slices)
    loaders = [name for name in speeds if name.startswith(DATA_LOADER)]
    better = "the better DataLoader"
    of_all = {**speeds, better: np.max([speeds[name] for name in loaders], axis=0).tolist()} if loaders else speeds
    rivals = [name for name in (stock_dali.NEAREST, stock_dali.DEFAULT, better) if name in of_all]
    refurbished, crop_last = ours_name("paper", 3), ours_name("crop_last", 3)
    least = {STANDARD: (1.8, 2.5, 2.0), refurbished: (4.0, 6.0, 5.0)}
    made = [
        Claim.between(of_all, name, rival, promised)
        for name, promises in least.items()
        if name in speeds
        for rival, promised in zip(rivals, promises, strict=False)
    ]
    if {crop_last, refurbished} <= set(speeds):
        made.append(Claim.between(speeds, crop_last, refurbished, 1.0))
    named = {STANDARD, *rivals, *loaders}
    others = [name for name in speeds if name not in named and not name.startswith("reuse factor")]
    return made + [Claim.between(speeds, STANDARD, name) for name in sorted(others)]


def _stock_dali(config: Config, source: FileList, nearest: bool, calibration: list[Slice]) -> Contender:
    at = partial(stock_dali.stock, config, source, nearest=nearest)
    best, slices = harness.calibrate(
        at, rounds=config.calibration_rounds, timed_batches=config.calibration_batches, among=stock_dali.placements()
    )
    calibration += slices
    return at(best)


def _worker(
    config: Config,
    source: FileList,
    row: str,
    settings: Sequence[tuple[dict[str, object], int]],
    calibration: list[Slice],
) -> workers.WorkerTurns:
    """Return a competitor at the setting that was fastest in a turn of each."""
    files, labels = [source.name(index) for index in range(len(source))], [int(label) for label in source.labels]
    best, most = None, 0.0
    for setting, made_ahead in settings:
        tried = workers.WorkerTurns(Job(row, files, labels, config.size, config.batch_size, setting), made_ahead)
        try:
            (taken,) = harness.interleave([tried], rounds=1, timed_batches=config.calibration_batches)
        finally:
            tried.close()
        calibration.append(taken)
        if taken.images_per_s > most:
            best, most = tried, taken.images_per_s
    assert best is not None
    return best


EXPERIMENT = Experiment(
    measure,
    Config(epoch_batches=20, rounds=4),
    quick=Config(
        layers=0,
        size=48,
        batch_size=8,
        epoch_batches=4,
        rounds=1,
        reuse_factors=(3,),
        orders=("paper",),
        timed_batches=2,
        calibration_batches=2,
        calibration_rounds=1,
    ),
    options={
        "--competitors": {"type": Path, "default": workers.PYTHON, "help": "Python of the environment they are in"}
    },
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
