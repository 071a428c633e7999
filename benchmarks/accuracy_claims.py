"""Every case beside the standard of its group, seed by seed, and what is claimed of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import harness
from accuracy_cases import ECHO, FROZEN, REUSE, Case, Config
from accuracy_training import Run
from claims import Interval, Spread, table_of
from harness import Slice
from loaders import kept_diversity

MET, MISSED, NOT_SHOWN = "met", "missed", "not shown"


@dataclass(frozen=True)
class Claim:
    """What is claimed, and what the interval says.

    Attributes:
        name: Of the group and the case.
        figure: Over the seeds.
        promise: What is claimed.
        verdict: `MET`, `MISSED` or `NOT_SHOWN`.
    """

    name: str
    figure: Interval
    promise: str
    verdict: str

    @classmethod
    def within(cls, name: str, figure: Interval, *, lowest: float, highest: float, promise: str) -> Claim:
        """Judge whether the figure is in a range: the whole interval is in it, or out of it, or nothing is shown."""
        inside = lowest <= figure.lower and figure.upper <= highest
        outside = figure.upper < lowest or figure.lower > highest
        return cls(name, figure, promise, MET if inside else MISSED if outside else NOT_SHOWN)


def of_case(runs: Iterable[Run], case: Case) -> dict[int, Run]:
    """Return a case's runs by seed."""
    return {run.seed: run for run in runs if (run.group, run.case) == (case.group, case.name)}


def difference(runs: Sequence[Run], case: Case, baseline: Case) -> Interval | None:
    """Subtract run from run of the same seed, in percentage points; None with fewer than two pairs."""
    ours, theirs = of_case(runs, case), of_case(runs, baseline)
    pairs = sorted(ours.keys() & theirs.keys())
    if len(pairs) < 2:
        return None
    return Interval.of([ours[seed].test_accuracy - theirs[seed].test_accuracy for seed in pairs])


def wanted(config: Config, runs: Sequence[Run]) -> list[tuple[Case, int]]:
    """List the runs to do next: all of the least seeds, then one seed more for each case that is not sure enough."""
    todo = []
    for baseline, *others in config.groups:
        counts = {}
        for case in others:
            so_far, done = difference(runs, case, baseline), of_case(runs, case).keys() & of_case(runs, baseline).keys()
            count = max(len(done), config.least_seeds)
            undecided = so_far is not None and so_far.half_width > config.half_width
            more = undecided and len(done) == count and count < case.most_seeds
            counts[case] = count + 1 if more else count
        counts = {baseline: max(counts.values()), **counts}
        for case, count in counts.items():
            seeds = range(config.first_seed, config.first_seed + count)
            todo += [(case, seed) for seed in seeds if seed not in of_case(runs, case)]
    return sorted(todo, key=lambda each: each[1])


def compared(config: Config, runs: Sequence[Run], slices: Sequence[Slice]) -> list[dict[str, Any]]:
    """Compare every case that has two runs at least: accuracy in percent, the difference in percentage points."""
    found, speeds = [], harness.speeds_of(slices)
    for baseline, *others in config.groups:
        for case in (baseline, *others):
            mine = of_case(runs, case)
            if len(mine) < 2:
                continue
            planner = config.planner(case, config.first_seed)
            epochs = config.steps // len(planner)
            plans = [plan for epoch in range(epochs) for plan in planner.epoch(epoch)]
            loading = speeds.get(loading_name(case))
            found.append(
                {
                    "group": case.group,
                    "case": case.name,
                    "seeds": len(mine),
                    "accuracy": Interval.of([run.test_accuracy for run in mine.values()]),
                    "difference": None if case.is_baseline else difference(runs, case, baseline),
                    # Versions that a run sees, of so many images; those that look alike count as different.
                    "fresh": int(sum(plan.miss.sum() for plan in plans)),
                    "served": sum(len(plan.indices) for plan in plans),
                    "diversity": kept_diversity(case.recipe(), planner, epochs),
                    "images_per_s": Spread.of(loading) if loading else None,
                }
            )
    return found


def claims(config: Config, runs: Sequence[Run]) -> list[Claim]:
    """Judge every difference that something is claimed of, and standard with ResNet-18."""
    judged = []
    for baseline, *others in config.groups:
        accuracies = [run.test_accuracy for run in of_case(runs, baseline).values()]
        if baseline.network == "resnet18" and len(accuracies) > 1:
            judged.append(
                Claim.within(
                    f"{baseline.group}: {baseline.name}",
                    Interval.of(accuracies),
                    lowest=config.least_accuracy,
                    highest=100,
                    promise=f"at least {config.least_accuracy:g} %",
                )
            )
        for case in others:
            figure = difference(runs, case, baseline)
            if figure is None:
                continue
            name = f"{case.group}: {case.name} - {baseline.name}"
            if case.technique == REUSE:
                promise = f"within {config.parity:g} points"
                judged.append(Claim.within(name, figure, lowest=-config.parity, highest=config.parity, promise=promise))
            elif case.technique in (ECHO, FROZEN) or case.removed:
                judged.append(Claim.within(name, figure, lowest=-100, highest=0, promise="less accurate"))
    return judged


def loading_name(case: Case) -> str:
    """Name a slice: cases that load the same share theirs."""
    return f"{case.augmentation}, {case.name}"


def show(config: Config, comparisons: Sequence[Mapping[str, Any]], judged: Sequence[Claim]) -> str:
    """Write a table for each group, and the claims."""
    columns = {
        "": "{case}",
        "seeds": "{seeds}",
        "accuracy, %": "{accuracy}",
        "- standard, points": "{apart}",
        "fresh images": "{fresh:,} of {served:,}",
        "diversity": "{diversity:.2f}",
        "loading, images/s": "{loading}",
    }
    tables = []
    for group in config.groups:
        rows = [
            {
                **each,
                "apart": each["difference"] or "",
                "loading": f"{each['images_per_s']:0}" if each["images_per_s"] else "",
            }
            for each in comparisons
            if each["group"] == group[0].group
        ]
        if rows:
            tables.append(f"{group[0].group}\n{table_of(rows, columns)}")
    if judged:
        promises = {"claim": "{name}", "mean [95 % interval]": "{figure}", "promise": "{promise}", "": "{verdict}"}
        tables.append(table_of(map(vars, judged), promises))
    return "\n\n".join(tables) + "\n"
