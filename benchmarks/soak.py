"""Does a long run leak? Memory, threads and descriptors at the end of every epoch, for every technique.

Claim, on any machine: none of them grows by more than 1 %: the median of the last ten epochs over that of the ten from
the second on.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON. `Config` can place parts on a GPU:
then its memory counts, too.
n: 50 epochs over 2,000 samples for each technique, each in a process of its own.

Samples are small JPEGs of varying sizes that the script makes, so that many epochs take little time: what leaks at each
batch, run, epoch or sample leaks as well with large ones. A figure is taken once the loader has made its batches ahead
and rests, after a garbage collection and a `malloc_trim`: glibc keeps memory that was freed, how much depends on which
thread freed what, and a leak is what cannot be given back. So that it keeps little, it has one arena here, and maps
blocks from 32 KB on. DALI's pools are asked to give back likewise. How many images rest on their way, and how large
they are, still varies from epoch to epoch, hence medians.

    python benchmarks/soak.py                        about ten minutes on 2 cores
    python benchmarks/plot.py --results results/soak.json
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import techniques as compared
import torch
from claims import say, table
from experiment import Experiment, Options
from PIL import Image
from techniques import Technique

from dalirefurb import AutoAssist, DiskStore, ImageFolder, Loader, MemoryStore, Refurbish
from dalirefurb.augment.stage import Device
from dalirefurb.dali import release_unused_memory
from dalirefurb.store import DeviceStore, Store
from dalirefurb.system.threads import wait_until_idle

REFERENCE_EPOCH = 1
MOST_GROWTH = 0.01
ON_DISK = "reuse factor 2, on disk"
IN_PART = "reuse factor 2, half cached"
ON_DEVICE = "reuse factor 2, in a device's memory"

_IDLE_LIMIT_S = 60.0
_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(32 << 10)}
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        epochs: Of each technique; three at least.
        epoch_batches: Batches of an epoch that serves each sample once.
        batch_size: Samples of a batch.
        size: Side of the images the model receives, in pixels.
        sides: Least and largest side of the encoded images, in pixels.
        names: Of the techniques; None for all.
        partial_device: Where the partial part runs.
        final_device: Where the final part runs, and a device's store is.
    """

    epochs: int = 50
    epoch_batches: int = 20
    batch_size: int = 100
    size: int = 32
    sides: tuple[int, int] = (40, 90)
    names: tuple[str, ...] | None = None
    partial_device: Device = "cpu"
    final_device: Device = "cpu"

    @property
    def num_samples(self) -> int:
        """Samples of the source."""
        return self.epoch_batches * self.batch_size


@dataclass(frozen=True)
class Soaked:
    """What one technique's process had at the end of each epoch.

    Attributes:
        technique: Its name.
        resident_mb: Resident memory in MB.
        threads: All of the process, DALI's and torch's included.
        descriptors: Open ones.
        device_mb: Memory of the GPU that is in use, by whomever, in MB; 0 where all runs on the CPU.
    """

    technique: str
    resident_mb: list[float]
    threads: list[int]
    descriptors: list[int]
    device_mb: list[float]

    def growth(self) -> dict[str, float]:
        """Return by how much of its median in the first epochs each one rose to its median in the last ones."""
        kinds: dict[str, Sequence[float]] = {
            "memory": self.resident_mb,
            "threads": self.threads,
            "descriptors": self.descriptors,
        }
        if any(self.device_mb):
            kinds["the GPU's memory"] = self.device_mb
        return {kind: _growth(values[REFERENCE_EPOCH:]) for kind, values in kinds.items()}


def holds(results: Mapping[str, Any]) -> bool:
    """Tell whether nothing grew by more than is promised."""
    return all(growth <= MOST_GROWTH for each in results["soaked"] for growth in each.growth().values())


def show(soaked: Sequence[Soaked]) -> str:
    """Write the table."""
    rows = []
    for each in soaked:
        growth = each.growth()
        verdict = "flat" if max(growth.values()) <= MOST_GROWTH else f"GROWS by more than {MOST_GROWTH:.0%}"
        figures = [f"{each.resident_mb[-1]:.0f} MB", str(each.threads[-1]), str(each.descriptors[-1])]
        grew = ", ".join(f"{kind} {growth[kind]:+.2%}" for kind in growth)
        rows.append([each.technique, *figures, grew, verdict])
    return table(["technique", "resident", "threads", "descriptors", "grew", ""], rows)


def soak(config: Config, name: str, root: Path) -> Soaked:
    """Train for some epochs, with a model that does nothing; run in a process of its own."""
    technique = next(each for each in techniques(config) if each.name == name)
    store: Store = MemoryStore()
    if name == ON_DISK:
        store = DiskStore(root.parent / "cache")
    if name == ON_DEVICE:
        store = DeviceStore(device=config.final_device)
    taken: list[tuple[float, int, int, float]] = []
    loader = Loader(
        ImageFolder(root),
        technique.recipe,
        technique.planner,
        store,
        partial_device=config.partial_device,
        final_device=config.final_device,
    )
    with store, loader:
        for _ in range(config.epochs):
            for images, _ in loader:
                if isinstance(technique.planner, AutoAssist):
                    loader.observe(images.mean(dim=(1, 2, 3)) + 3)
            taken.append((*_usage(), _device_mb() if config.final_device == "gpu" else 0.0))
    resident, threads, descriptors, device = zip(*taken, strict=True)
    return Soaked(name, list(resident), list(threads), list(descriptors), list(device))


def techniques(config: Config) -> list[Technique]:
    """List every technique, and refurbishing with other stores."""
    of = compared.Config(
        factors=(2,),
        layers=(),
        size=config.size,
        batch_size=config.batch_size,
        epoch_batches=config.epoch_batches,
        rounds=0,
    )
    listed = compared.techniques(of)
    refurbished = next(each for each in listed if isinstance(each.planner, Refurbish))
    half = Refurbish(config.num_samples, batch_size=config.batch_size, reuse_factor=2, coverage=0.5)
    listed.append(Technique(ON_DISK, refurbished.recipe, refurbished.planner))
    listed.append(Technique(IN_PART, refurbished.recipe, half))
    listed.append(Technique(ON_DEVICE, refurbished.recipe, refurbished.planner))
    return [each for each in listed if config.names is None or each.name in config.names]


def write_images(config: Config, root: Path) -> None:
    """Write small JPEGs of varying sizes, in ten classes."""
    rng = np.random.default_rng(0)
    for index in range(config.num_samples):
        folder = root / f"class_{index % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = rng.integers(*config.sides, 2, endpoint=True).tolist()
        pixels = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
        Image.fromarray(pixels[:height, :width]).save(folder / f"{index:05d}.jpg", quality=90)


def _usage() -> tuple[float, int, int]:
    """Return resident memory in MB, threads, and open descriptors, once all threads rest."""
    if not wait_until_idle(_IDLE_LIMIT_S):
        raise RuntimeError(f"a loader must come to rest after an epoch, but worked on for {_IDLE_LIMIT_S:.0f} s")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    threads = len(list(Path("/proc/self/task").iterdir()))
    return round(resident * _PAGE_MB, 3), threads, len(list(Path("/proc/self/fd").iterdir()))


def _device_mb() -> float:
    """Return the GPU's memory in use in MB, once all threads rest."""
    torch.cuda.synchronize()
    release_unused_memory()
    free, total = torch.cuda.mem_get_info()
    return round((total - free) / 1e6, 3)


def measure(config: Config, options: Options | None = None) -> dict[str, Any]:
    """Run each technique in a new process, one after the other."""
    soaked = []
    with TemporaryDirectory() as folder:
        root = Path(folder) / "pictures"
        write_images(config, root)
        for technique in techniques(config):
            soaked.append(_apart(config, technique.name, root))
            print(f"{technique.name}: {config.epochs} epochs", file=sys.stderr)
    say(show(soaked))
    return {"soaked": soaked, "most_growth": MOST_GROWTH}


def _apart(config: Config, name: str, root: Path) -> Soaked:
    """Run one technique in a new process."""
    spawn = multiprocessing.get_context("spawn")
    receiving, sending = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_send, args=(sending, config, name, root))
    with patch.dict(os.environ, _ALLOCATOR):
        process.start()
    sending.close()
    try:
        received: Soaked = receiving.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{name} must end by itself, but its process ended with {process.exitcode}") from None
    process.join()
    return received


def _growth(values: Sequence[float]) -> float:
    """Compare the last values, ten or the second half, with as many first ones."""
    count = min(10, len(values) // 2)
    return median(values[-count:]) / median(values[:count]) - 1


def _send(sending: Connection, config: Config, name: str, root: Path) -> None:
    sending.send(soak(config, name, root))


EXPERIMENT = Experiment(
    measure, Config(), quick=Config(epochs=4, epoch_batches=4, batch_size=8, names=(ON_DISK,)), data=None, holds=holds
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
