"""Loaders that take turns: each is made for its turn, resumed where its last one ended, and closed again.

    turn 0   make, warm ▏ ... ▏ state, close        turn 1   make, load the state, warm ▏ ... ▏ state, close
    store    empty ───────────────▶ filled ─────────────────── still filled ─────────────────────────▶

So many loaders can be compared in the memory of one and their stores, and none works in another's turn. A loader is
warm when it has served as many batches as it makes ahead: then it has the memory that it writes to, whose pages were
touched for the first time, and on a virtual machine often fetched from its host. And it knows how large each encoded
image is, as every loader does after its first epoch, in which it reads all headers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from harness import Contender, Placement
from sources import MEMORY, repeated

from dalirefurb import FileList, Kept, Loader, MemoryStore, Recipe, Refurbish, Standard, Stats, rand_augment
from dalirefurb.augment.presets import Order, simplified
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source
from dalirefurb.store import Store

STANDARD, KEPT = "standard", "decoded images kept"

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images, (B, 3, H, W) float32, and labels, (B,)."""

Step = Callable[[torch.Tensor, torch.Tensor], object]
"""What a training loop does with a batch."""

_ALIKE = 0.2
_STEADY_EPOCHS = range(1, 7)
_LAYERS = 2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of what loads photographs, which are repeated to fill an epoch.

    Attributes:
        data: Name of the data set.
        size: Side of the images that the model receives, in pixels.
        batch_size: Images of a batch.
        epoch_batches: Batches of an epoch that serves each sample once.
        rounds: Slices of each contender.
    """

    data: str = ""
    size: int = 224
    batch_size: int = 256
    epoch_batches: int
    rounds: int

    @property
    def samples(self) -> int:
        """Of an epoch."""
        return self.epoch_batches * self.batch_size

    def source(self, data: Path) -> FileList:
        """Fill an epoch with a folder's photographs."""
        return repeated(data, self.samples)

    def planners(self, *reuse_factors: int, drop_last: bool = False) -> dict[str, Planner]:
        """Return standard and what refurbishes at each factor, by name."""
        return planners(self.samples, self.batch_size, reuse_factors, drop_last=drop_last)


@dataclass(frozen=True, kw_only=True)
class Compared(Sizes):
    """The same, of what is compared with competitors and on a keep.

    Attributes:
        reuse_factor: Of what reuses.
        calibration_batches: Timed at each setting of a competitor.
        memory: Folder in memory where the keep is made.
    """

    reuse_factor: int = 3
    calibration_batches: int = 4
    memory: str = MEMORY

    def turns(self, stack: ExitStack, source: Source, kept: Kept, recipe: Recipe, kind: str = "") -> list[Any]:
        """Fill a keep; return standard, what reuses, and standard on it, as `settled` does, by kind and name."""
        kept.fill()
        named = {f"{kind}{name}": each for name, each in self.planners(self.reuse_factor, drop_last=True).items()}
        standard = named[f"{kind}{STANDARD}"]
        return [*settled(stack, source, recipe, named), *settled(stack, kept, recipe, {f"{kind}{KEPT}": standard})]


@dataclass(frozen=True, kw_only=True)
class Loading(Sizes):
    """The same, with what is done to an image.

    Attributes:
        layers: Of RandAugment.
    """

    layers: int = _LAYERS

    def recipe(self, order: Order = "paper") -> Recipe:
        """Return `rand_augment` with 2 layers or fewer; with none it takes a tenth of the time to build."""
        recipe = rand_augment(self.size, order=order)
        return recipe if self.layers == _LAYERS else simplified(recipe, _LAYERS - self.layers)


def planners(
    num_samples: int, batch_size: int, reuse_factors: Iterable[int], *, drop_last: bool = False
) -> dict[str, Planner]:
    """Return standard and what refurbishes at each factor, by name."""
    standard = Standard(num_samples, batch_size=batch_size, drop_last=drop_last)
    refurbish = partial(Refurbish, num_samples, batch_size=batch_size, drop_last=drop_last)
    return {STANDARD: standard, **{reuse(each): refurbish(reuse_factor=each) for each in reuse_factors}}


def reuse(factor: int) -> str:
    """Name what refurbishes."""
    return f"reuse factor {factor}"


class LoaderTurns:
    """A loader that serves epoch after epoch, a turn at a time.

    Args:
        stack: Closes the store, which the loader has if the plan keeps anything.
        name: For tables and results.
        source: Of samples.
        recipe: Where it splits.
        planner: What is served.
        step: What the consumer does with each batch; None: nothing.
        make_store: Makes its store.
        options: Of the loader.

    Attributes:
        name: For tables and results.
        stats: What was done in each turn, all untimed batches included.
    """

    def __init__(
        self,
        stack: ExitStack,
        name: str,
        source: Source,
        recipe: Recipe,
        planner: Planner,
        step: Step | None = None,
        *,
        make_store: Callable[[], Store] = MemoryStore,
        **options: Any,
    ) -> None:
        self.name = name
        self._source = source
        self._recipe = recipe
        self._planner = planner
        self._step = step
        self._placement = default_placement()
        self._options = options
        self._store = stack.enter_context(make_store()) if planner.peak_slots else None
        self._period = period(planner)
        self._state: dict[str, Any] | None = None
        self.stats: list[Stats] = []

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Make the loader, go on where it was, warm it, and close it."""
        with self._resumed() as loader:
            if self._source.encoded:
                # What a loader learns in its first epoch: how large each image is.
                loader._assembler.get()._reader.sizes(np.arange(len(self._source)))
            served: list[Batch] = []
            batches = endless(loader, served)
            for _ in islice(batches, loader.batches_ahead):
                pass
            ahead, rotation = loader.batches_ahead, rotation_of(loader, self._period)
            step = None if self._step is None else partial(take_step, self._step, served)
            yield Contender(self.name, self._placement, ahead, batches, rotation, step)
            batches.close()
            self._state = loader.state_dict()
            self.stats.append(loader.stats())

    @contextmanager
    def _resumed(self) -> Iterator[Loader]:
        """Make the loader, which goes on where the last one was."""
        with Loader(self._source, self._recipe, self._planner, self._store, **self._options) as loader:
            if self._state is not None:
                loader.load_state_dict(self._state)
            yield loader

    def settle(self) -> None:
        """Serve the first epoch, if it computes more than a later one does."""
        if computed_share(self._planner, range(1)) <= computed_share(self._planner):
            return
        with self.turn() as contender:
            for _ in islice(contender.batches, len(self._planner)):
                pass
        self.stats.clear()


def settled(stack: ExitStack, source: Source, recipe: Recipe, planners: Mapping[str, Planner]) -> list[LoaderTurns]:
    """Make a loader of each plan, by name, and have each serve its first epoch."""
    turns = [LoaderTurns(stack, name, source, recipe, planner) for name, planner in planners.items()]
    for each in turns:
        each.settle()
    return turns


def endless(loader: Loader, served: list[Batch] | None = None) -> Generator[int, None, None]:
    """Consume epoch after epoch, and yield the size of each batch; `served` holds the last one."""
    while True:
        for images, labels in loader:
            if served is not None:
                served[:] = [(images, labels)]
            yield len(images)


def take_step(step: Step, served: list[Batch]) -> None:
    """Take a step with the batch that was served last, and let it go."""
    step(*served.pop())


def rotation_of(loader: Loader, period: int) -> int:
    """Return after how many batches a loader's work repeats: small batches are made, and arrive, in groups."""
    depths = loader._assembler.depths
    return math.lcm(period, depths.replicas * depths.batches_per_group, depths.hits_per_group)


def period(planner: Planner) -> int:
    """Return after how many batches a plan computes as much again: an epoch, if its batches are unlike each other."""
    epochs = [[plan.miss.sum() for plan in planner.epoch(epoch)] for epoch in (1, 2)]
    computed = np.concatenate(epochs)
    return 1 if np.ptp(computed) <= _ALIKE * computed.mean() else len(epochs[0])


def default_placement() -> Placement:
    """Return what a loader chooses."""
    replicas = min(8, harness.cores())
    return Placement(replicas, -(-harness.cores() // replicas))


def computed_share(planner: Planner, epochs: range = _STEADY_EPOCHS) -> float:
    """Return how many partial images are computed for each row that is served, in epochs after the first ones."""
    plans = [plan for epoch in epochs for plan in planner.epoch(epoch)]
    return float(sum(plan.miss.sum() for plan in plans) / sum(len(plan.indices) for plan in plans))


def kept_diversity(recipe: Recipe, planner: Planner, epochs: int) -> float:
    """Return the share of different images among all that are served in so many epochs.

    A version that is served n times counts as n times what the recipe keeps at a reuse factor of n.
    """
    plans = [plan for epoch in range(epochs) for plan in planner.epoch(epoch)]
    versions = np.concatenate([(plan.version << 32) + plan.indices for plan in plans])
    servings, counts = np.unique(np.unique(versions, return_counts=True)[1], return_counts=True)
    kept = [
        count * recipe.diversity(serving) * serving for serving, count in zip(servings.tolist(), counts, strict=True)
    ]
    return float(sum(kept) / len(versions))
