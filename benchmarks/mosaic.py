"""How fast are mosaics of four photographs made, with the boxes of all four? Beside OpenCV in a DataLoader.

    standard                  decodes one photograph for each mosaic, and takes the others from its batch
    reuse factor 3            decodes and resizes a third of them
    decoded images kept       standard on a keep in memory
    DataLoader, OpenCV        reads, decodes and resizes four for each mosaic, at its best setting

Claims, on 2 cores: standard is at least 3 times the DataLoader.
Bound: a reuse factor of n brings at most n times standard.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, two epochs of 16 batches of 32 timed in each.

Like for like: the shorter side 480, four around a random point of 1280 x 1280, an affine map (scale 0.5 .. 1.5, shift
0.1) to 640 x 640, flip, brightness, contrast or value, saturation and hue, float32 of 0..1, boxes and labels. Ours
resize with anti-aliasing, and jitter colours in random order, which is more. Objects are made: 1 to 13 for each
photograph. The consumer does nothing.

    python benchmarks/competitors/build.py              once, minutes
    python benchmarks/mosaic.py                         about 10 minutes on 2 cores
    python benchmarks/mosaic.py --quick --out q.json    seconds; its figures mean nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import workers
from competitors.rows import MOSAIC
from detection import compare
from experiment import Experiment, Options
from loaders import STANDARD, Compared

from dalirefurb import Output, Recipe
from dalirefurb.augment import CenterCrop, ColorJitter, Decode, HorizontalFlip, Mosaic, RandomAffine, Resize

FILL = 114


@dataclass(frozen=True, kw_only=True)
class Config(Compared):
    """What is run."""

    def recipe(self) -> Recipe:
        """Cache what is resized; put four together, and all that follows, afresh."""
        stages = [
            Decode(),
            Resize(3 * self.size // 4),
            Mosaic(2 * self.size, fill=FILL),
            RandomAffine(0, (0.1, 0.1), (0.5, 1.5), interpolation="bilinear", fill=FILL),
            CenterCrop(self.size),
            HorizontalFlip(),
            ColorJitter(0.4, 0.4, 0.4, 0.015),
        ]
        return Recipe(stages, Output(self.size, mean=0.0, std=1.0), split="mosaic")


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Compare, with boxes alone."""
    return compare(config, options, MOSAIC, STANDARD, masks=False)


EXPERIMENT = Experiment(
    measure,
    Config(size=640, batch_size=32, epoch_batches=16, rounds=5),
    quick=Config(size=64, batch_size=8, epoch_batches=4, rounds=1, calibration_batches=2, memory="/tmp"),
    keeps_memory=True,
    options=workers.OPTION,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
