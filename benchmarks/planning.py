"""What does deciding cost? Planning a batch, and drawing all parameters, of ten thousand to ten billion samples.

Claims, on any machine, for batches of 1,024 rows at every size:
    Standard and Refurbish plan the next batch in at most 150 us with compiled random orders, 500 us with NumPy's;
    planning takes at most 20 MB;
    the largest size takes at most 1.5 times as long a batch as the smallest;
    an epoch's first batch takes at most 300 us more than the next one, but with echoes, which fill a buffer there;
    drawing takes at most 2 us a sample, and at the largest size at most 1.1 times as long as at the smallest.
Machine: the one it runs on, one core; its model and versions are in the JSON.
n: 5 rounds, in each the median of 30 batches, and of 20 chunks drawn; p99 and p50 of time per batch over 3 epochs.

Neither touches data, DALI or torch. The memory is the rise of the process's own peak (VmHWM), in a fresh process.

    python benchmarks/planning.py                        three minutes
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from claims import Claim, Spread, claim_table, say, table_of
from experiment import Experiment, Options

from dalirefurb import Echo, Refurbish, SmartCache, Standard, rand_augment, rng
from dalirefurb.augment.stage import draw
from dalirefurb.planning import BatchEcho, Frozen
from dalirefurb.planning.planner import Planner

_HEIGHT, _WIDTH = 375, 500
"""Of the images in pixels, as ImageNet's are on average."""

_MOST_US = {"compiled": 150, "NumPy": 500}


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        sizes: Samples, smallest first.
        tail_samples: Samples where three epochs are planned in sequence.
        batch_size: Of the plans of a process, and samples drawn for at once.
        rounds: In each, all planners and sizes take turns.
        batches: Of each kind, planned in a round.
        chunks: Drawn in a round at each size, of samples at the end of the data set.
    """

    sizes: tuple[int, ...] = (10_000, 1_000_000, 1_281_167, 100_000_000, 10_000_000_000)
    tail_samples: int = 1_281_167
    batch_size: int = 1024
    rounds: int = 5
    batches: int = 30
    chunks: int = 20

    def planners(self, num_samples: int) -> dict[str, Planner]:
        """Make every planner of so many samples."""
        rows, ranks = self.batch_size, 8
        standard = Standard(num_samples, batch_size=rows)
        sharded = Refurbish(num_samples, batch_size=ranks * rows, shards=ranks, reuse_factor=3)
        window = num_samples // 2 // rows * rows
        return {
            "Standard": standard,
            "Refurbish": Refurbish(num_samples, batch_size=rows, reuse_factor=3),
            "Refurbish, rank 3 of 8": sharded.for_rank(rank=3, world_size=ranks),
            "SmartCache": SmartCache(num_samples, batch_size=rows, num_cache_objects=window, replace_percent=0.1),
            "Frozen": Frozen(num_samples, batch_size=rows),
            "Echo": Echo(standard, echoing_factor=1.5, buffer_size=4 * rows),
            "BatchEcho": BatchEcho(standard, echoing_factor=1.5, buffer_size=4),
        }

    def asked(self, planner: Planner, number: int) -> dict[str, list[tuple[int, int]]]:
        """Choose which batches of which epochs a round plans: one after the other, any, and epochs' first ones."""
        random, count = np.random.default_rng(number), range(self.batches)
        epochs, batches = random.integers(1, 1000, self.batches), random.integers(0, len(planner), self.batches)
        epoch, batch = int(epochs[0]), int(batches[0])
        return {
            "next": [(epoch + more, rest) for more, rest in (divmod(batch + each, len(planner)) for each in count)],
            "any": list(zip(epochs.tolist(), batches.tolist(), strict=True)),
            "first": [(epoch + each, 0) for each in count],
        }


def plan_us(planner: Planner, asked: Iterable[tuple[int, int]]) -> list[float]:
    """Plan batches of epochs; return the microseconds of each."""
    figures = []
    for epoch, batch in asked:
        began = time.perf_counter()
        planner.plan(epoch, batch)
        figures.append(1e6 * (time.perf_counter() - began))
    return figures


def plan_mb(config: Config, name: str, num_samples: int) -> float:
    """Plan in a fresh process, with NumPy's random orders; return by how many MB its peak memory rises."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_rise_mb, (config, name, num_samples))


def draw_us(*, rows: int, chunks: int, first: int) -> list[float]:
    """Draw every parameter for chunks of `rows` samples from `first` on; return microseconds a sample of each chunk."""
    recipe, figures = rand_augment(), []
    for chunk in range(chunks + 1):
        indices = first + np.arange(chunk * rows, (chunk + 1) * rows)
        numbers = np.full(rows, chunk)
        heights, widths = np.full(rows, _HEIGHT), np.full(rows, _WIDTH)
        began = time.perf_counter()
        for stages in (recipe.partial, recipe.final):
            _, heights, widths = draw(stages, seed=0, indices=indices, numbers=numbers, heights=heights, widths=widths)
        figures.append(1e6 * (time.perf_counter() - began) / rows)
    # The first chunk derives keys and tables that are then kept.
    return figures[1:]


def _rise_mb(config: Config, name: str, num_samples: int) -> float:
    before = _peak_mb()
    planner = config.planners(num_samples)[name]
    for asked in config.asked(planner, 0).values():
        plan_us(planner, asked)
    return _peak_mb() - before


def _peak_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6  # in KiB
    raise RuntimeError("/proc/self/status must tell VmHWM, which this system's does not: run it on Linux")


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Take every figure: of planners at each size, of three epochs in sequence, and of drawing at each size."""
    from dalirefurb.kernels.random import compile_walk  # not before: memory is measured in processes without Numba

    walks = {"NumPy": rng.walk, "compiled": compile_walk()}
    names = list(config.planners(config.tail_samples))
    plans: list[dict[str, Any]] = [
        {"planner": name, "num_samples": size, "mb": plan_mb(config, name, size)}
        for name in names
        for size in config.sizes
    ]
    tails: list[dict[str, Any]] = [{"planner": name, "p50_us": [], "p99_us": []} for name in names]
    drawing: list[dict[str, Any]] = [{"num_samples": size, "us": []} for size in config.sizes]
    for number in range(config.rounds):
        for order, walk in walks.items():
            rng.walk = walk
            for row in plans:
                planner = config.planners(row["num_samples"])[row["planner"]]
                for kind, asked in config.asked(planner, number).items():
                    row.setdefault(f"{order} {kind}", []).append(median(plan_us(planner, asked)))
        for row in tails:
            planner = config.planners(config.tail_samples)[row["planner"]]
            figures = plan_us(planner, [(epoch, batch) for epoch in (1, 2, 3) for batch in range(len(planner))])
            row["p50_us"].append(median(figures))
            row["p99_us"].append(float(np.quantile(figures, 0.99)))
        for row in drawing:
            first = max(0, row["num_samples"] - (config.chunks + 1) * config.batch_size)
            row["us"].append(median(draw_us(rows=config.batch_size, chunks=config.chunks, first=first)))
    claims = [*_plan_claims(names, plans), *_draw_claims(drawing)]
    kinds = {f"{order}, {kind}": f"{{{order} {kind}:.0f}}" for order in walks for kind in ("next", "any", "first")}
    columns = {"us a batch": "{planner}", "samples": "{num_samples:,}", **kinds, "MB": "{mb:.1f}"}
    ratios = [Claim.ratio(row["planner"], row["p99_us"], row["p50_us"]) for row in tails]
    say(
        table_of(map(_medians, plans), columns),
        claim_table(ratios, f"p99 / p50 of 3 epochs of {config.tail_samples:,}"),
        table_of(map(_medians, drawing), {"samples": "{num_samples:,}", "us a sample to draw": "{us:.2f}"}),
        claim_table(claims, "figure"),
    )
    return {"plans": plans, "tails": tails, "drawing": drawing, "claims": claims}


def _plan_claims(names: Sequence[str], plans: Sequence[dict[str, Any]]) -> list[Claim]:
    """Judge all planners by memory, and each by its time, where it is worst."""
    claims = [Claim("MB to plan", Spread.of([max(row["mb"] for row in plans)]), most=20)]
    for name in names:
        own = [row for row in plans if row["planner"] == name]
        if name in ("Standard", "Refurbish"):
            claims += [
                _worst(Claim(f"{name}, {order}: us a batch", Spread.of(row[f"{order} next"]), most=most) for row in own)
                for order, most in _MOST_US.items()
            ]
        grown = f"{name}: us a batch, largest / smallest"
        claims.append(Claim.ratio(grown, own[-1]["compiled next"], own[0]["compiled next"], most=1.5))
        first, most = f"{name}: us more for an epoch's first batch", None if "Echo" in name else 300
        claims.append(_worst(Claim(first, Spread.of(_more(row)), most=most) for row in own))
    return claims


def _more(row: dict[str, Any]) -> list[float]:
    return [first - following for first, following in zip(row["compiled first"], row["compiled next"], strict=True)]


def _draw_claims(drawing: Sequence[dict[str, Any]]) -> list[Claim]:
    name = "us a sample to draw all parameters"
    return [
        _worst(Claim(name, Spread.of(row["us"]), most=2) for row in drawing),
        Claim.ratio(f"{name}, largest / smallest", drawing[-1]["us"], drawing[0]["us"], most=1.1),
    ]


def _worst(claims: Iterable[Claim]) -> Claim:
    return max(claims, key=lambda claim: claim.figure.median)


def _medians(row: dict[str, Any]) -> dict[str, Any]:
    return {key: median(value) if isinstance(value, list) else value for key, value in row.items()}


EXPERIMENT = Experiment(
    measure, Config(), quick=Config((1000, 10_000), 1000, batch_size=64, rounds=1, batches=3, chunks=2), data=None
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
