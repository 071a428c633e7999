"""Drawings of what scripts measured: one for each kind of results, made of the JSON alone; `plot.py` chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Run = Mapping[str, Any]
Spreads = Sequence[Mapping[str, Any]]

GRAY, BLUE, DARK, DARKER, RED = "#9aa5b1", "#3f7fbf", "#1f4e8c", "#10294a", "#d1495b"
_SIX = ("black", "#2a9d5c", BLUE, DARK, "#e09f3e", RED)
_ORDER_COLOURS = {"paper": BLUE, "crop_last": DARK}
_ORDERS = {"paper": "paper's order", "crop_last": "crop last"}
_GROUP_WIDTH = 0.81
_MARKS = {"none": "s", "memory": "o", "disk": "^"}
_APART = 0.99
"""Shares of different images below which points of accuracy are named: above they lie on each other."""

mpl.rcParams.update(
    {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
        "figure.titlesize": 9,
        "legend.frameon": False,
        "savefig.dpi": 110,
    }
)


def draw_throughput(run: Run) -> Figure:
    """Draw images/s of standard and refurbished loading, one group of bars for each order and batch size."""
    cases = run["results"]
    colours = {"standard": GRAY, "reuse factor 2": BLUE, "reuse factor 3": DARK, "reuse factor 4": DARKER}
    bars = {name: colour for name, colour in colours.items() if all(name in case["bound"] for case in cases)}
    figure, axes = plt.subplots(figsize=(4 + 1.5 * len(cases), 5))
    width = _GROUP_WIDTH / len(bars)
    bounds, heights = [], []
    for place, (name, colour) in enumerate(bars.items()):
        xs = np.arange(len(cases)) + (place - (len(bars) - 1) / 2) * width
        speeds = [case["images_per_s"][name] for case in cases]
        medians = [each["median"] for each in speeds]
        axes.bar(xs, medians, 0.9 * width, yerr=_whiskers(speeds), capsize=4, color=colour, ecolor="black", label=name)
        for x, median in zip(xs, medians, strict=True):
            label = {"ha": "center", "color": "white" if place else "black"}
            axes.annotate(f"{median:,.0f}", (x, 0), (0, 6), textcoords="offset points", **label)
        bounds += [
            (x - width / 2, x + width / 2, case["bound"][name]["median"]) for x, case in zip(xs, cases, strict=True)
        ]
        heights += _ends(speeds)
    left, right, levels = zip(*bounds, strict=True)
    axes.hlines(levels, left, right, color=RED, linewidth=2, label="amortised bound")
    axes.set_xticks(range(len(cases)), [f"{_ORDERS[case['order']]}\nbatches of {case['batch_size']}" for case in cases])
    axes.set_ylabel("images/s, consumer does nothing")
    axes.set_ylim(0, 1.05 * max(*heights, *levels))
    figure.legend(ncols=3, loc="outside lower center")
    axes.set_title(_caption(run), fontsize=10)
    return figure


LACKS = {
    "simplified": "without the operations left out",
    "SmartCache": "a part of the samples an epoch",
    "AutoAssist": "easy samples less often",
}
"""What the share of different images does not tell of a technique, by how its name begins."""


def draw_techniques(run: Run) -> Figure:
    """Draw images/s of each technique beside its own bound, and the diversity that it keeps."""
    techniques = run["results"]["techniques"][::-1]
    figure, speed, kept = _speed_beside_diversity(techniques)
    bounds = [each["bound"]["median"] for each in techniques]
    _bars(speed, [each["name"] for each in techniques], [each["images_per_s"] for each in techniques], BLUE, bounds)
    rows = np.arange(len(techniques))
    speed.vlines(bounds, rows - 0.42, rows + 0.42, color=RED, linewidth=2, label="its bound")
    speed.set_xlabel("images/s, consumer does nothing")
    for row, (each, bar) in enumerate(zip(techniques, kept.patches, strict=True)):
        lacks = next((text for name, text in LACKS.items() if each["name"].startswith(name)), None)
        if lacks is not None:
            bar.set(facecolor="white", edgecolor=GRAY, hatch="///")
        told = f"{each['diversity']:.2f}" + ("" if lacks is None else f", {lacks}")
        box = {"facecolor": "white" if lacks else "none", "edgecolor": "none", "pad": 1}
        kept.annotate(told, (0, row), (4, 0), textcoords="offset points", va="center", bbox=box)
    kept.set_xlabel("different images, as a share of standard's;\nhatched: of other images, or fewer")
    figure.legend(*speed.get_legend_handles_labels(), ncols=2, loc="outside lower center")
    figure.suptitle(_caption(run), fontsize=10)
    return figure


def draw_accuracy(run: Run) -> Figure:
    """Draw test accuracy against the share of different images, and against images/s of loading where that was timed.

    One column for each group.
    """
    cases = run["results"]["accuracy"]
    groups = list(dict.fromkeys(case["group"] for case in cases))
    timed = [case for case in cases if case["images_per_s"] is not None]
    rows, columns = 1 + bool(timed), len(groups)
    size = (1 + 6 * columns, 5 * rows)
    figure, panels = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=columns > 1)
    for axes, group in zip(panels[0], groups, strict=True):
        _draw_kept(axes, [case for case in cases if case["group"] == group], run["results"]["curve"].get(group))
        axes.set_title(group, fontsize=10)
    for axes, group in zip(panels[-1] if timed else (), groups, strict=bool(timed)):
        _draw_speeds(axes, [case for case in timed if case["group"] == group])
    for axes in panels[:, 0]:
        axes.set_ylabel("test accuracy, %")
    machine, config = run["environment"], run["config"]
    seeds, images = sorted({case["seeds"] for case in cases}), 10 * config["train_per_class"]
    figure.suptitle(
        f"{config['data']}, {images:,} images, {config['epochs']} epochs' steps, {seeds[0]} to {seeds[-1]} seeds"
        f"{', not finished' * bool(run.get('draft'))}\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}; DALI {machine['dali']}",
        fontsize=10,
    )
    return figure


def draw_time_to_accuracy(run: Run) -> Figure:
    """Draw test accuracy, mean of seeds, against the clock, and against images that were learned from."""
    results, machine, config = run["results"], run["environment"], run["config"]
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True)
    colours = dict(zip([row["name"] for row in results["time_to_accuracy"]], _SIX, strict=True))
    times = np.linspace(0, config["seconds"], config["points"] + 1)[1:]
    for name, colour in colours.items():
        runs = [each["points"] for each in results["runs"] if each["contender"] == name]
        told = [{key: [point[key] for point in points] for key in points[0]} for points in runs]
        accuracy, images = (
            np.mean([np.interp(times, each["seconds"], each[key]) for each in told], axis=0)
            for key in ("accuracy", "images")
        )
        for axes, places in zip(panels, (times, images / 1000), strict=True):
            axes.plot(places, accuracy, "o-", markersize=3, color=colour, label=name)
    panels[0].set(xlabel="seconds, the first epoch included", ylabel="test accuracy, %")
    panels[1].set_xlabel("thousands of images learned from")
    figure.legend(*panels[0].get_legend_handles_labels(), ncols=3, loc="outside lower center")
    figure.suptitle(
        f"{10 * config['train_per_class']:,} JPEG files of {config['side']} x {config['side']} pixels, "
        f"mean of {config['rounds']} seeds\n{machine['cpu']}, {machine['cores']} cores, no GPU; DALI {machine['dali']}",
        fontsize=10,
    )
    return figure


def _draw_kept(axes: Axes, cases: Sequence[Any], curve: Any) -> None:
    """Draw means with their 95 % intervals, and a curve for each order of stages."""
    for case in cases:
        accuracy, kept = case["accuracy"], case["diversity"]
        colour = "black" if case["baseline"] is None else RED if "reuse" not in case["case"] else BLUE
        hollow = "white" if "crop last" in case["case"] else colour
        axes.errorbar(kept, accuracy["mean"], accuracy["half_width"], fmt="o", capsize=3, color=colour, mfc=hollow)
        if kept < _APART:
            name, side = case["case"].removesuffix(", crop last"), (7, -12 if colour == RED else 5)
            axes.annotate(name, (kept, accuracy["mean"]), side, textcoords="offset points", fontsize=8)
    shares = np.linspace(min(case["diversity"] for case in cases), 1, 100)
    for order, level in curve["levels"].items() if curve else ():
        styles = {"color": GRAY, "linestyle": "solid" if order == "paper" else "dashed"}
        axes.plot(shares, level + curve["halving"][0] * np.log2(shares), **styles, zorder=0)
    axes.set_xscale("log")
    axes.set_xticks([0.4, 0.6, 0.8, 1], ["0.4", "0.6", "0.8", "1"], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel(
        "different images, as a share of standard's (hollow, dashed: crop last)\nbars: 95 % interval of the mean"
    )


def _draw_speeds(axes: Axes, cases: Sequence[Any]) -> None:
    """Draw a case as far from its baseline as its paired difference is, and so its interval."""
    levels = {case["case"]: case["accuracy"]["mean"] for case in cases}
    for case in cases:
        apart = case["difference"] or dict.fromkeys(("mean", "lower", "upper"), 0.0)
        place = (case["images_per_s"]["median"], levels[case["baseline"] or case["case"]] + apart["mean"])
        height = [[apart["mean"] - apart["lower"]], [apart["upper"] - apart["mean"]]] if case["baseline"] else None
        colour, sides = BLUE if case["baseline"] else "black", _whiskers([case["images_per_s"]])
        axes.errorbar(*place, xerr=sides, yerr=height, fmt="o", capsize=3, color=colour)
        axes.annotate(case["case"], place, (7, 5), textcoords="offset points", fontsize=8)
    axes.margins(x=0.25)
    axes.set_xlabel("images/s, consumer does nothing; bars: 95 % interval of the paired difference, quartiles")


def draw_against(run: Run) -> Figure:
    """Draw images/s of every loader, ours in colour: of the whole recipe above, of crop and flip alone below."""
    rows = sorted(run["results"]["competitors"], key=lambda row: row["images_per_s"]["median"])
    alone = ", crop and flip"
    kinds = [[row for row in rows if row["name"].endswith(alone) is less] for less in (False, True)]
    kinds = [kind for kind in kinds if kind]
    figure, panels = plt.subplots(
        len(kinds), figsize=(9, 1.6 + 0.4 * len(rows)), height_ratios=[len(kind) for kind in kinds], squeeze=False
    )
    for kind, axes in zip(kinds, panels[:, 0], strict=True):
        colours = [_ORDER_COLOURS[row["order"]] if row["ours"] else GRAY for row in kind]
        names = [f"dalirefurb, {row['name']}" if row["ours"] else row["name"] for row in kind]
        _bars(axes, [name.removesuffix(alone) for name in names], [row["images_per_s"] for row in kind], colours)
        what = "crop and flip alone" if kind[0]["name"].endswith(alone) else "crop, flip and RandAugment"
        axes.set_xlabel(f"images/s, {what}, consumer does nothing")
    panels[0, 0].set_title(_caption(run), fontsize=9)
    return figure


def draw_splits(run: Run) -> Figure:
    """Draw images/s of each split, and the diversity that it keeps."""
    results = run["results"]
    rows = results["splits"]
    figure, speed, kept = _speed_beside_diversity(rows)
    names = [f"{row['name']}; final from {(*row['final'], 'output')[0]}{' *' * row['preset']}" for row in rows]
    _bars(speed, names, [row["images_per_s"] for row in rows], [_ORDER_COLOURS[row["order"]] for row in rows])
    speed.axvline(results["standard"]["median"], color=RED, linewidth=2, label="standard")
    speed.legend()
    speed.set_xlabel(f"images/s at reuse factor {run['config']['reuse_factor']}\n* where the preset splits")
    kept.set_xlabel("different images,\nas a share of standard's")
    figure.suptitle(_caption(run))
    return figure


def draw_headspace(run: Run) -> Figure:
    """Draw images/s over the number of cores, and on each number of them over the length of the training step."""
    results, cores = run["results"], run["config"]["cores"]
    figure, (left, *panels) = plt.subplots(1, 1 + len(cores), figsize=(4 + 4 * len(cores), 4.5))
    _lines(left, results["cores"], "cores")
    left.set_xticks(cores)
    left.set_xlabel("cores, loading alone")
    left.set_ylabel("images/s")
    steps = [row for row in results["headspace"] if not isinstance(row["step"], str)]
    for axes, count in zip(panels, cores, strict=True):
        _lines(axes, [row for row in steps if row["cores"] == count or row["contender"] == "from memory"], "step")
        axes.set_title(f"training on {count} {'core' if count == 1 else 'cores'}", fontsize=10)
        axes.set_xlabel("step of a device of its own,\nin standard's time for a batch on all cores")
    figure.suptitle(_caption(run))
    return figure


def draw_ablations(run: Run) -> Figure:
    """Draw misses of each batch, and time per batch, with each shuffler and without."""
    rows = run["results"]["ablations"]
    figure, axes = plt.subplots(2, len(rows), figsize=(3 * len(rows), 5), sharey="row", sharex="row")
    for (misses, times), row in zip(axes.T, rows, strict=True):
        misses.bar(range(sum(map(len, row["misses"]))), np.concatenate(row["misses"]), 1, color=BLUE)
        misses.set_title(row["name"])
        misses.set_xticks([])
        times.plot(np.multiply(row["batch_s"][0], 1e3), color=DARK)
        times.set_title(f"p99 / p50 {row['tail']['median']:.2f}", fontsize=9)
        times.set_ylim(bottom=0)
        times.set_xticks([])
    axes[0][0].set_ylabel(f"misses of a batch of {run['config']['batch_size']}")
    axes[1][0].set_ylabel("ms a batch")
    figure.supxlabel(f"batches of {run['config']['reuse_factor']} epochs")
    figure.suptitle(_caption(run))
    return figure


def draw_contention(run: Run) -> Figure:
    """Draw images/s, and the share of it that each loader keeps, over the number of busy processes beside it."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5))
    shown = {"images_per_s": "images/s", "share": "share of its own speed beside none"}
    for axes, (key, label) in zip(panels, shown.items(), strict=True):
        _lines(axes, run["results"]["contention"], "busy", key)
        axes.set_ylabel(label)
        axes.set_xticks(run["config"]["busy"])
        axes.set_xlabel("busy processes beside it")
    figure.suptitle(_caption(run))
    return figure


def draw_planning(run: Run) -> Figure:
    """Draw the time to plan a batch over the size of the data set, a line for each planner."""
    plans, config = run["results"]["plans"], run["config"]
    figure, all_axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for axes, order in zip(all_axes, ("compiled", "NumPy"), strict=True):
        for name in dict.fromkeys(row["planner"] for row in plans):
            times = [np.median(row[f"{order} next"]) for row in plans if row["planner"] == name]
            axes.plot(config["sizes"], times, "o-", label=name)
        axes.set(xscale="log", xlabel="samples", ylim=(0, None))
        axes.set_title(f"random orders: {order}", fontsize=10)
    all_axes[0].set_ylabel(f"us to plan the next {config['batch_size']:,} rows")
    figure.legend(*all_axes[0].get_legend_handles_labels(), ncols=4, loc="outside lower center")
    return figure


def draw_soak(run: Run) -> Figure:
    """Draw memory, threads and descriptors over the epochs, a line for each technique; 100 is the second epoch's."""
    results, config = run["results"], run["config"]
    kinds = {"resident_mb": "resident memory", "threads": "threads", "descriptors": "descriptors"}
    figure, all_axes = plt.subplots(1, 3, figsize=(11, 4.2), sharey=True)
    for axes, (kind, title) in zip(all_axes, kinds.items(), strict=True):
        for each in results["soaked"]:
            shares = [100 * value / each[kind][1] for value in each[kind]]
            axes.plot(range(1, len(shares) + 1), shares, linewidth=1.2, label=each["technique"])
        axes.axhline(100 * (1 + results["most_growth"]), color=RED, linestyle="--", linewidth=1)
        axes.set_ylim(96, 104)
        axes.set_xlabel("epoch")
        axes.set_title(title, fontsize=10)
    all_axes[0].set_ylabel("% of the second epoch's")
    figure.legend(*all_axes[0].get_legend_handles_labels(), ncols=4, loc="outside lower center")
    samples = config["epoch_batches"] * config["batch_size"]
    figure.suptitle(
        f"{config['epochs']} epochs of {samples:,} samples, each technique in a process of its own; "
        f"the dashed line is the most that is promised of the last ten epochs' median"
    )
    return figure


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
            axes.plot(ends, factor * ends, style, color=GRAY, linewidth=1, zorder=0)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("achieved images/s")
        axes.set_ylabel("predicted images/s")
        axes.set_title(f"{case['data']}: {len(runs)} runs", fontsize=10)
        axes.legend(fontsize=8)
    machine = run["environment"]
    figure.suptitle(f"dotted: 10 % off; {machine['cpu']}, {machine['cores']} cores, no GPU; DALI {machine['dali']}")
    return figure


def _caption(run: Run) -> str:
    """Say on what the figures were taken."""
    machine, config = run["environment"], run["config"]
    return (
        f"rand_augment({config['size']}) on {config['data']}: medians of {config['rounds']} interleaved rounds, "
        f"whiskers are quartiles\n{machine['cpu']}, {machine['cores']} cores, no GPU; DALI {machine['dali']}"
    )


def _whiskers(spreads: Spreads) -> list[list[float]]:
    """Return how far the quartiles lie below and above the medians; a draft has none."""
    medians = [each["median"] for each in spreads]
    begins = [each["median"] if each["lower"] is None else each["lower"] for each in spreads]
    return [np.subtract(medians, begins).tolist(), np.subtract(_ends(spreads), medians).tolist()]


def _ends(spreads: Spreads) -> list[float]:
    """Return the upper quartiles, of a draft the medians."""
    return [each["median"] if each["upper"] is None else each["upper"] for each in spreads]


def _speed_beside_diversity(rows: Sequence[Mapping[str, Any]]) -> tuple[Figure, Axes, Axes]:
    """Make a place for bars of images/s, and draw beside it the share of different images that each row keeps."""
    size = (11, 1.8 + 0.36 * len(rows))
    figure, (speed, kept) = plt.subplots(1, 2, figsize=size, width_ratios=(2, 1), sharey=True)
    kept.barh(range(len(rows)), [row["diversity"] for row in rows], 0.7, color=GRAY)
    kept.set_xlim(0, 1)
    return figure, speed, kept


def _bars(
    axes: Axes, names: Sequence[str], spreads: Spreads, colours: str | Sequence[str], bounds: Sequence[float] = ()
) -> None:
    """Draw a bar for each from below to above, with its median written after it, and after its bound."""
    rows, medians = range(len(names)), [each["median"] for each in spreads]
    ends = np.max([_ends(spreads), *([bounds] if bounds else [])], axis=0)
    bars = {"capsize": 3, "color": colours, "ecolor": "black", "label": "images/s" if bounds else None}
    axes.barh(rows, medians, 0.7, xerr=_whiskers(spreads), **bars)
    for row, median, end in zip(rows, medians, ends, strict=True):
        axes.annotate(f"{median:,.0f}", (end, row), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(rows, names)
    axes.set_xlim(0, 1.12 * max(ends))


def _lines(axes: Axes, rows: Sequence[Mapping[str, Any]], x: str, y: str = "images_per_s") -> None:
    """Draw a line of images/s, or of something else, for each contender."""
    names = dict.fromkeys(row["contender"] for row in rows)
    for name, colour in zip(names, (GRAY, BLUE, DARK, RED), strict=False):
        own = sorted((row for row in rows if row["contender"] == name), key=lambda row: row[x])
        spreads = [row[y] for row in own]
        line = {"fmt": "o-", "capsize": 3, "color": colour, "label": name}
        axes.errorbar([row[x] for row in own], [each["median"] for each in spreads], _whiskers(spreads), **line)
    axes.set_ylim(bottom=0)
    axes.legend()
