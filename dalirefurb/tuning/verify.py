"""Verification of a choice: what is to be recommended, the best other and standard, in turns, before it is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dalirefurb.augment.recipe import Recipe
from dalirefurb.engine.verdict import Verdict
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.source import Source
from dalirefurb.store import DeviceStore, DiskStore, MemoryStore, Store, TieredStore
from dalirefurb.tuning.choice import AS_FAST, LEAST_ROUNDS, NOISY, Choice, Verified, again, rival
from dalirefurb.tuning.measure import PATIENCE
from dalirefurb.tuning.model import Configuration, predict
from dalirefurb.tuning.subjects import batches_that_fit, read_some, rows_of
from dalirefurb.tuning.turns import Step, Turns, waiting

_FILL_SHARE = 0.2
_TURN_S = 0.8
_SLICE_S = (0.5, 4.0)
_LEAST_BATCHES, _MOST_ROWS = 8, 32_768


def verify(
    choice: Choice,
    source: Source,
    recipes: Mapping[str, Recipe],
    *,
    step: Step | float | None = None,
    disk: Path | None = None,
    seconds: float = 30.0,
    told: Callable[[str], None] = lambda _: None,
) -> list[Verified]:
    """Run standard, the recommended configuration and the best other in turns; their epochs are short enough to fill.

    Where the seconds are over there are fewer rounds than three. Arguments beside the choice are those of `tune`.
    """
    began = time.perf_counter()
    assert choice.recommended is not None
    wanted = [choice.standard.configuration, choice.recommended.configuration, rival(choice)]
    taken = [each for place, each in enumerate(wanted) if each is not None and each not in wanted[:place]]
    batch_size, standard_s = choice.workload.batch_size, choice.standard.configuration.split.standard_s.median
    batches = int(min(_MOST_ROWS, seconds * _FILL_SHARE / standard_s)) // batch_size
    fit = batches_that_fit(max(each.split.image_bytes for each in taken), batch_size)
    rows = rows_of(read_some(source), source, rows=max(1, min(max(_LEAST_BATCHES, batches), fit)) * batch_size)
    if step is not None and not callable(step):
        step = waiting(step)
    names = [choice.name_of(configuration) for configuration in taken]
    achieved: list[list[float]] = [[] for _ in taken]
    with ExitStack() as stack:
        turns = []
        for name, configuration in zip(names, taken, strict=True):
            told(f"filling: {name}")
            turns.append(turns_of(configuration, rows, recipes, batch_size, disk, choice.machine.memory_bytes, stack))
        left_s = seconds - (time.perf_counter() - began)
        each_s = min(_SLICE_S[1], max(_SLICE_S[0], left_s / LEAST_ROUNDS / len(turns) - _TURN_S))
        for number in range(LEAST_ROUNDS):
            for place in range(len(turns))[:: 1 if number % 2 == 0 else -1]:
                if min(map(len, achieved)) and time.perf_counter() - began > PATIENCE * seconds:
                    break
                told(f"round {number + 1} of {LEAST_ROUNDS}: {names[place]}")
                achieved[place].append(1 / turns[place].slice(each_s, step).image_s)
    workload = replace(choice.workload, num_samples=len(rows))
    return [
        Verified(
            predict(choice.costs, choice.machine, choice.workload, configuration),
            name,
            predict(choice.costs, choice.machine, workload, configuration).images_per_s,
            tuple(reached),
        )
        for configuration, name, reached in zip(taken, names, achieved, strict=True)
    ]


def settled(choice: Choice, verified: Sequence[Verified], limit_s: float) -> Choice:
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
    choice = replace(choice, verified=tuple(verified), missing=missing)
    if missing:
        return replace(choice, verdict=Verdict.INCONCLUSIVE, recommended=None)
    standard, *_ = verified
    (best,) = (each for each in verified if each.prediction == choice.recommended)
    for each in verified:
        best = each if each.beside(best).low > 1 + AS_FAST else best
    # Where standard keeps up with the step, reuse is a reserve, and need not be faster.
    waits = standard.reached * choice.workload.step_s < (1 - AS_FAST) * choice.workload.batch_size
    if waits and best.beside(standard).median <= 1 + AS_FAST:
        best = standard
    return replace(choice, recommended=best.prediction)


def turns_of(
    configuration: Configuration,
    rows: Source,
    recipes: Mapping[str, Recipe],
    batch_size: int,
    disk: Path | None,
    memory_bytes: int,
    stack: ExitStack,
) -> Turns:
    """Return a loader of a configuration that has served its first epoch; the stack closes its store."""
    split = configuration.split
    recipe = recipes[split.recipe].at(split.split)
    if configuration.reuse_factor == 1:
        return Turns(rows, recipes[split.recipe], Standard(len(rows), batch_size=batch_size), devices=split.devices)
    numbers: dict[str, Any] = {"reuse_factor": configuration.reuse_factor, "coverage": configuration.coverage}
    planner = Refurbish(len(rows), batch_size=batch_size, **numbers)
    store: Store = DeviceStore() if configuration.tier == "device" else MemoryStore()
    if configuration.tier in ("disk", "tiered") and disk is not None:
        path = Path(stack.enter_context(TemporaryDirectory(prefix="dalirefurb-tune-", dir=disk))) / "cache"
        store = DiskStore(path) if configuration.tier == "disk" else TieredStore(memory=memory_bytes, path=path)
    stack.callback(store.close)
    turns = Turns(rows, recipe, planner, store, devices=split.devices)
    turns.fill()
    return turns
