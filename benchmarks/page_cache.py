"""Samples of a file that is not in the page cache: how fast a disk gives them, by plain reads and by a store.

drop          lets nothing of a file be in the page cache, which is memory that a process does not see as its own
Usage         says how many bytes the kernel fetched from a disk: what it found in the page cache is not among them
PlainReads    reads samples with several threads, and does nothing else: what the disk can give
StoreReads    has a store announce and lend them as a loader does, and does nothing else
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import Contender, Placement
from numpy.typing import NDArray

from dalirefurb.engine.batch_group import BatchGroup, Position, UpcomingGroups, grouped, planned
from dalirefurb.engine.prefetch import Prefetch
from dalirefurb.planning.planner import Planner
from dalirefurb.store import Store, StoreSpec
from dalirefurb.store.disk.layout import SAMPLES_START, Layout

_BATCHES_AHEAD = 4
_SAMPLES_AT_ONCE = 8

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


@dataclass(frozen=True)
class Usage:
    """What this process has taken so far.

    Attributes:
        images: That it was served.
        cpu_s: Of all its threads.
        disk_bytes: Fetched from a disk.
    """

    images: int
    cpu_s: float
    disk_bytes: int

    @classmethod
    def now(cls, images: int) -> Usage:
        """Ask the kernel."""
        lines = Path("/proc/self/io").read_text().splitlines()
        fetched = next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
        return cls(images, time.process_time(), fetched)

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(self.images - earlier.images, self.cpu_s - earlier.cpu_s, self.disk_bytes - earlier.disk_bytes)


def drop(paths: Iterable[Path]) -> None:
    """Write what is not written yet of these files, and let nothing of them be in the page cache."""
    maps = _maps()
    for path in paths:
        # The kernel keeps what a process has looked at through a map.
        for start, nbytes in maps.get(str(path.resolve()), ()):
            if _LIBC.madvise(start, nbytes, mmap.MADV_DONTNEED):
                raise OSError(ctypes.get_errno(), f"what is mapped must be let go, but {path.name} was not")
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _maps() -> dict[str, list[tuple[int, int]]]:
    """Find where this process maps files: addresses and bytes."""
    found: dict[str, list[tuple[int, int]]] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            start, end = (int(address, 16) for address in fields[0].split("-"))
            found.setdefault(fields[5], []).append((start, end - start))
    return found


class PlainReads:
    """Reads a plan's samples from a file of fixed slots, a turn at a time; each turn begins an epoch.

    Args:
        path: The file. It has a slot for each sample, as a store's file has.
        planner: Which samples, in which order.
        sample_bytes: Of each sample.
        threads: That read at the same time.
    """

    def __init__(self, path: Path, planner: Planner, *, sample_bytes: int, threads: int) -> None:
        self.name = f"plain reads, {threads} threads"
        self._path = path
        self._planner = planner
        self._sample_bytes = sample_bytes
        self._slot_bytes = Layout(StoreSpec((sample_bytes, 1, 1), 1, {})).samples_bytes
        self._threads = threads
        self._epoch = 0

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Read until the turn is over."""
        self._epoch += 1
        with closing(self._batches(self._epoch)) as batches:
            yield Contender(self.name, Placement(1, self._threads), _BATCHES_AHEAD, batches)

    def _batches(self, epoch: int) -> Generator[int, None, None]:
        with self._path.open("rb") as file, ThreadPoolExecutor(self._threads) as pool:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            ahead: deque[list[Future[int]]] = deque()
            for _, plan in planned(self._planner, Position(epoch, 0)):
                starts = range(0, len(plan.indices), _SAMPLES_AT_ONCE)
                rows = [plan.indices[start : start + _SAMPLES_AT_ONCE] for start in starts]
                ahead.append([pool.submit(self._read, file.fileno(), some) for some in rows])
                if len(ahead) > _BATCHES_AHEAD:
                    yield sum(reading.result() for reading in ahead.popleft())

    def _read(self, fd: int, rows: NDArray[np.int64]) -> int:
        buffer = bytearray(self._sample_bytes)
        for row in rows.tolist():
            if os.preadv(fd, [buffer], SAMPLES_START + row * self._slot_bytes) != self._sample_bytes:
                raise EOFError(f"{self._path.name} must have a slot for sample {row}, but ends before it")
        return len(rows)


class StoreReads:
    """Has a store lend a plan's samples, a turn at a time; each turn begins an epoch.

    Args:
        name: For tables and results.
        store: Open, and holds them all.
        planner: Which samples, in which order.
    """

    def __init__(self, name: str, store: Store, planner: Planner) -> None:
        self.name = name
        self._store = store
        self._planner = planner
        self._epoch = 0

    @contextmanager
    def turn(self) -> Iterator[Contender]:
        """Read until the turn is over."""
        self._epoch += 1
        with closing(self._batches(self._epoch)) as batches:
            yield Contender(self.name, Placement(1, 1), 0, batches)

    def _batches(self, epoch: int) -> Generator[int, None, None]:
        depths = Prefetch().depths(self._planner)
        groups = grouped(planned(self._planner, Position(epoch, 0)), depths.batches_per_group)

        def announce(group: BatchGroup) -> None:
            self._store.prefetch(group.plan.indices, group.plan.version)

        for group in UpcomingGroups(groups, announce, depths.announced):
            with self._store.get(group.plan.indices, group.plan.version) as lease:
                if not lease.found.all():
                    raise LookupError(f"{self.name} must hold every sample, but {(~lease.found).sum()} are missing")
            for each in group.plans:
                yield len(each.indices)
