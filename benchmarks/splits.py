"""Where should a recipe split? Images/s and kept diversity at every place, as figure 12 of Revamper sweeps it.

Claim, on any machine: none; the preset's own split is marked, and each is compared with standard of the same round.
n: 3 rounds (`--rounds`), each a slice of every split in turn, 12 batches of 256 timed in each.

The later the split, the more is cached and the less is drawn anew: with everything in the partial part an image is
served again as it was. The consumer does nothing.

    python benchmarks/splits.py                        about five minutes on 2 cores
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import harness
from claims import Claim, Spread, say, table
from experiment import Experiment, Options
from loaders import STANDARD, LoaderTurns, Loading

from dalirefurb.augment.presets import Order


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        orders: Of the recipe's stages.
        reuse_factor: At every split.
        timed_batches: Of a slice.
    """

    orders: tuple[Order, ...] = ("paper", "crop_last")
    reuse_factor: int = 3
    timed_batches: int = 12


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Let every split of every order take turns with standard."""
    source = config.source(options.data)
    standard, refurbish = config.planners(config.reuse_factor).values()
    recipes = {
        f"{'paper' if order == 'paper' else 'crop last'}, {split} partial": (order, config.recipe(order), split)
        for order in config.orders
        for split in range(1, len(config.recipe(order).stages) + 1)
    }
    with ExitStack() as stack:
        turns = [LoaderTurns(stack, STANDARD, source, config.recipe(), standard)]
        turns += [
            LoaderTurns(stack, name, source, preset.at(split), refurbish)
            for name, (_, preset, split) in recipes.items()
        ]
        for each in turns:
            each.settle()
        slices = harness.interleave(turns, rounds=config.rounds, timed_batches=config.timed_batches)
    speeds = harness.speeds_of(slices)
    splits: list[dict[str, Any]] = [
        {
            "name": name,
            "order": order,
            "partial": [stage.name for stage in preset.stages[:split]],
            "final": [stage.name for stage in preset.stages[split:]],
            "preset": split == len(preset.partial),
            "diversity": preset.at(split).diversity(config.reuse_factor),
            "images_per_s": Spread.of(speeds[name]),
        }
        for name, (order, preset, split) in recipes.items()
    ]
    claims = [Claim.between(speeds, each["name"], STANDARD) for each in splits]
    results = {"standard": Spread.of(speeds[STANDARD]), "splits": splits, "claims": claims, "slices": slices}
    rows = [[STANDARD, "", f"{results['standard']:0}", "", "1.00"]]
    for row, claim in zip(splits, claims, strict=True):
        mark = "preset" if row["preset"] else ""
        rows.append([row["name"], mark, f"{row['images_per_s']:0}", f"{claim.figure:2}", f"{row['diversity']:.2f}"])
    say(table(["split", "", "images/s [quartiles]", "of standard", "diversity"], rows))
    return results


EXPERIMENT = Experiment(
    measure,
    Config(epoch_batches=12, rounds=3),
    quick=Config(layers=0, size=32, batch_size=8, epoch_batches=3, rounds=1, orders=("paper",), timed_batches=2),
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
