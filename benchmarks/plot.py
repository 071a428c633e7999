"""Draw the figure of a script from its JSON; measures nothing.

python benchmarks/plot.py                           results/throughput.json -> results/throughput.png
python benchmarks/plot.py --results results/techniques.json
python benchmarks/plot.py --results a.json --out a.png
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import figures
import matplotlib.pyplot as plt
from figures import Run
from matplotlib.figure import Figure

_RESULTS = Path(__file__).parent / "results" / "throughput.json"

DRAWINGS: dict[str, Callable[[Run], Figure]] = {
    "techniques": figures.draw_techniques,
    "accuracy": figures.draw_accuracy,
    "time_to_accuracy": figures.draw_time_to_accuracy,
    "competitors": figures.draw_against,
    "splits": figures.draw_splits,
    "headspace": figures.draw_headspace,
    "ablations": figures.draw_ablations,
    "contention": figures.draw_contention,
    "plans": figures.draw_planning,
    "soaked": figures.draw_soak,
    "tuned": figures.draw_tuned,
}
"""Which drawing, by what only its results have; throughput.py's are a list of cases, which have bounds."""


def drawing(run: Run) -> Callable[[Run], Figure] | None:
    """Choose the drawing of a script's results; None if there is none."""
    results = run.get("results", {})
    if isinstance(results, list):
        return figures.draw_throughput if results and "bound" in results[0] else None
    return next((own for key, own in DRAWINGS.items() if key in results), None)


def save(run: Run, path: Path) -> bool:
    """Write a PNG; return whether the results have a drawing."""
    if (own := drawing(run)) is None:
        return False
    figure = own(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return True


def main() -> int:
    """Read what the command line names, and draw it."""
    parser = argparse.ArgumentParser(description="Draw the figure of a script.")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="its JSON, throughput.py's by default")
    parser.add_argument("--out", type=Path, help="a PNG; by default beside the JSON, with its name")
    options = parser.parse_args()
    if not options.results.exists():
        reason = "is none: run that first"
    elif save(json.loads(options.results.read_text()), options.out or options.results.with_suffix(".png")):
        return 0
    else:
        reason = "has none: read the table that the script prints"
    print(f"--results must be the JSON of a script with a figure, but {options.results} {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
