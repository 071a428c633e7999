"""Tune: measures, computes every configuration, and says which one to take, or to leave reuse off."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from dalirefurb.augment.recipe import Recipe
from dalirefurb.calls import explains
from dalirefurb.checks import integer, number, path_of, require
from dalirefurb.engine.memory import free_bytes
from dalirefurb.errors import ConfigurationError
from dalirefurb.planning.refurbish import Refurbish, Standard
from dalirefurb.source import Source
from dalirefurb.store import DeviceStore, DiskStore, MemoryStore, Store, TieredStore
from dalirefurb.system.resources import Budget, available_bytes, budget_bytes, bytes_on_disk, usable_cores
from dalirefurb.tuning.choice import Choice, Verified, choose, rival, settled
from dalirefurb.tuning.costs import LEAST_ROUNDS, LIMIT_S, Costs, Placement
from dalirefurb.tuning.measure import MEASURING, measure
from dalirefurb.tuning.model import Configuration, Machine, Workload, predict
from dalirefurb.tuning.report import Advice as Advice
from dalirefurb.tuning.turns import PATIENCE, Step, Told, Turns, batches_that_fit, noted, read_some, slice_s, waiting

_PLACEMENTS: tuple[Placement, ...] = (("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu"))

_FILL_SHARE = 0.2
_SLICE_S = (0.5, 4.0)
_LEAST_BATCHES, _MOST_ROWS = 8, 32_768


@explains
def tune(
    source: Source,
    recipe: Recipe | Mapping[str, Recipe],
    *,
    batch_size: int = 64,
    step: Step | float | None = None,
    memory: Budget = "60%",
    disk: Path | str | None = None,
    disk_budget: Budget = "80%",
    device_memory: Budget = "40%",
    placements: Sequence[Placement] | None = None,
    min_kept: float = 0.95,
    epochs: int = 90,
    limit_s: float = LIMIT_S,
    told: Told = lambda _: None,
) -> Advice:
    """Measure for two minutes or so, and say which recipe, split, reuse factor and store to take, if any.

    Nothing else should run on the machine meanwhile: where too little could be measured, or figures vary too much, the
    verdict is INCONCLUSIVE, and nothing is recommended. What is recommended has taken turns with the best other.

    Args:
        source: Source of the samples.
        recipe: Recipe, or several by name among which to choose, such as both orders of a preset; the first is what is
            compared with. All their splits are tried.
        batch_size: Rows of a batch.
        step: The training step, a function of images and labels as the loader serves them; or seconds that it takes on
            a batch; None: not known, so that only loading is judged.
        memory: Memory that a cache may take, such as "16GB", or a share of what is available.
        disk: Folder on the disk where a cache may lie; None: none.
        disk_budget: Space that it may take there.
        device_memory: Memory of the current CUDA device that a `DeviceStore` may take.
        placements: Devices of the partial and of the final part to try, such as [("cpu", "cpu"), ("gpu", "gpu")]; None:
            the CPU, and where there is a CUDA device cpu/gpu and gpu/gpu, too.
        min_kept: Least share of standard training's different images to keep, 0..1, see `Recipe.diversity`.
        epochs: Number of epochs of the run.
        limit_s: Seconds to measure for, about, beside compiling kernels for the first time.
        told: Function that is called with a line about what is being done.

    Raises:
        ConfigurationError: If an argument cannot work.
        DalirefurbError: If not even loading without reuse works.
    """
    require(isinstance(source, Source), "source", "a Source", source, "pass such as ImageFolder(folder)")
    remedy = "run the loader, and look at loader.diagnose()"
    require(not source.volumes, "source", "a source of images, not of volumes", source, remedy)
    if source.prefix:
        raise ConfigurationError(
            "tune measures all splits, but the source's images have gone through stages already: pass the source that "
            "Kept was given, or Kept with form='decoded'"
        )
    recipes = {"recipe": recipe} if isinstance(recipe, Recipe) else recipe
    named = isinstance(recipes, Mapping) and recipes and all(isinstance(each, Recipe) for each in recipes.values())
    require(bool(named), "recipe", "a Recipe, or several by name", recipe, "pass such as rand_augment(224)")
    batch_size = integer("batch_size", batch_size, 1, None, "64 is usual")
    epochs = integer("epochs", epochs, 1, None, "pass the number of epochs of the run")
    min_kept = number("min_kept", min_kept, "in 0..1", lambda share: 0 <= share <= 1, "0.95 is usual")
    limit_s = number("limit_s", limit_s, "above 0", lambda seconds: 0 < seconds < math.inf, "120 is usual")
    if step is not None and not callable(step):
        remedy = "pass seconds of a batch"
        step = number("step", step, "above 0, or a function", lambda seconds: 0 < seconds < math.inf, remedy)
    require(callable(told), "told", "a function of a line", told, "leave it out to be told nothing")
    if placements is None:
        placements = _PLACEMENTS if torch.cuda.is_available() else _PLACEMENTS[:1]
    known = isinstance(placements, tuple) and len(placements) > 0 and all(each in _PLACEMENTS for each in placements)
    require(known, "placements", f"a list of some of {[*_PLACEMENTS]}", placements, "leave it out for all that can be")
    folder = check_disk(disk)
    machine = this_machine(
        budget_bytes(memory, available=available_bytes),
        0 if folder is None else budget_bytes(disk_budget, available=lambda: bytes_on_disk(folder)),
        budget_bytes(device_memory, available=lambda: free_bytes() if torch.cuda.is_available() else 0),
    )
    costs = measure(
        source,
        recipes,
        batch_size=batch_size,
        step=step,
        disk=folder,
        placements=placements,
        limit_s=limit_s,
        told=told,
    )
    advice = advise(costs, machine, workload_of(costs, len(source), epochs=epochs), min_kept=min_kept)
    if advice.missing:
        return advice
    notes, verified = list(costs.notes), list[Verified]()
    with noted(notes, "turns of what is to be recommended"):
        seconds = (1 - MEASURING) * limit_s
        verified = verify(advice, source, recipes, step=step, disk=folder, seconds=seconds, told=told)
    advice = replace(advice, costs=replace(costs, notes=tuple(notes)))
    return settled(advice, verified, limit_s)


def check_disk(disk: Path | str | None) -> Path | None:
    """Return the folder on the disk where a cache may lie; refuse what is no folder that can be written."""
    if disk is None:
        return None
    require(isinstance(disk, (str, Path)), "disk", "the path of a folder", disk, "pass such as '/local', or None")
    folder = path_of(disk)
    remedy = "make it, pass another one, or leave it out to keep nothing on a disk"
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        why = "cannot be written" if folder.is_dir() else "is no folder" if folder.exists() else "is not there"
        said = f"must be a folder where a cache may lie, but {folder} {why}"
        raise ConfigurationError(said, argument="disk", remedy=remedy)
    return folder


def this_machine(memory_bytes: int, disk_bytes: int, device_bytes: int = 0) -> Machine:
    """Return this machine with these budgets; memory beside them is the page cache's."""
    spare = max(0, (available_bytes() or 0) - memory_bytes)
    return Machine(usable_cores(), memory_bytes, disk_bytes, device_bytes, spare)


def workload_of(costs: Costs, num_samples: int, *, epochs: int) -> Workload:
    """Return a run with the step that was measured."""
    step = costs.step
    seconds, cpu_s = (0.0, 0.0) if step is None else (step.wall_s.median, step.cpu_s)
    return Workload(num_samples, costs.batch_size, epochs, seconds, cpu_s)


def advise(costs: Costs, machine: Machine, workload: Workload, *, min_kept: float = 0.95) -> Advice:
    """Compute what to set from what was measured, here or on another machine; `min_kept` is that of `tune`."""
    return Advice(**vars(choose(costs, machine, workload, min_kept=min_kept)))


def verify(
    choice: Choice,
    source: Source,
    recipes: Mapping[str, Recipe],
    *,
    step: Step | float | None = None,
    disk: Path | None = None,
    seconds: float = 30.0,
    told: Told = lambda _: None,
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
    rows = read_some(source).rows(max(1, min(max(_LEAST_BATCHES, batches), fit)) * batch_size)
    if step is not None and not callable(step):
        step = waiting(step)
    # As much of a tiered cache is on the disk as there will be.
    share = min(1.0, len(rows) / choice.workload.num_samples)
    machine = replace(choice.machine, memory_bytes=int(share * choice.machine.memory_bytes))
    names = [choice.name_of(configuration) for configuration in taken]
    achieved: list[list[float]] = [[] for _ in taken]
    with ExitStack() as stack:
        turns = []
        for name, configuration in zip(names, taken, strict=True):
            told(f"filling: {name}")
            turns.append(turns_of(configuration, rows, recipes, batch_size, disk, machine.memory_bytes, stack))
        each_s = slice_s(seconds - (time.perf_counter() - began), [1.0] * len(turns), _SLICE_S)
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
            predict(choice.costs, machine, workload, configuration).images_per_s,
            tuple(reached),
        )
        for configuration, name, reached in zip(taken, names, achieved, strict=True)
    ]


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
    planner = Refurbish(
        len(rows), batch_size=batch_size, reuse_factor=configuration.reuse_factor, coverage=configuration.coverage
    )
    store: Store = DeviceStore() if configuration.tier == "device" else MemoryStore()
    if configuration.tier in ("disk", "tiered") and disk is not None:
        path = Path(stack.enter_context(TemporaryDirectory(prefix="dalirefurb-tune-", dir=disk))) / "cache"
        store = DiskStore(path) if configuration.tier == "disk" else TieredStore(memory=memory_bytes, path=path)
    stack.callback(store.close)
    turns = Turns(rows, recipe, planner, store, devices=split.devices)
    turns.fill()
    return turns
