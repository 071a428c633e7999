"""Does a loader reach what `dalirefurb.tune` predicts, and is what it recommends the best there is?

Claims, on any machine: predicted and achieved images/s differ by at most 5 % in the median and 10 % at the 95th
percentile; the best configuration achieves at most 1.05 times what the recommended one does. A virtual machine changes
its speed while this runs: so standard takes a turn beside each configuration, and what is predicted for a machine of
the speed that this turn had is compared, too, which asks how much faster than standard a configuration is.
n: the median of `turns` turns of each configuration, of at least `timed_s` seconds after its first epoch: one of
photographs, three of CIFAR-10, whose batches take a third of a millisecond; what tune measures is of 3 rounds.

5 splits of `rand_augment` in both orders x standard and reuse factors 2 to 4 x stores in memory and on disk x steps of
0.5, 1 and 1.5 times standard's time for a batch, of a device that the loop waits for; on photographs and on CIFAR-10's
arrays. First `tune` measures, then every configuration is run, in an order that is drawn.

    python benchmarks/tune.py                        about 15 minutes on 2 cores
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from experiment import CIFAR10, Experiment, Options
from sources import SIDE, read_mosaics, repeated
from tuned_runs import Run, judge

from dalirefurb import Recipe, rand_augment
from dalirefurb.source import Source
from dalirefurb.tuning.choice import recommend, with_reserve
from dalirefurb.tuning.costs import Costs
from dalirefurb.tuning.measure import measure as measure_costs
from dalirefurb.tuning.model import Configuration, Machine, Tier, Workload, predict
from dalirefurb.tuning.tune import this_machine, turns_of
from dalirefurb.tuning.turns import waiting

ORDERS = ("paper", "crop_last")
TIERS: tuple[Tier, ...] = ("memory", "disk")

_TIMED_STEPS = 20
_PLENTY = 1 << 62


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the folder of photographs.
        cases: What is loaded: photographs, CIFAR-10, or both.
        size: Side of the photographs that the model receives, in pixels.
        samples: Photographs of an epoch; CIFAR-10's images of an epoch.
        batch_sizes: Rows of a batch of photographs, and of CIFAR-10's images.
        reuse_factors: Beside standard.
        steps: Lengths of steps, in standard's time for a batch.
        splits: How many splits of both orders are run.
        limit_s: Seconds that tune measures for.
        turns: Turns of each configuration of photographs, and of CIFAR-10.
        timed_s: Seconds of a turn.
        epochs: Epochs of the run that is planned.
        min_kept: Least share of different images to keep.
    """

    data: str = ""
    cases: tuple[str, ...] = ("photographs", "CIFAR-10")
    size: int = 224
    samples: tuple[int, int] = (3072, 20_000)
    batch_sizes: tuple[int, int] = (256, 128)
    reuse_factors: tuple[int, ...] = (2, 3, 4)
    steps: tuple[float, ...] = (0.5, 1.0, 1.5)
    splits: int = 5
    limit_s: float = 120.0
    turns: tuple[int, int] = (1, 3)
    timed_s: float = 1.5
    epochs: int = 90
    min_kept: float = 0.95


def run_case(
    name: str, config: Config, source: Source, recipes: Mapping[str, Recipe], batch_size: int, count: int
) -> dict[str, Any]:
    """Measure with tune, run everything, and compare."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        costs = measure_costs(source, recipes, batch_size=batch_size, disk=Path(folder), limit_s=config.limit_s)
        machine = replace(this_machine(0, _PLENTY), memory_bytes=_PLENTY)
        workload = Workload(len(source), batch_size, config.epochs)
        configurations = _configurations(config, costs)
        standard = configurations[0]
        usual = predict(costs, machine, workload, standard).images_per_s
        batch_s = batch_size / usual
        beside = turns_of(standard, source, recipes, batch_size, Path(folder), _PLENTY, stack)
        steps = {length: waiting(length * batch_s) for length in config.steps}
        lengths = {length: replace(workload, step_s=_seconds(step)) for length, step in steps.items()}
        runs = []
        order = np.random.default_rng(0).permutation(len(configurations))
        for place, index in enumerate(order, 1):
            configuration = configurations[index]
            turns = turns_of(configuration, source, recipes, batch_size, Path(folder), _PLENTY, stack)
            speed = 1 / beside.slice(config.timed_s).image_s / usual
            then = replace(machine, core_speed=speed)
            for step, with_step in lengths.items():
                predicted = predict(costs, machine, with_step, configuration)
                reached = tuple(1 / turns.slice(config.timed_s, steps[step]).image_s for _ in range(count))
                split = configuration.split
                runs.append(
                    Run(
                        split.recipe,
                        split.split,
                        configuration.reuse_factor,
                        configuration.tier,
                        step,
                        predicted.kept,
                        predicted.images_per_s,
                        speed,
                        predict(costs, then, with_step, configuration).images_per_s,
                        float(np.median(reached)),
                        reached,
                        predicted.bound,
                    )
                )
            stack.close()
            last = runs[-len(lengths) :]
            ratios = [(run.achieved, run.predicted / run.achieved, run.predicted_then / run.achieved) for run in last]
            told = ", ".join(f"{achieved:,.0f} ({now:.2f}, {then:.2f})" for achieved, now, then in ratios)
            print(f"{name} {place}/{len(order)} {configuration.name}: {told}", flush=True)
    regrets = {step: _regret(config, costs, machine, each, runs, step) for step, each in lengths.items()}
    claims = judge(name, runs, regrets)
    return {
        "data": name,
        "costs": costs.as_dict(),
        "machine": machine,
        "workloads": {f"{length:g}": each for length, each in lengths.items()},
        "runs": runs,
        "regrets": regrets,
        "claims": claims,
    }


def _configurations(config: Config, costs: Costs) -> list[Configuration]:
    """List standard of each order, and every reuse factor and tier at the splits that keep most."""
    firsts = {split.recipe: split for split in reversed(costs.splits)}
    standards = [
        Configuration(firsts[name], 1, 1.0, "none") for name in dict.fromkeys(each.recipe for each in costs.splits)
    ]
    later = [split for split in costs.splits if split.split > 0]
    splits = sorted(later, key=lambda split: -split.kept[3])[: config.splits]
    return standards + [
        Configuration(split, factor, 1.0, tier) for split in splits for factor in config.reuse_factors for tier in TIERS
    ]


def _seconds(step: Callable[..., None]) -> float:
    """Return what a step takes: a sleep is longer than it is asked to be."""
    spent = []
    for _ in range(_TIMED_STEPS):
        began = time.perf_counter()
        step()
        spent.append(time.perf_counter() - began)
    return float(np.median(spent))


def _regret(
    config: Config, costs: Costs, machine: Machine, workload: Workload, runs: list[Run], step: float
) -> dict[str, Any]:
    """Compare what tune recommends, among what was run, with the best of that."""
    run_at = [run for run in runs if run.step == step and run.kept >= config.min_kept]
    keys = {(run.recipe, run.split, run.reuse_factor, run.tier): run for run in run_at}
    chosen_for = with_reserve(workload)
    standard, *others = [predict(costs, machine, chosen_for, each) for each in _configurations(config, costs)]
    recommended = recommend(standard, others, min_kept=config.min_kept, workload=chosen_for)
    own, best = keys[_key(recommended.configuration)], max(run_at, key=lambda run: run.achieved)
    return {
        "recommended": _name(own),
        "reached": own.achieved,
        "best": _name(best),
        "most": best.achieved,
        "regret": best.achieved / own.achieved,
    }


def _key(configuration: Configuration) -> tuple[str, int, int, str]:
    if configuration.reuse_factor == 1:
        return configuration.split.recipe, configuration.split.split, 1, "none"
    return configuration.split.recipe, configuration.split.split, configuration.reuse_factor, configuration.tier


def _name(run: Run) -> str:
    return f"{run.recipe} at {run.split}, {run.reuse_factor}, {run.tier}"


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Run photographs and CIFAR-10."""
    photographs = repeated(options.data, config.samples[0])
    arrays = read_mosaics(CIFAR10, "train", config.samples[1] // 10)
    cases = (
        ("photographs", photographs, {order: rand_augment(config.size, order=order) for order in ORDERS}),
        ("CIFAR-10", arrays, {order: rand_augment(SIDE, raw=True, order=order) for order in ORDERS}),
    )
    done = [
        run_case(name, config, source, recipes, batch_size, count)
        for (name, source, recipes), batch_size, count in zip(cases, config.batch_sizes, config.turns, strict=True)
        if name in config.cases
    ]
    return {"tuned": done, "claims": [claim for each in done for claim in each["claims"]]}


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(
        size=32,
        samples=(64, 320),
        batch_sizes=(16, 32),
        reuse_factors=(2,),
        steps=(1.0,),
        splits=1,
        turns=(1, 2),
        limit_s=1.0,
        timed_s=0.05,
    ),
    options={
        "--cases": {"nargs": "+", "choices": ["photographs", "CIFAR-10"], "help": "what is loaded, by default both"}
    },
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
