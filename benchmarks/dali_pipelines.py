"""What does it cost to finish in a DALI pipeline of one's own, or to have a stage of one's own? Against loaders.

    loader                kernels do all but decoding
    loader, dali          DALI's operators do all
    pipeline, dali        the same, its final part in a pipeline behind `PartialSource`
    pipeline              kernels make the partial part, DALI's operators in the pipeline the final one
    late pipeline         the same with all stages in the partial part: the pipeline only normalises
    late pipeline, dali   the same by DALI's operators alone
    own stage             a loader whose last stage is a `Custom`: kernels do what comes before it
    own stage, dali       the same by DALI's operators alone

Each by standard, and, but for the late ones, at reuse factor 3. A loader gives DALI the rows of several batches
together, a pipeline of one's own has those of one, and each operator costs DALI tens of microseconds whenever it runs.
Where nothing is reused a late split serves the same images with fewer operators behind it.

Claims, on any machine: a pipeline, late or not, is at least 0.95 times as fast as a loader whose operators are DALI's,
too; with a stage of one's own a loader keeps at least 0.8 of its speed by standard.
Bound: a loader with a further stage is no faster than the one without.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, at least 2,048 images timed in each.

    python benchmarks/dali_pipelines.py                        about 15 minutes on 2 cores
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import harness
import torch
from claims import Claim, Speeds, say_speeds
from experiment import Experiment, Options
from loaders import STANDARD, LoaderTurns, Loading, reuse
from nvidia.dali import fn
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from dalirefurb import PartialSource, Recipe
from dalirefurb.augment import Custom

LOADER, PIPELINE, OWN, LATE = "loader", "pipeline", "own stage", "late pipeline"
KINDS = tuple(f"{kind}{suffix}" for kind in (LOADER, PIPELINE, OWN, LATE) for suffix in ("", ", dali"))
LEAST_OF_LOADER, LEAST_WITH_OWN_STAGE = 0.95, 0.8
BATCHES_OF_DALI = 3
"""That DALI's iterator and pipeline have ahead."""


@dataclass(frozen=True, kw_only=True)
class Config(Loading):
    """What is run.

    Attributes:
        reuse_factor: Of what reuses.
        timed_batches: Of a slice.
    """

    reuse_factor: int = 3
    timed_batches: int = 32


class PipelineTurns(LoaderTurns):
    """A `PartialSource` that feeds a pipeline, with DALI's iterator, a turn at a time."""

    @contextmanager
    def _resumed(self) -> Iterator[Any]:
        with PartialSource(self._source, self._recipe, self._planner, self._store, **self._options) as samples:
            if self._state is not None:
                samples.load_state_dict(self._state)
            yield _Piped(samples, self._state or {"epoch": 0, "batch": 0})


class _Piped:
    """What `LoaderTurns` asks a loader for."""

    def __init__(self, samples: PartialSource, state: dict[str, Any]) -> None:
        self._samples = samples
        self._iterator = DALIGenericIterator(
            samples.pipeline(num_threads=harness.cores()), ["data", "label"], auto_reset=True
        )
        self._epoch, self._batch = state["epoch"], state["batch"]
        self._assembler = samples._loader._assembler
        self.batches_ahead = samples._loader.batches_ahead + BATCHES_OF_DALI
        self.stats = samples.stats

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for (batch,) in self._iterator:
            self._batch += 1
            yield batch["data"], batch["label"]
        self._epoch, self._batch = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return self._samples.state_dict(self._epoch, self._batch)


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Let all kinds take turns, by standard and with reuse."""
    source, preset = config.source(options.data), config.recipe()
    own = Custom(lambda images: fn.brightness(images, brightness=0.9), "own_stage")
    recipes = {
        LOADER: preset,
        PIPELINE: preset,
        OWN: Recipe([*preset.stages, own], preset.output, preset.split),
        LATE: preset.at(len(preset.stages)),
    }
    with ExitStack() as stack:
        turns = []
        for plan, planner in config.planners(config.reuse_factor, drop_last=True).items():
            for kind in KINDS:
                name, _, kernels = kind.partition(", ")
                if name == LATE and plan != STANDARD:
                    continue
                made = PipelineTurns if name in (PIPELINE, LATE) else LoaderTurns
                turns.append(
                    made(stack, f"{kind}, {plan}", source, recipes[name], planner, kernels=kernels or None)  # type: ignore[arg-type]
                )
                turns[-1].settle()
        slices = harness.interleave(turns, rounds=config.rounds, timed_batches=config.timed_batches)
    speeds = harness.speeds_of(slices)
    judged = claims(config, speeds)
    say_speeds(speeds, judged)
    return {"claims": judged, "slices": slices}


def claims(config: Config, speeds: Speeds) -> list[Claim]:
    """Divide figures of one round by each other."""
    made = []
    for plan in (STANDARD, reuse(config.reuse_factor)):
        loader, dali, pipeline, own = (f"{kind}, {plan}" for kind in (LOADER, KINDS[1], PIPELINE, OWN))
        least = LEAST_WITH_OWN_STAGE if plan == STANDARD else None
        made += [
            Claim.between(speeds, f"{PIPELINE}, dali, {plan}", dali, LEAST_OF_LOADER),
            Claim.between(speeds, pipeline, dali),
            Claim.between(speeds, own, loader, least, bound=1.0),
            Claim.between(speeds, own, f"{OWN}, dali, {plan}"),
        ]
        if plan == STANDARD:
            made += [
                Claim.between(speeds, f"{LATE}, dali, {plan}", dali, LEAST_OF_LOADER),
                Claim.between(speeds, f"{LATE}, {plan}", loader),
            ]
    return made


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=64, epoch_batches=32, rounds=5),
    quick=Config(layers=0, size=32, batch_size=4, epoch_batches=3, rounds=1, timed_batches=2),
    keeps_memory=True,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
