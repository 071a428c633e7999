"""Trainings side by side: they take turns, an epoch each, so that a busy machine slows all alike."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dalirefurb.cli.terminal import waiting
from dalirefurb.cli.train import EpochReport, Trainer
from dalirefurb.show.colours import CACHED, COMPARED
from dalirefurb.system.fair_comparison import wait_until_idle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IDLE_LIMIT_S = 10.0
_TIMED_BATCHES = 50
"""After the first epoch, at least, or a run is too short to say how fast it is."""


@dataclass(frozen=True)
class Run:
    """One of the runs compared.

    Attributes:
        name: Name of the run, for the table.
        reports: Reports of the epochs, one per epoch; the first epoch, which only misses, is included.
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
        return float(np.median([report.misses for report in self.timed]))

    @property
    def batch_ms(self) -> float:
        """Median time per batch, in milliseconds."""
        return float(np.median([report.batch_ms(50) for report in self.timed]))


def compare(trainers: Mapping[str, Trainer], *, epochs: int, say: Callable[[str], None]) -> list[Run]:
    """Train all, epoch by epoch in turn.

    Args:
        trainers: The trainers by name.
        epochs: Number of epochs of each training.
        say: Function that is called with a line for each epoch, of throughputs, or of misses if there are too few
            batches to tell them, and a heading before.
    """
    widths = [max(10, len(name)) for name in trainers]
    runs = [Run(name, [], trainer.loader.batches_ahead) for name, trainer in trainers.items()]
    speeds = _tell_speed(epochs, len(next(iter(trainers.values())).loader))
    say("epoch   " + "   ".join(f"{name:>{width}}" for name, width in zip(trainers, widths, strict=True)))
    for epoch in range(epochs):
        for run, trainer in zip(runs, trainers.values(), strict=True):
            run.reports.append(trainer.epoch())
            with waiting("waiting for the machine to be idle"):
                wait_until_idle(_IDLE_LIMIT_S)
        last = [run.reports[-1].after(run.made_ahead) for run in runs]
        figures = [report.images_per_s if speeds else report.misses for report in last]
        row = "   ".join(f"{figure:>{width}.0f}" for figure, width in zip(figures, widths, strict=True))
        unit = f"images/s{', all misses' if epoch == 0 else ''}" if speeds else "misses"
        say(f"{epoch:>5}   {row}   {unit}")
    return runs


def _tell_speed(epochs: int, batches: int) -> bool:
    """Whether so many epochs, of so many batches each, are enough to say how fast a run is."""
    return (epochs - 1) * batches >= _TIMED_BATCHES


def _measured(runs: list[Run]) -> bool:
    return all(_tell_speed(len(run.reports), len(run.reports[-1].rows)) for run in runs)


def table(runs: list[Run]) -> str:
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


def plot(runs: list[Run], *, caption: str) -> Figure:
    """Draw the table: throughput as bars, beside them the speed-up over the first and the misses.

    Where there are too few batches to tell speeds, the bars are misses.

    Args:
        runs: The runs; the first is the standard.
        caption: Title of the plot, which says what was run.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.4 + 0.6 * len(runs)), layout="constrained")
    axes = figure.subplots()
    measured = _measured(runs)
    values = [run.images_per_s if measured else run.misses for run in runs]
    bars = axes.barh([run.name for run in runs], values, 0.7, color=[COMPARED] + [CACHED] * (len(runs) - 1))
    texts = [f"{run.misses:,.0f} misses per epoch" for run in runs]
    if measured:
        texts = [
            f"{value:,.0f} images/s, {value / values[0]:.2f}x\n{text}"
            for value, text in zip(values, texts, strict=True)
        ]
    axes.bar_label(bars, texts, padding=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(values))
    axes.set_xlabel("images/s in training" if measured else "misses per epoch")
    axes.set_title(caption, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def explanation(runs: list[Run], *, step_ms: float) -> str:
    """Say what the figures mean, and what they do not.

    Args:
        runs: The runs; the first is the standard.
        step_ms: Milliseconds of the network's step on a batch while no data are prepared.
    """
    first, *others = runs
    best = max(others, key=lambda run: run.images_per_s)
    speeds = (
        f"The network's own step takes {step_ms:.0f} ms per batch while no data are prepared, and no cache shortens "
        f"it: of standard's {first.batch_ms:.0f} ms per batch only the rest can shrink, here to {best.batch_ms:.0f} ms "
        f"in all ({best.name}), with network and data on the same cores."
    )
    sentences = (
        speeds
        if _measured(runs)
        else "All of it works. So few batches do not tell how fast it is: for that pass more --images, more --epochs.",
        "Accuracy is that of the last epoch's augmented training batches, from the same initial weights: it shows "
        "that every run learns; differences of a few points mean little at this size.",
    )
    return "\n".join(textwrap.fill(sentence, 100) for sentence in sentences)
