"""Choice among configurations: which are possible, which one to take, and whether any of them is worth it.

    every recipe x split x reuse factor x tier ─▶ fit the budgets ─▶ keep enough ─▶ as fast as the step can use,
    within 2 % ─▶ smallest reuse factor ─▶ keeps most ─▶ least memory

All of them are computed; nothing is searched for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dalirefurb.engine.verdict import Verdict, verdict_of
from dalirefurb.tuning.costs import Costs, SplitCosts
from dalirefurb.tuning.model import (
    Configuration,
    Machine,
    Prediction,
    Tier,
    Workload,
    fits,
    largest_coverage,
    predict,
)

REUSE_FACTORS = (2, 3, 4, 5)
AS_FAST = 0.02
"""Configurations this close to the fastest are as fast."""

NOISY = 0.1
"""Where quartiles lie further apart than this share of the median, nothing is concluded."""

LEAST_ROUNDS = 3
"""Of what was measured less often, nothing is concluded."""

_LEAST_COVERAGE = 0.02


@dataclass(frozen=True)
class Choice:
    """What was chosen, and among what.

    Attributes:
        costs: What was measured.
        machine: Where training runs.
        workload: What is trained.
        min_kept: Least share of different images that had to be kept.
        verdict: Whether training waits for its loader without reuse; None: no step was given.
        headspace: How many times as fast training would be if its data cost nothing, at least 1.
        standard: What the first recipe reaches without reuse.
        recommended: What to take.
        rows: Every configuration that fits the budgets, the fastest run first.
        prefix: The deterministic prefix kept for ever, which is what HyCache chooses; None: it does not fit.
    """

    costs: Costs
    machine: Machine
    workload: Workload
    min_kept: float
    verdict: Verdict | None
    headspace: float
    standard: Prediction
    recommended: Prediction
    rows: tuple[Prediction, ...]
    prefix: Prediction | None = None

    @property
    def leave_off(self) -> bool:
        """Whether nothing is gained by reuse."""
        return self.recommended.configuration.reuse_factor == 1

    def name_of(self, configuration: Configuration) -> str:
        """Return a configuration in a few words: of what is kept for the whole run, which no reuse factor tells."""
        if not is_for_ever(configuration, self.workload):
            return configuration.name
        kept = "decoded images" if configuration.split.split else "images as they were read"
        uses = f"reuse factor {configuration.reuse_factor}"
        return configuration.name.replace(uses, f"{kept} kept for the whole run")


def configurations(costs: Costs, machine: Machine, workload: Workload) -> list[Configuration]:
    """List every configuration, each with the largest coverage that the machine has room for; first comes standard."""
    firsts = list({(split.recipe, split.devices): split for split in reversed(costs.splits)}.values())[::-1]
    found = [Configuration(split, 1, 1.0, "none") for split in firsts]
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
    """Compute every configuration that fits, and choose.

    Args:
        costs: What was measured; its first recipe is the one to compare with.
        machine: Where training runs.
        workload: What is trained.
        min_kept: Least share of standard training's different images that must be kept, 0..1.
    """
    every = [predict(costs, machine, workload, each) for each in configurations(costs, machine, workload)]
    standard = every[0]
    rows = sorted((each for each in every if fits(each, machine)), key=lambda each: -each.run_images_per_s)
    for_ever = [each for each in rows if is_for_ever(each.configuration, workload)]
    prefixes = [each for each in for_ever if each.configuration.split.split > 0]
    said, headspace = verdict(costs, workload, standard)
    return Choice(
        costs=costs,
        machine=machine,
        workload=workload,
        min_kept=min_kept,
        verdict=said,
        headspace=headspace,
        standard=standard,
        recommended=recommend(standard, rows, min_kept=min_kept),
        rows=tuple(rows),
        prefix=prefixes[0] if prefixes else None,
    )


def recommend(standard: Prediction, rows: Sequence[Prediction], *, min_kept: float) -> Prediction:
    """Return which of some configurations to take: `standard` if none is more than 2 % faster over the whole run."""
    diverse = [standard, *(each for each in rows if each.kept >= min_kept)]
    fastest = max(each.run_images_per_s for each in diverse)
    fast = [each for each in diverse if each.run_images_per_s >= (1 - AS_FAST) * fastest]
    return standard if standard in fast else min(fast, key=_preference)


def verdict(costs: Costs, workload: Workload, standard: Prediction) -> tuple[Verdict | None, float]:
    """Say whether training waits for its loader: how many times as fast it would be on batches that are at hand.

    Where quartiles of what was measured lie too far apart, it says that this cannot be told.

    Returns:
        The verdict, None without a step; and that number, at least 1.
    """
    if not workload.step_s:
        return None, 1.0
    from_memory = workload.batch_size / workload.step_s
    headspace = max(1.0, from_memory / standard.images_per_s)
    if doubts(costs, standard):
        return Verdict.INCONCLUSIVE, headspace
    return verdict_of(headspace), headspace


def doubts(costs: Costs, standard: Prediction) -> list[str]:
    """Say why nothing is concluded: what was measured too few times, or varied too much; empty where neither is so."""
    measured = {"standard loading": standard.configuration.split.standard_s}
    if costs.step is not None:
        measured["the step"] = costs.step.wall_s
    few = [
        f"only {spread.n} round{'s' * (spread.n != 1)} of {what} could be measured, and it takes {LEAST_ROUNDS}"
        for what, spread in measured.items()
        if spread.n < LEAST_ROUNDS
    ]
    return few or [
        f"rounds of {what} differed by {100 * spread.relative:.0f} %"
        for what, spread in measured.items()
        if spread.relative > NOISY
    ]


def _reuse_factors(split: SplitCosts, workload: Workload) -> list[int]:
    """Return the reuse factors to try: a deterministic part loses nothing however long it is kept."""
    usual = [factor for factor in REUSE_FACTORS if factor in split.kept]
    for_ever = workload.epochs
    return [*usual, for_ever] if split.deterministic and for_ever in split.kept and for_ever not in usual else usual


def is_for_ever(configuration: Configuration, workload: Workload) -> bool:
    """Tell whether what is kept is kept for the whole run, which loses nothing since none of it is random."""
    uses = configuration.reuse_factor
    return configuration.split.deterministic and uses > 1 and uses == workload.epochs


def _preference(prediction: Prediction) -> tuple[float, ...]:
    """Return what to go by among the fastest; the least is taken."""
    configuration = prediction.configuration
    for_ever = configuration.split.deterministic
    uses = 1 if for_ever and configuration.reuse_factor > 1 else configuration.reuse_factor
    taken = prediction.memory_bytes + prediction.disk_bytes + prediction.device_bytes
    return uses, -round(prediction.kept, 2), taken
