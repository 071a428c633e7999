"""Choice among configurations: which are possible, which one to take, and whether any of them is worth it.

    every recipe x split x reuse factor x tier, as much of it as the budgets hold ─▶ keep enough ─▶ images kept decoded,
    where that is faster than standard: it costs no diversity ─▶ as fast as a step that is 10 % shorter can use, within
    2 % ─▶ smallest reuse factor ─▶ keeps most ─▶ least memory

All of them are computed; nothing is searched for. Where not all was measured that it takes, nothing is chosen; nor is
it where what was chosen did not hold beside the best other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

import numpy as np

from dalirefurb.engine.stats import Verdict, verdict_of
from dalirefurb.tuning.costs import LEAST_ROUNDS, REUSE_FACTORS, Costs, SplitCosts, Spread, again
from dalirefurb.tuning.model import Configuration, Machine, Prediction, Tier, Workload, largest_coverage, predict

AS_FAST = 0.02
"""Configurations this close to the fastest are as fast."""

NOISY = 0.1
"""Where quartiles lie further apart than this share of the median, nothing is concluded."""

RESERVE = 1.1
"""Reuse is left off only with steps that take as many times as long as standard's batches: its speed changes."""

WITHIN = 0.1
"""A prediction this close to what is reached, as a share of it, holds."""

_LEAST_COVERAGE = 0.02


@dataclass(frozen=True)
class Verified:
    """One configuration, predicted and reached.

    Attributes:
        prediction: Configuration, with what was predicted for the whole run.
        name: Configuration, in a few words.
        predicted: Images/s that were predicted for the samples that it was run with.
        achieved: Images/s of each round.
    """

    prediction: Prediction
    name: str
    predicted: float
    achieved: tuple[float, ...]

    @property
    def reached(self) -> float:
        """Images/s, the median of all rounds."""
        return float(np.median(self.achieved))

    @property
    def ratio(self) -> float:
        """What was predicted as a multiple of the median that was reached."""
        return self.predicted / self.reached

    @property
    def holds(self) -> bool:
        """Whether the prediction is within 10 % of what was reached."""
        return abs(self.ratio - 1) <= WITHIN

    def beside(self, other: Verified) -> Spread:
        """Return how many times as fast it was as another one in the same rounds."""
        return Spread.of([own / its for own, its in zip(self.achieved, other.achieved, strict=False)])

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"{self.name}: predicted {self.predicted:,.0f} images/s, achieved {self.reached:,.0f} "
            f"(predicted: {self.ratio:.2f} times that)"
        )


@dataclass(frozen=True)
class Choice:
    """What was chosen, and among what.

    Attributes:
        costs: What was measured.
        machine: Where training runs.
        workload: What is trained.
        min_kept: Least share of different images that had to be kept.
        verdict: Whether training waits for its loader without reuse; None: no step was given. INCONCLUSIVE where
            nothing is recommended.
        headspace: How many times as fast training would be if its data cost nothing, at least 1.
        standard: What the first recipe reaches without reuse.
        recommended: What to take; None: too little was measured to recommend anything, as `missing` says.
        rows: Every configuration, as much of it as the budgets hold, the fastest run first.
        missing: What is missing for a recommendation, and the time that it needs; "" where there is one.
        verified: What took turns before it was recommended; () on a machine that only is computed for.
    """

    costs: Costs
    machine: Machine
    workload: Workload
    min_kept: float
    verdict: Verdict | None
    headspace: float
    standard: Prediction
    recommended: Prediction | None
    rows: tuple[Prediction, ...]
    missing: str = ""
    verified: tuple[Verified, ...] = ()

    @property
    def leave_off(self) -> bool:
        """Whether it was found that nothing is gained by reuse; False, too, where nothing is recommended."""
        return self.recommended is not None and self.recommended.configuration.reuse_factor == 1

    @property
    def prefix(self) -> Prediction | None:
        """The deterministic prefix kept for ever, which is what HyCache chooses; None: it does not fit."""
        for row in self.rows:
            if row.configuration.split.split > 0 and row.configuration.is_for_ever(self.workload):
                return row
        return None

    def speed_of(self, prediction: Prediction) -> float:
        """Return the images/s that a configuration reached in its turns, or if it had none, what is predicted."""
        reached = [each.reached for each in self.verified if each.prediction == prediction]
        return reached[0] if reached else prediction.images_per_s

    def name_of(self, configuration: Configuration) -> str:
        """Return a configuration in a few words: of what is kept for the whole run, which no reuse factor tells."""
        if not configuration.is_for_ever(self.workload):
            return configuration.name
        return configuration.name.replace(f"reuse factor {configuration.reuse_factor}", "kept for the whole run")


OwnChoice = TypeVar("OwnChoice", bound=Choice)


def configurations(costs: Costs, machine: Machine, workload: Workload) -> list[Configuration]:
    """List every configuration, each with the largest coverage that the machine has room for; first comes standard."""
    firsts: dict[object, SplitCosts] = {}
    for split in costs.splits:
        firsts.setdefault((split.recipe, split.devices), split)
    found = [Configuration(split, 1, 1.0, "none") for split in firsts.values()]
    tiers: list[Tier] = ["memory"]
    if machine.disk_bytes and costs.disk is not None:
        tiers += ["disk", "tiered"]
    for split in costs.splits:
        places: list[Tier] = ["device"] if split.on_device else tiers
        for reuse_factor in _reuse_factors(split, workload):
            for tier in places:
                whole = Configuration(split, reuse_factor, 1.0, tier)
                if (coverage := largest_coverage(machine, workload, whole)) >= _LEAST_COVERAGE:
                    found.append(replace(whole, coverage=coverage))
    return found


def choose(costs: Costs, machine: Machine, workload: Workload, *, min_kept: float) -> Choice:
    """Compute every configuration, and choose; the first recipe is the one to compare with."""
    every = [predict(costs, machine, workload, each) for each in configurations(costs, machine, workload)]
    standard = every[0]
    rows = sorted(every, key=lambda each: -each.run_images_per_s)
    headspace = max(1.0, workload.batch_size / workload.step_s / standard.images_per_s) if workload.step_s else 1.0
    usual, *hurried = [
        predict(costs, machine, with_reserve(workload), each.configuration) for each in (standard, *rows)
    ]
    taken = recommend(usual, hurried, min_kept=min_kept, workload=workload).configuration
    choice = Choice(
        costs=costs,
        machine=machine,
        workload=workload,
        min_kept=min_kept,
        verdict=verdict_of(headspace) if workload.step_s else None,
        headspace=headspace,
        standard=standard,
        recommended=next(row for row in every if row.configuration == taken),
        rows=tuple(rows),
    )
    missing = unmeasured(costs, standard)
    return _inconclusive(choice, missing) if missing else choice


def recommend(standard: Prediction, rows: Sequence[Prediction], *, min_kept: float, workload: Workload) -> Prediction:
    """Return which of some configurations to take, predicted `with_reserve`.

    It is `standard` if none is more than 2 % faster over the whole run; else what is kept decoded, if any of that is.
    """
    least = (1 + AS_FAST) * standard.run_images_per_s
    keeps = [each for each in rows if each.configuration.is_keep(workload) and each.run_images_per_s > least]
    diverse = keeps or [standard, *(each for each in rows if each.kept >= min_kept)]
    fastest = max(each.run_images_per_s for each in diverse)
    fast = [each for each in diverse if each.run_images_per_s >= (1 - AS_FAST) * fastest]
    return min(fast, key=_preference)


def rival(choice: Choice) -> Configuration | None:
    """Return the fastest beside what is recommended, with reuse and of another split, if any other keeps enough."""
    assert choice.recommended is not None
    taken = choice.recommended.configuration
    others = [
        predict(choice.costs, choice.machine, with_reserve(choice.workload), row.configuration)
        for row in choice.rows
        if row.kept >= choice.min_kept and row.configuration.reuse_factor > 1 and row.configuration != taken
    ]
    others.sort(key=lambda row: (row.configuration.split == taken.split, -row.run_images_per_s))
    return others[0].configuration if others else None


def settled(choice: OwnChoice, verified: Sequence[Verified], limit_s: float) -> OwnChoice:
    """Return what is recommended after turns: what was chosen, or what was faster beside it, or nothing.

    Standard is the first that took turns; none did if something failed.
    """
    rounds = min((len(each.achieved) for each in verified), default=0)
    varied = [
        f"turns of {one.name} and of {two.name} beside each other differed by {100 * two.beside(one).relative:.0f} %"
        for one, two in combinations(verified if rounds else (), 2)
        if two.beside(one).relative > NOISY
    ]
    missing = again(varied[0], limit_s) if varied else ""
    if rounds < LEAST_ROUNDS:
        said = f"what is to be recommended had {rounds} of {LEAST_ROUNDS} turns beside the best other"
        missing = again(said, limit_s, rounds and LEAST_ROUNDS / rounds * limit_s)
    choice = replace(choice, verified=tuple(verified))
    if missing:
        return _inconclusive(choice, missing)
    standard, *_ = verified
    (best,) = (each for each in verified if each.prediction == choice.recommended)
    for each in verified:
        costs_diversity = best.prediction.configuration.is_keep(choice.workload) and each.prediction.kept < 1
        best = each if each.beside(best).low > 1 + AS_FAST and not costs_diversity else best
    # Where standard keeps up with the step, reuse is a reserve, and need not be faster.
    waits = standard.reached * choice.workload.step_s < (1 - AS_FAST) * choice.workload.batch_size
    if waits and best.beside(standard).median <= 1 + AS_FAST:
        best = standard
    return replace(choice, recommended=best.prediction)


def with_reserve(workload: Workload) -> Workload:
    """Return the run to choose for, whose step is so short that standard is as fast only with `RESERVE`."""
    return replace(workload, step_s=(1 - AS_FAST) / RESERVE * workload.step_s)


def unmeasured(costs: Costs, standard: Prediction) -> str:
    """Say what was measured too few times, or varied too much, and the time that it needs; "" where neither is so."""
    few = sum(min(split.standard_s.n, split.hit_s.n) < LEAST_ROUNDS for split in costs.splits)
    if costs.missing or few:
        said = f"measured {len(costs.splits) - few} of {len(costs.splits)} splits in all {LEAST_ROUNDS} rounds"
        return costs.missing or again(said, costs.limit_s, LEAST_ROUNDS * costs.limit_s)
    rounds = {"standard loading": standard.configuration.split.standard_s}
    if costs.step is not None:
        rounds["the step"] = costs.step.wall_s
    varied = [
        f"rounds of {what} differed by {100 * spread.relative:.0f} %"
        if spread.n >= LEAST_ROUNDS
        else f"{what} was measured in {spread.n} of {LEAST_ROUNDS} rounds"
        for what, spread in rounds.items()
        if spread.relative > NOISY or spread.n < LEAST_ROUNDS
    ]
    return again(" and ".join(varied), costs.limit_s) if varied else ""


def _inconclusive(choice: OwnChoice, missing: str) -> OwnChoice:
    """Return a choice with nothing recommended, where something is missing."""
    return replace(choice, verdict=Verdict.INCONCLUSIVE, recommended=None, missing=missing)


def _reuse_factors(split: SplitCosts, workload: Workload) -> list[int]:
    """Return the reuse factors to try: a deterministic part loses nothing however long it is kept."""
    usual = [factor for factor in REUSE_FACTORS if factor in split.kept]
    return sorted({*usual, workload.epochs} - {1}) if usual and split.deterministic else usual


def _preference(prediction: Prediction) -> tuple[float, ...]:
    """Return what to go by among the fastest; the least is taken, which is the first standard's where it is one."""
    configuration = prediction.configuration
    uses = 1 if configuration.split.deterministic else configuration.reuse_factor
    taken = prediction.memory_bytes + prediction.disk_bytes + prediction.device_bytes
    return uses, -round(prediction.kept, 2), taken
