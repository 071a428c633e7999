"""Does echoing hide a slow source? Throughput at an echoing factor of R, against that of none.

Claim, on any machine: where reading waits and does not compute, an echoing factor of R = t_up / t_down reaches at least
0.9 R times the throughput of none, by example echoing before augmentation and by batch echoing.
Machine: the one it runs on, CPU only; its model, cores and versions are in the JSON.
n: 3 rounds (`--rounds`), each a slice of every contender in turn. R is measured before them, and is the echoing factor;
how far it drifts from round to round is reported.

t_up is the time per image of a loader that echoes nothing: the source gives one every so many milliseconds, on any
number of threads. t_down is that of the final part alone, on its own pipeline at its best replicas x threads, with all
cores. The waiting is chosen for R to be about 4.5. What is echoed is the source's image: crop, flip and both layers of
RandAugment are drawn anew in each repeat. Two sources:

    arrays    photographs decoded beforehand: before the echo there is only waiting, as the claim has it
    files     photographs as they are: decoding takes c_up on the same cores, and what is left to reach is
              min(e / t_up, 1 / (c_up / e + t_down)) images/s; compared with it, and not claimed

    python benchmarks/echo_slow_source.py                        about five minutes on 2 cores
    python benchmarks/echo_slow_source.py --quick --out q.json   seconds; its figures mean nothing
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import command
import harness
import numpy as np
from harness import Claim, Slice, Spread
from loaders import LoaderTurns, repeated
from parts import Parts
from PIL import Image, ImageOps
from slow_source import SlowSource

from dalirefurb import Arrays, BatchEcho, Echo, FileList, ImageFolder, Recipe, Standard, rand_augment
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source

NONE = "no echoing"
EXAMPLE = "example echo before augmentation"
BATCH = "batch echo"
PARTIAL_ONLY = "partial-only"
FINAL_ONLY = "final-only"
LEAST_OF_R = 0.9


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set; its images are repeated to fill an epoch.
        target: What R is aimed at.
        size: Side of the images the model receives, in pixels.
        side: Of the decoded photographs, in pixels.
        batch_size: Images of a batch.
        epoch_batches: Batches of an epoch without echoing.
        buffer_batches: Batches in the shuffle buffer of example echoing.
        timed_batches: Of a slice.
        rounds: Slices of each contender.
    """

    data: str
    target: float = 4.5
    size: int = 224
    side: int = 256
    batch_size: int = 64
    epoch_batches: int = 20
    buffer_batches: int = 4
    timed_batches: int = 240
    rounds: int = 3


@dataclass(frozen=True)
class SourceResult:
    """One source.

    Attributes:
        source: Which.
        wait_s: Seconds that it waits per image.
        echoing_factor: R as it was measured before the rounds.
        t_up_s: Seconds per image without echoing, over the rounds.
        t_down_s: Those of the final part alone.
        ratio: R over the rounds.
        images_per_s: Throughput of each contender over the rounds.
        claims: Ratios of figures of one round.
        slices: Every slice of every round, and before them those by which the waiting and the factor were chosen.
    """

    source: str
    wait_s: float
    echoing_factor: float
    t_up_s: Spread
    t_down_s: Spread
    ratio: Spread
    images_per_s: dict[str, Spread]
    claims: list[Claim]
    slices: list[Slice]
    calibration: list[Slice]

    def show(self) -> str:
        """Write both tables."""
        speeds = [[name, speed.show(0), f"{1e3 / speed.median:.2f}"] for name, speed in self.images_per_s.items()]
        return (
            f"{self.source}: {1e3 * self.wait_s:.2f} ms an image, R {self.ratio.show(2)}, "
            f"echoing factor {self.echoing_factor}\n\n"
            f"{harness.table(['contender', 'images/s [quartiles]', 'ms an image'], speeds)}\n\n"
            f"{harness.table(['ratio', 'median [quartiles]', ''], [claim.show() for claim in self.claims])}\n"
        )


def compare(config: Config, name: str, source: Source, recipe: Recipe, least: float | None) -> SourceResult:
    """Choose the waiting and the factor, then let all take turns.

    Args:
        config: What is run.
        name: Of the source.
        source: Without any waiting.
        recipe: Split where the echo is.
        least: What is claimed of the gain divided by R, None for nothing.
    """
    timed = config.timed_batches
    parts = Parts(recipe, source, batch_size=config.batch_size)
    few = max(1, timed // 20)
    partial, calibration = harness.calibrate(parts.partial_only, rounds=1, timed_batches=few)
    parts.make_partial_images(partial)
    final, slices = harness.calibrate(parts.final_only, rounds=1, timed_batches=few)
    calibration += slices
    wait_s = config.target / max(each.images_per_s for each in slices)
    slow = SlowSource(source, wait_s)
    standard = Standard(len(source), batch_size=config.batch_size)
    with ExitStack() as stack:
        alone = [parts.partial_only(partial), parts.final_only(final)]
        for contender in alone:
            stack.callback(contender.batches.close)

        def turns(each: str, planner: Planner) -> LoaderTurns:
            return LoaderTurns(stack, each, slow, recipe, planner)

        none = turns(NONE, standard)
        before = harness.interleave([none, *alone], rounds=1, timed_batches=timed)
        factor = max(1.0, round(_ratio(before), 2))  # Tiny windows can miss the target by as much.
        buffer_size = config.buffer_batches * config.batch_size
        example = Echo(standard, echoing_factor=factor, buffer_size=buffer_size)
        batch = BatchEcho(standard, echoing_factor=factor)
        echoes = [turns(EXAMPLE, example), turns(BATCH, batch)]
        slices = harness.interleave([none, *echoes, *alone], rounds=config.rounds, timed_batches=timed)
    speeds = {each: harness.per_round(slices, each) for each in (NONE, EXAMPLE, BATCH, PARTIAL_ONLY, FINAL_ONLY)}
    ratios = [down / up for up, down in zip(speeds[NONE], speeds[FINAL_ONLY], strict=True)]
    return SourceResult(
        source=name,
        wait_s=wait_s,
        echoing_factor=factor,
        t_up_s=Spread.of([1 / each for each in speeds[NONE]]),
        t_down_s=Spread.of([1 / each for each in speeds[FINAL_ONLY]]),
        ratio=Spread.of(ratios),
        images_per_s={each: Spread.of(rounds) for each, rounds in speeds.items()},
        claims=_claims(speeds, factor, least),
        slices=slices,
        calibration=[*calibration, *before],
    )


def _ratio(slices: Sequence[Slice]) -> float:
    """Return R, by medians."""
    return median(harness.per_round(slices, FINAL_ONLY)) / median(harness.per_round(slices, NONE))


def _claims(speeds: dict[str, list[float]], factor: float, least: float | None) -> list[Claim]:
    """Divide figures of one round by each other."""
    rounds = zip(speeds[NONE], speeds[PARTIAL_ONLY], speeds[FINAL_ONLY], strict=True)
    bounds = [min(factor * none, 1 / (1 / (factor * partial) + 1 / final)) for none, partial, final in rounds]
    claims = []
    for name in (EXAMPLE, BATCH):
        gains = [echo / none for echo, none in zip(speeds[name], speeds[NONE], strict=True)]
        claims += [
            Claim.ratio(f"{name} / {NONE}", speeds[name], speeds[NONE]),
            Claim.ratio(f"{name} / {NONE} / R", gains, [factor] * len(gains), least),
            Claim.ratio(f"{name} / what is left to reach", speeds[name], bounds),
        ]
    return claims


def decoded(files: FileList, data: Path, side: int) -> Arrays:
    """Decode a folder's photographs, the middle of each, and repeat them as `files` does."""
    folder = ImageFolder(data)
    images = np.empty((len(files), side, side, 3), np.uint8)
    for index in range(min(len(folder), len(files))):
        with Image.open(folder.name(index)) as image:
            images[index :: len(folder)] = np.asarray(ImageOps.fit(image.convert("RGB"), (side, side)))
    return Arrays(images, files.labels)


def main() -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args()
    command.check_photographs(options.data)
    config, environment = _config(options), harness.environment()
    files = repeated(options.data, config.epoch_batches * config.batch_size)
    recipe = rand_augment(config.size)
    arrays = decoded(files, options.data, config.side)
    results = [compare(config, "arrays", arrays, Recipe(recipe.stages[1:], recipe.output, 0), LEAST_OF_R)]
    print(results[0].show(), flush=True)
    results.append(compare(config, "files", files, recipe.at(1), None))
    print(results[1].show(), flush=True)
    command.write(options, environment=environment, config=config, results=results)
    return 0


def _config(options: argparse.Namespace) -> Config:
    config = Config(options.data.resolve().name)
    if options.quick:
        config = replace(config, size=32, side=48, batch_size=8, epoch_batches=2, timed_batches=2, rounds=2)
    return replace(config, rounds=options.rounds or config.rounds)


def _parser() -> argparse.ArgumentParser:
    return command.arguments("Compare echoing with none on a slow source.", result="echo_slow_source.json", rounds=3)


if __name__ == "__main__":
    sys.exit(main())
