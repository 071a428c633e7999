"""What does deciding cost? Planning an epoch of ImageNet, and drawing all parameters of the default recipe.

Claims, on any machine:
    planning one epoch of 1,281,167 samples takes at most 0.3 s and 100 MB;
    drawing all parameters for chunks of 4 batches of 256 takes at most 2 us a sample.
Machine: the one it runs on, one core; its model and versions are in the JSON.
n: 9 epochs, 100 chunks.

Neither touches data, DALI or torch. The memory is the rise of the process's own peak (VmHWM), in a fresh process.

    python benchmarks/planning.py                        ten seconds
    python benchmarks/planning.py --quick --out p.json   two seconds; its figures mean nothing
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from claims import Claim, Spread, say, table_of
from experiment import Experiment, Options

from dalirefurb import Recipe, Refurbish, rand_augment
from dalirefurb.augment.recipe import draw

_HEIGHT, _WIDTH = 375, 500
"""Of the images in pixels, as ImageNet's are on average."""

_MOST_EPOCH_S = 0.3
_MOST_EPOCH_MB = 100.0
_MOST_DRAW_US = 2.0


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        num_samples: Of an epoch.
        batch_size: Of the plan, and of the batches drawn for.
        reuse_factor: Of the plan.
        epochs: Timed, after epoch 0, which only misses.
        chunks: Timed for each size of a chunk.
        chunk_batches: Batches drawn for at once; the claim is about the last.
    """

    num_samples: int = 1_281_167
    batch_size: int = 256
    reuse_factor: int = 3
    epochs: int = 9
    chunks: int = 100
    chunk_batches: tuple[int, ...] = (1, 4)

    def planner(self) -> Refurbish:
        """Make the planner; its fixed permutation is drawn when it is first asked."""
        return Refurbish(self.num_samples, batch_size=self.batch_size, reuse_factor=self.reuse_factor)


def epoch_seconds(config: Config) -> list[float]:
    """Plan epoch after epoch to the last batch, in one process; the first figure draws the fixed permutation too."""
    planner = config.planner()
    return [_plan(planner, epoch) for epoch in range(config.epochs + 1)]


def epoch_mb(config: Config) -> float:
    """Plan two epochs in a fresh process; return by how many MB its peak memory rises."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_rise_mb, (config,))


def draw_us(recipe: Recipe, *, rows: int, chunks: int, first: int = 0) -> list[float]:
    """Draw every parameter for chunks of `rows` samples from `first` on; return microseconds a sample of each chunk."""
    figures = []
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


def _plan(planner: Refurbish, epoch: int) -> float:
    began = time.perf_counter()
    served = sum(len(plan.indices) for plan in planner.epoch(epoch))
    seconds = time.perf_counter() - began
    assert served == planner.num_samples
    return seconds


def _rise_mb(config: Config) -> float:
    planner = config.planner()
    before = _peak_mb()
    for epoch in (0, 1):
        _plan(planner, epoch)
    return _peak_mb() - before


def _peak_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6  # in KiB
    raise RuntimeError("/proc/self/status must tell VmHWM, which this system's does not: run it on Linux")


def measure(config: Config, options: Options) -> list[dict[str, Any]]:
    """Take every figure; each has its unit, and what its median is promised to stay below, or None."""
    first, *later = epoch_seconds(config)
    plan = f"plan {config.num_samples:,} samples, reuse factor {config.reuse_factor}"
    taken: list[tuple[str, str, list[float], float | None]] = [
        (f"{plan}: an epoch", "s", later, _MOST_EPOCH_S),
        (f"{plan}: epoch 0 and the fixed permutation", "s", [first], None),
        (f"{plan}: memory", "MB", [epoch_mb(config)], _MOST_EPOCH_MB),
    ]
    for batches in config.chunk_batches:
        drawn = draw_us(rand_augment(), rows=batches * config.batch_size, chunks=config.chunks)
        name = f"draw all parameters of rand_augment(), {batches} x {config.batch_size} samples at once"
        promised = _MOST_DRAW_US if batches == config.chunk_batches[-1] else None
        taken.append((name, "us a sample", drawn, promised))
    results: list[dict[str, Any]] = [
        {"name": name, "unit": unit, "samples": samples, "most": most, "summary": Spread.of(samples)}
        for name, unit, samples, most in taken
    ]
    shown = [{**each, "claim": Claim(each["name"], each["summary"], most=each["most"])} for each in results]
    columns = {"figure": "{name}", "median [quartiles]": "{summary:2}", "": "{unit}", "verdict": "{claim.verdict}"}
    say(table_of(shown, columns))
    return results


EXPERIMENT = Experiment(measure, Config(), quick=Config(num_samples=10000, epochs=2, chunks=3), data=None)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
