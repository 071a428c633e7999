"""One feed with one model, measured in a process of its own, which may be another Python's.

python rival_turn.py --list        a JSON object: why each competitor cannot run here, null if it can; and versions
python rival_turn.py JOB           a file with a `Job` as JSON; prints what was measured as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from competitors.gpu_rows import GPU_ROWS, PREFETCHED, Samples
from competitors.serving import answers, version
from training_steps import HEADSPACE, Model, Timer

_NAMED = ("torch", "torchvision", "kornia", "Pillow")


@dataclass(frozen=True)
class Job:
    """What is measured.

    Attributes:
        feed: `HEADSPACE`, a name in `GPU_ROWS`, or that of a feed in `feeds.FEEDS`.
        files: Of the images.
        labels: One each.
        size: Side of the images that the model receives, in pixels.
        batch_size: Images of a batch.
        cores: CPU cores that the process has.
        model: One of `networks.NETWORKS`, or `ALONE`.
        device: Where the model is, "cuda" or "cpu".
        warm_batches: Served before the clock runs, beside those that were made ahead.
        timed_batches: Served while it runs.
    """

    feed: str
    files: list[str]
    labels: list[int]
    size: int
    batch_size: int
    cores: int
    model: str
    device: str
    warm_batches: int
    timed_batches: int


def main() -> None:
    """Answer what is asked."""
    told = answers()
    if sys.argv[1] == "--list":
        rows = {name: row.missing() for name, row in GPU_ROWS.items()}
        told.write(json.dumps({"missing": rows, "versions": {name: version(name) for name in _NAMED}}) + "\n")
    else:
        told.write(json.dumps(measured(Job(**json.loads(Path(sys.argv[1]).read_text())))) + "\n")
    told.flush()
    # Worker processes and threads of the libraries end with this one; asked to end, some take seconds.
    os._exit(0)


def measured(job: Job) -> dict[str, Any]:
    """Let a feed serve a model; return images, seconds, and ms of a step and of augmentation on the step's stream."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.cores])
    torch.set_num_threads(job.cores)
    model = Model(job.model, max(job.labels) + 1, job.device)
    augmenting = Timer(job.device)
    with ExitStack() as stack:
        batches, made_ahead = _batches(job, model, augmenting, stack)
        for _ in range(job.warm_batches + made_ahead):  # What was ready before the first step is not timed.
            next(batches)
        _finish(job.device)
        began = time.perf_counter()
        images = sum(next(batches) for _ in range(job.timed_batches))
        _finish(job.device)
        seconds = time.perf_counter() - began
        return {
            "images": images,
            "seconds": seconds,
            "step_ms": model.step_ms(job.timed_batches),
            "augment_ms": augmenting.median_ms(job.timed_batches),
        }


def _batches(job: Job, model: Model, augmenting: Timer, stack: ExitStack) -> tuple[Generator[int, None, None], int]:
    """Return what serves batches, and how many it can have made before the first is asked for."""
    if job.feed == HEADSPACE:
        return _of_one_batch(job, model.take), 0
    if job.feed in GPU_ROWS:
        return _of_a_row(job, model.take, augmenting), PREFETCHED * job.cores
    from feeds import FEEDS
    from harness import stepped

    from dalirefurb import FileList

    (feed,) = (each for each in FEEDS if each.name == job.feed)
    entrant = feed.entrant(stack, FileList(job.files, job.labels), job.size, job.batch_size, model.take)
    contender = stack.enter_context(entrant.turn())
    return stepped(contender), contender.made_ahead


def _of_one_batch(job: Job, take: Callable[..., None]) -> Generator[int, None, None]:
    """Serve a batch that is there already."""
    images = torch.zeros(job.batch_size, 3, job.size, job.size, device=job.device)
    labels = torch.zeros(job.batch_size, dtype=torch.int64, device=job.device)
    while True:
        take(images, labels)
        yield job.batch_size


def _of_a_row(job: Job, take: Callable[..., None], augmenting: Timer) -> Generator[int, None, None]:
    """Augment what workers load, on the stream on which the model learns."""
    row = GPU_ROWS[job.feed]
    samples = Samples(job.files, job.labels, job.size, job.batch_size, job.cores, job.device)
    row.prepare(samples)
    augmented: list[torch.Tensor] = []
    for images, labels in row.batches(samples):
        augmenting.time(lambda images=images: augmented.append(row.augment(images)))  # type: ignore[misc]
        take(augmented.pop(), labels)
        yield len(labels)


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
