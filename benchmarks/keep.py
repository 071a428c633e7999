"""How much faster is loading where each image is decoded once and kept? Against standard, reuse, and stock DALI.

    standard              decodes every image each time
    kept in memory        standard on a keep of decoded images below /dev/shm: every random number is fresh
    kept on disk          the same keep in a folder on the disk, whose file the page cache holds
    reuse factor 3        decodes and augments a third of the images
    kept, reuse factor 3  reuse on the keep in memory
    every image a hit     what the first epoch has made of the keep in memory is cached for ever

Claims, on any machine: standard on a warm keep in memory is at least 2.2 times standard without one where files are of
4:2:0, and 3 times where they are of 4:4:4; on disk at least 0.9 of that; reuse on a keep is at least 1.3 times the keep
alone, and 0.9 times what its costs allow.
Bound: none is known of what a keep saves; reuse factor 3 is at most 3 times what it is put on. By costs, a hit on a
keep takes the time h of "every image a hit", and a miss costs what the keep takes more, k - h: an image takes
h + (k - h) / 3.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, at least 4,096 images timed in each.

Files are photographs as they are, and as this script encodes them anew, in both ways, with quality 90. Keeps are filled
before.

    python benchmarks/keep.py                        about 14 minutes on 2 cores
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np
import stock_dali
from claims import Claim, Speeds, bounds_of, say_speeds
from experiment import Experiment, Options
from harness import Entrant, MadeAnew
from loaders import STANDARD, LoaderTurns, Loading, default_placement, reuse
from PIL import Image
from sources import MEMORY, repeated

from dalirefurb import FileList, ImageFolder, Kept
from dalirefurb.planning import Frozen

IN_MEMORY, ON_DISK, HITS = "kept in memory", "kept on disk", "every image a hit"
AS_THEY_ARE = "as they are"
FILES = {AS_THEY_ARE: None, "4:2:0": 2, "4:4:4": 0}
"""How colours are stored in JPEGs, with Pillow's numbers."""

LEAST_GAIN = {"4:2:0": 2.2, "4:4:4": 3.0}
LEAST_ON_DISK = 0.9
LEAST_WITH_REUSE = 1.3
LEAST_OF_COSTS = 0.9


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        reuse_factor: Of what reuses.
        timed_batches: Of a slice.
        memory: Folder in memory where keeps are made.
    """

    reuse_factor: int = 3
    timed_batches: int = 64
    memory: str = MEMORY

    @property
    def kept_reuse(self) -> str:
        """Name of what reuses on a keep."""
        return f"kept, {reuse(self.reuse_factor)}"


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Encode the photographs anew, fill the keeps, and let all take turns."""
    measured: dict[str, Any] = {}
    for name, subsampling in FILES.items():
        with ExitStack() as stack:
            files, memory, disk = (
                Path(stack.enter_context(TemporaryDirectory(dir=folder))) for folder in (None, config.memory, None)
            )
            if subsampling is not None:
                encode(options.data, files, subsampling)
            photographs = repeated(options.data if subsampling is None else files, config.samples)
            measured[name] = compare(config, name, photographs, memory, disk)
    return {"claims": [claim for each in measured.values() for claim in each.pop("claims")], **measured}


def compare(config: Config, files: str, source: FileList, memory: Path, disk: Path) -> dict[str, Any]:
    """Fill two keeps, and let all take turns."""
    kept, on_disk = Kept(source, memory / "keep"), Kept(source, disk / "keep")
    for keep in (kept, on_disk):
        keep.fill()
    frozen = Frozen(len(source), batch_size=config.batch_size, drop_last=True)
    planners = {**config.planners(config.reuse_factor), HITS: frozen}
    reused = reuse(config.reuse_factor)
    parts = {
        STANDARD: (source, STANDARD),
        IN_MEMORY: (kept, STANDARD),
        ON_DISK: (on_disk, STANDARD),
        reused: (source, reused),
        config.kept_reuse: (kept, reused),
        HITS: (kept, HITS),
    }
    with ExitStack() as stack:
        turns = []
        for name, (read, plan) in parts.items():
            turns.append(LoaderTurns(stack, name, read, config.recipe(), planners[plan]))
            turns[-1].settle()
        stock: Entrant = MadeAnew(stock_dali.NEAREST, lambda: stock_dali.stock(config, source, default_placement()))
        slices = harness.interleave([stock, *turns], rounds=config.rounds, timed_batches=config.timed_batches)
    speeds = harness.speeds_of(slices)
    judged = claims(config, files, speeds)
    nbytes = sum(each.nbytes for each in kept.images(np.arange(len(kept))) or ())
    say_speeds(speeds, judged, f"files {files}, {nbytes / len(kept) / 1e3:.0f} KB an image where they are kept")
    return {"kept_bytes": nbytes / len(kept), "claims": judged, "slices": slices}


def claims(config: Config, files: str, speeds: Speeds) -> list[Claim]:
    """Divide figures of one round by each other."""
    factor, reused, kept_reuse = config.reuse_factor, reuse(config.reuse_factor), config.kept_reuse
    possible = bounds_of(speeds[HITS], speeds[IN_MEMORY], 1 / factor)
    of_stock = (STANDARD, reused, IN_MEMORY, kept_reuse)
    made = [
        Claim.between(speeds, IN_MEMORY, STANDARD, LEAST_GAIN.get(files)),
        Claim.between(speeds, ON_DISK, IN_MEMORY, LEAST_ON_DISK),
        Claim.between(speeds, reused, STANDARD, bound=factor),
        Claim.between(speeds, kept_reuse, IN_MEMORY, LEAST_WITH_REUSE, bound=factor),
        Claim.ratio(f"{kept_reuse} / what its costs allow", speeds[kept_reuse], possible, LEAST_OF_COSTS),
        Claim.between(speeds, HITS, IN_MEMORY),
        *(Claim.between(speeds, name, stock_dali.NEAREST) for name in of_stock),
    ]
    return [replace(claim, name=f"{files}: {claim.name}") for claim in made]


def encode(data: Path, folder: Path, subsampling: int) -> None:
    """Write photographs anew, as an `ImageFolder` has them."""
    source = ImageFolder(data)
    for index in range(len(source)):
        pixels, label = source[index]
        target = folder / f"class_{label}"
        target.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(target / f"{index:05d}.jpg", quality=90, subsampling=subsampling)


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=64, epoch_batches=32, rounds=5),
    quick=Config(layers=0, size=32, batch_size=4, epoch_batches=3, rounds=1, timed_batches=2, memory="/tmp"),
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
