"""Picture of a choice: images/s against the reuse factor, a line for each split, with what the step can use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dalirefurb.show.colours import CACHED, GREY, INK
from dalirefurb.tuning.choice import REUSE_FACTORS, Choice
from dalirefurb.tuning.costs import SplitCosts
from dalirefurb.tuning.model import Configuration, predict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FACTORS = (1, *REUSE_FACTORS)
_LEAST_DISTANCE = 0.045
"""Of two labels, as a share of the picture's height."""

_HEADROOM = 1.15


def draw(choice: Choice) -> Figure:
    """Draw it, a panel for each recipe: full lines keep enough of the different images, dotted ones do not."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(split.recipe for split in choice.costs.splits))
    figure = Figure(figsize=(1.0 + 4.6 * len(names), 4.6), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    most = max([choice.recommended.images_per_s, *(max(_speeds(choice, split)) for split in choice.costs.splits)])
    for name, axes in zip(names, panels, strict=True):
        splits = [split for split in choice.costs.splits if split.recipe == name]
        _draw_recipe(axes, choice, splits, _HEADROOM * most)
        axes.set_title(name, fontsize=10)
    panels[0].set_ylabel("images/s, loading alone")
    figure.suptitle(
        f"by where the final part begins; full lines keep at least {choice.min_kept:g} of the different images",
        fontsize=10,
    )
    return figure


def _draw_recipe(axes: Axes, choice: Choice, splits: Sequence[SplitCosts], top: float) -> None:
    axes.set_ylim(0, top)
    axes.set_xlim(0.8, _FACTORS[-1] + 2)
    ends = []
    for number, split in enumerate(splits):
        factors = [factor for factor in _FACTORS if factor in split.kept]
        speeds, colour = _speeds(choice, split), f"C{number}"
        enough = sum(split.kept[factor] >= choice.min_kept for factor in factors)
        axes.plot(factors, speeds, ":", color=colour, linewidth=1.2)
        axes.plot(factors[:enough], speeds[:enough], "-", color=colour, linewidth=1.8)
        if len(factors) > 1:
            ends.append((speeds[-1], split.final, colour))
    for height, (_, label, colour) in zip(_apart([end[0] for end in sorted(ends)], top), sorted(ends), strict=True):
        axes.annotate(label, (_FACTORS[-1] + 0.1, height), fontsize=8, color=colour, va="center")
    if choice.workload.step_s:
        limit = choice.workload.batch_size / choice.workload.step_s
        at = min(limit, 0.97 * top)
        said = "what the step can use" if limit < top else f"the step can use {limit:,.0f}"
        axes.axhline(at, color=GREY, linewidth=1, linestyle="-" if limit < top else "none")
        axes.annotate(said, (_FACTORS[0], at), fontsize=8, color=INK, va="bottom" if limit < 0.9 * top else "top")
    taken = choice.recommended.configuration
    if taken.split.recipe == splits[0].recipe:
        factor = min(taken.reuse_factor, _FACTORS[-1])
        alone = replace(choice.workload, step_s=0.0, step_cpu_s=0.0)
        speed = predict(choice.costs, choice.machine, alone, taken).images_per_s
        axes.plot([factor], [speed], "o", color=CACHED, markersize=9)
        label = "take" if factor == taken.reuse_factor else f"take, reuse factor {taken.reuse_factor}"
        axes.annotate(f"{label}  ", (factor, speed), fontsize=9, color=CACHED, ha="right", va="bottom")
    axes.set_xticks(_FACTORS)
    axes.set_xlabel("reuse factor")
    axes.spines[["top", "right"]].set_visible(False)


def _speeds(choice: Choice, split: SplitCosts) -> list[float]:
    """Return images/s at each reuse factor, with all samples in memory, however much that is, and no step."""
    loading = replace(choice.workload, step_s=0.0, step_cpu_s=0.0)
    machine = replace(choice.machine, memory_bytes=1 << 62)
    rows = [
        Configuration(split, factor, 1.0, "device" if split.on_device else "memory")
        for factor in _FACTORS
        if factor in split.kept
    ]
    return [predict(choice.costs, machine, loading, row).images_per_s for row in rows]


def _apart(heights: Sequence[float], top: float) -> list[float]:
    """Move rising heights up until none is too close to the one below it."""
    found: list[float] = []
    for height in heights:
        found.append(height if not found else max(height, found[-1] + _LEAST_DISTANCE * top))
    return found
