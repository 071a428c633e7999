"""How fast is it beside what else there is? Images/s of every loader that runs here, at reuse factors 1 to 5.

Claims, on 2 cores:
    standard at least 1.8 times stock DALI with nearest interpolation, 2.5 times stock DALI as it comes, and 2.0 times
    the better of PyTorch's DataLoaders;
    refurbished at reuse factor 3, in the paper's order, at least 4, 6 and 5 times these; more with the crop last.
Bound: a reuse factor of n brings at most n times standard.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, two epochs of 8 batches of 256 timed in each.

Like for like: the same files from the page cache; decode, random resized crop of 0.08 .. 1 of the area with
anti-aliasing, flip, two layers of RandAugment of magnitude 9 with nearest interpolation but where a row says default,
float32 (256, 3, 224, 224), normalised. Slipstream and FFCV have no RandAugment: they, and loaders of ours beside them,
crop and flip alone, in rounds of their own, after the others have let go of their memory; what they write once to a
file of their own is not timed. The consumer does nothing. Each competitor runs as was fastest for it in a calibration,
whose slices are in the JSON; our loaders run as they come, are made anew for each slice, and serve an epoch before
their first. Competitors with an environment of their own (competitors/build.py) are processes that take turns with the
others and rest between; without it the suite runs on what is there.

    python benchmarks/competitors/build.py              once, minutes
    python benchmarks/against.py                        about 50 minutes on 2 cores, with 20 GB
    python benchmarks/against.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import harness
import numpy as np
import stock_dali
import workers
from claims import Claim, Spread, claim_table, say, table_of
from competitors.rows import CROP_AND_FLIP, MOSAIC, VOLUMES, WITH_MASKS, WITH_OBJECTS
from experiment import Experiment, Options
from harness import Contender, Slice
from loaders import STANDARD, LoaderTurns, Loading, default_placement, reuse

from dalirefurb import FileList, Standard, simple
from dalirefurb.augment.presets import Order
from dalirefurb.planning import Frozen

DATA_LOADER = "DataLoader"
DECODE_KEPT = "decoded images kept"
REUSE_FACTORS = (2, 3, 4, 5)

_TIMED_EPOCHS = 2

Entry = tuple[Any, str, Order | None, int]
"""An entrant, its setting, its order of stages if it is a loader of ours, and its reuse factor."""


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        reuse_factors: Of our loaders, beside standard, in the paper's order of stages.
        crop_last: Likewise, with the crop last.
        calibration_batches: Timed at each setting of a competitor, and as many more as its workers' rotation needs.
        calibration_rounds: Of stock DALI, whose two settings are nearly as fast.
    """

    reuse_factors: tuple[int, ...] = REUSE_FACTORS
    crop_last: tuple[int, ...] = (3,)
    calibration_batches: int = 4
    calibration_rounds: int = 3


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Calibrate the competitors, and let all that do the same work take turns."""
    there = workers.available(options.competitors)
    rows: dict[bool, dict[str, list[workers.Tried]]] = {True: {}, False: {}}
    for row, settings in there.settings.items():
        if row.endswith((WITH_MASKS, WITH_OBJECTS, MOSAIC, VOLUMES)):
            continue
        rows[row.endswith(CROP_AND_FLIP)][row] = settings
    compared = [take_turns(config, options, rows[False], our_loaders, (True, False))]
    if rows[True]:
        compared.append(take_turns(config, options, rows[True], crop_and_flip))
    entrants, slices, calibration = (list(chain(*each)) for each in zip(*compared, strict=True))
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


def take_turns(
    config: Config,
    options: Options,
    rows: Mapping[str, Sequence[workers.Tried]],
    make_ours: Callable[[ExitStack, Config, FileList], list[Entry]],
    stock_nearest: Sequence[bool] = (),
) -> tuple[list[Entry], list[Slice], list[Slice]]:
    """Calibrate competitors, let them and loaders of ours take turns, and let go of all of them.

    Args:
        config: Sizes.
        options: Of the command line.
        rows: Competitors with an environment of their own, and the settings that are tried.
        make_ours: Makes our loaders.
        stock_nearest: For each of stock DALI's contenders, whether its interpolation is nearest.

    Returns:
        Whoever took turns, the slices, and those of the calibration.
    """
    source = config.source(options.data)
    calibration: list[Slice] = []
    with ExitStack() as stack:
        entrants = make_ours(stack, config, source)
        loaders = [loader for loader, *_ in entrants]
        for nearest in stock_nearest:
            contender = _stock_dali(config, source, nearest, calibration)
            stack.callback(contender.batches.close)
            entrants.append((contender, str(contender.placement), None, 1))
        made = workers.calibrated(stack, source, rows, config.size, config, options.competitors, calibration)
        entrants += [(worker, worker.setting, None, 1) for worker in made]
        for loader in loaders:
            loader.settle()
        timed = _TIMED_EPOCHS * config.epoch_batches
        slices = harness.interleave([each for each, *_ in entrants], rounds=config.rounds, timed_batches=timed)
    return entrants, slices, calibration


def our_loaders(stack: ExitStack, config: Config, source: FileList) -> list[Entry]:
    """Make standard once, and every reuse factor of each order; return also setting, order and reuse factor."""
    orders: dict[Order, tuple[int, ...]] = {"paper": config.reuse_factors, "crop_last": config.crop_last}
    planners = config.planners(*{*config.reuse_factors, *config.crop_last}, drop_last=True)

    def made(name: str, order: Order, factor: int) -> Entry:
        planner = planners[reuse(factor) if factor > 1 else STANDARD]
        turns = LoaderTurns(stack, name, source, config.recipe(order), planner)
        return turns, str(default_placement()), order, factor

    return [
        made(STANDARD, "paper", 1),
        *(made(ours_name(order, factor), order, factor) for order, factors in orders.items() for factor in factors),
    ]


def crop_and_flip(stack: ExitStack, config: Config, source: FileList) -> list[Entry]:
    """Make what is compared with those that have no RandAugment: standard, and decoded images kept for ever."""
    recipe, count, size = simple(config.size), config.samples, config.batch_size
    compared = {
        STANDARD: (recipe, Standard(count, batch_size=size, drop_last=True)),
        DECODE_KEPT: (recipe.at(1), Frozen(count, batch_size=size, drop_last=True)),
    }
    return [
        (LoaderTurns(stack, f"{name}, {CROP_AND_FLIP}", source, *both), str(default_placement()), "paper", 1)
        for name, both in compared.items()
    ]


def ours_name(order: Order, reuse_factor: int) -> str:
    """Name a loader of ours."""
    return f"{reuse(reuse_factor)}, {'paper' if order == 'paper' else 'crop last'}"


def claims(slices: Sequence[Slice]) -> list[Claim]:
    """Divide figures of one round by each other; what did not run is left out."""
    speeds = harness.speeds_of(slices)
    loaders = [name for name in speeds if name.startswith(DATA_LOADER) and not name.endswith(CROP_AND_FLIP)]
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
    reused = {ours_name("paper", factor): factor for factor in REUSE_FACTORS}
    made += [Claim.between(speeds, name, STANDARD, bound=n) for name, n in reused.items() if name in speeds]
    named = {STANDARD, *rivals, *loaders}
    ours = (STANDARD, DECODE_KEPT, "reuse factor")
    others = [name for name in speeds if name not in named and not name.startswith(ours)]
    for name in sorted(others):
        kind = f", {CROP_AND_FLIP}" if name.endswith(CROP_AND_FLIP) else ""
        made.append(Claim.between(speeds, STANDARD + kind, name))
        if kind:
            made.append(Claim.between(speeds, DECODE_KEPT + kind, name))
    return made


def _stock_dali(config: Config, source: FileList, nearest: bool, calibration: list[Slice]) -> Contender:
    at = partial(stock_dali.stock, config, source, nearest=nearest)
    best, slices = harness.calibrate(
        at, rounds=config.calibration_rounds, timed_batches=config.calibration_batches, among=stock_dali.placements()
    )
    calibration += slices
    return at(best)


EXPERIMENT = Experiment(
    measure,
    Config(epoch_batches=8, rounds=5),
    quick=Config(
        layers=0,
        size=48,
        batch_size=8,
        epoch_batches=4,
        rounds=1,
        reuse_factors=(3,),
        crop_last=(),
        calibration_batches=2,
        calibration_rounds=1,
    ),
    options=workers.OPTION,
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
