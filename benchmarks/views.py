"""What do views of a sample gain that is read and decoded once? Against a loader for each view.

    two views         of one recipe: a crop and flip, or SimCLR's
    a loader each     two loaders with one planner, which take turns at batches
    eight views       two of 224 x 224 and six of 96 x 96, as DINO has them
    a loader each     eight loaders
    born in turn      two views with versions of their own, SimCLR's, at reuse factor 2: `views=2`
    a loader each     two loaders of reuse factor 2, each with a store
    on a keep         two views, a crop and flip, of images that are kept decoded: `views=2`

Claims, on any machine: two views are at least 1.25 times two loaders, eight at least twice eight loaders. A loader of
one view decodes the window that it shows alone, where views decode the whole image, once. Two views that are born in
turn are at least 0.9 times two loaders of reuse factor 2, which compute as much. On a keep a core makes at least 1,000
pairs/s.
Bound: none is known, since loaders that work side by side are in each other's way.
n: 3 rounds (`--rounds`), each a slice of every contender in turn, of 8 batches and 3 seconds at least. Figures are
samples/s, each of all views; of the keep pairs in a second of CPU time of the whole process, of as many batches after
what was made ahead is gone.

    python benchmarks/views.py                        about 10 minutes on 2 cores
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np
from claims import Claim, Spread, say_speeds
from experiment import Experiment, Options
from loaders import STANDARD, LoaderTurns, Sizes, reuse
from sources import MEMORY

from dalirefurb import FileList, Kept, Loader, MemoryStore, Recipe, simple
from dalirefurb.augment.published import simclr

LEAST_TWO, LEAST_EIGHT, LEAST_IN_TURN = 1.25, 2.0, 0.9
LEAST_PAIRS = 1000
"""Pairs in a second of CPU time, of images that are kept decoded."""

IN_TURN, REUSE = "two views born in turn, SimCLR, reuse factor 2", 2
LOCAL_SHARE = 96 / 224


@dataclass(frozen=True, kw_only=True)
class Config(Sizes):
    """What is run.

    Attributes:
        timed_batches: Of a slice, at least.
        timed_s: Seconds of a slice, at least.
        cpu_batches: Of which the CPU time is taken, on a keep.
        memory: Folder in memory where the keep is made.
    """

    timed_batches: int = 8
    timed_s: float = 3.0
    cpu_batches: int = 96
    memory: str = MEMORY


class ViewTurns(LoaderTurns):
    """Loaders of some recipes, or one loader of all of them, that serve the same samples, a turn at a time.

    Args:
        stack: Closes the stores, if anything is kept: one for each loader.
        given: As `LoaderTurns` takes it.
        views: Recipes of the views.
        apart: Whether each has a loader of its own.
        in_turn: Whether the one loader is that of the first recipe, with as many views that are born in turn.
        options: As `LoaderTurns` takes them.
    """

    def __init__(
        self, stack: ExitStack, *given: Any, views: Sequence[Recipe], apart: bool, in_turn: bool = False, **options: Any
    ) -> None:
        super().__init__(stack, *given, **options)
        more: Any = len(views) if in_turn else views[1:]
        self._made = [(recipe, ()) for recipe in views] if apart else [(views[0], more)]
        keeps = self._store is not None
        others = [stack.enter_context(MemoryStore()) if keeps else None for _ in self._made[1:]]
        self._stores = [self._store, *others]

    @contextmanager
    def _resumed(self) -> Iterator[Any]:
        with ExitStack() as stack:
            loaders = [
                stack.enter_context(Loader(self._source, recipe, self._planner, store, views=views, **self._options))
                for (recipe, views), store in zip(self._made, self._stores, strict=True)
            ]
            for loader, state in zip(loaders, self._state or (), strict=False):
                loader.load_state_dict(state)
            for loader in loaders[1:]:
                loader._assembler.get()._reader.sizes(np.arange(len(self._source)))
            yield _Together(loaders)


class _Together:
    """What `LoaderTurns` asks a loader for."""

    def __init__(self, loaders: Sequence[Loader]) -> None:
        self._loaders = loaders
        self._assembler, self.stats = loaders[0]._assembler, loaders[0].stats
        self.batches_ahead = loaders[0].batches_ahead

    def state_dict(self) -> Any:
        return [each.state_dict() for each in self._loaders]

    def __iter__(self) -> Iterator[Any]:
        for (images, labels), *_ in zip(*self._loaders, strict=True):
            yield images[0] if isinstance(images, tuple) else images, labels


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Let views and loaders take turns."""
    source, planners = config.source(options.data), config.planners(REUSE, drop_last=True)
    planner = planners[STANDARD]
    size = config.size
    local = simple(round(LOCAL_SHARE * size), scale=(0.05, 0.14)).at(1)
    wide = simple(size, scale=(0.14, 1.0)).at(1)
    kinds = {
        "two views, crop and flip": [wide, wide.view(2)],
        "two views, SimCLR": [simclr(size).at(1), simclr(size).at(1).view(2)],
        "eight views, crop and flip": [wide, wide.view(2), *(local.view(number) for number in range(3, 9))],
    }
    with ExitStack() as stack:
        turns = [
            ViewTurns(stack, name if not apart else apart_of(name), source, views[0], planner, views=views, apart=apart)
            for name, views in kinds.items()
            for apart in (False, True)
        ]
        pair = [simclr(size), simclr(size).view(2)]
        for name, apart in ((IN_TURN, False), (apart_of(IN_TURN), True)):
            reused = planners[reuse(REUSE)]
            turns.append(ViewTurns(stack, name, source, pair[0], reused, views=pair, apart=apart, in_turn=not apart))
            turns[-1].settle()
        slices = harness.interleave(
            turns, rounds=config.rounds, timed_batches=config.timed_batches, timed_s=config.timed_s
        )
    speeds = harness.speeds_of(slices)
    judged = [
        Claim.between(
            speeds,
            name,
            apart_of(name),
            LEAST_TWO if len(views) == 2 else LEAST_EIGHT,
        )
        for name, views in kinds.items()
    ]
    judged.append(Claim.between(speeds, IN_TURN, apart_of(IN_TURN), LEAST_IN_TURN))
    pairs = pairs_on_a_keep(config, source)
    judged.append(Claim("two views on a keep, pairs/s a core", Spread.of(pairs), LEAST_PAIRS))
    say_speeds(speeds, judged, unit="samples/s")
    return {"claims": judged, "slices": slices, "pairs_on_a_keep": pairs}


def pairs_on_a_keep(config: Config, source: FileList) -> list[float]:
    """Return how many pairs are made in a second of CPU time of images that are kept decoded, once a round.

    It is that of the whole process. What was made ahead is taken before, and none is left over at the end, where
    batches are taken as fast as they come; so each batch that counts was made in the time that counts.
    """
    with TemporaryDirectory(dir=config.memory) as folder:
        kept = Kept(source, Path(folder) / "keep", form="decoded")
        kept.fill()
        planner, found = config.planners(drop_last=True)[STANDARD], []
        with Loader(kept, simple(config.size), planner, views=2) as loader:
            batches = (len(labels) for _ in iter(int, 1) for _, labels in loader)
            for _ in range(config.rounds):
                for _ in islice(batches, loader.batches_ahead + harness.RAMP_BATCHES):
                    pass
                began = time.process_time()
                pairs = sum(islice(batches, config.cpu_batches))
                found.append(pairs / (time.process_time() - began))
    return found


def apart_of(name: str) -> str:
    """Name the loaders that views are compared with."""
    return f"{name}, a loader each"


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=32, epoch_batches=32, rounds=3),
    quick=Config(
        size=32, batch_size=4, epoch_batches=3, rounds=1, timed_batches=2, timed_s=0.0, cpu_batches=3, memory="/tmp"
    ),
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
