"""Plots of plans: misses over epochs, and batch by batch within them, by matplotlib; and what they are counted from.

Balanced eviction against reference counts is figure 7 of Revamper (Lee et al., USENIX ATC 2021), the cache-aware batch
shuffler against a plain shuffle figure 8. Of any planner it is drawn what becomes of each sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dalirefurb.planning.planner import Planner
from dalirefurb.planning.refurbish import ReferenceCount, Refurbish
from dalirefurb.planning.shuffle import PlainShuffler
from dalirefurb.show import BACKGROUND, CACHED, COMPARED, FRESH, GREY, LINE

if TYPE_CHECKING:
    from typing import Any

    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.image import AxesImage

Misses = NDArray[np.int64]
"""Misses of each batch, shape (epochs, batches)."""

_SAMPLES = 1000
"""Samples that are drawn, at most: more than there are pixels."""

_BATCHES = 100
"""Batches of an epoch that are drawn as columns, at most: fewer than there are pixels, so that each can be seen."""

_EPOCHS_OF_BATCHES = 2
"""Epochs whose batches are shown: those after the first, which only misses."""


@dataclass(frozen=True)
class Comparison:
    """Misses of refurbishing, and of what it would be without one of its shufflers.

    Attributes:
        refurbish: Misses with balanced eviction and cache-aware batches.
        reference_count: Misses if versions that began together end together.
        plain_shuffle: Misses of batches that ignore the cache.
    """

    planner: Refurbish
    refurbish: Misses
    reference_count: Misses
    plain_shuffle: Misses


@dataclass(frozen=True)
class History:
    """What a planner does to samples and batches, epoch by epoch.

    Attributes:
        planner: The planner whose plans are counted.
        served: How often each sample is served, shape (epochs, num_samples).
        computed: How often each sample's partial augmentation runs for that, shape (epochs, num_samples).
        misses: Share of each batch's rows that are misses, 0..1, shape (epochs, batches).
    """

    planner: Planner
    served: NDArray[np.int64]
    computed: NDArray[np.int64]
    misses: NDArray[np.float64]


def history(planner: Planner, epochs: int) -> History:
    """Count what a planner plans, from epoch 0 on."""
    served, computed = np.zeros((2, epochs, planner.num_samples), np.int64)
    misses = np.empty((epochs, len(planner)))
    for epoch in range(epochs):
        for batch, plan in enumerate(planner.epoch(epoch)):
            np.add.at(served[epoch], plan.indices, 1)
            np.add.at(computed[epoch], plan.indices[plan.miss], 1)
            misses[epoch, batch] = plan.miss.mean()
    return History(planner, served, computed, misses)


def compare_plans(planner: Refurbish, epochs: int) -> Comparison:
    """Plan the same epochs in three ways, from epoch 0 on."""
    return Comparison(
        planner,
        _planned_misses(planner, epochs),
        _planned_misses(replace(planner, evict_shuffler=ReferenceCount()), epochs),
        _planned_misses(replace(planner, batch_shuffler=PlainShuffler()), epochs),
    )


def _planned_misses(planner: Planner, epochs: int) -> Misses:
    return np.array([[plan.miss.sum() for plan in planner.epoch(epoch)] for epoch in range(epochs)])


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


def history_plot(history: History, *, title: str) -> Figure:
    """Draw what becomes of every sample, of every batch, and how it adds up."""
    figure = Figure(figsize=(13, 4.6), layout=ConstrainedLayoutEngine(wspace=0.06))
    samples, batches, sums = figure.subplots(1, 3)
    _draw_samples(samples, history)
    _draw_shares(batches, history)
    _draw_sums(sums, history)
    planner = history.planner
    cached = f"at most {planner.peak_slots:,} cached" if planner.peak_slots else "none cached"
    figure.suptitle(f"{title}: {planner.num_samples:,} samples, batches of {planner.batch_size}, {cached}", fontsize=13)
    return figure


def _draw_samples(axes: Axes, history: History) -> None:
    """Draw a column for a sample; those that fare alike stand together."""
    kinds = np.where(history.served == 0, 0, np.where(history.computed == 0, 1, 2))
    order = np.lexsort(-kinds[::-1])
    shown = order[np.linspace(0, len(order) - 1, min(_SAMPLES, len(order))).round().astype(int)]
    labels = {"not served": BACKGROUND, "from the cache": CACHED, "computed": FRESH}
    _map(axes, kinds[:, shown], ListedColormap(list(labels.values())), highest=2, width=len(order))
    axes.set_xlabel("samples, in the order of their first epochs")
    axes.set_title("Samples", fontsize=11)
    patches = [Patch(facecolor=colour, edgecolor=LINE, label=label) for label, colour in labels.items()]
    axes.legend(
        handles=patches, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, columnspacing=1
    )


def _draw_shares(axes: Axes, history: History) -> None:
    colours = LinearSegmentedColormap.from_list("misses", [CACHED, BACKGROUND, FRESH])
    batches = history.misses.shape[1]
    shown = history.misses[:, :_BATCHES]
    image = _map(axes, shown, colours, highest=1, width=shown.shape[1])
    axes.set_xlabel("batches" + (f", the first {_BATCHES} of {batches:,}" if batches > _BATCHES else ""))
    axes.set_title("Share of computed rows in a batch", fontsize=11)
    axes.figure.colorbar(image, ax=axes, format="{x:.0%}", aspect=30)


def _draw_sums(axes: Axes, history: History) -> None:
    """Draw the mean over samples, and the range from the least to the most."""
    epochs = np.arange(len(history.served) + 1)
    for counts, colour, label in ((history.served, CACHED, "served"), (history.computed, FRESH, "computed")):
        sums = np.concatenate([np.zeros((1, counts.shape[1])), counts.cumsum(axis=0)])
        mean = sums.mean(axis=1)
        axes.fill_between(epochs, sums.min(axis=1), sums.max(axis=1), color=colour, alpha=0.2, linewidth=0)
        axes.plot(epochs, mean, color=colour, linewidth=2, label=f"{label}: {mean[-1]:.1f} in {len(counts)} epochs")
    axes.set_xlabel("epochs done")
    axes.set_ylabel("times a sample was served or computed")
    axes.set_xlim(0, epochs[-1])
    axes.locator_params(axis="x", integer=True)
    _finish(axes, "A sample: mean, least and most", int(history.served.sum(axis=0).max()), columns=1)


def _map(axes: Axes, values: NDArray[Any], colours: Colormap, *, highest: float, width: int) -> AxesImage:
    """Draw a row for an epoch, the first at the top."""
    image = axes.imshow(
        values,
        cmap=colours,
        vmin=0,
        vmax=highest,
        aspect="auto",
        interpolation="nearest",
        extent=(0, width, len(values) - 0.5, -0.5),
    )
    axes.set_ylabel("epoch")
    axes.locator_params(axis="y", integer=True)
    axes.locator_params(axis="x", nbins=5, integer=True)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[:].set_color(LINE)
    return image


def _draw_epochs(axes: Axes, comparison: Comparison) -> None:
    width = 0.4
    for shift, misses, colour, label in (
        (-width / 2, comparison.reference_count, COMPARED, "reference counts"),
        (width / 2, comparison.refurbish, CACHED, "balanced eviction"),
    ):
        totals = misses.sum(axis=1)
        axes.bar([epoch + shift for epoch in range(len(totals))], totals, 0.92 * width, color=colour, label=label)
    axes.set_xlabel("epoch")
    axes.set_ylabel("misses of an epoch")
    axes.locator_params(axis="x", integer=True)
    _finish(axes, "Over epochs", comparison.planner.num_samples)


def _draw_batches(axes: Axes, comparison: Comparison) -> None:
    first = min(1, len(comparison.refurbish) - 1)
    shown = slice(first, first + _EPOCHS_OF_BATCHES)
    refurbish, plain = comparison.refurbish[shown], comparison.plain_shuffle[shown]
    epochs, batches = refurbish.shape
    for misses, colour, label, size in (
        (plain, COMPARED, "plain shuffle", 3.0),
        (refurbish, CACHED, "batch shuffler", 2.5),
    ):
        axes.plot(misses.ravel(), linestyle="none", marker="o", markersize=size, color=colour, label=label)
    for epoch in range(1, epochs):
        axes.axvline(epoch * batches - 0.5, color=GREY, linewidth=1, linestyle="--")
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


def _finish(axes: Axes, title: str, highest: int, *, columns: int = 2) -> None:
    """Leave room for the legend above what is drawn."""
    axes.set_ylim(0, 1.2 * max(highest, 1))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="y", integer=True)
    axes.set_title(title, fontsize=11)
    axes.legend(ncols=columns, loc="upper center", facecolor="white", edgecolor="none", framealpha=1, markerscale=2)
    axes.grid(axis="y", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
