"""Every case beside the standard of its group, seed by seed, and what is claimed of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import harness
from accuracy_cases import CONTROL_FACTOR, ECHO, FROZEN, REUSE, Case, Config
from accuracy_statistics import Curve, Paired
from accuracy_training import Run
from claims import Interval, Spread, table_of
from harness import Slice
from loaders import STANDARD, kept_diversity

from dalirefurb.planning.planner import Planner

MET, MISSED, NOT_SHOWN = "met", "missed", "not shown"

_LEAST_SHARES = 4
"""Shares of different images that a curve is fitted to, at least."""


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
    figure: Interval | Paired
    promise: str
    verdict: str

    @classmethod
    def within(cls, name: str, figure: Interval | Paired, *, lowest: float, highest: float, promise: str) -> Claim:
        """Judge whether the figure is in a range: the whole interval is in it, or out of it, or nothing is shown."""
        inside = lowest <= figure.lower and figure.upper <= highest
        outside = figure.upper < lowest or figure.lower > highest
        return cls(name, figure, promise, MET if inside else MISSED if outside else NOT_SHOWN)


def of_case(runs: Iterable[Run], case: Case) -> dict[int, Run]:
    """Return a case's runs by seed."""
    return {run.seed: run for run in runs if (run.group, run.case) == (case.group, case.name)}


def difference(runs: Sequence[Run], case: Case, baseline: Case, measure: str = "test_accuracy") -> Paired | None:
    """Subtract run from run of the same seed, of accuracy in percentage points; None with fewer than two pairs."""
    ours, theirs = of_case(runs, case), of_case(runs, baseline)
    pairs = sorted(ours.keys() & theirs.keys())
    if len(pairs) < 2:
        return None
    return Paired.of(*([getattr(each[seed], measure) for seed in pairs] for each in (ours, theirs)))


def compares(group: Sequence[Case]) -> list[tuple[Case, Case]]:
    """List each case of a group that is compared, with its baseline."""
    return [(case, baseline) for case in group for baseline in group if baseline.is_baseline_of(case)]


def wanted(config: Config, runs: Sequence[Run]) -> list[tuple[Case, int]]:
    """List the runs to do next: the least seeds of all cases, then one seed more for each that is not sure enough.

    Cases of the most seeds come first, then those of the others, seed by seed.
    """
    counts = {case: case.least_seeds for case in config.cases}
    done = {case: of_case(runs, case).keys() for case in config.cases}
    for case, baseline in (pair for group in config.groups for pair in compares(group)):
        so_far, both = difference(runs, case, baseline), done[case] & done[baseline]
        undecided = so_far is not None and so_far.half_width > config.half_width
        counts[case] = max(len(both), case.least_seeds)
        if undecided and len(both) == counts[case] < case.most_seeds:
            counts[case] += 1
        counts[baseline] = max(counts[baseline], counts[case])
    seeds = {case: range(config.first_seed, config.first_seed + count) for case, count in counts.items()}
    todo = [(case, seed) for case in config.cases for seed in seeds[case] if seed not in done[case]]
    most = max(case.least_seeds for case in config.cases)
    more = [(case, seed) for case, seed in todo if seed >= config.first_seed + case.least_seeds]
    least = [each for each in todo if each not in more]
    least.sort(key=lambda each: (each[0].least_seeds < most, each[1]))
    return [*least, *sorted(more, key=lambda each: each[1])]


def compared(config: Config, runs: Sequence[Run], slices: Sequence[Slice]) -> list[dict[str, Any]]:
    """Compare every case that has two runs at least: accuracy in percent, the difference in percentage points."""
    found, speeds = [], harness.speeds_of(slices)
    for group in config.groups:
        baselines = dict(compares(group))
        for case in group:
            mine, baseline = of_case(runs, case), baselines.get(case)
            if len(mine) < 2:
                continue
            plans = [plan for epoch in range(_epochs(config, case)) for plan in _planner(config, case).epoch(epoch)]
            loading = speeds.get(loading_name(case))
            found.append(
                {
                    "group": case.group,
                    "case": case.name,
                    "baseline": baseline.name if baseline else None,
                    "seeds": len(mine),
                    "accuracy": Interval.of([run.test_accuracy for run in mine.values()]),
                    "loss": Interval.of([run.test_loss for run in mine.values()]),
                    "difference": difference(runs, case, baseline) if baseline else None,
                    "loss_difference": difference(runs, case, baseline, "test_loss") if baseline else None,
                    # Versions that a run sees, of so many images; those that look alike count as different.
                    "fresh": int(sum(plan.miss.sum() for plan in plans)),
                    "served": sum(len(plan.indices) for plan in plans),
                    "diversity": kept(config, case),
                    "images_per_s": Spread.of(loading) if loading else None,
                }
            )
    return found


def curve(config: Config, runs: Sequence[Run]) -> dict[str, Curve]:
    """Fit a curve to each group that has three cases of reuse with two runs at least; echoes and frozen lie beside it.

    It is fitted to what `tune` chooses among: splits and reuse factors, and what reuses nothing.
    """
    curves = {}
    for group in config.groups:
        there = [case for case in group if not case.removed and len(of_case(runs, case)) > 1]
        others = [case.name for case in there if case.technique in (ECHO, FROZEN)]
        if len({kept(config, case) for case in there if case.name not in others}) < _LEAST_SHARES:
            continue
        points = [
            (case.name, case.order, kept(config, case), run.test_accuracy)
            for case in there
            for run in of_case(runs, case).values()
        ]
        curves[group[0].group] = Curve.of(points, others, margin=config.margin)
    return curves


@lru_cache
def kept(config: Config, case: Case) -> float:
    """Return the share of different images among those that a run is served."""
    return kept_diversity(case.recipe(), _planner(config, case), _epochs(config, case))


def _planner(config: Config, case: Case) -> Planner:
    return config.planner(case, config.first_seed)


def _epochs(config: Config, case: Case) -> int:
    return config.steps // len(_planner(config, case))


def claims(config: Config, runs: Sequence[Run]) -> list[Claim]:
    """Judge every difference that something is claimed of, and standard with ResNet-18."""
    judged = []
    for group in config.groups:
        for case in group:
            accuracies = [run.test_accuracy for run in of_case(runs, case).values()]
            if (case.network, case.name) == ("resnet18", STANDARD) and len(accuracies) > 1:
                judged.append(
                    Claim.within(
                        f"{case.group}: {case.name}",
                        Interval.of(accuracies),
                        lowest=config.least_accuracy,
                        highest=100,
                        promise=f"at least {config.least_accuracy:g} %",
                    )
                )
        for case, baseline in compares(group):
            figure = difference(runs, case, baseline)
            if figure is None:
                continue
            name, margin = f"{case.group}: {case.name} - {baseline.name}", config.margin
            if case.technique == REUSE and case.split is None and case.factor <= CONTROL_FACTOR:
                promise = f"within {margin:g} points"
                judged.append(Claim.within(name, figure, lowest=-margin, highest=margin, promise=promise))
            elif case.technique in (ECHO, FROZEN) or case.removed:
                judged.append(Claim.within(name, figure, lowest=-100, highest=0, promise="less accurate"))
    return judged


def loading_name(case: Case) -> str:
    """Name a slice: cases that load the same share theirs."""
    return f"{case.augmentation}, {case.name}"


def show(
    config: Config, comparisons: Sequence[Mapping[str, Any]], judged: Sequence[Claim], curves: Mapping[str, Curve]
) -> str:
    """Write a table for each group, the claims and the curves."""
    columns = {
        "": "{case}",
        "seeds": "{seeds}",
        "accuracy, %": "{accuracy}",
        "difference, points": "{apart}",
        "sign-flip p": "{p}",
        "loss": "{loss}",
        "difference of it": "{loss_apart}",
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
                "p": f"{each['difference'].p:.3f}" if each["difference"] else "",
                "loss_apart": each["loss_difference"] or "",
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
    for name, fitted in curves.items():
        (best, least, most), shares = fitted.halving, fitted.floor
        tables.append(
            f"{name}: {best:.2f} points [{least:.2f}, {most:.2f}] with each halving of the different images; "
            f"{config.margin:g} points are lost at a share of {shares[0]:.2f} [{shares[1]:.2f}, {shares[2]:.2f}]"
        )
        rows = [{"case": case, "beyond": f"{points:+.2f}"} for case, points in fitted.beyond.items()]
        tables.append(table_of(rows, {"": "{case}", "beside the curve, points": "{beyond}"}))
    return "\n\n".join(tables) + "\n"
