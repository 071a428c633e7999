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

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import command
import harness
import numpy as np
import stock_dali
import workers
from competitors.rows import Job
from harness import Claim, Contender, Entrant, Placement, Slice, Spread
from loaders import LoaderTurns, default_placement, layered, repeated

from dalirefurb import FileList, Refurbish, Standard
from dalirefurb.augment.presets import Order
from dalirefurb.planning.planner import Planner

STANDARD = "standard"
DATA_LOADER = "DataLoader"


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set; its images are repeated to fill an epoch.
        reuse_factors: Of our loaders, beside standard.
        orders: Of the recipe's stages.
        layers: Of RandAugment.
        size: Side of the images, in pixels.
        batch_size: Images of a batch.
        epoch_batches: Batches of an epoch.
        timed_batches: Of a slice.
        rounds: Slices of each contender.
        calibration_batches: Timed at each setting of a competitor.
        calibration_rounds: Of stock DALI, whose two settings are nearly as fast.
    """

    data: str
    reuse_factors: tuple[int, ...] = (2, 3, 4, 5)
    orders: tuple[Order, ...] = ("paper", "crop_last")
    layers: int = 2
    size: int = 224
    batch_size: int = 256
    epoch_batches: int = 20
    timed_batches: int = 10
    rounds: int = 4
    calibration_batches: int = 4
    calibration_rounds: int = 3


@dataclass(frozen=True)
class Competitor:
    """A row of the table.

    Attributes:
        name: As in the slices.
        setting: Replicas x threads, or what it was set to.
        ours: Whether it is a loader of this library.
        order: Of the recipe's stages, where it is ours.
        reuse_factor: 1 where nothing is reused.
        images_per_s: Throughput over the rounds.
    """

    name: str
    setting: str
    ours: bool
    order: Order | None
    reuse_factor: int
    images_per_s: Spread


@dataclass(frozen=True)
class Results:
    """Everything that was measured.

    Attributes:
        competitors: One each, ours included.
        claims: Ratios of images/s of one round.
        missing: What could not run, and why.
        versions: Of the competitors' packages.
        slices: Every slice of every round.
        calibration: Slices at every setting that was tried.
    """

    competitors: list[Competitor]
    claims: list[Claim]
    missing: dict[str, str]
    versions: dict[str, str | None]
    slices: list[Slice]
    calibration: list[Slice]

    def show(self) -> str:
        """Write both tables."""
        rows = [[each.name, each.setting, each.images_per_s.show(0)] for each in self.competitors]
        return (
            f"{harness.table(['loader', 'setting', 'images/s [quartiles]'], rows)}\n\n"
            f"{harness.table(['ratio', 'median [quartiles]', ''], [claim.show() for claim in self.claims])}\n"
            + "".join(f"\nleft out: {name}: {reason}" for name, reason in self.missing.items())
        )


def compare(config: Config, data: Path, python: Path) -> Results:
    """Calibrate the competitors, and let all take turns."""
    source = repeated(data, config.epoch_batches * config.batch_size)
    there = workers.available(python)
    calibration: list[Slice] = []
    with ExitStack() as stack:
        ours = {entrant.name: (entrant, order, factor) for entrant, order, factor in our_loaders(stack, config, source)}
        others: dict[str, tuple[Entrant, str]] = {}
        for nearest in (True, False):
            contender = _stock_dali(config, source, nearest, calibration)
            stack.callback(contender.batches.close)
            others[contender.name] = (contender, str(contender.placement))
        for row, settings in there.settings.items():
            entrant = _worker(config, source, row, settings, calibration)
            stack.callback(entrant.close)
            others[row] = (entrant, entrant.setting)
        for loader, _, _ in ours.values():
            loader.settle()
        entrants = [*(entrant for entrant, _, _ in ours.values()), *(entrant for entrant, _ in others.values())]
        slices = harness.interleave(entrants, rounds=config.rounds, timed_batches=_timed(config))
    competitors = [
        Competitor(name, str(default_placement()), True, order, factor, Spread.of(harness.per_round(slices, name)))
        for name, (_, order, factor) in ours.items()
    ]
    competitors += [
        Competitor(name, setting, False, None, 1, Spread.of(harness.per_round(slices, name)))
        for name, (_, setting) in others.items()
    ]
    return Results(competitors, claims(slices), there.missing, there.versions, slices, calibration)


def our_loaders(stack: ExitStack, config: Config, source: FileList) -> list[tuple[LoaderTurns, Order, int]]:
    """Make standard once, and every reuse factor in every order."""
    count, batch_size = len(source), config.batch_size

    def turns(name: str, order: Order, planner: Planner) -> LoaderTurns:
        recipe = layered(config.size, config.layers, order)
        return LoaderTurns(stack, name, source, recipe, planner)

    first = config.orders[0]
    standard = Standard(count, batch_size=batch_size, drop_last=True)
    made = [(turns(STANDARD, first, standard), first, 1)]
    for order in config.orders:
        for factor in config.reuse_factors:
            planner = Refurbish(count, batch_size=batch_size, reuse_factor=factor, drop_last=True)
            made.append((turns(ours_name(order, factor), order, planner), order, factor))
    return made


def ours_name(order: Order, reuse_factor: int) -> str:
    """Name a loader of ours."""
    return f"reuse factor {reuse_factor}, {'paper' if order == 'paper' else 'crop last'}"


def claims(slices: Sequence[Slice]) -> list[Claim]:
    """Divide figures of one round by each other; what did not run is left out."""
    speeds = {name: harness.per_round(slices, name) for name in {each.contender for each in slices}}
    rivals: dict[str, list[float]] = {
        name: speeds[name] for name in (stock_dali.NEAREST, stock_dali.DEFAULT) if name in speeds
    }
    loaders = [speeds[name] for name in speeds if name.startswith(DATA_LOADER)]
    if loaders:
        rivals["the better DataLoader"] = np.max(loaders, axis=0).tolist()
    refurbished = ours_name("paper", 3)
    least = {STANDARD: (1.8, 2.5, 2.0), refurbished: (4.0, 6.0, 5.0)}
    made = [
        Claim.ratio(f"{name} / {rival}", speeds[name], speeds_of_rival, promised)
        for name, promises in least.items()
        if name in speeds
        for (rival, speeds_of_rival), promised in zip(rivals.items(), promises, strict=False)
    ]
    crop_last = ours_name("crop_last", 3)
    if {crop_last, refurbished} <= set(speeds):
        made.append(Claim.ratio(f"{crop_last} / {refurbished}", speeds[crop_last], speeds[refurbished], 1.0))
    named = {STANDARD, stock_dali.NEAREST, stock_dali.DEFAULT}
    others = [name for name in speeds if name not in named and not name.startswith((DATA_LOADER, "reuse factor"))]
    made += [Claim.ratio(f"{STANDARD} / {name}", speeds[STANDARD], speeds[name]) for name in sorted(others)]
    return made


def _stock_dali(config: Config, source: FileList, nearest: bool, calibration: list[Slice]) -> Contender:
    def at(placement: Placement) -> Contender:
        return stock_dali.stock(
            source,
            size=config.size,
            batch_size=config.batch_size,
            layers=config.layers,
            nearest=nearest,
            placement=placement,
        )

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


def _timed(config: Config) -> int:
    """Batches timed in a slice: a multiple of a loader's replicas, which finish their batches together."""
    replicas = default_placement().replicas
    return -(-config.timed_batches // replicas) * replicas


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args(arguments)
    command.check_photographs(options.data)
    harness.keep_memory()
    config, environment = _config(options), harness.environment()
    results = compare(config, options.data, options.competitors)
    print(results.show(), flush=True)
    command.write(options, environment=environment, config=config, results=results)
    return 0


def _config(options: argparse.Namespace) -> Config:
    config = Config(options.data.resolve().name)
    if options.quick:
        config = replace(
            config,
            reuse_factors=(3,),
            orders=("paper",),
            layers=0,
            size=48,
            batch_size=8,
            epoch_batches=4,
            timed_batches=2,
            rounds=1,
            calibration_batches=2,
            calibration_rounds=1,
        )
    return replace(config, rounds=options.rounds or config.rounds)


def _parser() -> argparse.ArgumentParser:
    parser = command.arguments("Compare with every other loader that runs here.", result="against.json", rounds=4)
    parser.add_argument(
        "--competitors", type=Path, default=workers.PYTHON, help="Python of the environment they are in"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
