"""How do plans look? Misses over epochs, and batch by batch within them, by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dalirefurb.show.canvas import CACHED, GREY, LINE
from dalirefurb.show.plans import Comparison, Misses

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COMPARED = "#9aa1a8"
_EPOCHS_OF_BATCHES = 2
"""Epochs whose batches are shown: those after the first, which only misses."""


def plan_plot(comparison: Comparison) -> Figure:
    """Draw figures 7 and 8 of Revamper for these plans, both axes from 0."""
    figure = Figure(figsize=(11, 4.6), layout=ConstrainedLayoutEngine(wspace=0.06))
    epochs, batches = figure.subplots(1, 2)
    _draw_epochs(epochs, comparison)
    _draw_batches(batches, comparison)
    planner = comparison.planner
    figure.suptitle(
        f"Where the misses are: {planner.num_samples:,} samples, batches of {planner.batch_size}, "
        f"reuse factor {planner.reuse_factor}",
        fontsize=13,
    )
    return figure


def _draw_epochs(axes: Axes, comparison: Comparison) -> None:
    width = 0.4
    for shift, misses, colour, label in (
        (-width / 2, comparison.reference_count, _COMPARED, "reference counts"),
        (width / 2, comparison.refurbish, CACHED, "balanced eviction"),
    ):
        totals = misses.sum(axis=1)
        axes.bar([epoch + shift for epoch in range(len(totals))], totals, 0.92 * width, color=colour, label=label)
    axes.set_xlabel("epoch")
    axes.set_ylabel("misses of an epoch")
    axes.locator_params(axis="x", integer=True)
    _finish(axes, "Over epochs", comparison.planner.num_samples)


def _draw_batches(axes: Axes, comparison: Comparison) -> None:
    refurbish, plain = _shown(comparison.refurbish), _shown(comparison.plain_shuffle)
    epochs, batches = refurbish.shape
    for misses, colour, label, size in (
        (plain, _COMPARED, "plain shuffle", 3.0),
        (refurbish, CACHED, "batch shuffler", 2.5),
    ):
        axes.plot(misses.ravel(), linestyle="none", marker="o", markersize=size, color=colour, label=label)
    for epoch in range(1, epochs):
        axes.axvline(epoch * batches - 0.5, color=GREY, linewidth=1, linestyle="--")
    first = min(1, len(comparison.refurbish) - 1)
    for epoch in range(epochs):
        axes.annotate(
            f"epoch {first + epoch}",
            ((epoch + 0.5) * batches, 0),
            (0, 6),
            textcoords="offset points",
            ha="center",
            color=GREY,
        )
    short = comparison.planner.num_samples % comparison.planner.batch_size
    axes.set_xlabel("batch" + (f" (the last of an epoch has {short} rows)" if short else ""))
    axes.set_ylabel("misses of a batch")
    axes.set_xlim(-0.015 * epochs * batches, 1.015 * epochs * batches)
    _finish(axes, "Within epochs, balanced eviction", int(max(refurbish.max(), plain.max())))


def _shown(misses: Misses) -> Misses:
    """Return the epochs whose batches are drawn."""
    return misses[1 : 1 + _EPOCHS_OF_BATCHES] if len(misses) > 1 else misses


def _finish(axes: Axes, title: str, highest: int) -> None:
    """Leave room for the legend above what is drawn."""
    axes.set_ylim(0, 1.2 * max(highest, 1))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="y", integer=True)
    axes.set_title(title, fontsize=11)
    axes.legend(ncols=2, loc="upper center", facecolor="white", edgecolor="none", framealpha=1, markerscale=2)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
