"""Model: how fast training runs with a configuration, and what that takes. A pure function of measured costs.

Let m be the share of an epoch's rows that are misses after epoch 0, as the plan has them; all times are for one image:

    cores    t = scale (m (standard + put) + (1 - m) hit + mixed) + step's CPU time / cores; a GPU's where it does both
             mixed is what hits and misses cost more in one epoch, 0 where there is one kind only; put, hit and mixed
             cost more on a disk; scale = measured cores / cores / their speed
    source   t = m read
    disk     t = bytes read and written / what the disk gives and takes, but for what the page cache holds
    copies   t = the copy of a finished image to the model's GPU, where the final part is on the CPU
    loader   t = what the loader's own threads need, which more cores do not shorten
    step     t = (step + what is between two steps) / batch size

Each works while the others do, a few batches ahead, so the largest is the time of an image: images/s = ranks / t.
Epoch 0 computes every image: m = 1. What is kept of the different images is a version's share, weighed by coverage:
kept = coverage kept(r) + 1 - coverage. Memory is what each rank's slots take, `Refurbish.shard_slots` of them.

Nothing waits for anything but the slowest part: benchmarks/tune.py tells how closely a loader comes to that.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from dalirefurb.checks import CheckedFields
from dalirefurb.engine.partial_sizes import PROBES, PartialSizes, mean_error
from dalirefurb.planning.refurbish import Refurbish
from dalirefurb.store.disk.layout import Layout
from dalirefurb.tuning.costs import Costs, SplitCosts, named

Tier = Literal["none", "memory", "disk", "tiered", "device"]
Bound = Literal["cores", "source", "disk", "copies", "loader", "step"]

_DIRTY = 0.2
"""Share of the page cache that Linux lets pages fill that are to be written yet: it takes as many writes at once."""

_MOST_EPOCHS = 10
"""Epochs whose misses are counted: they differ by a sample or two."""


@dataclass(frozen=True)
class Machine(CheckedFields):
    """Where training runs: a machine whose ranks share all of it equally.

    Attributes:
        cores: Number of cores of all ranks.
        memory_bytes: Bytes of memory that caches may take.
        disk_bytes: Bytes of disk that caches may take; 0: no disk.
        device_bytes: Bytes of all GPUs' memory that caches may take.
        page_cache_bytes: Bytes of memory beside that, which the page cache has for a `DiskStore`.
        ranks: Number of processes that train together, one for each GPU.
        core_speed: How many times as fast a core is as one of those measured.
        source_bytes_per_s: Bytes a second that the source gives to all ranks; None: as measured.
        disk_read_bytes_per_s: Bytes a second that the disk gives; None: as measured.
        disk_write_bytes_per_s: Bytes a second that the disk takes; None: as measured.
    """

    cores: int
    memory_bytes: int
    disk_bytes: int = 0
    device_bytes: int = 0
    page_cache_bytes: int = 0
    ranks: int = 1
    core_speed: float = 1.0
    source_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        for field in ("cores", "ranks"):
            self._integer(field, 1, None, "pass how many there are")
        for field in ("memory_bytes", "disk_bytes", "device_bytes", "page_cache_bytes"):
            self._integer(field, 0, None, "0 for none")
        self._number("core_speed", "above 0", lambda times: 0 < times < math.inf, "1 is usual")
        for field in ("source_bytes_per_s", "disk_read_bytes_per_s", "disk_write_bytes_per_s"):
            if getattr(self, field) is not None:
                self._number(field, "above 0", lambda speed: 0 < speed < math.inf, "leave it out: as measured")


@dataclass(frozen=True)
class Workload(CheckedFields):
    """What is trained.

    Attributes:
        num_samples: Number of samples of an epoch.
        batch_size: Rows of a batch of all ranks together.
        epochs: Number of epochs of the run.
        step_s: Seconds of the model's step on a rank's part of a batch; 0: nothing but loading.
        step_cpu_s: CPU seconds of it on the cores that the loader works on.
    """

    num_samples: int
    batch_size: int
    epochs: int = 90
    step_s: float = 0.0
    step_cpu_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the fields."""
        for field in ("num_samples", "batch_size", "epochs"):
            self._integer(field, 1, None, "pass how many there are")
        for field in ("step_s", "step_cpu_s"):
            self._number(field, "of at least 0", lambda seconds: 0 <= seconds < math.inf, "0: no step")


@dataclass(frozen=True)
class Configuration:
    """One way to load.

    Attributes:
        split: Costs of the split, which name recipe and split.
        reuse_factor: Uses of a version; 1: standard.
        coverage: Share of the samples that are cached.
        tier: Where they are.
    """

    split: SplitCosts
    reuse_factor: int
    coverage: float
    tier: Tier

    @property
    def name(self) -> str:
        """The configuration in a few words."""
        recipe = named(self.split.recipe, self.split.devices)
        if self.reuse_factor == 1:
            return "standard loading" if recipe == "recipe" else f"standard loading ({recipe})"
        share = "" if self.coverage == 1 else f", {self.coverage:.1%} of the samples"
        return f"{recipe}, cached {self.split.place}, reuse factor {self.reuse_factor}, {self.tier}{share}"

    def is_for_ever(self, workload: Workload) -> bool:
        """Tell whether what is kept is kept for the whole run, which loses nothing since none of it is random."""
        return self.split.deterministic and self.reuse_factor > 1 and self.reuse_factor == workload.epochs

    def is_keep(self, workload: Workload) -> bool:
        """Tell whether all samples are kept so, from behind decoding on, which costs no diversity."""
        return self.is_for_ever(workload) and self.split.split > 0 and self.coverage == 1


@dataclass(frozen=True)
class Prediction:
    """What a configuration is expected to reach.

    Attributes:
        configuration: The configuration.
        images_per_s: Images a second of all ranks after epoch 0.
        bound: What limits it.
        stall: Share of the time that training waits for data after epoch 0, 0..1; 0 without a step.
        misses: Share of an epoch's rows that are computed after epoch 0.
        kept: Share of standard training's different images that is kept.
        memory_bytes: Bytes of memory that the cache takes.
        disk_bytes: Bytes of disk that the cache takes.
        device_bytes: Bytes of the GPUs' memory that the cache takes.
        epoch_0_s: Seconds of epoch 0.
        run_s: Seconds of all epochs.
        run_images_per_s: Images a second over the whole run.
    """

    configuration: Configuration
    images_per_s: float
    bound: Bound
    stall: float
    misses: float
    kept: float
    memory_bytes: int
    disk_bytes: int
    device_bytes: int
    epoch_0_s: float
    run_s: float
    run_images_per_s: float


def predict(costs: Costs, machine: Machine, workload: Workload, configuration: Configuration) -> Prediction:
    """Return what a configuration reaches on a machine, which need not be the one measured, and what it takes there.

    A cache that exceeds the machine's bytes is not refused here.
    """
    split = configuration.split
    taken = _taken(workload, machine, configuration)
    misses = _misses(_planner(workload, machine, configuration))
    time, bound = _image_s(costs, machine, workload, configuration, misses, taken)
    first, _ = _image_s(costs, machine, workload, configuration, 1.0, taken)
    epoch_0_s = first * workload.num_samples / machine.ranks
    run_s = epoch_0_s + (workload.epochs - 1) * time * workload.num_samples / machine.ranks
    of_cached = 1.0 if split.deterministic else split.kept[configuration.reuse_factor]
    kept = configuration.coverage * of_cached + 1 - configuration.coverage
    step = workload.step_s / (workload.batch_size / machine.ranks)
    on_device = configuration.tier == "device"
    return Prediction(
        configuration=configuration,
        images_per_s=machine.ranks / time,
        bound=bound,
        stall=1 - step / time if step else 0.0,
        misses=misses,
        kept=1.0 if configuration.reuse_factor == 1 else kept,
        memory_bytes=0 if on_device else taken.memory_bytes,
        disk_bytes=taken.disk_bytes,
        device_bytes=taken.memory_bytes if on_device else 0,
        epoch_0_s=epoch_0_s,
        run_s=run_s,
        run_images_per_s=workload.epochs * workload.num_samples / run_s,
    )


def largest_coverage(machine: Machine, workload: Workload, configuration: Configuration) -> float:
    """Return the largest share of the samples, in thousandths, whose slots a machine has room for; 0: none."""
    room = {
        "none": 0,
        "memory": machine.memory_bytes,
        "disk": machine.disk_bytes,
        "tiered": machine.memory_bytes + machine.disk_bytes,
        "device": machine.device_bytes,
    }[configuration.tier]

    def nbytes(thousandths: int) -> int:
        taken = _taken(workload, machine, replace(configuration, coverage=thousandths / 1000))
        return taken.memory_bytes + taken.disk_bytes

    return 1.0 if nbytes(1000) <= room else (bisect_right(range(1000), room, key=nbytes) - 1) / 1000


def _image_s(
    costs: Costs, machine: Machine, workload: Workload, configuration: Configuration, misses: float, taken: _Taken
) -> tuple[float, Bound]:
    """Return the seconds that an image takes on one rank, and what takes them."""
    split = configuration.split
    cores = machine.cores / machine.ranks
    # Misses of the covered samples are put into the store.
    kept_misses = 0.0 if configuration.reuse_factor == 1 else max(0.0, misses - (1 - configuration.coverage))
    scale = 1.0 if split.on_device else costs.cores / cores / machine.core_speed
    # Where little was measured, it can be less than that a miss takes nothing.
    put_s = max(split.put_s, -split.standard_s.median)
    get_s, mixed_s, disk_s = split.hit_s.median, costs.mixed_s, 0.0
    on_disk = taken.disk_share
    if on_disk and costs.disk is not None:
        in_page_cache = machine.page_cache_bytes / max(1.0, taken.disk_bytes)
        each_bytes = split.image_bytes * on_disk
        put_s += costs.disk.put_s * each_bytes
        get_s += costs.disk.get_s * each_bytes
        mixed_s += costs.disk.mixed_s * on_disk
        reads = each_bytes * (1 - misses) * (1 - min(1.0, in_page_cache))
        read_speed = machine.disk_read_bytes_per_s or costs.disk.read_bytes_per_s
        write_speed = machine.disk_write_bytes_per_s or costs.disk.write_bytes_per_s
        writes = each_bytes * kept_misses * (1 - min(1.0, _DIRTY * in_page_cache))
        disk_s = machine.ranks * (reads / read_speed + writes / write_speed)
    computing = misses * split.standard_s.median + kept_misses * put_s + (1 - misses) * get_s
    computing += mixed_s if 0 < misses < 1 else 0.0
    source_s = (
        misses * costs.read_s
        if machine.source_bytes_per_s is None
        else misses * machine.ranks * costs.encoded_bytes / machine.source_bytes_per_s
    )
    rows = workload.batch_size / machine.ranks
    hand_over_s = costs.hand_over_s if configuration.reuse_factor == 1 else costs.reused_hand_over_s
    times: dict[Bound, float] = {
        "step": (workload.step_s + hand_over_s) / rows,
        "cores": scale * computing + workload.step_cpu_s / rows / cores,
        "source": source_s,
        "disk": disk_s,
        "copies": costs.copy_s if split.devices[1] == "cpu" else 0.0,
        "loader": costs.serial_s / machine.core_speed,
    }
    bound = max(times, key=lambda name: times[name])
    return times[bound], bound


class _Taken(NamedTuple):
    """What a cache takes: bytes of memory, or of GPUs, and of the disk, and the share of its samples that are there."""

    memory_bytes: int
    disk_bytes: int
    disk_share: float


def _taken(workload: Workload, machine: Machine, configuration: Configuration) -> _Taken:
    """Return what the slots of all ranks take; a tiered cache fills memory first.

    A file on a disk has records beside its samples, which begin at whole pages.
    """
    planner, split = _planner(workload, machine, configuration), configuration.split
    shape = None if split.image_std_bytes else (1, 1, round(split.image_bytes))
    # A store has room for the mean to be another one than that of the samples that were looked at.
    error = mean_error(split.image_std_bytes, PROBES, workload.num_samples)
    sizes = PartialSizes(shape, split.image_bytes, split.image_std_bytes, split.largest_bytes, error)
    specs = [] if planner is None else sizes.specs(planner)
    nbytes = sum(spec.nbytes for spec in specs)
    share = {"disk": 1.0, "tiered": max(0.0, 1 - machine.memory_bytes / max(1, nbytes))}.get(configuration.tier, 0.0)
    beside = sum(Layout(spec).nbytes - spec.nbytes for spec in specs)
    return _Taken(nbytes - round(share * nbytes), round(share * nbytes) + round(share * beside), share)


@lru_cache(maxsize=4096)
def _misses(planner: Refurbish | None) -> float:
    """Return the share of rows that miss, as planned, in epochs in which each group of versions has its turn."""
    if planner is None:
        return 1.0
    misses = rows = 0
    for epoch in range(planner.reuse_factor, planner.reuse_factor + min(planner.reuse_factor, _MOST_EPOCHS)):
        for shard in range(planner.shards):
            runs = planner.runs(epoch, shard)
            rows += sum(run.size for run in runs)
            misses += sum(run.size for run in runs if run.miss)
    return misses / rows


def _planner(workload: Workload, machine: Machine, configuration: Configuration) -> Refurbish | None:
    """Return what plans a configuration; None: nothing is cached."""
    if configuration.reuse_factor == 1 or configuration.coverage == 0:
        return None
    return Refurbish(
        workload.num_samples,
        batch_size=workload.batch_size,
        shards=machine.ranks,
        reuse_factor=configuration.reuse_factor,
        coverage=configuration.coverage,
    )
