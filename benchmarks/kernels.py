"""How much faster are kernels than DALI's operators? CPU time of an image, stage by stage, on photographs.

Both do one stage to the same batch, with the same parameters, in turns; the figures are medians over the rounds, and
ratios are of one round. Torchvision's v2 takes its turns, too, where `competitors/build.py` has installed it: one image
at a time, of one thread, with parameters of its own. A user's own loops over pixels (`KernelStage`) take turns with the
library's kernels that do the same. So does a plain copy of as many bytes as a result has, which is below all of them.

    python benchmarks/kernels.py                        five minutes on 2 cores
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
import numpy as np
import workers
from claims import Spread, claim_table, say, table_of
from experiment import Experiment, Options
from kernel_own_loops import own_loops
from kernel_subjects import Images, Subject, copy_turn, dali_runner, decoded, kernel_runner, subjects, turn

from dalirefurb import ImageFolder, Output, Recipe
from dalirefurb.dali import PipelineRunner


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        data: Name of the data set.
        batch_size: Images of a batch.
        size: Side of the images that enter all stages but the first, in pixels.
        rounds: Turns of either.
        batches: Of a turn.
        threads: Of either.
    """

    data: str = ""
    batch_size: int = 64
    size: int = 224
    rounds: int = 9
    batches: int = 4
    threads: int = field(default_factory=harness.cores)


class Torchvision:
    """What does the same by torchvision, see `competitors/torchvision_operations.py`.

    Args:
        python: Of the competitors' environment.
        photographs: Images that enter what crops.
        images: Images that enter all else.

    Attributes:
        names: Of what it can do.
    """

    def __init__(self, python: Path, photographs: Images, images: Images) -> None:
        with TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{name}.npz" for name in ("photographs", "images")]
            for path, given in zip(paths, (photographs, images), strict=True):
                np.savez(path, *given)
            self._process = workers.Asked(python, "torchvision_operations.py", *paths)
            self.names: list[str] = json.loads(self._process.answer() or "[]")
        self.close = self._process.close

    def turn(self, name: str, batches: int) -> float:
        """Return the microseconds of an image."""
        return float(self._process.answer(f"{name}\t{batches}"))


def compare(subject: Subject, config: Config, rival: Torchvision | None) -> dict[str, Any]:
    """Let all take turns; return the CPU time of an image in microseconds, one figure per round."""
    output, count = not subject.stages, len(subject.images)
    recipe = Recipe(subject.stages, Output(config.size), split=len(subject.stages))
    dali = dali_runner(recipe, "final" if output else "partial", count, config.threads)
    kernels = kernel_runner(subject, config.threads)
    named = {dali: subject.feeds("partial" if output else "sample"), kernels: subject.feeds("sample")}
    times: dict[PipelineRunner, list[float]] = {dali: [], kernels: []}
    rivals: list[float] = []
    copies: list[float] = []
    copied = list(np.zeros((2, count, config.size, config.size, 3), np.uint8))
    for number in range(config.rounds + 1):
        for runner in (dali, kernels) if number % 2 else (kernels, dali):
            times[runner].append(turn(runner, named[runner], config.batches, count))
        if rival is not None and subject.name in rival.names:
            rivals.append(rival.turn(subject.name, config.batches))
        copies.append(copy_turn(copied[0], copied[1], config.batches))
    # The first round fetches memory.
    dali_us, kernels_us, torchvision_us = times[dali][1:], times[kernels][1:], rivals[1:]
    return {
        "name": subject.name,
        "dali_us": dali_us,
        "kernels_us": kernels_us,
        "torchvision_us": torchvision_us,
        "memcpy_us": copies[1:],
        "ratio": Spread.of([theirs / ours for theirs, ours in zip(dali_us, kernels_us, strict=True)]),
        "torchvision_ratio": Spread.of([a / b for a, b in zip(torchvision_us, kernels_us, strict=True)])
        if rivals
        else None,
    }


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Compare at every stage."""
    photographs = decoded(ImageFolder(options.data), config.batch_size)
    compared = list(subjects(photographs, config.size))
    images = next(each.images for each in compared if each.name == "output")
    rival = None
    if options.competitors.exists():
        rival = Torchvision(options.competitors, photographs, images)
    else:
        say("torchvision is left out: python benchmarks/competitors/build.py makes its environment")
    results = [compare(subject, config, rival) for subject in compared]
    if rival is not None:
        rival.close()
    columns = {
        "CPU time of an image": "{name}",
        "kernels, us": "{kernels:.0f}",
        "DALI, us": "{dali:.0f}",
        "torchvision, us": "{torchvision}",
        "memcpy of as many bytes, us": "{memcpy:.0f}",
        "DALI / kernels": "{ratio:1}",
        "torchvision / kernels": "{torchvision_over}",
    }
    rows = [
        {
            **each,
            "dali": np.median(each["dali_us"]),
            "kernels": np.median(each["kernels_us"]),
            "memcpy": np.median(each["memcpy_us"]),
            "torchvision": f"{np.median(each['torchvision_us']):.0f}" if each["torchvision_us"] else "-",
            "torchvision_over": f"{each['torchvision_ratio']:1}" if each["torchvision_ratio"] else "-",
        }
        for each in results
    ]
    loops = own_loops(images, threads=config.threads, rounds=config.rounds, batches=config.batches)
    say(table_of(rows, columns), claim_table([each["claim"] for each in loops]))
    return {"kernels": results, "own_loops": loops}


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(batch_size=4, size=32, rounds=2, batches=1),
    options=workers.OPTION,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
