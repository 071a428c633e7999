"""Who feeds a model on a GPU best, where should augmentation run, and what does it take from the model?

Loaders with each part on the CPU or on the GPU; stock DALI on either; torchvision's v2 and Kornia on the GPU, of which
competitors/gpu_rows.py says how; with 1 .. 16 CPU cores. First all load alone: images/s that reach the GPU. Then they
feed ResNet-50 in bf16 with the same files: images/s, and the GPU time a step that the model loses, against headspace
(the same step on a batch that is there): by how much the step itself is longer, and what augmentation takes before it
on the same stream, both as the GPU notes them.

Each feed has a process of its own on so many cores; one that ends otherwise, or hangs, is a result. Competitors run in
the environment of competitors/build.py, or that of `--python`; which are missing is said. What is done is in the JSON,
and the next call goes on. With `--device cpu` the same code runs without a GPU, to try it: that is no result.

    python benchmarks/competitors/build.py                              once, minutes
    python benchmarks/gpu_rivals.py                                     eight minutes of it; until nothing is left
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import harness
import torch
import workers
from claims import Spread, table
from competitors.gpu_rows import GPU_ROWS
from experiment import Experiment, Options, Record, refuse
from feeds import FEEDS
from first_light.findings import DONE
from first_light.processes import run
from rival_turn import Job
from sources import listed, repeated
from training_steps import ALONE, HEADSPACE

_TURN = str(Path(__file__).with_name("rival_turn.py"))


@dataclass(frozen=True)
class Config:
    """What is run.

    Attributes:
        device: Where models are and images are augmented: "cuda", or "cpu" to try it.
        size: Side of the images that the model receives, in pixels.
        batch_size: Images of a batch.
        cores: Numbers of CPU cores; those that the machine lacks are left out.
        rounds: Turns of each feed.
        models: `ALONE`, and names of `networks.NETWORKS`.
        epoch_batches: Batches of an epoch.
        warm_batches: Served before the clock runs, beside those that were made ahead.
        timed_batches: Served while it runs.
        turn_limit_s: Time after which a feed has hung.
    """

    device: str = "cuda"
    size: int = 224
    batch_size: int = 128
    cores: tuple[int, ...] = (16, 8, 4, 2, 1)
    rounds: int = 2
    models: tuple[str, ...] = (ALONE, "imagenet50")
    epoch_batches: int = 24
    warm_batches: int = 12
    timed_batches: int = 48
    turn_limit_s: float = 150


@dataclass(frozen=True)
class RivalTurn:
    """One feed, with one model or none, with so many cores, in one round.

    Attributes:
        feed: Its name.
        model: Which, or `ALONE`.
        cores: CPU cores.
        round: From 0.
        ended: `DONE`, or how its process ended otherwise.
        images: Served while the clock ran.
        seconds: For these.
        step_ms: Median time that the device worked on a step; None without a model.
        augment_ms: Median time that it worked on augmentation before, on the stream of the step; None if it did not.
        reason: The last lines of its errors, where it did not end well.
    """

    feed: str
    model: str
    cores: int
    round: int
    ended: str
    images: int = 0
    seconds: float = 0.0
    step_ms: float | None = None
    augment_ms: float | None = None
    reason: str = ""


def feed_names(device: str) -> list[str]:
    """Name all feeds; without a GPU, those of loaders and stock DALI that need none."""
    return [HEADSPACE, *(feed.name for feed in FEEDS if device == "cuda" or not feed.needs_gpu), *GPU_ROWS]


def left(config: Config, turns: Sequence[RivalTurn], feeds: Sequence[str]) -> list[tuple[int, str, int, str]]:
    """List round, model, cores and feed of the turns that are not there: one round of everything first."""
    done = {(turn.round, turn.model, turn.cores, turn.feed) for turn in turns}
    wanted = [
        (number, model, cores, feed)
        for number in range(config.rounds)
        for model in config.models
        for cores in config.cores
        if cores <= harness.cores()
        for feed in (feeds if number % 2 == 0 else feeds[::-1])
        if (model, feed) != (ALONE, HEADSPACE)
    ]
    return [each for each in wanted if each not in done]


def taken_ms(turns: Sequence[RivalTurn], feed: str, cores: int) -> list[float]:
    """Return how much GPU time a feed takes from each step of one model, once a round of it and of headspace."""
    own, alone = (
        {turn.round: turn for turn in turns if (turn.feed, turn.cores, turn.ended) == (name, cores, DONE)}
        for name in (feed, HEADSPACE)
    )
    return [
        (own[number].step_ms or 0) + (own[number].augment_ms or 0) - (alone[number].step_ms or 0)
        for number in sorted(own.keys() & alone.keys())
    ]


def show(config: Config, turns: Sequence[RivalTurn]) -> str:
    """Write a table for each model: a row for each feed, a column for each number of cores."""
    where = "GPU" if config.device == "cuda" else "CPU, which shows only that the script runs"
    tables = []
    for model in config.models:
        mine = [turn for turn in turns if turn.model == model]
        cores, feeds = sorted({turn.cores for turn in mine}), dict.fromkeys(turn.feed for turn in mine)
        unit = "images/s" if model == ALONE else "images/s, and ms a step taken from it"
        heading = [f"{model} on a {where}: {unit}", *(f"{each} cores" for each in cores)]
        tables.append(table(heading, [[feed, *(_cell(mine, feed, count) for count in cores)] for feed in feeds]))
    return "\n\n".join(tables) + "\n"


def measure(config: Config, options: Options) -> None:
    """Go on where the last call ended, as long as there is time; the JSON is written turn by turn."""
    config = replace(config, device={"gpu": "cuda", "cpu": "cpu"}[options.device])
    if config.device == "cuda" and not torch.cuda.is_available():
        refuse(
            "a CUDA device must be there, but torch finds none: pass --device cpu --quick --out FILE to try the script"
        )
    if config.device == "cpu" and options.out.parent == Path(__file__).parent / "results":
        refuse("results of --device cpu must not be among those of a GPU: pass --out FILE")
    if unknown := {*(options.feeds or [])} - {*feed_names(config.device)}:
        refuse(f"--feeds must be some of {feed_names(config.device)}, got {sorted(unknown)}")
    ends = time.time() + 60 * options.minutes
    missing, versions = available(options.python)
    for name, reason in missing.items():
        print(f"left out: {name}: {reason}", flush=True)
    feeds = [name for name in options.feeds or feed_names(config.device) if name not in missing]
    record = Record(options.out, config, {"turns": RivalTurn})
    turns, longest = record.rows["turns"], 0.0
    source = repeated(options.data, config.epoch_batches * config.batch_size)
    files, labels = listed(source)
    asked = options.of_cores or config.cores
    for number, model, cores, feed in left(config, turns, feeds):
        began = time.time()
        if cores not in asked or began + longest >= ends:
            continue
        job = Job(
            feed,
            files,
            labels,
            config.size,
            config.batch_size,
            cores,
            model,
            config.device,
            config.warm_batches,
            config.timed_batches,
        )
        python = options.python if feed in GPU_ROWS else Path(sys.executable)
        taken = take_turn(job, python, config.turn_limit_s)
        turns.append(RivalTurn(feed=feed, model=model, cores=cores, round=number, **taken))
        record.write(missing=missing, versions=versions)
        longest = max(longest, time.time() - began)
        print(f"{feed}, {model}, {cores} cores, round {number}: {turns[-1].ended}", file=sys.stderr, flush=True)
    print(show(config, turns))
    if todo := sum(cores in asked for _, _, cores, _ in left(config, turns, feeds)):
        print(f"{todo} turns are left; call this again", file=sys.stderr)


def available(python: Path) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return why each competitor cannot run, of those that cannot, and the versions of their packages."""
    ended = run([_TURN, "--list"], limit_s=120, python=python)
    if ended.how != DONE:
        reason = (ended.reason.splitlines() or [ended.how])[-1]
        return dict.fromkeys(GPU_ROWS, f"{python.name} {ended.how}: {reason}"), {}
    told = json.loads(ended.output)
    return {name: reason for name, reason in told["missing"].items() if reason}, told["versions"]


def take_turn(job: Job, python: Path, limit_s: float) -> dict[str, Any]:
    """Measure a feed in a process of its own; return the rest of a `RivalTurn`."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(asdict(job)))
        ended = run([_TURN, str(path)], limit_s=limit_s, python=python)
    if ended.how != DONE:
        return {"ended": ended.how, "reason": ended.reason}
    return {"ended": DONE, **json.loads(ended.output)}


def _cell(turns: Sequence[RivalTurn], feed: str, cores: int) -> str:
    mine = [turn for turn in turns if (turn.feed, turn.cores) == (feed, cores)]
    speeds = [turn.images / turn.seconds for turn in mine if turn.ended == DONE]
    endings = dict.fromkeys(turn.ended for turn in mine if turn.ended != DONE)
    said = ", ".join([*([f"{Spread.of(speeds):0}"] if speeds else []), *endings])
    taken = taken_ms(turns, feed, cores)
    return f"{said} {median(taken):+.1f} ms" if taken and feed != HEADSPACE else said


EXPERIMENT = Experiment(
    measure,
    Config(),
    quick=Config(
        size=32,
        batch_size=4,
        cores=(1,),
        rounds=1,
        models=(ALONE, "resnet8"),
        epoch_batches=3,
        warm_batches=1,
        timed_batches=2,
        turn_limit_s=120,
    ),
    options={
        "--cores": {
            "dest": "of_cores",
            "type": int,
            "nargs": "+",
            "help": "of those in the configuration, all by default",
        },
        "--device": {"choices": ("gpu", "cpu"), "default": "gpu", "help": "cpu only tries the script"},
        "--feeds": {"nargs": "+", "metavar": "NAME", "help": "some of those in the table, all by default"},
        "--minutes": {"type": float, "default": 8, "help": "after which a call stops, 8 by default"},
        "--python": {
            "type": Path,
            "default": workers.PYTHON if workers.PYTHON.exists() else Path(sys.executable),
            "help": "of the competitors' environment; by default the one that competitors/build.py makes, or this one",
        },
    },
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main())
