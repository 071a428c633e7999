"""How fast are cubes of volumes loaded, with labels of their voxels, as medical scans are learned from? Beside MONAI.

    SmartCache                half of the volumes in memory, a tenth of which is replaced after each round
    Frozen                    all of them in memory
    Standard                  none: each is read once in an epoch
    MONAI                     SmartCacheDataset, CacheDataset and Dataset, each at its best setting

Claims, on 2 cores: SmartCache is at least 2 times SmartCacheDataset, 3 times Standard and 0.9 times its bound, Frozen
at least 2 times CacheDataset.
Bound: where all are hits a cube takes the time f of Frozen, and a miss costs what Standard takes more, s - f. With
SmartCache an eighth as many miss, so a cube takes it f + (s - f) / 8 at least, f and s being those of the round. And
what it reads for a cube is an eighth of Standard's, so it is at most 8 times as fast.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, at least 4 s timed in each.

Like for like: of each volume 4 cubes of 96 a side at a time, half of them around a labelled voxel, Hounsfield units -57
.. 164 to 0 .. 1, flips along three axes, quarter turns, a shift of values; 8 cubes in a batch. Ours shuffle the cubes
of 8 volumes, where MONAI's of one are in one batch; and their labels are int64, MONAI's float32, as loaded. MONAI finds
foreground once for what it caches, copies no cached volume, and tracks no meta data. Scans are made: noise in an
ellipsoid, with a ball that is brighter, int16 in .nii.gz, as scans are kept. The consumer does nothing.

    python benchmarks/competitors/build.py               once, minutes
    python benchmarks/volumes.py                         about 10 minutes on 2 cores
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np
import workers
from claims import Claim, bounds_of
from competitors.rows import CUBES, HOUNSFIELD, MASK, NIFTI, REPLACED, VOLUMES
from experiment import Experiment, Options
from harness import Slice
from loaders import computed_share, settled

from dalirefurb import Echo, Recipe, SmartCache, Standard, Volumes
from dalirefurb.augment import (
    IntensityWindow,
    RandomCrop3D,
    RandomFlip3D,
    RandomRotate90,
    RandomShiftIntensity,
    VolumeOutput,
)
from dalirefurb.planning import Frozen
from dalirefurb.planning.planner import Planner

SMART, FROZEN, STANDARD = "SmartCache", "Frozen", "Standard"
THEIRS = {
    name: f"MONAI {theirs}, {VOLUMES}"
    for name, theirs in ((SMART, "SmartCacheDataset"), (FROZEN, "CacheDataset"), (STANDARD, "Dataset"))
}
LEAST_OF_MONAI, LEAST_OF_STANDARD, LEAST_OF_BOUND = 2.0, 3.0, 0.9


@dataclass(frozen=True, kw_only=True)
class Config:
    """What is run.

    Attributes:
        volumes: Scans, of which the window has half.
        shape: Of each, in voxels.
        size: Side of a cube, in voxels.
        batch_size: Cubes of a batch.
        rounds: Slices of each contender.
        timed_s: Seconds of a slice, at least; then whole rounds of the window are served.
        calibration_batches: Timed at each setting of a competitor.
    """

    volumes: int = 32
    shape: tuple[int, int, int] = (160, 160, 128)
    size: int = 96
    batch_size: int = 8
    rounds: int = 5
    timed_s: float = 4.0
    calibration_batches: int = 32

    @property
    def window(self) -> int:
        """Volumes in memory."""
        return self.volumes // 2

    @property
    def round_batches(self) -> int:
        """Batches of a round of the window."""
        return self.window * CUBES // self.batch_size

    def recipe(self) -> Recipe:
        """Cache what was read; crop, and all that follows, afresh."""
        stages = [
            IntensityWindow(*HOUNSFIELD),
            RandomCrop3D(self.size, foreground=0.5),
            RandomFlip3D(),
            RandomRotate90(0.1),
            RandomShiftIntensity(0.1),
        ]
        return Recipe(stages, VolumeOutput(self.size), split=0)

    def planners(self) -> dict[str, Planner]:
        """Return what serves several cubes of each volume, by name."""
        count, batch_size, buffer_size = self.volumes, self.batch_size, 8 * CUBES
        smart = SmartCache(count, batch_size=batch_size, num_cache_objects=self.window, replace_percent=REPLACED)
        frozen, standard = Frozen(count, batch_size=batch_size), Standard(count, batch_size=batch_size)
        return {
            name: Echo(inner, echoing_factor=CUBES, buffer_size=buffer_size)
            for name, inner in ((SMART, smart), (FROZEN, frozen), (STANDARD, standard))
        }


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Make scans, calibrate competitors, and let all take turns."""
    there, planners = workers.available(options.competitors), config.planners()
    rows = {row: there.settings[row] for row in THEIRS.values() if row in there.settings}
    if THEIRS[SMART] in rows:
        rows[THEIRS[SMART]] = [_in_rounds(each, config) for each in rows[THEIRS[SMART]]]
    with ExitStack() as stack:
        images, masks = scans(config, Path(stack.enter_context(TemporaryDirectory())))
        source, calibration = Volumes(images, masks), list[Slice]()
        entrants: list[Any] = [*settled(stack, source, config.recipe(), planners)]
        entrants += workers.calibrated(stack, source, rows, config.size, config, options.competitors, calibration)
        timed = 2 * config.round_batches
        slices = harness.interleave(entrants, rounds=config.rounds, timed_batches=timed, timed_s=config.timed_s)
    speeds = harness.speeds_of(slices)
    possible = computed_share(planners[STANDARD]) / computed_share(planners[SMART])
    bounds = bounds_of(speeds[FROZEN], speeds[STANDARD], 1 / possible)
    claims = [
        Claim.between(speeds, SMART, STANDARD, LEAST_OF_STANDARD, bound=possible),
        Claim.possible(f"{SMART} / its bound", speeds[SMART], bounds, LEAST_OF_BOUND),
        Claim.between(speeds, FROZEN, SMART),
        *(
            Claim.between(speeds, name, THEIRS[name], None if name == STANDARD else LEAST_OF_MONAI)
            for name in THEIRS
            if THEIRS[name] in rows
        ),
    ]
    return workers.result(there, VOLUMES, entrants, claims, slices, calibration)


def _in_rounds(tried: workers.Tried, config: Config) -> workers.Tried:
    """Give a setting its window, and time whole rounds: replacements that are made ahead wait for the next."""
    return replace(
        tried,
        setting={**tried.setting, "cache_num": config.window},
        made_ahead=max(tried.made_ahead, config.round_batches),
        rotation=config.round_batches,
    )


def scans(config: Config, folder: Path) -> tuple[list[Path], list[Path]]:
    """Write scans and labels of their voxels; return the paths of both."""
    import nibabel

    images, masks = ([folder / f"{number:03d}{end}" for number in range(config.volumes)] for end in (NIFTI, MASK))
    axes = np.ogrid[tuple(slice(-1, 1, side * 1j) for side in config.shape)]
    for number, (image, mask) in enumerate(zip(images, masks, strict=True)):
        rng = np.random.default_rng(number)
        inside = sum((axis / 0.9) ** 2 for axis in axes) < 1
        ball = sum((axis - middle) ** 2 for axis, middle in zip(axes, rng.uniform(-0.4, 0.4, 3), strict=True)) < 0.1
        noise = rng.normal(0, 20, config.shape).astype(np.float32)
        values = np.where(inside, 40 + 80 * ball + noise, -1000 + noise / 4).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), image)
        nibabel.save(nibabel.Nifti1Image(ball.astype(np.uint8), np.eye(4)), mask)
    return images, masks


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(volumes=16, shape=(20, 24, 16), size=12, rounds=1, timed_s=0.0, calibration_batches=2),
    data=None,
    keeps_memory=True,
    options=workers.OPTION,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
