"""What do views of a sample gain that is read and decoded once? Against a loader for each view.

    two views         of one recipe: a crop and flip, or SimCLR's
    a loader each     two loaders with one planner, which take turns at batches
    eight views       two of 224 x 224 and six of 96 x 96, as DINO has them
    a loader each     eight loaders

Claims, on any machine: two views are at least 1.25 times two loaders, eight at least twice eight loaders. A loader of
one view decodes the window that it shows alone, where views decode the whole image, once.
Bound: none is known, since loaders that work side by side are in each other's way.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 5 rounds (`--rounds`), each a slice of every contender in turn. Nothing is reused. Figures are samples/s, each of all
views.

    python benchmarks/views.py                        about 30 minutes on 2 cores
    python benchmarks/views.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import harness
import numpy as np
from claims import Claim, Spread, claim_table, say, table
from experiment import Experiment, Options
from loaders import STANDARD, LoaderTurns, Sizes

from dalirefurb import Loader, Recipe, simple
from dalirefurb.augment.published import simclr

LEAST_TWO, LEAST_EIGHT = 1.25, 2.0
LOCAL_SHARE = 96 / 224


@dataclass(frozen=True, kw_only=True)
class Config(Sizes):
    """What is run.

    Attributes:
        timed_batches: Of a slice.
    """

    timed_batches: int = 16


class ViewTurns(LoaderTurns):
    """Loaders of some recipes, or one loader of all of them, that serve the same samples, a turn at a time."""

    def __init__(self, *given: Any, views: Sequence[Recipe], apart: bool, **options: Any) -> None:
        super().__init__(*given, **options)
        self._views, self._apart = views, apart

    @contextmanager
    def _resumed(self) -> Iterator[Any]:
        with ExitStack() as stack:
            made = [(recipe, ()) for recipe in self._views] if self._apart else [(self._views[0], self._views[1:])]
            loaders = [
                stack.enter_context(Loader(self._source, recipe, self._planner, views=views, **self._options))
                for recipe, views in made
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
    source, planner = config.source(options.data), config.planners(drop_last=True)[STANDARD]
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
        slices = harness.interleave(turns, rounds=config.rounds, timed_batches=config.timed_batches)
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
    rows = [[name, f"{Spread.of(own):0}"] for name, own in speeds.items()]
    say(table(["contender", "samples/s [quartiles]"], rows), claim_table(judged))
    return {"claims": judged, "slices": slices}


def apart_of(name: str) -> str:
    """Name the loaders that views are compared with."""
    return f"{name}, a loader each"


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=64, epoch_batches=32, rounds=5),
    quick=Config(size=32, batch_size=4, epoch_batches=3, rounds=1, timed_batches=2),
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
