"""How much of what each technique can give does the loader reach? Images/s against each one's own bound.

Claim, on any machine: every technique reaches at least 0.90 of its bound.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 5 rounds (`--rounds`), each a slice of every contender in turn, 8,192 images timed in each.

The bound is k * c_P + c_F seconds an image, where k is how many partial images the plan computes for each image that is
served: 1 / reuse factor, 1 / echoing factor, the share of the window that SmartCache replaces, 0 for a frozen cache.
c_P and c_F are the costs of the two parts, read and decode included, where the technique splits the recipe. Both are
taken in the same round on minimal pipelines, at the replicas x threads that were fastest in a calibration. Loaders run
at their default replicas x threads. The consumer does nothing (headspace), and losses for the Assistant are drawn.

    python benchmarks/techniques.py                        about fifteen minutes on 2 cores
    python benchmarks/techniques.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import command
import harness
import numpy as np
from compared import STANDARD, Config, Technique, techniques
from harness import Claim, Contender, Slice, Spread
from loaders import LoaderTurns, computed_share, default_placement, kept_diversity, repeated
from parts import Parts

from dalirefurb import AutoAssist, Loader, Stats
from dalirefurb.source import Source

DIVERSITY_EPOCHS = 90
LEAST_OF_BOUND = 0.90


@dataclass(frozen=True)
class TechniqueResult:
    """One technique.

    Attributes:
        name: As in the slices.
        parts: What is added to the names of its parts' contenders.
        images_per_s: Throughput over the rounds.
        bound: Images/s of its bound over the rounds.
        computed: Partial images computed for each image served, by the plan.
        served: Images an epoch.
        fresh: Partial images computed an epoch.
        diversity: Share of standard's different images in `DIVERSITY_EPOCHS` epochs; outcomes that look alike count
            as different.
        stats: What the loader did in each turn.
    """

    name: str
    parts: str
    images_per_s: Spread
    bound: Spread
    computed: float
    served: int
    fresh: float
    diversity: float
    stats: list[Stats]

    def row(self, of_bound: Claim, of_standard: Claim) -> list[str]:
        """Write a row of the table."""
        return [
            self.name,
            self.images_per_s.show(0),
            f"{self.bound.median:.0f}",
            of_bound.figure.show(2),
            of_bound.verdict,
            f"{of_standard.figure.median:.2f}",
            f"{self.fresh:.0f} of {self.served}",
            f"{self.diversity:.3f}",
        ]


@dataclass(frozen=True)
class Results:
    """Everything that was measured.

    Attributes:
        techniques: One each.
        claims: Each technique's images/s divided by its bound's, and by standard's, of one round.
        placements: Replicas x threads of each contender.
        slices: Every slice of every round.
        calibration: Slices at every placement that the parts were tried at.
    """

    techniques: list[TechniqueResult]
    claims: list[Claim]
    placements: dict[str, str]
    slices: list[Slice]
    calibration: list[Slice]

    def show(self) -> str:
        """Write the table."""
        claims = {claim.name: claim for claim in self.claims}
        rows = [
            each.row(claims[f"{each.name} / its bound"], claims[f"{each.name} / {STANDARD}"])
            for each in self.techniques
        ]
        heading = ["technique", "images/s [quartiles]", "bound", "of bound [quartiles]", "", "of standard"]
        return harness.table([*heading, "fresh an epoch", "diversity"], rows)


def compare(config: Config, data: Path) -> Results:
    """Calibrate the parts of every split, let all take turns, and divide."""
    source = repeated(data, config.epoch_batches * config.batch_size)
    compared = techniques(config)
    calibration: list[Slice] = []
    with ExitStack() as stack:
        few = repeated(data, config.parts_batches * config.batch_size)
        parts: dict[str, list[Contender]] = {}
        for technique in compared:
            if technique.parts not in parts:
                own = Parts(technique.recipe, few, batch_size=config.batch_size, label=technique.parts)
                parts[technique.parts] = _calibrated(own, config, calibration)
                for part in parts[technique.parts]:
                    stack.callback(part.batches.close)
        turns = [_entrant(stack, technique, source) for technique in compared]
        for entrant in turns:
            if isinstance(entrant, LoaderTurns):
                entrant.settle()
        contenders = [*turns, *(part for both in parts.values() for part in both)]
        slices = harness.interleave(contenders, rounds=config.rounds, timed_batches=config.timed_batches)
    return _results(compared, turns, parts, slices, calibration)


def _calibrated(parts: Parts, config: Config, calibration: list[Slice]) -> list[Contender]:
    """Return both parts, each at its best placement."""
    rounds, few = config.calibration_rounds, max(1, config.timed_batches // 12)
    placement, slices = harness.calibrate(parts.partial_only, rounds=rounds, timed_batches=few)
    calibration += slices
    partial = parts.partial_only(placement)
    parts.make_partial_images(placement)
    placement, slices = harness.calibrate(parts.final_only, rounds=rounds, timed_batches=few)
    calibration += slices
    return [partial, parts.final_only(placement)]


def _entrant(stack: ExitStack, technique: Technique, source: Source) -> LoaderTurns | Contender:
    """Make what takes turns. An Assistant's loader stays open: what it knows of the images is not in its state."""
    if not isinstance(technique.planner, AutoAssist):
        return LoaderTurns(stack, technique.name, source, technique.recipe, technique.planner)
    loader = stack.enter_context(Loader(source, technique.recipe, technique.planner, with_indices=True))
    losses = np.random.default_rng(0).random(len(source), np.float32)
    return Contender(technique.name, default_placement(), loader.batches_ahead, _observed(loader, losses))


def _observed(loader: Loader, losses: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Generator[int, None, None]:
    """Consume epoch after epoch, telling losses that are there already, shape (num_samples,)."""
    while True:
        for _, _, indices in loader:
            loader.observe(losses[indices.numpy()])
            yield len(indices)


def _results(
    compared: Sequence[Technique],
    turns: Sequence[LoaderTurns | Contender],
    parts: dict[str, list[Contender]],
    slices: list[Slice],
    calibration: list[Slice],
) -> Results:
    """Summarise the rounds."""
    standard = harness.per_round(slices, STANDARD)
    results, claims = [], []
    for technique, entrant in zip(compared, turns, strict=True):
        partial, final = (harness.per_round(slices, part.name) for part in parts[technique.parts])
        computed = computed_share(technique.planner)
        speed = harness.per_round(slices, technique.name)
        bound = [1 / (computed / p + 1 / f) for p, f in zip(partial, final, strict=True)]
        served = sum(len(plan.indices) for plan in technique.planner.epoch(1))
        results.append(
            TechniqueResult(
                technique.name,
                technique.parts,
                Spread.of(speed),
                Spread.of(bound),
                computed,
                served,
                fresh=computed * served,
                diversity=kept_diversity(technique.recipe, technique.planner, DIVERSITY_EPOCHS),
                stats=entrant.stats if isinstance(entrant, LoaderTurns) else [],
            )
        )
        claims.append(Claim.ratio(f"{technique.name} / its bound", speed, bound, LEAST_OF_BOUND))
        claims.append(Claim.ratio(f"{technique.name} / {STANDARD}", speed, standard))
    placements = {part.name: str(part.placement) for both in parts.values() for part in both}
    placements |= {technique.name: str(default_placement()) for technique in compared}
    return Results(results, claims, placements, slices, calibration)


def main() -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args()
    command.check_photographs(options.data)
    config, environment = _config(options), harness.environment()
    results = compare(config, options.data)
    print(results.show(), flush=True)
    command.write(options, environment=environment, config=config, results=results)
    return 0


def _config(options: argparse.Namespace) -> Config:
    config = Config(options.data.resolve().name)
    if options.quick:
        config = replace(
            config,
            factors=(2,),
            layers=(1,),
            size=48,
            batch_size=8,
            epoch_batches=4,
            parts_batches=1,
            timed_batches=2,
            rounds=2,
        )
    return replace(config, rounds=options.rounds or config.rounds)


def _parser() -> argparse.ArgumentParser:
    return command.arguments("Compare every technique with its own bound.", result="techniques.json", rounds=5)


if __name__ == "__main__":
    sys.exit(main())
