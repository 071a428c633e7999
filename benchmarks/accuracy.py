"""Does reuse cost accuracy? CIFAR-10, every technique of reuse against standard training, run paired by run.

Claims: with reuse factors 2 and 3 the test accuracy is within 0.3 points of standard's; echo after augmentation, fewer
layers and a frozen cache are less accurate; standard with ResNet-18 reaches 93 %.
n: 5 seeds at least, then as many (20 at most) as bring half of the difference's 95 % interval to 0.15 points. Stopping
when it is narrow makes it a little too narrow.

All cases of a group take equally many steps with the same batch size and the same schedule of the learning rate. With
echo these steps see a half or a third as many fresh images: it is compared at equal steps, not at equal fresh images.
The cases of one seed begin with the same weights, and an image's random numbers are the same in all of them; standard,
fewer layers and the frozen cache also have the same order. (Refurbishing has one of its own, with equally many misses
in every batch.) A difference is that of two runs with the same seed; intervals are Student's over the seeds. Test
images are classified once, after the last step.

A claim is "met" or "missed" only if the whole interval says so, and "not shown" otherwise.

The full comparison, for a GPU: all of CIFAR-10, 30 epochs, ResNet-18 and a small network, RandAugment with two layers
and AutoAugment; reuse and echoing factors 2 and 3, simplified by 1 and 2 layers, the frozen cache, both orders; then
with RandAugment and ResNet-18 every other split, and the learning rate from a quarter to four times as high.
The reduced one, for a CPU: 5,000 images, 24 epochs, all 10,000 test images, the small network, RandAugment; reuse
factor 3, echo after augmentation 3, frozen; 5 seeds. Images are so few that a frozen cache can be learned by heart.

A run that ends is written into the JSON; one that time cuts off goes on from its checkpoint in the next call. When all
are done, loading alone is timed, cases taking turns.

    python benchmarks/accuracy.py                          nine minutes of it; call it until nothing is left
    python benchmarks/accuracy.py --reduced --minutes 60   about half an hour on 2 cores
    python benchmarks/accuracy.py --quick --out q.json     seconds; its figures mean nothing
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import command
import harness
import torch
from accuracy_cases import Case, Config, reduced, reduced_cases
from accuracy_claims import claims, compared, loading_name, show, wanted
from accuracy_training import Run, Task, train
from choosers import read
from harness import Slice
from loaders import LoaderTurns


def time_loading(config: Config, folder: Path, slices: list[Slice], ends: float) -> Iterator[list[Slice]]:
    """Time loading alone: yield the slices of each round that is still missing, as long as there is time."""
    source = read(folder, "train", config.train_per_class)
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


class Record:
    """The JSON: what was done so far, written anew whenever something is added.

    Args:
        path: Where it is, and where an earlier call may have left it.
        config: What is run; an earlier call must have run the same.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self._path, self._config = path, config
        self._calls: list[dict[str, Any]] = []
        self.runs: list[Run] = []
        self.slices: list[Slice] = []
        if path.exists():
            found = json.loads(path.read_text())
            if found["config"] != json.loads(json.dumps(asdict(config))):
                command.refuse(f"{path} must hold runs of this configuration, but holds others': pass another --out")
            self._calls = found["results"]["calls"]
            self.runs = [Run(**run) for run in found["results"]["runs"]]
            self.slices = [Slice(**each) for each in found["results"]["slices"]]
        self._calls.append({**harness.environment(), "gpu": _gpu()})

    def results(self) -> dict[str, Any]:
        """Return everything that was measured, and what follows from it."""
        return {
            "claims": claims(self._config, self.runs),
            "comparisons": compared(self._config, self.runs, self.slices),
            "runs": sorted(self.runs, key=lambda run: (run.group, run.case, run.seed)),
            "slices": self.slices,
            "calls": self._calls,
        }

    def write(self) -> None:
        """Replace the JSON, whole or not at all."""
        new = self._path.with_suffix(".new")
        harness.write(new, environment=self._calls[0], config=self._config, results=self.results())
        new.replace(self._path)


def carry_out(config: Config, record: Record, folder: Path, checkpoints: Path, *, workers: int, ends: float) -> bool:
    """Do what is missing as long as there is time; return whether nothing is."""
    threads = max(1, harness.cores() // workers)
    checkpoints.mkdir(parents=True, exist_ok=True)
    with get_context("spawn").Pool(workers) if workers > 1 else nullcontext() as pool:
        while time.time() < ends and (todo := wanted(config, record.runs)):
            tasks = [
                Task(config, case, seed, folder, checkpoints / _file_name(case, seed), ends, threads)
                for case, seed in todo
            ]
            for run in pool.imap_unordered(train, tasks) if pool else map(train, tasks):
                if run is not None:
                    record.runs.append(run)
                    record.write()
                    print(
                        f"{run.group}, {run.case}, seed {run.seed}: {run.test_accuracy:.2f} %, {run.cpu_s:.0f} CPU s",
                        file=sys.stderr,
                        flush=True,
                    )
    if wanted(config, record.runs):
        return False
    checkpoints.rmdir()
    for slices in time_loading(config, folder, record.slices, ends):
        record.slices += slices
        record.write()
    return len({each.round for each in record.slices}) == config.rounds


def main() -> int:
    """Run what the command line asks for."""
    options = _parser().parse_args()
    ends = time.time() + 60 * options.minutes
    command.check_mosaics(options.data)
    config = _config(options)
    with ExitStack() as stack:
        if options.out:
            out = options.out
        elif options.quick:
            out = Path(stack.enter_context(TemporaryDirectory())) / options.result
        else:
            out = harness.RESULTS / ("accuracy_reduced.json" if options.reduced else options.result)
        record = Record(out, config)
        checkpoints = out.with_suffix(".checkpoints")
        done = carry_out(config, record, options.data, checkpoints, workers=options.workers, ends=ends)
        record.write()
        print(show(config, compared(config, record.runs, record.slices), claims(config, record.runs)))
        left = len(wanted(config, record.runs))
    if not done:
        print(f"time is over: {left} runs and the timing of loading are left; call this again", file=sys.stderr)
    return 0


def _config(options: argparse.Namespace) -> Config:
    name = options.data.resolve().name
    config = reduced(name) if options.reduced or options.quick else Config(name)
    if options.quick:
        config = replace(
            config,
            train_per_class=4,
            test_per_class=2,
            batch_size=10,
            epochs=3,
            buffer_batches=2,
            least_seeds=2,
            timed_batches=2,
            rounds=1,
            cases=tuple(replace(case, most_seeds=2) for case in reduced_cases()),
        )
    return config


def _file_name(case: Case, seed: int) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", f"{case.group} {case.name} {seed}") + ".pt"


def _gpu() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _parser() -> argparse.ArgumentParser:
    parser = command.arguments(
        "Compare the accuracy of every technique of reuse with standard training.",
        result="accuracy.json",
        data=harness.CIFAR10,
        kind="of CIFAR-10 as mosaics",
    )
    parser.add_argument("--reduced", action="store_true", help="for a CPU; written to results/accuracy_reduced.json")
    parser.add_argument("--minutes", type=float, default=9, help="after which a call stops, 9 by default")
    workers = 1 if torch.cuda.is_available() else harness.cores()
    parser.add_argument("--workers", type=int, default=workers, help=f"runs at a time, {workers} by default here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
