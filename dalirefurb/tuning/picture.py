"""Picture of a choice: images/s against the reuse factor, a line for each split, with what the step can use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING

from dalirefurb.show.colours import CACHED, GREY, INK
from dalirefurb.tuning.choice import REUSE_FACTORS, Choice
from dalirefurb.tuning.costs import ORDERS, SplitCosts
from dalirefurb.tuning.model import Configuration, predict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FACTORS = (1, *REUSE_FACTORS)
_LEAST_DISTANCE = 0.05
"""Of two labels, as a share of the picture's height."""

_HEADROOM = 1.1
_CHARACTERS = 62
"""Of a line above each panel."""


def draw(choice: Choice) -> Figure:
    """Draw it, a panel for each recipe: full lines keep enough of the different images, dotted ones do not."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(split.recipe for split in choice.costs.splits))
    figure = Figure(figsize=(0.6 + 5.2 * len(names), 5.2), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    taken = None if choice.recommended is None else choice.recommended.configuration
    alone = replace(choice.workload, step_s=0.0, step_cpu_s=0.0)
    speed = 0.0 if taken is None else predict(choice.costs, choice.machine, alone, taken).images_per_s
    top = _HEADROOM * max([speed, *(max(_speeds(choice, split)) for split in choice.costs.splits)])
    for name, axes in zip(names, panels, strict=True):
        _draw_recipe(axes, choice, [split for split in choice.costs.splits if split.recipe == name], top)
        axes.set_title(ORDERS.get(name, name), fontsize=10)
        if taken is not None and taken.split.recipe == name:
            axes.plot([min(taken.reuse_factor, _FACTORS[-1])], [speed], "o", color=CACHED, markersize=9, zorder=3)
    panels[0].set_ylabel("images/s, loading alone")
    said = f"nothing is recommended: {choice.missing}"
    if taken is not None:
        said = f"the dot is what to take: {choice.name_of(taken)}"
    kept = f"lines: where images are cached; full where at least {choice.min_kept:g} of the different images are kept"
    lines = [line for each in (said, kept) for line in wrap(each, _CHARACTERS * len(names))]
    figure.suptitle("\n".join(lines), fontsize=9)
    return figure


def _draw_recipe(axes: Axes, choice: Choice, splits: Sequence[SplitCosts], top: float) -> None:
    axes.set_ylim(0, top)
    axes.set_xlim(0.8, _FACTORS[-1] + 0.1)
    ends = []
    for number, split in enumerate(splits):
        factors = [factor for factor in _FACTORS if factor in split.kept]
        speeds, colour = _speeds(choice, split), f"C{number}"
        enough = sum(split.kept[factor] >= choice.min_kept for factor in factors)
        axes.plot(factors, speeds, ":", color=colour, linewidth=1.2)
        axes.plot(factors[:enough], speeds[:enough], "-", color=colour, linewidth=1.8)
        if len(factors) > 1:
            ends.append((speeds[-1], split.place, colour))
    if choice.workload.step_s:
        limit = choice.workload.batch_size / choice.workload.step_s
        axes.axhline(limit, color=GREY, linewidth=1)
        ends.append((min(limit, top), f"a step can use {limit:,.0f}", INK))
    ends.sort()
    for height, (_, label, colour) in zip(_apart([end[0] for end in ends], top), ends, strict=True):
        beside = axes.get_yaxis_transform()
        axes.text(1.01, height, label, fontsize=8, color=colour, va="center", transform=beside)
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
    """Move rising heights up until none is too close to the one below it, then down until all are below the top."""
    for _ in range(2):
        found: list[float] = []
        for height in heights:
            found.append(max(height, found[-1] + _LEAST_DISTANCE * top if found else 0.0))
        heights = [top - height for height in reversed(found)]
    return list(heights)
