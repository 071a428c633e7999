"""Turns of loaders: each serves for a moment, and is closed, so that none works in another's time.

    round 0   standard ▏ split 1 hits ▏ split 2 hits ▏ ...       round 1   ... ▏ split 1 hits ▏ standard

A turn makes the loader anew, which goes on where it was, has it serve what it made ahead, and times what follows. With
the samples that all of them serve, and the step that some of them take.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.augment.recipe import Recipe
from dalirefurb.engine.prefetch import Depths, Prefetch
from dalirefurb.engine.stats import Stats
from dalirefurb.errors import DalirefurbError, ReadError, SampleError
from dalirefurb.loader import Loader
from dalirefurb.planning.planner import Planner
from dalirefurb.reading.bad_samples import BadSamplePolicy
from dalirefurb.source import Source
from dalirefurb.source.storage import Patience
from dalirefurb.store import Store
from dalirefurb.system.resources import available_bytes, usable_cores
from dalirefurb.system.threads import wait_until_idle
from dalirefurb.tuning.costs import LEAST_ROUNDS, Placement

Step = Callable[[torch.Tensor, torch.Tensor], object]
"""What a training loop does with a batch: images, (B, 3, H, W), and labels, (B, ...)."""

Told = Callable[[str], None]

PATIENCE = 1.15
"""Share of the time after which no more turns are taken."""

_TURN_S = 0.8
"""What a turn takes beside its slice, about."""

_IDLE_S = 5.0
_LONGEST_RAMP_S = 1.2
_LEAST_BATCHES = 4

_SHALLOW = Prefetch(look_ahead=min(usable_cores(), 8) + 1)
"""Where each batch is asked for at once: what was begun for later ones has to end before the next turn."""
_HAND_OVERS_S = 1.0
_MANY_BATCHES = 100
_COPIES = 10
_LEAST_STEPS, _MOST_STEPS = 3, 1000

_LEAST_SAMPLES = 256
_CANDIDATES = 2048
_LONGEST_S = 4.0
_AT_A_TIME = 16

_SHARE_OF_MEMORY = 1 / 8
_UNKNOWN_MEMORY = 8 << 30


@dataclass(frozen=True)
class Readable:
    """Samples that could be read.

    Attributes:
        source: Source of the samples.
        indices: Which they are, in rising order of their bytes, shape (n,).
        read_s: Seconds for a sample, as the loader's reading threads read together.
        mean_bytes: Mean bytes of a sample as it is read.
        unreadable: Number of samples that could not be read.
    """

    source: Source
    indices: NDArray[np.int64]
    read_s: float
    mean_bytes: float
    unreadable: int

    def rows(self, rows: int) -> Source:
        """Return a source of so many rows: samples taken evenly by size, again if there are fewer, in any order."""
        count = len(self.indices)
        places = np.arange(rows) * count // rows if rows <= count else np.arange(rows) % count
        return self.source.subset(self.indices[places][rng.permutation(rows, 0, "tuning rows")])


def read_some(source: Source) -> Readable:
    """Read some samples at random, for some seconds at most, but at least 256.

    Raises:
        SampleError, ReadError: If none of them can be read.
    """
    threads = Depths.reading_threads
    chosen = rng.permutation(len(source), 0, "tuning")[:_CANDIDATES]
    jobs = [chosen[start : start + _AT_A_TIME] for start in range(0, len(chosen), _AT_A_TIME)]
    began = time.perf_counter()
    sizes: dict[int, int] = {}
    failed: list[SampleError | ReadError] = []
    with ThreadPoolExecutor(threads, thread_name_prefix="dalirefurb-tune") as pool:
        for start in range(0, len(jobs), threads):
            for read, errors in pool.map(lambda job: _lengths(source, job), jobs[start : start + threads]):
                sizes |= read
                failed += errors
            if time.perf_counter() - began > _LONGEST_S and len(sizes) >= _LEAST_SAMPLES:
                break
    elapsed = time.perf_counter() - began
    if not sizes:
        raise failed[0]
    indices = np.array(sorted(sizes, key=lambda index: (sizes[index], index)), np.int64)
    done = len(sizes) + len(failed)
    return Readable(source, indices, elapsed / done, float(np.mean([*sizes.values()])), len(failed))


def _lengths(source: Source, indices: NDArray[np.int64]) -> tuple[dict[int, int], list[SampleError | ReadError]]:
    """Read samples together, or if one of them cannot be read, one by one."""
    try:
        read = Patience(0).of(lambda: source.read(indices), source.name(int(indices[0])))
        return {int(index): sample.nbytes for index, sample in zip(indices, read, strict=True)}, []
    except (SampleError, ReadError) as error:
        if len(indices) == 1:
            return {}, [error]
        parts = [_lengths(source, index[np.newaxis]) for index in indices]
        return {key: size for read, _ in parts for key, size in read.items()}, [
            one for _, each in parts for one in each
        ]


def batches_that_fit(nbytes: float, batch_size: int) -> int:
    """Return of how many batches partial images of so many bytes fit into the memory that may be taken for them."""
    room = (available_bytes() or _UNKNOWN_MEMORY) * _SHARE_OF_MEMORY
    return int(room / nbytes / batch_size) if nbytes else sys.maxsize


@contextmanager
def noted(notes: list[str], what: str) -> Iterator[None]:
    """Make a failure of a measurement a note."""
    try:
        yield
    except (DalirefurbError, OSError, MemoryError) as error:
        notes.append(f"{what}: not measured: {' '.join(str(error).split())}")


def slice_s(left_s: float, weights: Sequence[float], limits: tuple[float, float]) -> float:
    """Return the seconds of a slice, for three rounds of turns to take the time that is left.

    Each loader's turn is as many slices long as its weight.
    """
    least, most = limits
    return min(most, max(least, (left_s / LEAST_ROUNDS - _TURN_S * len(weights)) / sum(weights)))


@dataclass(frozen=True)
class Slice:
    """What a loader did in one turn.

    Attributes:
        image_s: Seconds for an image.
        cpu_s: CPU seconds of the process for an image.
        batch_s: Seconds from one batch to the next, shape (batches,).
        stats: What the loader counted meanwhile.
    """

    image_s: float
    cpu_s: float
    batch_s: tuple[float, ...]
    stats: Stats


@dataclass(eq=False)
class Turns:
    """A loader that takes turns.

    Attributes:
        store: Store that stays open between turns; None: nothing is cached.
        devices: Devices of the partial and of the final part.
    """

    source: Source
    recipe: Recipe
    planner: Planner
    store: Store | None = None
    devices: Placement = ("cpu", "cpu")
    _state: dict[str, Any] | None = field(default=None, init=False)

    def fill(self) -> None:
        """Serve the first epoch, which computes every image."""
        with self._loader() as loader:
            for _ in loader:
                pass
            self._state = loader.state_dict()

    def slice(self, seconds: float, step: Step | None = None) -> Slice:
        """Serve for so many seconds at least, take a step with each batch, if there is one, and time it."""
        wait_until_idle(_IDLE_S)
        with self._loader(_SHALLOW if step is None else Prefetch()) as loader:
            batches = _served(loader)
            began, ahead = time.perf_counter(), loader.batches_ahead
            # Without the step: what was made ahead, while nobody asked for it, would hide how slow the loader is.
            for number, _ in enumerate(batches, 1):
                if number >= ahead or (number >= _LEAST_BATCHES and time.perf_counter() - began > _LONGEST_RAMP_S):
                    break
            if step is not None:
                # Once with it, so that the next batch is made while the first step is taken, as in training.
                images, labels = next(batches)
                step(images, labels)
            before, cpu_before = loader.stats(), time.process_time()
            arrivals, rows = [time.perf_counter()], 0
            for images, labels in batches:
                if step is not None:
                    step(images, labels)
                arrivals.append(time.perf_counter())
                rows += len(labels)
                if len(arrivals) > _LEAST_BATCHES and arrivals[-1] - arrivals[0] >= seconds:
                    break
            cpu_s, stats = time.process_time() - cpu_before, loader.stats() - before
            batches.close()
            self._state = loader.state_dict()
        spent = [later - earlier for earlier, later in pairwise(arrivals)]
        return Slice(sum(spent) / rows, cpu_s / rows, tuple(spent), stats)

    def batch(self) -> tuple[torch.Tensor, Any]:
        """Return the images and labels of one batch, to keep."""
        with self._loader() as loader:
            images, labels = next(_served(loader))
            return images.clone(), copy.deepcopy(labels)

    def hand_over(self, wait_s: float) -> float:
        """Return the seconds between steps that wait longer than the loader needs for a batch; see `between_s`."""
        waited: list[float] = []

        def step(*_: object) -> None:
            began = time.perf_counter()
            time.sleep(wait_s)
            waited.append(time.perf_counter() - began)

        batch_s = self.slice(max(_LEAST_BATCHES * wait_s, _HAND_OVERS_S), step).batch_s
        return between_s(batch_s, waited)

    def _loader(self, prefetch: Prefetch = _SHALLOW) -> Loader:
        partial, final = self.devices
        loader = Loader(
            self.source,
            self.recipe,
            self.planner,
            self.store,
            partial_device=partial,
            final_device=final,
            prefetch=prefetch,
            bad_samples=BadSamplePolicy("replace"),
        )
        if self._state is not None:
            loader.load_state_dict(self._state)
        return loader


def _served(loader: Loader) -> Generator[tuple[torch.Tensor, Any], None, None]:
    """Serve epochs without end; yield the images and labels of each batch."""
    while True:
        for images, labels, *_ in loader:
            yield images, labels


def step_s(step: Step, batch: tuple[torch.Tensor, Any]) -> tuple[float, float]:
    """Take a step some times on a batch that is at hand; return the seconds and the CPU seconds that it takes."""
    began = ended = time.perf_counter()
    cpu_began, steps = time.process_time(), 0
    while steps < _LEAST_STEPS or (ended - began < 1.0 and steps < _MOST_STEPS):
        step(*batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        steps, ended = steps + 1, time.perf_counter()
    return (ended - began) / steps, (time.process_time() - cpu_began) / steps


def between_s(batch_s: Sequence[float], step_s: Sequence[float]) -> float:
    """Return the seconds between two steps, of those from batch to batch and those of the steps themselves.

    They are for handing the batch over, and for the threads that make others: while these have all cores, a step that
    is over is not noticed at once. So the mean is taken, of which such moments are most; but of few batches, which are
    long ones, the median, since one that came late would be most of their mean.

    >>> round(between_s([1.0, 1.0, 1.0, 5.0] * 50, [0.75]), 6)
    1.25
    >>> between_s([1.0, 1.0, 1.0, 5.0], [0.75])
    0.25
    """
    taken_s = np.mean(batch_s) if len(batch_s) >= _MANY_BATCHES else np.median(batch_s)
    return max(0.0, float(taken_s - np.median(step_s)))


def waiting(seconds: float) -> Step:
    """Return a step that only waits, as a loop does for a device that computes."""

    def wait(*_: object) -> None:
        time.sleep(seconds)

    return wait


def copied_s(images: torch.Tensor) -> float:
    """Return the seconds for an image of a batch to be copied to the current CUDA device; 0 where there is none."""
    if not torch.cuda.is_available() or images.is_cuda:
        return 0.0
    spent = []
    for _ in range(_COPIES):
        began = time.perf_counter()
        images.to("cuda")
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
    return float(np.median(spent)) / len(images)
