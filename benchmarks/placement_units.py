"""What is measured at a time: all feeds of one workload, with so many cores, with one model or none, in one round."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import harness
import torch
from feeds import FEEDS
from harness import Contender, Entrant, Placement
from sources import read_mosaics, repeated
from training_steps import ALONE, HEADSPACE, Model

from dalirefurb import Arrays, FileList

PHOTOGRAPHS, ARRAYS = "photographs", "arrays"


@dataclass(frozen=True)
class Workload:
    """What is loaded, and what learns from it.

    Attributes:
        data: `PHOTOGRAPHS` or `ARRAYS`.
        size: Side of the images the model receives, in pixels.
        epoch_batches: Batches of an epoch.
        timed_batches: Of a slice.
        models: `ALONE`, and names of `networks.NETWORKS`.
    """

    data: str
    size: int
    epoch_batches: int
    timed_batches: int
    models: tuple[str, ...]


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        batch_size: Of all feeds.
        cores: Numbers of CPU cores; those that the machine lacks are left out.
        rounds: Slices of each feed.
        workloads: What is loaded.
        turn_limit_s: Time after which a feed that has not had its turn is taken for one that never will.
    """

    batch_size: int = 128
    cores: tuple[int, ...] = (16, 8, 4, 2, 1)
    rounds: int = 3
    workloads: tuple[Workload, ...] = (
        Workload(PHOTOGRAPHS, 224, 24, 48, (ALONE, "imagenet18", "imagenet50")),
        Workload(ARRAYS, 32, 200, 150, (ALONE, "resnet18", "resnet50")),
    )
    turn_limit_s: float = 180


@dataclass(frozen=True)
class Unit:
    """What is measured at a time."""

    workload: Workload
    cores: int
    model: str
    round: int

    def turn(self, feed: str, **measured: Any) -> Turn:
        """Make the turn of one of its feeds."""
        return Turn(self.workload.data, self.cores, self.model, self.round, feed, **measured)


@dataclass(frozen=True)
class Turn:
    """One feed in one unit.

    Attributes:
        data: Of the workload.
        cores: CPU cores.
        model: Which, or `ALONE`.
        round: From 0.
        feed: Its name, or `HEADSPACE`.
        images: Served while the clock ran.
        seconds: For these.
        step_ms: Median time that the device worked on a step; None without a model.
        failure: How its process ended, if it did before the turn was over.
    """

    data: str
    cores: int
    model: str
    round: int
    feed: str
    images: int
    seconds: float
    step_ms: float | None
    failure: str | None = None

    def is_of(self, unit: Unit) -> bool:
        """Tell whether it belongs to a unit."""
        wanted = (unit.workload.data, unit.cores, unit.model, unit.round)
        return (self.data, self.cores, self.model, self.round) == wanted


def headspace(size: int, batch_size: int, model: Model) -> Contender:
    """Feed one batch that is there already, again and again."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = torch.zeros(batch_size, 3, size, size, device=device)
    labels = torch.zeros(batch_size, dtype=torch.int64, device=device)

    def batches() -> Generator[int, None, None]:
        while True:
            model.take(images, labels)
            yield batch_size

    return Contender(HEADSPACE, Placement(0, 0), 1, batches())


def feed_names(unit: Unit) -> list[str]:
    """Name the feeds of a unit in the order of their turns, which is another one in every other round.

    Of arrays none is decoded, so it is the same with a JPEG engine and without.
    """
    encoded = unit.workload.data == PHOTOGRAPHS
    feeds = [feed for feed in FEEDS if feed.hardware or encoded]
    names = [feed.name for feed in feeds if torch.cuda.is_available() or not feed.needs_gpu]
    if unit.model != ALONE:
        names.append(HEADSPACE)
    return names if unit.round % 2 == 0 else names[::-1]


def take_turns(
    config: Config, unit: Unit, photographs: Path, arrays: Path, feeds: Sequence[str], report: Connection
) -> None:
    """Let feeds of a unit take their turns, in a process of its own; report the name of each, and then its turn."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: unit.cores])
    torch.set_num_threads(unit.cores)
    workload, batch_size = unit.workload, config.batch_size
    source = _source(workload, batch_size, photographs, arrays)
    model = Model(unit.model, int(source.labels.max()) + 1)
    known = {feed.name: feed for feed in FEEDS}
    for name in feeds:
        report.send(name)
        with ExitStack() as stack:
            entrant: Entrant = (
                headspace(workload.size, batch_size, model)
                if name == HEADSPACE
                else known[name].entrant(stack, source, workload.size, batch_size, model.take)
            )
            (timed,) = harness.interleave([entrant], rounds=1, timed_batches=workload.timed_batches)
        step_ms = model.step_ms(workload.timed_batches)
        report.send(unit.turn(name, images=timed.images, seconds=timed.seconds, step_ms=step_ms))


def _source(workload: Workload, batch_size: int, photographs: Path, arrays: Path) -> Arrays | FileList:
    samples = workload.epoch_batches * batch_size
    if workload.data == PHOTOGRAPHS:
        return repeated(photographs, samples)
    return read_mosaics(arrays, "train", samples // 10)
