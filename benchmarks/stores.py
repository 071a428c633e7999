"""What does it cost to keep samples elsewhere than in memory? Images/s with every sample a hit, and reads alone.

Claims, on any machine with a disk:
    a DiskStore whose file is in the page cache serves at least 0.85 of what a MemoryStore serves;
    one whose file is not reads at least 0.7 of what the disk itself gives: on its own, and in a loader unless the final
    part takes less than that even from memory, which then is the measure;
    small samples are read at least 20 times faster than from an .npy file each;
    a TieredStore, whatever its memory, serves at least 0.95 of what the fastest single store that fits does (as fast,
    that is; the rest is for noise): a DiskStore, or a MemoryStore if memory has room for all;
    its memory serves at least 0.98 of the hits that so many slots can serve, also from the second epoch on after a
    restart that begins with what is on the disk.
n: 5 rounds (`--rounds`), each a slice of every contender in turn; figures are medians of per-round ratios.

    warm         every sample a hit, files in the page cache
    cold         every sample a hit, files dropped from the page cache before each slice, in which no sample is read
                 twice, and stores told that memory has no room for files: so a store larger than memory reads. How
                 much was fetched from the disk is measured, too
    refurbish    reuse factor 3, files in the page cache: versions are used again after intervals that differ
    small        CIFAR-10, arrays of 3,072 bytes, in batches of 256, and in a file each

Loaders run at their default replicas x threads, and the consumer does nothing. The disk itself is plain reads of the
same sizes, in as random an order, from a copy of the store's file, at the best of several numbers of threads. Tiered
stores are given shares of the slots in memory, the rest is on the disk; "the most" is the share of hits that so many
slots can serve. Those hits are counted again for several planners, on single pixels, at first and after a restart.

    python benchmarks/stores.py                        about 12 minutes on 2 cores, 12 GB of disk and of memory
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import harness
import numpy as np
from claims import Claim, Speeds
from experiment import CIFAR10, Experiment, Options, check_mosaics
from page_cache import PlainReads, StoreReads
from small_samples import compare_small
from sources import read_mosaics, repeated
from store_groups import Entries, group
from tier_hits import compare_tiers

from dalirefurb import Refurbish, rand_augment
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.planning import Frozen
from dalirefurb.planning.planner import Planner
from dalirefurb.store import DiskStore, MemoryStore
from dalirefurb.store.compressed import Compressed
from dalirefurb.store.disk import slot_file

MEMORY = "MemoryStore"
DISK = "DiskStore"
ALONE = "DiskStore alone"
COMPRESSED = "Compressed"
REUSE_FACTOR = 3
LEAST_WARM = 0.85
LEAST_OF_DISK = 0.7
LEAST_OF_BEST = 0.95
LEAST_FROM_DISK = 0.95


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set; its images are repeated to fill an epoch.
        size: Side of the images the model receives, in pixels.
        batch_size: Images of a batch.
        warm_batches: Batches of an epoch whose files are in the page cache.
        cold_batches: Batches of an epoch whose files are not: the timed ones, and all that a loader reads ahead.
        shares: Of the slots, that tiered stores have in memory.
        reading_threads: Of plain reads.
        small_per_class: Small samples of each of ten classes.
        counted: Single pixels, whose hits are counted.
        cold_timed_batches: Of a slice whose files are not, at most.
        timed_batches: Of any other slice, at least.
        timed_s: Likewise, in seconds.
        rounds: Slices of each contender.
    """

    data: str = ""
    size: int = 224
    batch_size: int = 128
    warm_batches: int = 48
    cold_batches: int = 120
    shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    reading_threads: tuple[int, ...] = (4, 16)
    small_per_class: int = 1000
    counted: int = 20_000
    cold_timed_batches: int = 40
    timed_batches: int = 20
    timed_s: float = 2.0
    rounds: int = 5

    @property
    def sample_bytes(self) -> int:
        """Of a partial image."""
        return 3 * self.size**2


def warm(config: Config, data: Path, folder: Path) -> dict[str, Any]:
    """Compare stores while all files are in the page cache."""
    planner = Frozen(config.warm_batches * config.batch_size, batch_size=config.batch_size)
    with ExitStack() as stack:
        entries, _ = _entries(stack, config, data, planner, folder)
        best = _add_tiered(entries, folder, (*config.shares, 1.0))
        if importlib.util.find_spec("zstandard") is not None:
            entries.add(COMPRESSED, Compressed(MemoryStore(), expected_ratio=1))
        served, slices, speeds = entries.take_turns(config.rounds, config.timed_batches, config.timed_s)
    claims = [Claim.between(speeds, DISK, MEMORY, LEAST_WARM), *_of_best(speeds, best)]
    claims += [Claim.between(speeds, COMPRESSED, MEMORY)] if COMPRESSED in speeds else []
    return group("warm", served, claims, slices)


def cold(config: Config, data: Path, folder: Path) -> dict[str, Any]:
    """Compare stores and the disk itself while no file is in the page cache, nor has memory room for one."""
    planner = Frozen(config.cold_batches * config.batch_size, batch_size=config.batch_size)
    path, copy = folder / "disk", folder / "copy"
    with ExitStack() as stack, patch.object(slot_file, "available_bytes", lambda: 0):
        entries, disk = _entries(stack, config, data, planner, folder, cold=True)
        entries.add_other(StoreReads(ALONE, disk, planner), path)
        shutil.copyfile(path, copy)
        plain = [
            PlainReads(copy, planner, sample_bytes=config.sample_bytes, threads=threads)
            for threads in config.reading_threads
        ]
        for reads in plain:
            entries.add_other(reads, copy)
        best = _add_tiered(entries, folder, config.shares)
        served, slices, speeds = entries.take_turns(config.rounds, _timed(config, planner))
    speeds["the disk"] = max((speeds[reads.name] for reads in plain), key=np.median)
    speeds["the disk or memory"] = np.minimum(speeds["the disk"], speeds[MEMORY]).tolist()
    claims = [
        Claim.between(speeds, ALONE, "the disk", LEAST_OF_DISK),
        Claim.between(speeds, DISK, "the disk or memory", LEAST_OF_DISK),
        Claim.between(speeds, DISK, "the disk"),
        *_of_best(speeds, best),
        *(Claim(f"{each['name']}, from the disk", each["from_disk"], LEAST_FROM_DISK) for each in served[1:3]),
    ]
    return group("cold", served, claims, slices)


def _timed(config: Config, planner: Frozen) -> int:
    """Return how many batches are timed: at the end, too, the epoch must have all that a loader reads ahead."""
    depths = Prefetch().depths(planner)
    left = config.cold_batches - depths.batches_made - harness.RAMP_BATCHES - depths.batches_planned
    return max(1, min(config.cold_timed_batches, left))


def refurbish(config: Config, data: Path, folder: Path) -> dict[str, Any]:
    """Compare stores where versions are born and evicted all the time, while all files are in the page cache."""
    count = config.warm_batches * config.batch_size
    planner = Refurbish(count, batch_size=config.batch_size, reuse_factor=REUSE_FACTOR)
    with ExitStack() as stack:
        entries, _ = _entries(stack, config, data, planner, folder)
        best = _add_tiered(entries, folder, config.shares)
        served, slices, speeds = entries.take_turns(config.rounds, config.timed_batches, config.timed_s)
    return group("refurbish", served, [Claim.between(speeds, DISK, MEMORY), *_of_best(speeds, best)], slices)


GROUPS: tuple[Callable[[Config, Path, Path], dict[str, Any]], ...] = (warm, cold, refurbish)


def _entries(
    stack: ExitStack, config: Config, data: Path, planner: Planner, folder: Path, *, cold: bool = False
) -> tuple[Entries, DiskStore]:
    """Begin with memory and a file in `folder`."""
    source, recipe = repeated(data, planner.num_samples), rand_augment(config.size)
    entries = Entries(stack, source, recipe, planner, sample_bytes=config.sample_bytes, cold=cold)
    entries.add(MEMORY, MemoryStore())
    disk = DiskStore(folder / "disk")
    entries.add(DISK, disk, folder / "disk")
    return entries, disk


def _add_tiered(entries: Entries, folder: Path, shares: Sequence[float]) -> dict[str, str]:
    """Add a tiered store for each share of the slots; return the fastest single store that fits as much, by name."""
    best = {}
    for share in shares:
        name = f"TieredStore, {100 * share:.0f} % in memory"
        slots = int(share * entries.planner.peak_slots)
        entries.add_tiered(name, folder / f"tiered_{100 * share:.0f}", slots)
        best[name] = DISK if share < 1 else MEMORY
    return best


def _of_best(speeds: Speeds, best: dict[str, str]) -> list[Claim]:
    return [Claim.between(speeds, name, other, LEAST_OF_BEST) for name, other in best.items()]


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Let every group take its turns, each in an empty folder, and then small samples; count hits."""
    check_mosaics(options.small, "--small", "test")
    groups = []
    for take in GROUPS:
        with TemporaryDirectory(dir=options.folder) as folder:
            groups.append(take(config, options.data, Path(folder)))
    source = read_mosaics(options.small, "test", config.small_per_class)
    images = np.stack(source.read(np.arange(len(source))))
    with TemporaryDirectory(dir=options.folder) as folder:
        small = compare_small(images, Path(folder), rounds=config.rounds)
        hits = compare_tiers(config.counted, config.shares, Path(folder))
    return {"groups": groups, "small": small, "hits": hits}


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(
        size=48,
        batch_size=8,
        warm_batches=4,
        cold_batches=4,
        shares=(0.5,),
        reading_threads=(2,),
        small_per_class=20,
        counted=500,
        cold_timed_batches=2,
        timed_batches=2,
        timed_s=0.0,
        rounds=2,
    ),
    options={
        "--small": {"type": Path, "default": CIFAR10, "help": "a folder of CIFAR-10 as mosaics"},
        "--folder": {"type": Path, "help": "on the disk to measure; the system's temporary folder by default"},
    },
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
