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

from dataclasses import dataclass
from statistics import median
from typing import Any

import planning
from claims import Claim, Spread, claim_table, say, table_of
from experiment import Experiment, Options

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


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Take every figure at every size: seconds an epoch, and microseconds a sample to plan and to draw."""
    rows = config.chunk_batches * config.batch_size
    sizes: list[dict[str, Any]] = []
    for num_samples in config.sizes:
        plan = planning.Config(num_samples, config.batch_size, config.reuse_factor, config.epochs)
        seconds = planning.epoch_seconds(plan)[1:]
        first = max(0, num_samples - (config.chunks + 1) * rows)
        drawn = planning.draw_us(rand_augment(), rows=rows, chunks=config.chunks, first=first)
        sizes.append(
            {
                "num_samples": num_samples,
                "epoch_s": seconds,
                "epoch_us": Spread.of([1e6 * each / num_samples for each in seconds]),
                "peak_mb": planning.epoch_mb(plan),
                "draw_us": Spread.of(drawn),
                "drawn": drawn,
            }
        )
    claims = _claims(smallest=sizes[0], before=sizes[-2], largest=sizes[-1])
    columns = {
        "samples": "{num_samples:,}",
        "s an epoch": "{median_s:.3f}",
        "us a sample [quartiles]": "{epoch_us:3}",
        "peak MB": "{peak_mb:.1f}",
        "drawing, us a sample [quartiles]": "{draw_us:2}",
    }
    shown = [{**each, "median_s": median(each["epoch_s"])} for each in sizes]
    say(table_of(shown, columns), claim_table(claims, "figure"))
    return {"sizes": sizes, "claims": claims}


def _claims(smallest: dict[str, Any], before: dict[str, Any], largest: dict[str, Any]) -> list[Claim]:
    """Judge the costs at the largest size."""
    name, memory = f"{largest['num_samples']:,} samples", 1e6 * largest["peak_mb"] / largest["num_samples"]
    planned, drawn = f"{before['num_samples']:,}", f"{smallest['num_samples']:,}"
    return [
        Claim(f"{name}: us a sample to plan an epoch", largest["epoch_us"], most=0.4),
        Claim(f"{name}: us a sample / that of {planned}", _over(largest["epoch_us"], before["epoch_us"]), most=2.0),
        Claim(f"{name}: bytes of memory a sample", Spread.of([memory]), most=90),
        Claim(f"{name}: drawing a sample / that of {drawn}", _over(largest["draw_us"], smallest["draw_us"]), most=1.1),
    ]


def _over(upper: Spread, lower: Spread) -> Spread:
    """Divide by a median."""
    return Spread(upper.lower / lower.median, upper.median / lower.median, upper.upper / lower.median)


EXPERIMENT = Experiment(
    measure, Config(), quick=Config(sizes=(1000, 10000), epochs=2, chunks=2, chunk_batches=1), data=None
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
