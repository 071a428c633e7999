"""Samples to measure with: some of the source, chosen evenly by their encoded size; and how fast they are read."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dalirefurb import rng
from dalirefurb.engine.prefetch import Depths
from dalirefurb.errors import SampleError
from dalirefurb.source import Source

LEAST = 256
"""Samples that are measured, unless the source has fewer."""

_CANDIDATES = 2048
_LONGEST_S = 4.0
_AT_A_TIME = 16


@dataclass(frozen=True)
class Samples:
    """What was read.

    Attributes:
        indices: Samples that could be read, in rising order of their bytes, shape (n,).
        read_s: Seconds for a sample, as the loader's reading threads read together.
        mean_bytes: Mean bytes of a sample as it is read.
        unreadable: Number of samples that could not be read.
    """

    indices: NDArray[np.int64]
    read_s: float
    mean_bytes: float
    unreadable: int


def read_some(source: Source, *, seed: int = 0) -> Samples:
    """Read some samples at random, for some seconds at most, but at least 256.

    Raises:
        SampleError: If none of them can be read.
    """
    threads = Depths.reading_threads
    chosen = rng.permutation(len(source), seed, "tuning")[:_CANDIDATES]
    jobs = [chosen[start : start + _AT_A_TIME] for start in range(0, len(chosen), _AT_A_TIME)]
    began = time.perf_counter()
    sizes: dict[int, int] = {}
    failed: list[SampleError] = []
    with ThreadPoolExecutor(threads, thread_name_prefix="dalirefurb-tune") as pool:
        for start in range(0, len(jobs), threads):
            for read, errors in pool.map(lambda job: _lengths(source, job), jobs[start : start + threads]):
                sizes |= read
                failed += errors
            if time.perf_counter() - began > _LONGEST_S and len(sizes) >= LEAST:
                break
    elapsed = time.perf_counter() - began
    if not sizes:
        raise failed[0]
    indices = np.array(sorted(sizes, key=lambda index: (sizes[index], index)), np.int64)
    done = len(sizes) + len(failed)
    return Samples(indices, elapsed / done, float(np.mean([*sizes.values()])), len(failed))


def rows_of(samples: Samples, source: Source, *, rows: int, seed: int = 0) -> Source:
    """Return a source of so many rows: samples taken evenly by size, again and again if there are fewer, in any order.

    Args:
        samples: What was read.
        source: Source that was read.
        rows: Number of rows.
        seed: Seed of the order.
    """
    count = len(samples.indices)
    places = np.arange(rows) * count // rows if rows <= count else np.arange(rows) % count
    return source.subset(samples.indices[places][rng.permutation(rows, seed, "tuning rows")])


def _lengths(source: Source, indices: NDArray[np.int64]) -> tuple[dict[int, int], list[SampleError]]:
    """Read samples together, or if one of them cannot be read, one by one."""
    try:
        return _read(source, indices), []
    except SampleError as error:
        if len(indices) == 1:
            return {}, [error]
        parts = [_lengths(source, index[np.newaxis]) for index in indices]
        return {key: size for read, _ in parts for key, size in read.items()}, [
            one for _, each in parts for one in each
        ]


def _read(source: Source, indices: NDArray[np.int64]) -> dict[int, int]:
    return {int(index): sample.nbytes for index, sample in zip(indices, source.read(indices), strict=True)}
