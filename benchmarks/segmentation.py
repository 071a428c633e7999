"""How fast are photographs with masks loaded, at reuse factor 3 and with decoded images kept? Beside torchvision v2.

    standard                  decodes every photograph each time
    reuse factor 3            decodes and resizes a third of them
    decoded images kept       standard on a keep in memory: every random number is fresh
    every image a hit         what the first epoch has made is cached for ever
    DataLoader, v2            torchvision's transforms of image and mask together, at its best setting

each in two ways:

    crop                      random resized crop to 320 x 320 of 0.25 .. 1 of the area, flip
    reference                 torchvision's reference for segmentation: the shorter side at random in 260 .. 1040, flip,
                              crop of 480 x 480

Claims, on 2 cores: reuse factor 3 is at least 2 times standard, 4 times the DataLoader, and 0.9 times what its costs
allow.
Bound: a reuse factor of n brings at most n times standard. By costs, a hit takes the time h of "every image a hit", and
a miss costs what standard takes more, s - h: an image takes h + (s - h) / n. That is no bound: what hits wait for is
memory, and misses keep the cores busy meanwhile.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, six epochs of 8 batches of 64 timed in each:
in the first ones loaders take memory that they write to again later.

Like for like: anti-aliasing, float32 normalised, masks int64, 255 where there is no image. Ours make what is cached
larger by a tenth, and crop that afresh, with the flip, which is more.
Masks are made of the photographs: 21 classes in areas of some size, in PNGs with a palette. The consumer does nothing.

    python benchmarks/competitors/build.py                    once, minutes
    python benchmarks/segmentation.py                         about 17 minutes on 2 cores
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np
import workers
from claims import Claim, bounds_of
from competitors.rows import SHORTER, WITH_MASKS
from experiment import Experiment, Options
from harness import Slice
from loaders import KEPT, STANDARD, Compared, reuse, settled
from PIL import Image

from dalirefurb import FileList, ImageFolder, Kept, Output, Recipe
from dalirefurb.augment import Decode, HorizontalFlip, RandomCrop, RandomResizedCrop
from dalirefurb.augment.published import segmentation
from dalirefurb.planning import Frozen
from dalirefurb.targets import Annotated, Masks

LEAST_OF_STANDARD, LEAST_OF_COSTS, LEAST_OF_LOADER = 2.0, 0.9, 4.0
HITS = "every image a hit"
CLASSES, AREA = 21, 40
"""Of masks, and the side of a square in pixels within which the class hardly changes."""


@dataclass(frozen=True, kw_only=True)
class Config(Compared):
    """What is run."""

    def recipes(self) -> dict[str, Recipe]:
        """Cache what is larger by a tenth."""
        size, whole = self.size, 3 * self.size // 2
        stages = [
            Decode(),
            RandomResizedCrop(size + size // 10, (0.25, 1.0)),
            RandomCrop(size, size // 10),
            HorizontalFlip(),
        ]
        return {
            "crop": Recipe(stages, Output(size), split="random_crop"),
            "reference": segmentation(whole, shorter=SHORTER, margin=whole // 10, split="random_crop"),
        }


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Make masks, calibrate the competitor, and let all take turns."""
    there = workers.available(options.competitors)
    with ExitStack() as stack:
        folder, memory = (Path(stack.enter_context(TemporaryDirectory(dir=each))) for each in (None, config.memory))
        paths = masked(options.data, folder)
        files = [paths[row % len(paths)] for row in range(config.samples)]
        images = FileList(files, np.zeros(len(files), np.int64))
        source = Annotated(images, {"mask": Masks([file.with_suffix(".png") for file in files])})
        kept, recipes = Kept(source, memory / "keep"), config.recipes()
        entrants, calibration = list[Any](), list[Slice]()
        for kind, recipe in recipes.items():
            entrants += config.turns(stack, source, kept, recipe, f"{kind}, ")
            frozen = Frozen(len(source), batch_size=config.batch_size, drop_last=True)
            entrants += settled(stack, source, recipe, {f"{kind}, {HITS}": frozen})
        rivals = {
            kind: {row: tried for row, tried in there.settings.items() if row.endswith(f"{kind}, {WITH_MASKS}")}
            for kind in recipes
        }
        for kind, rows in rivals.items():
            size = recipes[kind].output.sides[0]
            entrants += workers.calibrated(stack, images, rows, size, config, options.competitors, calibration)
        timed = 6 * config.epoch_batches
        slices = harness.interleave(entrants, rounds=config.rounds, timed_batches=timed)
    speeds = harness.speeds_of(slices)
    claims = list[Claim]()
    for kind in recipes:
        names = reuse(config.reuse_factor), STANDARD, KEPT, HITS
        fast, usual, near, hits = (f"{kind}, {name}" for name in names)
        possible = bounds_of(speeds[hits], speeds[usual], 1 / config.reuse_factor)
        claims.append(Claim.between(speeds, fast, usual, LEAST_OF_STANDARD, bound=config.reuse_factor))
        claims.append(Claim.ratio(f"{fast} / what its costs allow", speeds[fast], possible, LEAST_OF_COSTS))
        claims += [Claim.between(speeds, near, usual), Claim.between(speeds, hits, usual)]
        for rival in rivals[kind]:
            claims += [Claim.between(speeds, fast, rival, LEAST_OF_LOADER), Claim.between(speeds, usual, rival)]
    return workers.result(there, WITH_MASKS, entrants, claims, slices, calibration)


def masked(data: Path, folder: Path) -> list[Path]:
    """Link a folder's photographs, and make a mask of each beside it; return the links."""
    source, palette = ImageFolder(data), np.random.default_rng(0).integers(0, 256, 3 * CLASSES).tolist()
    links = []
    for index in range(len(source)):
        link = folder / f"{index:05d}.jpg"
        link.symlink_to(Path(source.name(index)).resolve())
        image, _ = source[index]
        height, width, _ = image.shape
        small = Image.fromarray(image).convert("L").resize((max(1, width // AREA), max(1, height // AREA)))
        smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.int64)
        mask = Image.fromarray((smooth * CLASSES // 256).astype(np.uint8), "L").convert("P")
        mask.putpalette(palette)
        mask.save(link.with_suffix(".png"))
        links.append(link)
    return links


EXPERIMENT = Experiment(
    measure,
    Config(size=320, batch_size=64, epoch_batches=8, rounds=5),
    quick=Config(size=48, batch_size=8, epoch_batches=4, rounds=1, calibration_batches=2, memory="/tmp"),
    keeps_memory=True,
    options=workers.OPTION,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
