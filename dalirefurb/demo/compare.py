"""Trainings side by side: they take turns, an epoch each, so that a busy machine slows all alike."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dalirefurb.cli.terminal import waiting
from dalirefurb.demo.training import EpochReport, Trainer
from dalirefurb.system.fair_comparison import wait_until_idle

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
