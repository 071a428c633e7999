"""Draw the figure of a script from its JSON; measures nothing.

python benchmarks/plot.py                           results/throughput.json -> results/throughput.png
python benchmarks/plot.py --results results/techniques.json
python benchmarks/plot.py --results a.json --out a.png
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from accuracy_figure import draw_accuracy
from figures import FIGURES, caption, save, whiskers

_RESULTS = Path(__file__).parent / "results" / "throughput.json"
_BARS = {"standard": "#9aa5b1", "reuse factor 2": "#3f7fbf", "reuse factor 3": "#1f4e8c", "reuse factor 4": "#10294a"}
_ORDERS = {"paper": "paper's order", "crop_last": "crop last"}
_GROUP_WIDTH = 0.81
_BOUND = "#d1495b"
_BAR = "#3f7fbf"


def draw(run: Mapping[str, Any], path: Path) -> None:
    """Draw images/s of standard and refurbished loading, one group of bars for each order and batch size."""
    cases = run["results"]
    figure, axes = plt.subplots(figsize=(4 + 1.5 * len(cases), 5), layout="constrained")
    highest = 0.0
    bars = {name: colour for name, colour in _BARS.items() if all(name in case["bound"] for case in cases)}
    width = _GROUP_WIDTH / len(bars)
    for place, (name, colour) in enumerate(bars.items()):
        for group, case in enumerate(cases):
            x = group + (place - (len(bars) - 1) / 2) * width
            speed, bound = case["images_per_s"][name], case["bound"][name]["median"]
            whisker = [[speed["median"] - speed["lower"]], [speed["upper"] - speed["median"]]]
            axes.bar(
                x,
                speed["median"],
                0.9 * width,
                yerr=whisker,
                capsize=4,
                color=colour,
                ecolor="black",
                label=name if group == 0 else None,
            )
            axes.hlines(
                bound,
                x - width / 2,
                x + width / 2,
                color=_BOUND,
                linewidth=2,
                label="amortised bound" if (place, group) == (2, 0) else None,
            )
            highest = max(highest, speed["upper"], bound)
            label = {"ha": "center", "color": "white" if place else "black"}
            axes.annotate(f"{speed['median']:,.0f}", (x, 0), (0, 6), textcoords="offset points", **label)
    axes.set_xticks(range(len(cases)), [f"{_ORDERS[case['order']]}\nbatches of {case['batch_size']}" for case in cases])
    axes.set_ylabel("images/s, consumer does nothing")
    axes.set_ylim(0, 1.05 * highest)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(ncols=3, loc="outside lower center", frameon=False)
    axes.set_title(caption(run), fontsize=10)
    save(figure, path)


def draw_techniques(run: Mapping[str, Any], path: Path) -> None:
    """Draw images/s of each technique beside its own bound, and the diversity that it keeps."""
    techniques = run["results"]["techniques"]
    rows = range(len(techniques))
    figure, (speed_axes, diversity_axes) = plt.subplots(
        1, 2, figsize=(11, 1.8 + 0.36 * len(techniques)), width_ratios=(3, 1), sharey=True, layout="constrained"
    )
    medians = [each["images_per_s"]["median"] for each in techniques]
    speed_axes.barh(
        rows,
        medians,
        0.7,
        xerr=whiskers([each["images_per_s"] for each in techniques]),
        capsize=3,
        color=_BAR,
        ecolor="black",
        label="images/s",
    )
    bounds = [each["bound"]["median"] for each in techniques]
    speed_axes.vlines(
        bounds, [row - 0.42 for row in rows], [row + 0.42 for row in rows], color=_BOUND, linewidth=2, label="its bound"
    )
    ends = [max(bound, each["images_per_s"]["upper"]) for bound, each in zip(bounds, techniques, strict=True)]
    for row, median, end in zip(rows, medians, ends, strict=True):
        speed_axes.annotate(f"{median:,.0f}", (end, row), (6, 0), textcoords="offset points", va="center")
    speed_axes.set_yticks(rows, [each["name"] for each in techniques])
    speed_axes.invert_yaxis()
    speed_axes.set_xlim(0, 1.12 * max(ends))
    speed_axes.set_xlabel("images/s, consumer does nothing")
    kept = [each["diversity"] for each in techniques]
    diversity_axes.barh(rows, kept, 0.7, color="#9aa5b1")
    for row, share in zip(rows, kept, strict=True):
        diversity_axes.annotate(f"{share:.2f}", (0, row), (4, 0), textcoords="offset points", va="center")
    diversity_axes.set_xlim(0, 1)
    diversity_axes.set_xlabel("different images of standard's")
    for axes in (speed_axes, diversity_axes):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*speed_axes.get_legend_handles_labels(), ncols=2, loc="outside lower center", frameon=False)
    figure.suptitle(caption(run), fontsize=10)
    save(figure, path)


DRAWINGS = {"techniques": draw_techniques, "accuracy": draw_accuracy, **FIGURES}
"""Which drawing, by what only its results have; throughput.py's are a list of cases, which have bounds."""


def drawing(run: Mapping[str, Any]) -> Callable[[Mapping[str, Any], Path], None] | None:
    """Choose the drawing of a script's results; None if there is none."""
    results = run.get("results", {})
    if isinstance(results, list):
        return draw if results and "bound" in results[0] else None
    return next((own for key, own in DRAWINGS.items() if key in results), None)


def main() -> int:
    """Read what the command line names, and draw it."""
    parser = argparse.ArgumentParser(description="Draw the figure of a script.")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="its JSON, throughput.py's by default")
    parser.add_argument("--out", type=Path, help="a PNG; by default beside the JSON, with its name")
    options = parser.parse_args()
    run: Mapping[str, Any] | None = json.loads(options.results.read_text()) if options.results.exists() else None
    own = None if run is None else drawing(run)
    if run is None or own is None:
        reason = "is none: run that first" if run is None else "has none: read the table that the script prints"
        print(f"--results must be the JSON of a script with a figure, but {options.results} {reason}", file=sys.stderr)
        return 2
    own(run, options.out or options.results.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
