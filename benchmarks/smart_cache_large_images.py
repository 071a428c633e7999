"""What does SmartCache save where images are large and reading is slow? Steps per second, against no cache at all.

Claim, on any machine: with a tenth of the window replaced after each round, at least 3 times the steps per second.
Bound: what it computes an image is a tenth, so it is at most 10 times as fast.
n: 5 rounds (`--rounds`), each a slice of both contenders in turn, of whole rounds of the window.

The images are photographs enlarged to several megapixels, made by this script in a temporary folder, behind a source
that gives one every so many milliseconds. The recipe begins with what is deterministic: decode, resize, crop the
centre; a random crop and a flip follow. The window is half of the data, and it is full before the clock runs.

    python benchmarks/smart_cache_large_images.py                        about 4 minutes on 2 cores
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
from claims import Claim, Speeds, Spread, claim_table, say, table
from experiment import Experiment, Options
from loaders import computed_share, settled
from PIL import Image
from sources import SlowSource, repeated

from dalirefurb import ImageFolder, Output, Recipe, SmartCache, Standard
from dalirefurb.augment.stages.crop import CenterCrop, HorizontalFlip, RandomCrop
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.augment.stages.resize import Resize

NO_CACHE = "no cache"
SMART_CACHE = "SmartCache"
LEAST_GAIN = 3.0


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set.
        files: Photographs that are enlarged; they are repeated to fill the data.
        long_side: Of an enlarged photograph, in pixels.
        wait_s: Seconds that the source waits per image.
        size: Side of the images the model receives, in pixels.
        margin: Pixels that the cached image is larger.
        batch_size: Images of a step.
        data_batches: Batches of all data.
        replace_percent: Share of the window, half the data, that is replaced after each round.
        timed_batches: Of a slice.
        rounds: Slices of each contender.
    """

    data: str = ""
    files: int = 24
    long_side: int = 3000
    wait_s: float = 0.02
    size: int = 224
    margin: int = 32
    batch_size: int = 8
    data_batches: int = 30
    replace_percent: float = 0.1
    timed_batches: int = 20
    rounds: int = 5


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Make the files in a temporary folder, then let both take turns."""
    with TemporaryDirectory() as folder:
        return compare(config, options.data, Path(folder))


def compare(config: Config, data: Path, folder: Path) -> dict[str, Any]:
    """Make the files in `folder`, then let both take turns."""
    megapixels, megabytes = enlarge(data, folder, config.files, config.long_side)
    count = config.data_batches * config.batch_size
    source = SlowSource(repeated(folder, count), config.wait_s)
    whole = config.size + config.margin
    stages = [Decode(), Resize(whole), CenterCrop(whole), RandomCrop(config.size, config.margin), HorizontalFlip()]
    recipe = Recipe(stages, Output(config.size), "random_crop")
    planners = {
        NO_CACHE: Standard(count, batch_size=config.batch_size),
        SMART_CACHE: SmartCache(
            count,
            batch_size=config.batch_size,
            num_cache_objects=config.data_batches // 2 * config.batch_size,
            replace_percent=config.replace_percent,
        ),
    }
    with ExitStack() as stack:
        turns = settled(stack, source, recipe, planners)
        slices = harness.interleave(turns, rounds=config.rounds, timed_batches=config.timed_batches)
    speeds = harness.speeds_of(slices)
    steps_per_s = {name: Spread.of([each / config.batch_size for each in own]) for name, own in speeds.items()}
    computed = {name: computed_share(planner) for name, planner in planners.items()}
    judged = claims(speeds, computed)
    rows = [[name, f"{speed:1}", f"{computed[name]:.2f}"] for name, speed in steps_per_s.items()]
    say(
        f"images of {megapixels:.1f} megapixels, {megabytes:.1f} MB",
        table(["contender", "steps/s [quartiles]", "computed an image"], rows),
        claim_table(judged),
    )
    return {
        "megapixels": megapixels,
        "megabytes": megabytes,
        "computed": computed,
        "steps_per_s": steps_per_s,
        "claims": judged,
        "slices": slices,
        "stats": {each.name: each.stats for each in turns},
    }


def claims(speeds: Speeds, computed: Mapping[str, float]) -> list[Claim]:
    """Divide figures of one round by each other: who computes a tenth is at most ten times as fast."""
    possible = computed[NO_CACHE] / computed[SMART_CACHE]
    return [Claim.between(speeds, SMART_CACHE, NO_CACHE, LEAST_GAIN, bound=possible)]


def enlarge(data: Path, folder: Path, files: int, long_side: int) -> tuple[float, float]:
    """Write enlarged photographs to `folder`/enlarged; return their mean megapixels and megabytes."""
    originals = ImageFolder(data)
    target = folder / "enlarged"
    target.mkdir()
    pixels = 0
    for number in range(min(files, len(originals))):
        with Image.open(originals.name(number * len(originals) // files)) as image:
            scale = long_side / max(image.size)
            large = image.convert("RGB").resize((round(scale * image.width), round(scale * image.height)))
        large.save(target / f"{number:03d}.jpg", quality=95)
        pixels += large.width * large.height
    sizes = [path.stat().st_size for path in target.iterdir()]
    return pixels / len(sizes) / 1e6, sum(sizes) / len(sizes) / 1e6


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(
        files=4, long_side=400, wait_s=0.002, size=32, margin=8, batch_size=4, data_batches=6, timed_batches=2, rounds=2
    ),
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
