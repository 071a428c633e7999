"""Comparisons: trainings side by side, and loading alone; whoever is compared takes turns."""

from __future__ import annotations

import itertools
import math
import random
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.auto_aug import rand_augment
from nvidia.dali.pipeline import pipeline_def
from nvidia.dali.plugin.pytorch import DALIClassificationIterator
from torch.utils.data import DataLoader

from dalirefurb.augment.recipe import Recipe
from dalirefurb.cli.terminal import complain, one_line, waiting
from dalirefurb.demo.pillow_images import MEAN, STD, PillowImages
from dalirefurb.demo.training import EpochReport, Trainer
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.source import Source
from dalirefurb.store import MemoryStore
from dalirefurb.system.resources import usable_cores
from dalirefurb.system.threads import wait_until_idle
from dalirefurb.tuning.turns import Turns

_IDLE_LIMIT_S = 10.0
_TIMED_BATCHES = 50
"""After the first epoch, at least, or a run is too short to say how fast it is."""


@dataclass(frozen=True)
class TimedRun:
    """One of the runs compared.

    Attributes:
        reports: One for each epoch, the first one included, which only misses.
        made_ahead: Batches at an epoch's start that may have been made before its turn; they are not timed.
    """

    name: str
    reports: list[EpochReport]
    made_ahead: int = 0

    @property
    def timed(self) -> list[EpochReport]:
        """The epochs after the first, if there are any, without the batches made ahead."""
        return [report.after(self.made_ahead) for report in self.reports[1:] or self.reports]

    @property
    def images_per_s(self) -> float:
        """Median throughput of the timed epochs."""
        return float(np.median([report.images_per_s for report in self.timed]))

    @property
    def misses(self) -> float:
        """Median misses of a timed epoch."""
        return float(np.median([report.stats.misses for report in self.timed]))

    @property
    def batch_ms(self) -> float:
        """Median time per batch, in milliseconds."""
        return float(np.median([report.batch_ms(50) for report in self.timed]))


def compare(trainers: Mapping[str, Trainer], *, epochs: int) -> list[TimedRun]:
    """Train all, by name, epoch by epoch in turn."""
    runs = [TimedRun(name, [], trainer.loader.batches_ahead) for name, trainer in trainers.items()]
    for epoch in range(epochs):
        for run, trainer in zip(runs, trainers.values(), strict=True):
            run.reports.append(trainer.epoch(f"{run.name}, epoch {epoch + 1} of {epochs}"))
            with waiting("waiting for the machine to be idle"):
                wait_until_idle(_IDLE_LIMIT_S)
    return runs


def tells_speed(epochs: int, batches: int) -> bool:
    """Whether so many epochs, of so many batches each, are enough to say how fast a run is."""
    return (epochs - 1) * batches >= _TIMED_BATCHES


def _measured(runs: list[TimedRun]) -> bool:
    return all(tells_speed(len(run.reports), len(run.reports[-1].rows)) for run in runs)


def table(runs: list[TimedRun]) -> str:
    """Set the runs beside the first one, with speeds if there are enough batches to tell them."""
    width = max(len(run.name) for run in runs)
    if not _measured(runs):
        lines = [f"{'':<{width}}   misses per epoch   accuracy"]
        lines += [f"{run.name:<{width}}   {run.misses:>16.0f}   {run.reports[-1].accuracy:>8.1%}" for run in runs]
        return "\n".join(lines)
    lines = [f"{'':<{width}}   images/s   speed-up   misses per epoch   ms per batch   accuracy"]
    lines += [
        f"{run.name:<{width}}   {run.images_per_s:>8.0f}   {run.images_per_s / runs[0].images_per_s:>7.2f}x"
        f"   {run.misses:>16.0f}   {run.batch_ms:>12.1f}   {run.reports[-1].accuracy:>8.1%}"
        for run in runs
    ]
    return "\n".join(lines)


def explanation(runs: list[TimedRun], *, step_ms: float, loading: Mapping[str, float]) -> str:
    """Say what the figures mean, and what they do not, of runs of which the first is the standard.

    Beside them are the milliseconds of the network's step on a batch while no data are prepared and, where the batches
    are enough to tell speeds, images/s of loading alone, of the first two runs last.
    """
    first, other = runs[:2]
    speeds = "All of it works. So few batches do not tell how fast it is: for that pass more --images, more --epochs."
    if _measured(runs):
        *_, standard, refurbished = loading.values()
        speeds = (
            f"Training gains {other.images_per_s / first.images_per_s:.2f} times where loading alone gains "
            f"{refurbished / standard:.2f}: no cache shortens the network's own step, which is "
            f"{step_ms / first.batch_ms:.0%} of standard's time ({step_ms:.0f} of {first.batch_ms:.0f} ms per batch)."
        )
    accuracy = (
        "Accuracy is that of the last epoch's augmented training batches, from the same initial weights: it shows "
        "that every run learns; differences of a few points mean little at this size."
    )
    return "\n".join(textwrap.fill(sentence, 100) for sentence in (speeds, accuracy))


_ROUNDS = 3
_TURN_S = 2.0
_REST_LIMIT_S = 5.0
_HANGS_S = 60.0

_IMAGES = 256
"""Of a core in a turn, at least, where batches are counted: a second or two."""

_MADE_AHEAD = 6
"""Batches that stock DALI may have made, or begun, before its turn: those of two queues, and two."""


def load_alone(source: Source, recipe: Recipe, refurbish: Refurbish) -> dict[str, float]:
    """Return images/s of each loader, standard and refurbished last: medians of turns."""
    paths, size = [source.name(index) for index in range(len(source))], recipe.output.sides[0]
    standard = Standard(len(source), batch_size=refurbish.batch_size, seed=refurbish.seed)
    with MemoryStore() as store:
        alone, reused = Turns(source, recipe, standard), Turns(source, recipe, refurbish, store)
        turns: dict[str, Callable[[], float]] = {
            "DataLoader": _turn(_data_loader(paths, size, refurbish.batch_size), refurbish.batch_size),
            "stock DALI": _turn(_stock_dali(paths, size, refurbish.batch_size), refurbish.batch_size),
            "dalirefurb, standard": lambda: 1 / alone.slice(_TURN_S).image_s,
            f"dalirefurb, reuse factor {refurbish.reuse_factor}": lambda: 1 / reused.slice(_TURN_S).image_s,
        }
        with waiting("loading alone, warming up"):
            reused.fill()
            try:
                turns["DataLoader"]()
            except (OSError, RuntimeError) as error:  # Such as too little shared memory for its processes.
                del turns["DataLoader"]
                complain(f"dalirefurb: warning: torch's DataLoader is left out: {one_line(str(error))}")
        speeds: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(1 + _ROUNDS):
            for name in list(turns)[:: (-1) ** number]:
                with waiting(f"loading alone, {name}, turn {number + 1} of {1 + _ROUNDS}"):
                    speeds[name].append(turns[name]())
                    wait_until_idle(_REST_LIMIT_S)
    return {name: float(np.median(each[1:])) for name, each in speeds.items()}  # The first turn warms up.


def loading_table(speeds: dict[str, float]) -> str:
    """Set the loaders beside the first one, and say what they do."""
    first, width = next(iter(speeds.values())), max(map(len, speeds))
    lines = [f"{name:<{width}}   {speed:>8.0f}   {speed / first:>7.2f}x" for name, speed in speeds.items()]
    work = (
        "All decode, crop, flip, apply two operations of RandAugment and normalise; DataLoader does so by Pillow, in a "
        f"process for each core. Medians of {_ROUNDS} turns after a first one; what was made ahead is not counted."
    )
    return "\n".join([f"{'':<{width}}   images/s   speed-up", *lines, "", textwrap.fill(work, 100)])


def _turn(serve: Callable[[int], Iterator[Any]], rows: int) -> Callable[[], float]:
    """Return a function that has so many batches served, as many by each process, and returns images/s."""
    cores = usable_cores()
    untimed, timed = cores * math.ceil(_MADE_AHEAD / cores), cores * math.ceil(_IMAGES / rows)

    def turn() -> float:
        arrivals = [time.perf_counter() for _ in serve(untimed + timed)]
        return timed * rows / (arrivals[-1] - arrivals[untimed - 1])

    return turn


def _stock_dali(paths: list[str], size: int, rows: int) -> Callable[[int], Iterator[Any]]:
    """Load with DALI's own operators, as its documentation shows; RandAugment takes the nearest pixel, as ours does."""

    def graph() -> Any:
        encoded, label = fn.readers.file(files=paths, random_shuffle=True)
        images = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], device="cpu")
        images = fn.flip(fn.resize(images, size=(size, size)), horizontal=fn.random.coin_flip())
        images = rand_augment.rand_augment(images, n=2, m=9, interp_type=types.DALIInterpType.INTERP_NN)
        return fn.crop_mirror_normalize(images, mean=MEAN.tolist(), std=STD.tolist()), label

    # `auto_aug` warns of its own deprecated operators, whatever the filters say.
    with warnings.catch_warnings(record=True):
        stock = pipeline_def(enable_conditionals=True)(graph)
        pipeline = stock(batch_size=rows, num_threads=usable_cores(), device_id=None)
        batches = DALIClassificationIterator(pipeline, size=-1, auto_reset=True)
    return lambda count: itertools.islice(batches, count)


def _data_loader(paths: list[str], size: int, rows: int) -> Callable[[int], Iterator[Any]]:
    """Load with Pillow in processes. All that is asked for is served, so that none works in another's turn."""
    order: list[int] = []
    # A process that were a copy of this one would have locks of threads that it lacks. One that cannot hand batches
    # over, as where TMPDIR is too long for a socket's name, only says so, and would be waited for without end.
    processes: dict[str, Any] = {"num_workers": usable_cores(), "multiprocessing_context": "spawn", "timeout": _HANGS_S}
    loader = DataLoader(PillowImages(paths, size), rows, sampler=order, persistent_workers=True, **processes)

    def serve(count: int) -> Iterator[Any]:
        order[:] = random.choices(range(len(paths)), k=count * rows)
        return iter(loader)

    return serve
