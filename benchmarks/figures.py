"""How do the figures of `suite.py` look? One drawing for each script's results; `plot.py` chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Run = Mapping[str, Any]

GRAY, BLUE, DARK, RED = "#9aa5b1", "#3f7fbf", "#1f4e8c", "#d1495b"
_COLOURS = (GRAY, BLUE, DARK, RED)
_ORDER_COLOURS = {"paper": BLUE, "crop_last": DARK}


def draw_against(run: Run, path: Path) -> None:
    """Draw images/s of every loader, ours in colour, those that reuse nothing marked."""
    rows = sorted(run["results"]["competitors"], key=lambda row: row["images_per_s"]["median"])
    figure, axes = plt.subplots(figsize=(9, 1.6 + 0.34 * len(rows)), layout="constrained")
    colours = [_ORDER_COLOURS[row["order"]] if row["ours"] else GRAY for row in rows]
    names = [f"dalirefurb, {row['name']}" if row["ours"] else row["name"] for row in rows]
    _horizontal(axes, names, [row["images_per_s"] for row in rows], colours)
    axes.set_xlabel("images/s, consumer does nothing")
    axes.set_title(caption(run), fontsize=9)
    save(figure, path)


def draw_splits(run: Run, path: Path) -> None:
    """Draw images/s of each split, and the diversity that it keeps."""
    results = run["results"]
    rows = results["splits"]
    figure, (speed, kept) = plt.subplots(
        1, 2, figsize=(11, 1.8 + 0.36 * len(rows)), width_ratios=(3, 1), sharey=True, layout="constrained"
    )
    names = [f"{row['name']}; final from {(*row['final'], 'output')[0]}" for row in rows]
    colours = [_ORDER_COLOURS[row["order"]] for row in rows]
    _horizontal(
        speed,
        [name + (" *" if row["preset"] else "") for name, row in zip(names, rows, strict=True)],
        [row["images_per_s"] for row in rows],
        colours,
    )
    speed.axvline(results["standard"]["median"], color=RED, linewidth=2, label="standard")
    speed.legend(frameon=False)
    speed.set_xlabel(f"images/s at reuse factor {run['config']['reuse_factor']}\n* where the preset splits")
    kept.barh(range(len(rows)), [row["diversity"] for row in rows], 0.7, color=GRAY)
    kept.set_xlim(0, 1)
    kept.set_xlabel("different images,\nas a share of standard's")
    _open(kept)
    figure.suptitle(caption(run), fontsize=9)
    save(figure, path)


def draw_headspace(run: Run, path: Path) -> None:
    """Draw images/s over the number of cores, and over the length of the training step."""
    results = run["results"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    _lines(left, results["cores"], "cores")
    left.set_xticks(run["config"]["cores"])
    left.set_xlabel("cores, loading alone")
    left.set_ylabel("images/s")
    waits = [row for row in results["headspace"] if not isinstance(row["step"], str)]
    _lines(right, waits, "step")
    right.set_xlabel("training step on a device of its own, in standard's time for a batch")
    figure.suptitle(caption(run), fontsize=9)
    save(figure, path)


def draw_ablations(run: Run, path: Path) -> None:
    """Draw misses of each batch, and time per batch, with each shuffler and without."""
    rows = run["results"]["ablations"]
    figure, axes = plt.subplots(
        2, len(rows), figsize=(3 * len(rows), 5), sharey="row", sharex="row", layout="constrained"
    )
    for column, row in enumerate(rows):
        misses, times = axes[0][column], axes[1][column]
        misses.bar(range(sum(map(len, row["misses"]))), np.concatenate(row["misses"]), 1, color=BLUE)
        misses.set_title(row["name"])
        times.plot(np.multiply(row["batch_s"][0], 1e3), color=DARK)
        times.set_title(f"p99 / p50 {row['tail']['median']:.2f}", fontsize=9)
        times.set_ylim(bottom=0)
        for each in (misses, times):
            _open(each)
            each.set_xticks([])
    axes[0][0].set_ylabel(f"misses of a batch of {run['config']['batch_size']}")
    axes[1][0].set_ylabel("ms a batch")
    figure.supxlabel(f"batches of {run['config']['reuse_factor']} epochs")
    figure.suptitle(caption(run), fontsize=9)
    save(figure, path)


def draw_contention(run: Run, path: Path) -> None:
    """Draw images/s, and the share of it that each loader keeps, over the number of busy processes beside it."""
    rows = run["results"]["contention"]
    figure, (speed, kept) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    _lines(speed, rows, "busy")
    speed.set_ylabel("images/s")
    _lines(kept, rows, "busy", "share")
    kept.set_ylabel("share of its own speed beside none")
    for axes in (speed, kept):
        axes.set_xticks(run["config"]["busy"])
        axes.set_xlabel("busy processes beside it")
    figure.suptitle(caption(run), fontsize=9)
    save(figure, path)


def draw_growth(run: Run, path: Path) -> None:
    """Draw time and memory of planning, and time of drawing parameters, over the size of the data set."""
    rows = run["results"]["sizes"]
    sizes = [row["num_samples"] for row in rows]
    figure, (seconds, memory, drawing) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    for axes, values, label in (
        (seconds, [np.median(row["epoch_s"]) for row in rows], "s to plan an epoch"),
        (memory, [max(row["peak_mb"], 0.1) for row in rows], "peak MB to plan"),
        (drawing, [row["draw_us"]["median"] for row in rows], "us a sample to draw all parameters"),
    ):
        axes.plot(sizes, values, "o-", color=DARK)
        axes.set_xscale("log")
        axes.set_xlabel("samples")
        axes.set_title(label, fontsize=10)
        _open(axes)
    seconds.set_yscale("log")
    memory.set_yscale("log")
    drawing.set_ylim(bottom=0)
    save(figure, path)


def draw_soak(run: Run, path: Path) -> None:
    """Draw memory, threads and descriptors over the epochs, a line for each technique; 100 is the second epoch's."""
    results, config = run["results"], run["config"]
    kinds = {"resident_mb": "resident memory", "threads": "threads", "descriptors": "descriptors"}
    figure, all_axes = plt.subplots(1, 3, figsize=(11, 4.2), sharey=True, layout="constrained")
    for axes, (kind, title) in zip(all_axes, kinds.items(), strict=True):
        for each in results["soaked"]:
            shares = [100 * value / each[kind][1] for value in each[kind]]
            axes.plot(range(1, len(shares) + 1), shares, linewidth=1.2, label=each["technique"])
        axes.axhline(100 * (1 + results["most_growth"]), color=RED, linestyle="--", linewidth=1)
        axes.set_ylim(96, 104)
        axes.set_xlabel("epoch")
        axes.set_title(title, fontsize=10)
        _open(axes)
    all_axes[0].set_ylabel("% of the second epoch's")
    figure.legend(*all_axes[0].get_legend_handles_labels(), ncols=4, loc="outside lower center", frameon=False)
    samples = config["epoch_batches"] * config["batch_size"]
    figure.suptitle(
        f"{config['epochs']} epochs of {samples:,} samples, each technique in a process of its own; "
        f"the dashed line is the most that is promised of the last ten epochs' median",
        fontsize=9,
    )
    save(figure, path)


FIGURES: dict[str, Callable[[Run, Path], None]] = {
    "competitors": draw_against,
    "splits": draw_splits,
    "headspace": draw_headspace,
    "ablations": draw_ablations,
    "contention": draw_contention,
    "sizes": draw_growth,
    "soaked": draw_soak,
}
"""Which drawing, by what only its results have."""


def save(figure: Figure, path: Path) -> None:
    """Write a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def caption(run: Run) -> str:
    """Say on what the figures were taken."""
    machine, config = run["environment"], run["config"]
    return (
        f"rand_augment({config['size']}) on {config['data']}: medians of {config['rounds']} interleaved rounds, "
        f"whiskers are quartiles\n{machine['cpu']}, {machine['cores']} cores, no GPU; DALI {machine['dali']}"
    )


def whiskers(spreads: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Return how far the quartiles lie below and above the medians."""
    return [
        [each["median"] - each["lower"] for each in spreads],
        [each["upper"] - each["median"] for each in spreads],
    ]


def _horizontal(
    axes: Axes, names: Sequence[str], spreads: Sequence[Mapping[str, float]], colours: Sequence[str]
) -> None:
    """Draw a bar for each, with its median written at its end."""
    rows, medians = range(len(names)), [each["median"] for each in spreads]
    axes.barh(rows, medians, 0.7, xerr=whiskers(spreads), capsize=3, color=colours, ecolor="black")
    for row, each in zip(rows, spreads, strict=True):
        axes.annotate(f"{each['median']:,.0f}", (each["upper"], row), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(rows, names)
    axes.set_xlim(0, 1.12 * max(each["upper"] for each in spreads))
    _open(axes)


def _lines(axes: Axes, rows: Sequence[Mapping[str, Any]], x: str, y: str = "images_per_s") -> None:
    """Draw a line of images/s, or of something else, for each contender."""
    names = list(dict.fromkeys(row["contender"] for row in rows))
    for name, colour in zip(names, _COLOURS, strict=False):
        own = sorted((row for row in rows if row["contender"] == name), key=lambda row: row[x])
        spreads = [row[y] for row in own]
        medians = [each["median"] for each in spreads]
        axes.errorbar(
            [row[x] for row in own], medians, whiskers(spreads), fmt="o-", capsize=3, color=colour, label=name
        )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    _open(axes)


def _open(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
