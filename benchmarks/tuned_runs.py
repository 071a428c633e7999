"""Runs of benchmarks/tune.py: what each was predicted and achieved, and what is claimed of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from claims import Claim, Spread, claim_table, say, table

MEDIAN_ERROR, HIGH_ERROR, REGRET = 0.05, 0.10, 1.05


@dataclass(frozen=True)
class Run:
    """One configuration with one step.

    Attributes:
        recipe: Order of the stages.
        split: Number of partial stages.
        reuse_factor: Uses of a version; 1: standard.
        tier: Where partial images are.
        step: Length of the step, in standard's time for a batch.
        kept: Share of different images that is kept.
        predicted: Images/s that the model predicts.
        speed: What standard reached in a turn beside it, as a multiple of what the model predicts of standard.
        predicted_then: Images/s that the model predicts of a machine that is as many times as fast.
        achieved: Images/s, the median of all turns.
        turns: Images/s of each turn.
        bound: What limits it, in the model.
    """

    recipe: str
    split: int
    reuse_factor: int
    tier: str
    step: float
    kept: float
    predicted: float
    speed: float
    predicted_then: float
    achieved: float
    turns: tuple[float, ...]
    bound: str

    @property
    def noise(self) -> list[float]:
        """How far off each turn is from what was achieved, as a share of it."""
        return [abs(turn / self.achieved - 1) for turn in self.turns]


def judge(name: str, runs: Sequence[Run], regrets: Mapping[float, Mapping[str, Any]]) -> list[Claim]:
    """Print what was reached, and return what is claimed of it.

    Args:
        name: Name of the data set.
        runs: Every configuration with every step.
        regrets: What was recommended and what was best, by step.
    """
    claims = [
        *_of_errors(
            f"{name}: median error", f"{name}: 95th percentile of errors", [run.predicted for run in runs], runs
        ),
        *_of_errors(
            f"{name}, at the speed it had then: median error",
            f"{name}, at the speed it had then: 95th percentile",
            [run.predicted_then for run in runs],
            runs,
        ),
        *(
            _at_most(f"{name}: step {step:g}, best / recommended", regret["regret"], REGRET)
            for step, regret in regrets.items()
        ),
    ]
    heading = ["step", "recommended", "achieved", "best", "achieved", "regret"]
    rows = [
        [
            f"{step:g}",
            each["recommended"],
            f"{each['reached']:,.0f}",
            each["best"],
            f"{each['most']:,.0f}",
            f"{each['regret']:.3f}",
        ]
        for step, each in regrets.items()
    ]
    say(name, table(heading, rows), claim_table(claims, "figure"))
    if len(runs[0].turns) > 1:
        middle, high = np.quantile([each for run in runs for each in run.noise], [0.5, 0.95])
        say(f"turns of one configuration: {middle:.1%} from their median, {high:.1%} at the 95th percentile")
    return claims


def _of_errors(median: str, high: str, predicted: Sequence[float], runs: Sequence[Run]) -> list[Claim]:
    """Claim how far off predictions are, as a share of what was achieved; `median` and `high` name both claims."""
    errors = [abs(each / run.achieved - 1) for each, run in zip(predicted, runs, strict=True)]
    return [
        _at_most(median, float(np.median(errors)), MEDIAN_ERROR),
        _at_most(high, float(np.quantile(errors, 0.95)), HIGH_ERROR),
    ]


def _at_most(name: str, figure: float, most: float) -> Claim:
    return Claim(name, Spread.of([figure]), most=most)
