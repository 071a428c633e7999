"""Does echoing hide a slow source? Throughput at an echoing factor of R, against that of none.

Claim, on any machine: where reading waits and does not compute, an echoing factor of R = t_up / t_down reaches at least
0.9 R times the throughput of none, by example echoing before augmentation and by batch echoing.
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
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import harness
import numpy as np
from claims import Claim, Speeds, Spread, claim_table, say, table
from experiment import Experiment, Options
from loaders import LoaderTurns, Sizes
from parts import FINAL_ONLY, PARTIAL_ONLY, Parts, both, bound
from PIL import Image, ImageOps
from sources import SlowSource

from dalirefurb import Arrays, Echo, FileList, ImageFolder, Recipe, Standard, rand_augment
from dalirefurb.planning import BatchEcho
from dalirefurb.planning.planner import Planner
from dalirefurb.source import Source

NONE = "no echoing"
EXAMPLE = "example echo before augmentation"
BATCH = "batch echo"
LEAST_OF_R = 0.9


@dataclass(frozen=True, kw_only=True)
class Config(Sizes):
    """What is run.

    Attributes:
        target: What R is aimed at.
        side: Of the decoded photographs, in pixels.
        buffer_batches: Batches in the shuffle buffer of example echoing.
        timed_batches: Of a slice.
    """

    target: float = 4.5
    side: int = 256
    buffer_batches: int = 4
    timed_batches: int = 240


def compare(config: Config, name: str, source: Source, recipe: Recipe, least: float | None) -> dict[str, Any]:
    """Choose the waiting and the factor, then let all take turns.

    Args:
        config: What is run.
        name: Of the source.
        source: Without any waiting.
        recipe: Split where the echo is.
        least: What is claimed of the gain divided by R, None for nothing.
    """
    timed, batch_size = config.timed_batches, config.batch_size
    parts = Parts(recipe, source, batch_size=batch_size)
    partial, final, calibration = parts.calibrate(rounds=1, timed_batches=max(1, timed // 20))
    wait_s = config.target / max(each.images_per_s for each in calibration if each.contender == FINAL_ONLY)
    slow = SlowSource(source, wait_s)
    standard = Standard(len(source), batch_size=batch_size)
    with ExitStack() as stack:
        alone = parts.alone(stack, partial, final)

        def turns(each: str, planner: Planner) -> LoaderTurns:
            return LoaderTurns(stack, each, slow, recipe, planner)

        none = turns(NONE, standard)
        before = harness.interleave([none, *alone], rounds=1, timed_batches=timed)
        measured = harness.speeds_of(before)
        ratio = median(measured[FINAL_ONLY]) / median(measured[NONE])
        factor = max(1.0, round(ratio, 2))  # Tiny windows can miss the target by as much.
        example = Echo(standard, echoing_factor=factor, buffer_size=config.buffer_batches * batch_size)
        echoes = [turns(EXAMPLE, example), turns(BATCH, BatchEcho(standard, echoing_factor=factor))]
        slices = harness.interleave([none, *echoes, *alone], rounds=config.rounds, timed_batches=timed)
    speeds = harness.speeds_of(slices)
    claims = _claims(speeds, factor, least)
    ratios = Spread.of([down / up for up, down in zip(speeds[NONE], speeds[FINAL_ONLY], strict=True)])
    spreads = {each: Spread.of(rounds) for each, rounds in speeds.items()}
    rows = [[each, f"{speed:0}", f"{1e3 / speed.median:.2f}"] for each, speed in spreads.items()]
    say(
        f"{name}: {1e3 * wait_s:.2f} ms an image, R {ratios:2}, echoing factor {factor}",
        table(["contender", "images/s [quartiles]", "ms an image"], rows),
        claim_table(claims),
    )
    return {
        "source": name,
        "wait_s": wait_s,
        "echoing_factor": factor,
        "t_up_s": Spread.of([1 / each for each in speeds[NONE]]),
        "t_down_s": Spread.of([1 / each for each in speeds[FINAL_ONLY]]),
        "ratio": ratios,
        "images_per_s": spreads,
        "claims": claims,
        "slices": slices,
        "calibration": [*calibration, *before],
    }


def _claims(speeds: Speeds, factor: float, least: float | None) -> list[Claim]:
    """Divide figures of one round by each other."""
    whole = both(speeds[PARTIAL_ONLY], speeds[FINAL_ONLY])
    reached = bound(whole, speeds[FINAL_ONLY], 1 / factor)
    bounds = [min(factor * none, most) for none, most in zip(speeds[NONE], reached, strict=True)]
    claims = []
    for name in (EXAMPLE, BATCH):
        of_r = [factor * none for none in speeds[NONE]]
        claims += [
            Claim.between(speeds, name, NONE, bound=factor),
            Claim.ratio(f"{name} / {NONE} / R", speeds[name], of_r, least),
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


def measure(config: Config, options: Options) -> list[dict[str, Any]]:
    """Compare with both sources."""
    files = config.source(options.data)
    recipe = rand_augment(config.size)
    arrays = decoded(files, options.data, config.side)
    return [
        compare(config, "arrays", arrays, Recipe(recipe.stages[1:], recipe.output, 0), LEAST_OF_R),
        compare(config, "files", files, recipe.at(1), None),
    ]


EXPERIMENT = Experiment(
    measure,
    Config(batch_size=64, epoch_batches=20, rounds=3),
    quick=Config(size=32, side=48, batch_size=8, epoch_batches=2, timed_batches=2, rounds=2),
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
