"""Verification of a choice: the recommended configuration and standard, in turns, beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from dalirefurb.augment.recipe import Recipe
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.source import Source
from dalirefurb.store import DeviceStore, DiskStore, MemoryStore, Store, TieredStore
from dalirefurb.tuning.model import Configuration, predict
from dalirefurb.tuning.subjects import read_some, rows_of
from dalirefurb.tuning.turns import Step, Turns, waiting

if TYPE_CHECKING:
    from dalirefurb.tuning.choice import Choice

WITHIN = 0.1
"""A prediction this close to what is reached, as a share of it, holds."""

_ROUNDS = 3
_FILL_SHARE = 0.2
_TURN_S = 1.5
_LEAST_S = 1.0
_LEAST_BATCHES = 8


@dataclass(frozen=True)
class Verified:
    """One configuration, predicted and reached.

    Attributes:
        name: Configuration, in a few words.
        predicted: Images/s that were predicted.
        achieved: Images/s of each round.
    """

    name: str
    predicted: float
    achieved: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """What was predicted as a multiple of the median that was reached."""
        return self.predicted / float(np.median(self.achieved))

    @property
    def holds(self) -> bool:
        """Whether the prediction is within 10 % of what was reached."""
        return abs(self.ratio - 1) <= WITHIN

    def __str__(self) -> str:
        """Say it in one line."""
        reached = f"{np.median(self.achieved):,.0f}"
        return (
            f"{self.name}: predicted {self.predicted:,.0f} images/s, achieved {reached} "
            f"({self.ratio:.2f} of it predicted)"
        )


def verify(
    choice: Choice,
    source: Source,
    recipes: Mapping[str, Recipe],
    *,
    step: Step | float | None = None,
    disk: Path | None = None,
    seconds: float = 60.0,
    told: Callable[[str], None] = lambda _: None,
) -> list[Verified]:
    """Run standard and the recommended configuration in turns; both are of an epoch that is short enough to fill.

    Args:
        choice: What was chosen.
        source: Source that it was made for.
        recipes: Recipes that it was made for, by name.
        step: Step that it was made for.
        disk: Folder on the disk that it was made for.
        seconds: Seconds that it takes, about.
        told: Function that is called with a line about what is being done.
    """
    batch_size = choice.workload.batch_size
    rate = choice.standard.configuration.split.standard_s.median
    batches = max(_LEAST_BATCHES, int(seconds * _FILL_SHARE / rate) // batch_size)
    rows = rows_of(read_some(source), source, rows=batches * batch_size)
    workload = replace(choice.workload, num_samples=len(rows))
    taken = [choice.standard.configuration]
    taken += [] if choice.leave_off else [choice.recommended.configuration]
    if step is not None and not callable(step):
        step = waiting(step)
    names = [choice.name_of(configuration) for configuration in taken]
    with ExitStack() as stack:
        turns = []
        for name, configuration in zip(names, taken, strict=True):
            told(f"filling: {name}")
            turns.append(turns_of(configuration, rows, recipes, batch_size, disk, choice.machine.memory_bytes, stack))
        each_s = max(_LEAST_S, seconds * (1 - _FILL_SHARE) / _ROUNDS / len(turns) - _TURN_S)
        achieved: list[list[float]] = [[] for _ in turns]
        for number in range(_ROUNDS):
            for place in range(len(turns))[:: 1 if number % 2 == 0 else -1]:
                told(f"round {number + 1} of {_ROUNDS}: {names[place]}")
                achieved[place].append(1 / turns[place].slice(each_s, step).image_s)
    predicted = [predict(choice.costs, choice.machine, workload, each).images_per_s for each in taken]
    return [Verified(*each) for each in zip(names, predicted, map(tuple, achieved), strict=True)]


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
