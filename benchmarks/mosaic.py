"""How fast are mosaics of four photographs made, with the boxes of all four? Beside OpenCV in a DataLoader.

    standard                  decodes one photograph for each mosaic, and takes the others from its batch
    reuse factor 3            decodes and resizes a third of them
    decoded images kept       standard on a keep in memory
    NAME, unshared            the first two, with three more partial images made for each mosaic alone
    DataLoader, OpenCV        reads, decodes and resizes four for each mosaic, at its best setting

Claims, on 2 cores: standard is at least 1.8 times standard, unshared, and 3 times the DataLoader; reuse factor 3 is at
least 2.2 times standard, unshared: of all that is saved, by sharing and by reuse.
Bound: sharing brings at most 4 times as much, a reuse factor of n at most n times.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, two epochs of 16 batches of 32 timed in each.

What is unshared is served in step with a second loader, of the same plan, recipe and threads up to the mosaic: for each
batch of mosaics it is asked for three batches of partial images, of which it makes mosaics of 8 x 8 pixels and nothing
else, so it costs what three more partial images cost. With reuse it caches a version of each sample, too, and serves it
three times as often: of four versions for each mosaic a third is made, as of one where they are shared.

Like for like: the shorter side 480, four around a random point of 1280 x 1280, an affine map (scale 0.5 .. 1.5, shift
0.1 of 640) to 640 x 640, flip, value, saturation and hue, float32 of 0..1, boxes and labels. Ours resize with
anti-aliasing, and jitter colours in random order, which is more. Objects are made: 1 to 13 for each photograph. The
consumer does nothing.

    python benchmarks/competitors/build.py              once, minutes
    python benchmarks/mosaic.py                         about 15 minutes on 2 cores
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import workers
from claims import Claim, Speeds
from competitors.rows import MOSAIC
from detection import compare
from experiment import Experiment, Options
from loaders import STANDARD, Compared, LoaderTurns, endless, reuse

from dalirefurb import FileList, Loader, Output, Recipe
from dalirefurb.augment import Mosaic
from dalirefurb.augment.published import yolo
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source

UNSHARED = "unshared"
LEAST_OF_UNSHARED, LEAST_OF_BOTH = 1.8, 2.2
LEAST_MOSAIC = 8
PARTNERS = Mosaic(LEAST_MOSAIC).partners


@dataclass(frozen=True, kw_only=True)
class Config(Compared):
    """What is run."""

    def recipe(self) -> Recipe:
        """Cache what is resized; put four together, and all that follows, afresh."""
        return yolo(self.size)


class UnsharedTurns(LoaderTurns):
    """A loader of mosaics, for each of whose batches a second one makes three batches of partial images.

    Args:
        stack: Closes the stores.
        name: For tables and results.
        source: Of samples with objects.
        recipe: Of mosaics.
        planner: What is served.
        others: The same samples, without objects.
    """

    def __init__(
        self, stack: ExitStack, name: str, source: Source, recipe: Recipe, planner: Planner, others: FileList
    ) -> None:
        super().__init__(stack, name, source, recipe, planner)
        self._others = others
        partial = Recipe([*recipe.partial, Mosaic(LEAST_MOSAIC)], Output(LEAST_MOSAIC), split=recipe.split)
        self._second = LoaderTurns(stack, name, others, partial, planner)

    @contextmanager
    def _resumed(self) -> Iterator[Any]:
        with super()._resumed() as mosaics, self._second._resumed() as others:
            others._assembler.get()._reader.sizes(np.arange(len(self._others)))
            in_step = _InStep(mosaics, others)
            yield in_step
            in_step.partials.close()
            self._second._state = others.state_dict()


class _InStep:
    """What `LoaderTurns` asks a loader for."""

    def __init__(self, mosaics: Loader, others: Loader) -> None:
        self._mosaics, self.partials = mosaics, endless(others)
        self._assembler = mosaics._assembler
        self.batches_ahead = max(mosaics.batches_ahead, -(-others.batches_ahead // PARTNERS))
        self.stats, self.state_dict = mosaics.stats, mosaics.state_dict

    def __iter__(self) -> Iterator[Any]:
        for batch in self._mosaics:
            for _ in range(PARTNERS):
                next(self.partials)
            yield batch


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Compare, with boxes alone, and with what shares nothing."""
    recipe, reused = config.recipe(), reuse(config.reuse_factor)

    def unshared(stack: ExitStack, source: Source, images: FileList) -> list[LoaderTurns]:
        made: list[LoaderTurns] = []
        for name, planner in config.planners(config.reuse_factor, drop_last=True).items():
            made.append(UnsharedTurns(stack, f"{name}, {UNSHARED}", source, recipe, planner, images))
            made[-1].settle()
        return made

    def claims(speeds: Speeds) -> list[Claim]:
        standard, whole = f"{STANDARD}, {UNSHARED}", 1 + PARTNERS
        return [
            Claim.between(speeds, STANDARD, standard, LEAST_OF_UNSHARED, bound=whole),
            Claim.between(speeds, reused, standard, LEAST_OF_BOTH, bound=whole * config.reuse_factor),
            Claim.between(speeds, reused, f"{reused}, {UNSHARED}", bound=whole),
        ]

    return compare(config, options, MOSAIC, STANDARD, masks=False, further=unshared, claimed=claims)


EXPERIMENT = Experiment(
    measure,
    Config(size=640, batch_size=32, epoch_batches=16, rounds=5),
    quick=Config(size=64, batch_size=8, epoch_batches=4, rounds=1, calibration_batches=2, memory="/tmp"),
    keeps_memory=True,
    options=workers.OPTION,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
