"""Tune: measures, computes every configuration, and says which one to take, or to leave reuse off."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dalirefurb.augment.recipe import Recipe
from dalirefurb.calls import explains
from dalirefurb.checks import integer, number, require
from dalirefurb.engine.verdict import Verdict
from dalirefurb.errors import ConfigurationError
from dalirefurb.source import Source
from dalirefurb.store.available import available_bytes
from dalirefurb.store.memory_budget import Budget, budget_bytes
from dalirefurb.tuning import report
from dalirefurb.tuning.choice import Choice, Verified, choose
from dalirefurb.tuning.costs import LIMIT_S, Costs, Placement
from dalirefurb.tuning.machine import free_bytes, free_device_bytes, this_machine
from dalirefurb.tuning.measure import MEASURING, measure
from dalirefurb.tuning.model import Machine, Prediction, Workload
from dalirefurb.tuning.subjects import noted
from dalirefurb.tuning.turns import Step
from dalirefurb.tuning.verify import settled, verify

_PLACEMENTS: tuple[Placement, ...] = (("cpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu"))

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Advice:
    """What to set, and why; or what is missing to say so. `print(advice)` tells it; `advice.code()` is to be pasted.

    Attributes:
        choice: What to take, all configurations that fit, and what they were computed from.
    """

    choice: Choice

    @property
    def recommended(self) -> Prediction | None:
        """What to take; None: too little was measured to recommend anything, as `missing` says."""
        return self.choice.recommended

    @property
    def missing(self) -> str:
        """What is missing for a recommendation, and the time that it needs; "" where there is one."""
        return self.choice.missing

    @property
    def verdict(self) -> Verdict | None:
        """Whether training waits for its loader without reuse; None: no step was given.

        It is `Verdict.INCONCLUSIVE` where nothing is recommended.
        """
        return self.choice.verdict

    @property
    def headspace(self) -> float:
        """How many times as fast training would be if its data cost nothing, at least 1."""
        return self.choice.headspace

    @property
    def leave_off(self) -> bool:
        """Whether it was found that nothing is gained by reuse; False, too, where nothing is recommended."""
        return self.choice.leave_off

    def __str__(self) -> str:
        """Return verdict, table and notes as text."""
        return report.text(self.choice)

    __repr__ = __str__

    def code(
        self, *, source: str = "source", recipes: Mapping[str, str] | None = None, path: str = "/local/cache"
    ) -> str:
        """Return Python that makes the recommended loader.

        Args:
            source: Code of the source.
            recipes: Code of each recipe by its name; by default the names themselves.
            path: Path of the file of a `DiskStore`; several ranks have a file each, of that name and their number.

        Raises:
            DalirefurbError: If nothing is recommended.
        """
        return report.code(self.choice, source=source, recipes=recipes or {}, path=path)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON values; `Costs.from_dict` reads its "costs"."""
        return report.as_dict(self.choice)

    def figure(self) -> Figure:
        """Draw images/s against the reuse factor for each split, with the step's line. Needs Matplotlib."""
        from dalirefurb.tuning.picture import draw

        return draw(self.choice)


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
    told: Callable[[str], None] = lambda _: None,
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
    recipes = {"recipe": recipe} if isinstance(recipe, Recipe) else dict(recipe)
    require(bool(recipes), "recipe", "a Recipe, or several by name", recipe, "pass such as rand_augment(224)")
    for each in recipes.values():
        require(isinstance(each, Recipe), "recipe", "a Recipe, or several by name", each, "pass such as rand_augment()")
    batch_size = integer("batch_size", batch_size, 1, None, "64 is usual")
    epochs = integer("epochs", epochs, 1, None, "pass the number of epochs of the run")
    min_kept = number("min_kept", min_kept, "in 0..1", lambda share: 0 <= share <= 1, "0.95 is usual")
    limit_s = number("limit_s", limit_s, "above 0", lambda seconds: seconds > 0, "120 is usual")
    if step is not None and not callable(step):
        step = number("step", step, "above 0, or a function", lambda seconds: seconds > 0, "pass seconds of a batch")
    if placements is None:
        placements = _PLACEMENTS if torch.cuda.is_available() else _PLACEMENTS[:1]
    folder = check_disk(disk)
    machine = this_machine(
        budget_bytes(memory, available=available_bytes),
        0 if folder is None else budget_bytes(disk_budget, available=lambda: free_bytes(folder)),
        budget_bytes(device_memory, available=free_device_bytes),
    )
    costs = measure(
        source,
        recipes,
        batch_size=batch_size,
        epochs=epochs,
        step=step,
        disk=folder,
        placements=placements,
        limit_s=limit_s,
        told=told,
    )
    choice = choose(costs, machine, workload_of(costs, len(source), epochs=epochs), min_kept=min_kept)
    if choice.missing:
        return Advice(choice)
    notes, verified = list(costs.notes), list[Verified]()
    with noted(notes, "turns of what is to be recommended"):
        seconds = (1 - MEASURING) * limit_s
        verified = verify(choice, source, recipes, step=step, disk=folder, seconds=seconds, told=told)
    return Advice(settled(replace(choice, costs=replace(costs, notes=tuple(notes))), verified, limit_s))


def check_disk(disk: Path | str | None) -> Path | None:
    """Return the folder on the disk where a cache may lie.

    Raises:
        ConfigurationError: If it is no folder that can be written.
    """
    if disk is None:
        return None
    require(isinstance(disk, (str, Path)), "disk", "the path of a folder", disk, "pass such as '/local', or None")
    folder = Path(disk)
    remedy = "make it, pass another one, or leave it out to keep nothing on a disk"
    if not folder.is_dir():
        there = "is no folder" if folder.exists() else "is not there"
        raise ConfigurationError(f"disk must be a folder where a cache may lie, but {folder} {there}: {remedy}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"disk must be a folder that can be written, but {folder} cannot: {remedy}")
    return folder


def workload_of(costs: Costs, num_samples: int, *, epochs: int) -> Workload:
    """Return a run with the step that was measured."""
    step = costs.step
    seconds, cpu_s = (0.0, 0.0) if step is None else (step.wall_s.median, step.cpu_s)
    return Workload(num_samples, costs.batch_size, epochs, seconds, cpu_s)


def advise(costs: Costs, machine: Machine, workload: Workload, *, min_kept: float = 0.95) -> Advice:
    """Compute what to set from what was measured, here or on another machine.

    Args:
        costs: What was measured.
        machine: Where training is to run.
        workload: What is to be trained.
        min_kept: See `tune`.
    """
    return Advice(choose(costs, machine, workload, min_kept=min_kept))
