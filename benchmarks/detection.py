"""How fast are photographs loaded with boxes and a mask of each object, for detectors? Beside torchvision's reference.

    standard                  decodes every photograph each time
    reuse factor 3            decodes and resizes a third of them
    decoded images kept       standard on a keep in memory: every random number is fresh
    DataLoader, v2            torchvision's reference with large scale jitter, at its best setting

Claims, on 2 cores: reuse factor 3 is at least 3 times the DataLoader.
Bound: a reuse factor of n brings at most n times standard.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, two epochs of 16 batches of 32 timed in each.

Like for like: scale jitter of 0.1 .. 2 with anti-aliasing, crop or fill to 640 x 640, flip, float32 of 0..1; boxes,
labels, and masks (k, 640, 640) uint8 of outlines. Ours make what is cached larger by a tenth, and crop that afresh,
with the flip, which is more. Theirs leave images in a list, where ours are one tensor. Objects are made: 1 to 13 for
each photograph, of 20 to 60 vertices. The consumer does nothing.

    python benchmarks/competitors/build.py                 once, minutes
    python benchmarks/detection.py                         about 10 minutes on 2 cores
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np
import workers
from claims import Claim, Speeds
from competitors.rows import ANNOTATIONS, WITH_OBJECTS
from experiment import Experiment, Options
from harness import Slice
from loaders import KEPT, STANDARD, Compared, reuse

from dalirefurb import FileList, ImageFolder, Kept, Recipe
from dalirefurb.augment.published import large_scale_jitter
from dalirefurb.source import Source
from dalirefurb.targets import CocoDetection

LEAST_OF_LOADER = 3.0
MOST_OBJECTS, VERTICES, CLASSES = 13, (20, 60), 80


@dataclass(frozen=True, kw_only=True)
class Config(Compared):
    """What is run."""

    def recipe(self) -> Recipe:
        """Cache what is larger by a tenth."""
        return large_scale_jitter(self.size, margin=self.size // 10, split="random_crop")


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Compare, with masks of objects."""
    return compare(config, options, WITH_OBJECTS, reuse(config.reuse_factor), masks=True)


def compare(
    config: Any,
    options: Options,
    rows: str,
    fast: str,
    *,
    masks: bool,
    further: Callable[[ExitStack, Source, FileList], list[Any]] = lambda stack, source, images: [],
    claimed: Callable[[Speeds], list[Claim]] = lambda speeds: [],
) -> dict[str, Any]:
    """Make objects, calibrate the competitor, and let all take turns.

    Args:
        config: What is run, a `Compared` with a recipe.
        options: Where photographs and competitors are.
        rows: End of the competitors' names.
        fast: Name of what is claimed to be `LEAST_OF_LOADER` times the competitor.
        masks: Whether each object has a mask, too.
        further: Makes others that take turns, of the samples with objects and of those without.
        claimed: What is claimed of these, by their speeds.
    """
    there = workers.available(options.competitors)
    with ExitStack() as stack:
        folder, memory = (Path(stack.enter_context(TemporaryDirectory(dir=each))) for each in (None, config.memory))
        files = with_objects(options.data, folder, config.samples)
        images = FileList(files, np.zeros(len(files), np.int64))
        source = CocoDetection(folder, folder / ANNOTATIONS, masks=masks)
        kept, calibration = Kept(source, memory / "keep"), list[Slice]()
        entrants = config.turns(stack, source, kept, config.recipe()) + further(stack, source, images)
        rivals = {name: tried for name, tried in there.settings.items() if name.endswith(rows)}
        entrants += workers.calibrated(stack, images, rivals, config.size, config, options.competitors, calibration)
        timed = 2 * config.epoch_batches
        slices = harness.interleave(entrants, rounds=config.rounds, timed_batches=timed)
    speeds, reused = harness.speeds_of(slices), reuse(config.reuse_factor)
    other = STANDARD if fast == reused else reused
    claims = [
        Claim.between(speeds, reused, STANDARD, bound=config.reuse_factor),
        Claim.between(speeds, KEPT, STANDARD),
        *claimed(speeds),
        *(Claim.between(speeds, fast, rival, LEAST_OF_LOADER) for rival in rivals),
        *(Claim.between(speeds, other, rival) for rival in rivals),
    ]
    return workers.result(there, rows, entrants, claims, slices, calibration)


def with_objects(data: Path, folder: Path, count: int) -> list[Path]:
    """Fill an epoch with links to a folder's photographs, and write objects for each; return the links."""
    source, rng = ImageFolder(data), np.random.default_rng(0)
    sides = [source[index][0].shape[:2] for index in range(len(source))]
    links, images, annotations = [], [], []
    for number in range(count):
        link = folder / f"{number:06d}.jpg"
        link.symlink_to(Path(source.name(number % len(source))).resolve())
        links.append(link)
        height, width = sides[number % len(source)]
        images.append({"id": number, "file_name": link.name, "height": height, "width": width})
        for _ in range(rng.integers(1, MOST_OBJECTS + 1)):
            outline = blob(rng, height, width)
            low, high = outline.min(axis=0), outline.max(axis=0)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": int(rng.integers(1, CLASSES + 1)),
                    "bbox": [*low.tolist(), *(high - low).tolist()],
                    "area": float(np.prod(high - low)),
                    "iscrowd": 0,
                    "segmentation": [outline.ravel().tolist()],
                }
            )
    categories = [{"id": number, "name": str(number)} for number in range(1, CLASSES + 1)]
    whole = {"images": images, "annotations": annotations, "categories": categories}
    (folder / ANNOTATIONS).write_text(json.dumps(whole))
    return links


def blob(rng: np.random.Generator, height: int, width: int) -> np.ndarray[Any, Any]:
    """Return an outline within an image, x and y of shape (v, 2), a twentieth to a half as large."""
    count = int(rng.integers(VERTICES[0], VERTICES[1] + 1))
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    radius = rng.uniform(0.025, 0.25) * min(height, width) * (1 + 0.3 * np.sin(3 * angles + rng.uniform(0, 6)))
    centre = rng.uniform(0.1, 0.9, 2) * (width, height)
    outline = centre + radius[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.round(outline.clip(0, (width, height)), 2)


EXPERIMENT = Experiment(
    measure,
    Config(size=640, batch_size=32, epoch_batches=16, rounds=5),
    quick=Config(size=64, batch_size=8, epoch_batches=4, rounds=1, calibration_batches=2, memory="/tmp"),
    keeps_memory=True,
    options=workers.OPTION,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
