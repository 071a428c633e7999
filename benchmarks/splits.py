"""Where should a recipe split? Images/s and kept diversity at every place, as figure 12 of Revamper sweeps it.

Claim, on any machine: none; the preset's own split is marked, and each is compared with standard of the same round.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 3 rounds (`--rounds`), each a slice of every split in turn, 12 batches of 256 timed in each.

The later the split, the more is cached and the less is drawn anew: with everything in the partial part an image is
served again as it was. The consumer does nothing.

    python benchmarks/splits.py                        about five minutes on 2 cores
    python benchmarks/splits.py --quick --out q.json   seconds; its figures mean nothing
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
from harness import Claim, Slice, Spread
from loaders import LoaderTurns, layered, repeated

from dalirefurb import Refurbish, Standard
from dalirefurb.augment.presets import Order

STANDARD = "standard"


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set; its images are repeated to fill an epoch.
        orders: Of the recipe's stages.
        reuse_factor: At every split.
        layers: Of RandAugment.
        size: Side of the images, in pixels.
        batch_size: Images of a batch.
        epoch_batches: Batches of an epoch.
        timed_batches: Of a slice.
        rounds: Slices of each split.
    """

    data: str
    orders: tuple[Order, ...] = ("paper", "crop_last")
    reuse_factor: int = 3
    layers: int = 2
    size: int = 224
    batch_size: int = 256
    epoch_batches: int = 12
    timed_batches: int = 12
    rounds: int = 3


@dataclass(frozen=True)
class Split:
    """One place to split at.

    Attributes:
        name: As in the slices.
        order: Of the recipe's stages.
        partial: Names of the partial stages.
        final: Names of the final stages.
        preset: Whether it is where the preset splits.
        diversity: Share of standard's different images that it keeps.
        images_per_s: Throughput over the rounds.
    """

    name: str
    order: Order
    partial: list[str]
    final: list[str]
    preset: bool
    diversity: float
    images_per_s: Spread


@dataclass(frozen=True)
class Results:
    """Everything that was measured.

    Attributes:
        standard: Images/s of standard over the rounds.
        splits: One each.
        claims: Images/s of each divided by standard's, of one round.
        slices: Every slice of every round.
    """

    standard: Spread
    splits: list[Split]
    claims: list[Claim]
    slices: list[Slice]

    def show(self) -> str:
        """Write the table."""
        rows = [["standard", "", self.standard.show(0), "", "1.00"]]
        for each, claim in zip(self.splits, self.claims, strict=True):
            mark = "preset" if each.preset else ""
            rows.append([each.name, mark, each.images_per_s.show(0), claim.figure.show(2), f"{each.diversity:.2f}"])
        return harness.table(["split", "", "images/s [quartiles]", "of standard", "diversity"], rows)


def sweep(config: Config, data: Path) -> Results:
    """Let every split of every order take turns with standard."""
    count = config.epoch_batches * config.batch_size
    source = repeated(data, count)
    planner = Refurbish(count, batch_size=config.batch_size, reuse_factor=config.reuse_factor)
    recipes = [
        (order, preset, preset.at(split))
        for order in config.orders
        for preset in [layered(config.size, config.layers, order)]
        for split in range(1, len(preset.stages) + 1)
    ]
    with ExitStack() as stack:
        standard = Standard(count, batch_size=config.batch_size)
        turns = [LoaderTurns(stack, STANDARD, source, layered(config.size, config.layers), standard)]
        for order, _, recipe in recipes:
            turns.append(LoaderTurns(stack, _name(order, len(recipe.partial)), source, recipe, planner))
        for each in turns:
            each.settle()
        slices = harness.interleave(turns, rounds=config.rounds, timed_batches=config.timed_batches)
    splits, claims = [], []
    for order, preset, recipe in recipes:
        name = _name(order, len(recipe.partial))
        speeds = harness.per_round(slices, name)
        splits.append(
            Split(
                name,
                order,
                [stage.name for stage in recipe.partial],
                [stage.name for stage in recipe.final],
                len(recipe.partial) == len(preset.partial),
                recipe.diversity(config.reuse_factor),
                Spread.of(speeds),
            )
        )
        claims.append(Claim.ratio(f"{name} / {STANDARD}", speeds, harness.per_round(slices, STANDARD)))
    return Results(Spread.of(harness.per_round(slices, STANDARD)), splits, claims, slices)


def _name(order: Order, partial: int) -> str:
    return f"{'paper' if order == 'paper' else 'crop last'}, {partial} partial"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args(arguments)
    command.check_photographs(options.data)
    harness.keep_memory()
    config, environment = _config(options), harness.environment()
    results = sweep(config, options.data)
    print(results.show(), flush=True)
    command.write(options, environment=environment, config=config, results=results)
    return 0


def _config(options: argparse.Namespace) -> Config:
    config = Config(options.data.resolve().name)
    if options.quick:
        config = replace(
            config, orders=("paper",), layers=0, size=32, batch_size=8, epoch_batches=3, timed_batches=2, rounds=1
        )
    return replace(config, rounds=options.rounds or config.rounds)


def _parser() -> argparse.ArgumentParser:
    return command.arguments("Compare every place to split a recipe at.", result="splits.json", rounds=3)


if __name__ == "__main__":
    sys.exit(main())
