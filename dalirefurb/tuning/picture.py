"""Picture of an advice: images/s against the reuse factor, a line for each split, with what the step can use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dalirefurb.show.colours import CACHED, COMPARED
from dalirefurb.tuning.choice import REUSE_FACTORS
from dalirefurb.tuning.model import Configuration, predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dalirefurb.tuning.choice import Choice

_SIZE = (9.0, 5.0)


def draw(choice: Choice) -> Figure:
    """Draw it: full lines keep enough of the different images, dotted ones do not; the dot is what to take."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    loading = replace(choice.workload, step_s=0.0, step_cpu_s=0.0)
    factors = [1, *REUSE_FACTORS]
    names = list(dict.fromkeys(split.recipe for split in choice.costs.splits))
    for split in choice.costs.splits:
        rows = [
            predict(
                choice.costs,
                choice.machine,
                loading,
                Configuration(split, factor, 1.0, "none" if factor == 1 else "memory"),
            )
            for factor in factors
        ]
        speeds = [row.images_per_s for row in rows]
        colour = f"C{names.index(split.recipe) * 2 + 0}"
        enough = sum(row.kept >= choice.min_kept for row in rows)
        axes.plot(factors, speeds, ":", color=colour, linewidth=1)
        axes.plot(factors[:enough], speeds[:enough], "-", color=colour, linewidth=1.8)
        axes.annotate(f" {split.final}", (factors[-1], speeds[-1]), fontsize=8, color=colour, va="center")
    if choice.workload.step_s:
        limit = choice.workload.batch_size / choice.workload.step_s
        axes.axhline(limit, color=COMPARED, linewidth=1.2)
        axes.annotate("the most that the step can use ", (factors[-1], limit), fontsize=8, ha="right", va="bottom")
    taken = choice.recommended
    axes.plot([taken.configuration.reuse_factor], [taken.images_per_s], "o", color=CACHED, markersize=9)
    axes.set_xticks(factors)
    axes.set_xlim(0.9, factors[-1] + 1.2)
    axes.set_ylim(0, None)
    axes.set_xlabel("reuse factor")
    axes.set_ylabel("images/s, loading alone, in memory")
    axes.set_title(
        f"where the final part begins; full lines keep at least {choice.min_kept:g} of the different images",
        fontsize=10,
    )
    axes.spines[["top", "right"]].set_visible(False)
    for place, name in enumerate(names):
        axes.plot([], [], color=f"C{place * 2}", label=name)
    axes.plot([], [], "o", color=CACHED, label="what to take")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    return figure
