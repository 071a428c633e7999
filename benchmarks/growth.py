"""What does deciding cost when the data set grows? Plans and parameters only, from 10,000 to 10 million samples.

Claims, on any machine, at 10 million samples:
    planning an epoch takes at most 0.4 us a sample, and at most 2.0 times as long a sample as at 1 million;
    its peak memory is at most 90 bytes a sample;
    drawing all parameters takes at most 1.1 times as long a sample as at 10,000.
Machine: the one it runs on, one core; its model and versions are in the JSON.
n: 5 epochs and 50 chunks of 4 batches of 256 at each size.

Neither touches data, DALI or torch. The memory is the rise of the process's own peak (VmHWM), in a fresh process.

    python benchmarks/growth.py                        a minute
    python benchmarks/growth.py --quick --out g.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import harness
from harness import Claim, Spread
from planning import Config as Planning
from planning import draw_us, epoch_mb, epoch_seconds

from dalirefurb import rand_augment


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        sizes: Samples, smallest first; the last two are compared.
        batch_size: Of the plans.
        reuse_factor: Of the plans.
        epochs: Timed at each size, after epoch 0.
        chunks: Timed at each size, of samples at the end of the data set.
        chunk_batches: Batches drawn for at once.
    """

    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    batch_size: int = 256
    reuse_factor: int = 3
    epochs: int = 5
    chunks: int = 50
    chunk_batches: int = 4


@dataclass(frozen=True)
class Size:
    """Costs at one size.

    Attributes:
        num_samples: Of the data set.
        epoch_s: To plan one epoch, each one.
        epoch_us: The same, microseconds a sample.
        peak_mb: Rise of the peak memory while two epochs are planned.
        draw_us: To draw all parameters, microseconds a sample.
        drawn: Microseconds a sample of each chunk.
    """

    num_samples: int
    epoch_s: list[float]
    epoch_us: Spread
    peak_mb: float
    draw_us: Spread
    drawn: list[float]

    def row(self) -> list[str]:
        """Write a row of the table."""
        seconds = Spread.of(self.epoch_s)
        return [
            f"{self.num_samples:,}",
            f"{seconds.median:.3f}",
            self.epoch_us.show(3),
            f"{self.peak_mb:.1f}",
            self.draw_us.show(2),
        ]


@dataclass(frozen=True)
class Results:
    """Everything that was measured.

    Attributes:
        sizes: One each.
        claims: Costs at the largest size.
    """

    sizes: list[Size]
    claims: list[Claim]

    def show(self) -> str:
        """Write both tables."""
        heading = ["samples", "s an epoch", "us a sample [quartiles]", "peak MB", "drawing, us a sample [quartiles]"]
        return (
            f"{harness.table(heading, [size.row() for size in self.sizes])}\n\n"
            f"{harness.table(['figure', 'median [quartiles]', ''], [claim.show() for claim in self.claims])}\n"
        )


def measure(config: Config) -> Results:
    """Take every figure at every size."""
    recipe = rand_augment()
    rows = config.chunk_batches * config.batch_size
    sizes = []
    for num_samples in config.sizes:
        planning = Planning(
            num_samples=num_samples,
            batch_size=config.batch_size,
            reuse_factor=config.reuse_factor,
            epochs=config.epochs,
        )
        seconds = epoch_seconds(planning)[1:]
        first = max(0, num_samples - (config.chunks + 1) * rows)
        drawn = draw_us(recipe, rows=rows, chunks=config.chunks, first=first)
        spread = Spread.of([1e6 * each / num_samples for each in seconds])
        sizes.append(Size(num_samples, seconds, spread, epoch_mb(planning), Spread.of(drawn), drawn))
    smallest, before, largest = sizes[0], sizes[-2], sizes[-1]
    of_largest = f"{largest.num_samples:,} samples"
    claims = [
        Claim(f"{of_largest}: us a sample to plan an epoch", largest.epoch_us, most=0.4),
        Claim(
            f"{of_largest}: us a sample / that of {before.num_samples:,}",
            _over(largest.epoch_us, before.epoch_us),
            most=2.0,
        ),
        Claim(
            f"{of_largest}: bytes of memory a sample",
            Spread.of([1e6 * largest.peak_mb / largest.num_samples]),
            most=90,
        ),
        Claim(
            f"{of_largest}: drawing a sample / that of {smallest.num_samples:,}",
            _over(largest.draw_us, smallest.draw_us),
            most=1.1,
        ),
    ]
    return Results(sizes, claims)


def _over(upper: Spread, lower: Spread) -> Spread:
    """Divide by a median."""
    return Spread(upper.lower / lower.median, upper.median / lower.median, upper.upper / lower.median)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Time planning and drawing as the data set grows.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; written only where --out says")
    parser.add_argument("--out", type=Path, help="results/growth.json beside this script by default")
    options = parser.parse_args(arguments)
    config = Config()
    if options.quick:
        config = replace(config, sizes=(1_000, 10_000), epochs=2, chunks=2, chunk_batches=1)
    environment = harness.environment()
    results = measure(config)
    print(results.show(), flush=True)
    out = options.out or (None if options.quick else harness.RESULTS / "growth.json")
    if out is not None:
        harness.write(out, environment=environment, config=config, results=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
