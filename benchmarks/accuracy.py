"""Does reuse cost accuracy? CIFAR-10, pairs of runs that differ in reuse alone, and a curve of what diversity is worth.

Claims: with reuse factors 2 and 3 the test accuracy is within a margin of the control's, 0.2 points on a GPU and 0.5 on
a CPU, chosen before any run; echo after augmentation, fewer layers and a frozen cache are less accurate than standard;
standard with ResNet-18 reaches 93 %. A claim is "met" or "missed" only if the whole interval says so, and "not shown"
otherwise.

A control (`Fresh`) serves the same samples in the same order with the same final augmentation, and reuses nothing: its
pair with the same seed begins with the same weights, and differs in reuse alone. At reuse factor 3 all splits have the
same control; other reuse factors, which have an order of their own, are compared with it, too.

Measured are the accuracy and the loss on the test images after each of the last three epochs, with the logits of each
image and its mirror image averaged; a run's figure is the mean of the three. A difference is told with its BCa
bootstrap interval (Student's with fewer than 10 pairs) and a sign-flip test.
n: as many pairs as bring half of the interval to 0.15 points (5 to 20), on a CPU to 0.3 points (12 to 49). Stopping
when it is narrow makes it a little too narrow.

All cases take equally many steps with the same batch size and the same schedule of the learning rate. With echo these
steps see a half or a third as many fresh images: it is compared at equal steps, not at equal fresh images.

The full comparison, for a GPU: all of CIFAR-10, 30 epochs, ResNet-18 and a small network, RandAugment with two layers
and AutoAugment; reuse and echoing factors 2 and 3, simplified by 1 and 2 layers, the frozen cache, both orders; then
with RandAugment and ResNet-18 every other split, and the learning rate from a quarter to four times as high.
The reduced one, for a CPU: 2,500 images, 24 epochs, all 10,000 test images, the small network, RandAugment. First 12
pairs with reuse factor 3, then the curve: reuse factors 1, 2, 5 and 10, six splits at reuse factor 3, echo and frozen;
then more pairs. Images are so few that a frozen cache can be learned by heart.

A run that ends is written into the JSON; one that time cuts off goes on from its checkpoint in the next call. When all
are done, loading alone is timed, cases taking turns.

    python benchmarks/accuracy.py                          nine minutes of it; call it until nothing is left
    python benchmarks/accuracy.py --reduced --minutes 60   about an hour and a half on 2 cores
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import harness
import torch
from accuracy_cases import Config, reduced, reduced_cases
from accuracy_claims import claims, compared, curve, loading_name, show, wanted
from accuracy_training import Run, Task, train
from experiment import CIFAR10, Experiment, Options, Record
from harness import Slice
from loaders import LoaderTurns
from sources import read_mosaics


def time_loading(config: Config, folder: Path, slices: list[Slice], ends: float) -> Iterator[list[Slice]]:
    """Time loading alone: yield the slices of each round that is still missing, as long as there is time."""
    source = read_mosaics(folder, "train", config.train_per_class)
    cases = {loading_name(case): case for case in config.cases}
    first = max((each.round for each in slices), default=-1) + 1
    with ExitStack() as stack:
        turns = [
            LoaderTurns(stack, name, source, case.recipe(), config.planner(case, config.first_seed))
            for name, case in cases.items()
        ]
        longest = 0.0
        for number in range(first, config.rounds):
            began = time.time()
            if began + longest >= ends:
                return
            if number == first:
                for entrant in turns:
                    entrant.settle()
            order = turns if number % 2 == 0 else turns[::-1]
            timed = harness.interleave(order, rounds=1, timed_batches=config.timed_batches)
            longest = time.time() - began
            yield [replace(each, round=number) for each in timed]


def carry_out(config: Config, record: Record, folder: Path, checkpoints: Path, *, workers: int, ends: float) -> bool:
    """Do what is missing as long as there is time; return whether nothing is."""
    runs, slices = record.rows["runs"], record.rows["slices"]
    threads = max(1, harness.cores() // workers)
    checkpoints.mkdir(parents=True, exist_ok=True)
    with get_context("spawn").Pool(workers) if workers > 1 else nullcontext() as pool:
        while time.time() < ends and (todo := wanted(config, runs)):
            tasks = []
            for case, seed in todo:
                name = re.sub(r"[^a-z0-9.]+", "-", f"{case.group} {case.name} {seed}") + ".pt"
                tasks.append(Task(config, case, seed, folder, checkpoints / name, ends, threads))
            for run in pool.imap_unordered(train, tasks) if pool else map(train, tasks):
                if run is not None:
                    runs.append(run)
                    record.write(**follows(config, record))
                    said = f"{run.group}, {run.case}, seed {run.seed}: {run.test_accuracy:.2f} %, {run.cpu_s:.0f} CPU s"
                    print(said, file=sys.stderr, flush=True)
    if wanted(config, runs):
        return False
    checkpoints.rmdir()
    for timed in time_loading(config, folder, slices, ends):
        slices.extend(timed)
        record.write(**follows(config, record))
    return not follows(config, record)["draft"]


def follows(config: Config, record: Record) -> dict[str, Any]:
    """Return what follows from the runs, and whether that is a draft."""
    runs, slices = record.rows["runs"], record.rows["slices"]
    draft = bool(wanted(config, runs)) or len({each.round for each in slices}) < config.rounds
    return {
        "draft": draft,
        "claims": claims(config, runs),
        "accuracy": compared(config, runs, slices),
        "curve": curve(config, runs),
    }


def measure(config: Config, options: Options) -> None:
    """Go on where the last call ended, as long as there is time; the JSON is written run by run."""
    ends = time.time() + 60 * options.minutes
    record = Record(options.out, config, {"runs": Run, "slices": Slice})
    checkpoints = options.out.with_suffix(".checkpoints")
    done = carry_out(config, record, options.data, checkpoints, workers=options.workers, ends=ends)
    judged = follows(config, record)
    record.write(**judged)
    print(show(config, judged["accuracy"], judged["claims"], judged["curve"]))
    if not done:
        left = len(wanted(config, record.rows["runs"]))
        print(f"time is over: {left} runs and the timing of loading are left; call this again", file=sys.stderr)


_WORKERS = 1 if torch.cuda.is_available() else harness.cores()

EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=replace(
        reduced(),
        train_per_class=4,
        test_per_class=2,
        batch_size=10,
        epochs=3,
        buffer_batches=2,
        timed_batches=2,
        rounds=1,
        cases=tuple(replace(case, least_seeds=2, most_seeds=2) for case in reduced_cases()),
    ),
    options={
        "--reduced": {"action": "store_true", "help": "for a CPU; written to results/accuracy_reduced.json"},
        "--minutes": {"type": float, "default": 9, "help": "after which a call stops, 9 by default"},
        "--workers": {"type": int, "default": _WORKERS, "help": f"runs at a time, {_WORKERS} by default here"},
    },
    data=CIFAR10,
)
REDUCED = replace(EXPERIMENT, name="accuracy_reduced", config=reduced())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison that the command line asks for."""
    chosen = REDUCED if EXPERIMENT.parser().parse_args(arguments).reduced else EXPERIMENT
    return chosen.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
