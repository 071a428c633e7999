"""What a process has, to see that nothing is left of a loader."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIMIT_S = 900.0


def threads() -> list[str]:
    """Name the loader's threads."""
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("dalirefurb"))


def descriptors() -> Counter[str]:
    """Count what is open, by what it leads to."""
    links = list(Path("/proc/self/fd").iterdir())
    return Counter(str(link.readlink()) for link in links if link.is_symlink())


def shared_memory() -> set[str]:
    """Name what lies in shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir()}


@contextmanager
def nothing_left() -> Iterator[None]:
    """Hold a block to leaving no thread, descriptor or shared memory behind."""
    before = descriptors(), shared_memory()
    assert threads() == []
    yield
    deadline = time.monotonic() + _LIMIT_S
    while (left := _left(*before)) != NOTHING and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == NOTHING


NOTHING: tuple[list[str], Counter[str], set[str]] = ([], Counter(), set())


def _left(had: Counter[str], had_shared: set[str]) -> tuple[list[str], Counter[str], set[str]]:
    """Say what there is now that was not there before; a thread that ends has let go of what it had soon after."""
    gc.collect()
    return threads(), descriptors() - had, shared_memory() - had_shared


def wait_for_threads() -> None:
    """Wait until none of the loader's threads is left; those of a loader that was collected end by themselves."""
    deadline = time.monotonic() + _LIMIT_S
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == []
