"""Drawing of benchmarks/tune.py: what was predicted against what was achieved."""

from __future__ import annotations

import figures
import matplotlib.pyplot as plt
import numpy as np
from figures import Run
from matplotlib.figure import Figure

_MARKS = {"none": "s", "memory": "o", "disk": "^"}


def draw_tuned(run: Run) -> Figure:
    """Draw a panel for each data set: a mark for each configuration and step, and lines 10 % off."""
    cases = run["results"]["tuned"]
    figure, panels = plt.subplots(1, len(cases), figsize=(5.2 * len(cases), 5), squeeze=False)
    for axes, case in zip(panels[0], cases, strict=True):
        runs = case["runs"]
        for tier, mark in _MARKS.items():
            own = [each for each in runs if each["tier"] == tier]
            achieved, predicted = ([each[kind] for each in own] for kind in ("achieved", "predicted"))
            label = "standard" if tier == "none" else f"reuse, {tier}"
            axes.plot(achieved, predicted, mark, markersize=4, alpha=0.7, label=label)
        ends = np.array([0.9, 1.1]) * np.array([min(e["achieved"] for e in runs), max(e["achieved"] for e in runs)])
        for factor, style in ((1.0, "-"), (1.1, ":"), (0.9, ":")):
            axes.plot(ends, factor * ends, style, color=figures.GRAY, linewidth=1, zorder=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("achieved images/s")
        axes.set_ylabel("predicted images/s")
        axes.set_title(f"{case['data']}: {len(runs)} runs", fontsize=10)
        axes.legend(fontsize=8)
    machine = run["environment"]
    figure.suptitle(f"dotted: 10 % off; {machine['cpu']}, {machine['cores']} cores, no GPU; DALI {machine['dali']}")
    return figure
