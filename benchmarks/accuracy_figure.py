"""How does the figure of `accuracy.py` look? Test accuracy against images/s, a panel for each group."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from figures import BLUE, GRAY, Run, save


def draw_accuracy(run: Run, path: Path) -> None:
    """Draw test accuracy against images/s of loading alone, one panel for each group."""
    cases = [case for case in run["results"]["accuracy"] if case["images_per_s"] is not None]
    groups = list(dict.fromkeys(case["group"] for case in cases))
    figure, panels = plt.subplots(
        1, len(groups), figsize=(1 + 6 * len(groups), 5), squeeze=False, sharey=len(groups) > 1, layout="constrained"
    )
    for axes, group in zip(panels[0], groups, strict=True):
        standard, *others = [case for case in cases if case["group"] == group]
        level = standard["accuracy"]["mean"]
        axes.axhline(level, color=GRAY, linewidth=1, linestyle="dashed")
        for case in (standard, *others):
            # A case stands as far from standard as its paired difference is, and so does its interval.
            apart = case["difference"] or {"mean": 0.0, "half_width": 0.0}
            speed = case["images_per_s"]
            axes.errorbar(
                speed["median"],
                level + apart["mean"],
                xerr=[[speed["median"] - speed["lower"]], [speed["upper"] - speed["median"]]],
                yerr=apart["half_width"] or None,
                fmt="o",
                capsize=3,
                color="black" if case is standard else BLUE,
            )
            place = (speed["median"], level + apart["mean"])
            axes.annotate(case["case"], place, (7, 5), textcoords="offset points")
        axes.margins(x=0.25)
        axes.set_title(group, fontsize=10)
        axes.set_xlabel("images/s, consumer does nothing")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("test accuracy, %")
    machine, config = run["environment"], run["config"]
    seeds = sorted({case["seeds"] for case in cases})
    figure.suptitle(
        f"{config['data']}, {10 * config['train_per_class']:,} images, {config['epochs']} epochs' steps, "
        f"{'-'.join(map(str, seeds))} seeds\n"
        f"bars: 95 % interval of the paired difference from standard, quartiles of images/s\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}; DALI {machine['dali']}",
        fontsize=9,
    )
    save(figure, path)
