"""Does AutoAssist train on fewer samples? CIFAR-10, against uniform sampling, to the same training loss.

Claim: to a training loss of 0.05 AutoAssist trains on at least 30 % fewer samples than uniform sampling, and its test
accuracy is not shown to be worse there or at the end: not all of the interval is below. A wide one shows little.
n: 5 seeds (`--seeds`). All contenders of a seed begin with the same weights; figures are means of paired ratios or
differences with their 95 % intervals (Student's t).

5,000 images to train on, 2,000 to test with, as they are: without augmentation the network can learn every image by
heart, so most are easy in the end, which is what AutoAssist needs. SGD with momentum; after one epoch's warm-up the
learning rate stays, as a schedule over steps would favour who is early. The training loss is that of all 5,000 images,
the model in evaluation mode, after every 78 batches; between these, its logarithm is interpolated. The losses that the
Assistant learns from cost nothing: the training step has them.

    uniform             Standard, through the loader
    AutoAssist          the same with an Assistant, its defaults, through the loader
    knows how many      Algorithm 1 with g = the share of hard samples, the same for all
    knows which         Algorithm 1 with g = 1 for hard samples, 0 for easy ones

The last two say why. They are Algorithm 1 without an Assistant: a sample is hard if its loss exceeded the threshold
when all were last evaluated, and the confidence is that of always saying the more frequent of hard and easy.
AutoAssist should be near "knows which"; if it is as "knows how many", its Assistant tells no image from another.
`enrichment` says so directly: the share of hard samples (loss above the mean when all were last evaluated) among those
trained on, over their share among all; blind choice has 1.

The paper has gains where data are imbalanced or noisy. With `--rare 0.1` half of the classes keep a tenth of their
images, with `--wrong 0.2` a fifth of the images have the label of another class; those to test with are as they are.

    python benchmarks/autoassist.py                        about ten minutes on 2 cores
    python benchmarks/autoassist.py --rare 0.1 --out benchmarks/results/autoassist_imbalanced.json    likewise
    python benchmarks/autoassist.py --wrong 0.2 --out benchmarks/results/autoassist_noisy.json
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import harness
from claims import Interval, say, table, table_of
from experiment import CIFAR10, Experiment, Options, refuse
from training import AUTO_ASSIST, CONTENDERS, UNIFORM, Config, Run, train

MOST_OF_UNIFORM = 0.7


def compare(runs: Sequence[Run], contender: str, level: float) -> dict[str, Any]:
    """Compare one contender with uniform sampling, to one training loss, run with run of the same seed.

    A run that never got there counts as its whole length, and with the accuracy at its end. Accuracies differ in
    percentage points.
    """
    ours, theirs = by(runs, contender), by(runs, UNIFORM)
    pairs = list(zip(ours, theirs, strict=True))
    apart = [100 * (one.test_accuracy_at(level) - other.test_accuracy_at(level)) for one, other in pairs]
    return {
        "contender": contender,
        "level": level,
        "ratio": Interval.of([one.samples_to(level) / other.samples_to(level) for one, other in pairs]),
        "difference": Interval.of(apart),
        # Runs of both that never got there.
        "missed": (sum(not run.reaches(level) for run in ours), sum(not run.reaches(level) for run in theirs)),
    }


@dataclass(frozen=True)
class Claim:
    """One figure that can fall short.

    Attributes:
        name: What is compared with what.
        figure: Over the seeds.
        holds: Whether it is what is claimed.
        promise: What is claimed.
    """

    name: str
    figure: Interval
    holds: bool
    promise: str


def claims(runs: Sequence[Run], level: float) -> list[Claim]:
    """Judge AutoAssist by the last level."""
    reached = compare(runs, AUTO_ASSIST, level)
    ends = [
        100 * (one.evaluations[-1].test_accuracy - other.evaluations[-1].test_accuracy)
        for one, other in zip(*(by(runs, name) for name in (AUTO_ASSIST, UNIFORM)), strict=True)
    ]
    accuracies = {f"at {level:g}": reached["difference"], "at the end": Interval.of(ends)}
    return [
        Claim(
            f"samples to {level:g} / uniform",
            reached["ratio"],
            reached["ratio"].mean <= MOST_OF_UNIFORM and not reached["missed"][0],
            f"at most {MOST_OF_UNIFORM:g}",
        ),
        *(
            Claim(f"test accuracy {when} - uniform, points", each, each.upper >= 0, "not shown to be worse")
            for when, each in accuracies.items()
        ),
    ]


def by(runs: Sequence[Run], contender: str) -> list[Run]:
    """Return a contender's runs, in the order of seeds."""
    return sorted((run for run in runs if run.contender == contender), key=lambda run: run.seed)


def _show(config: Config, runs: Sequence[Run], judged: Sequence[Claim], comparisons: Sequence[dict[str, Any]]) -> None:
    """Print three tables: the claims, all training losses, and the course of one seed."""
    verdicts = [
        [each.name, str(each.figure), f"{'reaches' if each.holds else 'MISSES'}: {each.promise}"] for each in judged
    ]
    course = [
        [
            run.contender,
            f"{each.samples:,}",
            f"{each.loss:.3f}",
            f"{each.samples / each.candidates:.2f}",
            f"{each.hard:.2f}",
            f"{each.enrichment:.2f}",
            *("" if figure is None else f"{figure:.2f}" for figure in (each.accuracy, each.threshold)),
        ]
        for name in CONTENDERS
        for run in by(runs, name)[:1]
        for each in run.evaluations[3::4]
    ]
    levels = {
        "contender": "{contender}",
        "to training loss": "{level:g}",
        "samples / uniform": "{ratio}",
        "test accuracy - uniform, points": "{difference}",
        "never | uniform": "{missed[0]} | {missed[1]}",
    }
    seed = ["contender", "samples", "loss", "accepted", "hard", "enrichment", "accuracy", "threshold"]
    say(
        table(["AutoAssist", "mean [95 % interval]", ""], verdicts),
        table_of(comparisons, levels),
        f"seed {config.seeds[0]}:\n{table(seed, course)}",
    )


def measure(config: Config, options: Options) -> dict[str, Any]:
    """Train every contender with every seed, in as many processes as there are cores."""
    if len(set(config.seeds)) < 2:
        refuse(f"--seeds must be at least two, got {list(config.seeds)}: an interval needs a spread")
    tasks = [(config, options.data, name, seed) for seed in dict.fromkeys(config.seeds) for name in CONTENDERS]
    with get_context("spawn").Pool(min(harness.cores(), len(tasks))) as pool:
        runs = []
        for run in pool.imap(train, tasks):
            runs.append(run)
            print(f"seed {run.seed}, {run.contender}: loss {run.evaluations[-1].loss:.3f}", file=sys.stderr, flush=True)
    judged = claims(runs, config.levels[-1])
    compared = [compare(runs, name, level) for name in CONTENDERS[1:] for level in config.levels]
    _show(config, runs, judged, compared)
    return {"claims": judged, "comparisons": compared, "runs": runs}


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(train_per_class=12, test_per_class=4, batch_size=8, epochs=3, levels=(2.2, 2.0), seeds=(0, 1)),
    options={
        "--seeds": {"type": int, "nargs": "+", "help": "0 1 2 3 4 by default"},
        "--rare": {"type": float, "help": "share of their images that half of the classes keep"},
        "--wrong": {"type": float, "help": "share of the images to train on that have another class's label"},
    },
    data=CIFAR10,
    holds=lambda results: all(claim.holds for claim in results["claims"]),
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
