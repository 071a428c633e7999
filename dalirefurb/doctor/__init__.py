"""Examination of a machine: does all that is installed fit together, and what would slow a loader down?

What there is to say of each thing is a `Finding`, see `findings`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from dalirefurb.doctor import findings
from dalirefurb.doctor.findings import Finding
from dalirefurb.errors import ConfigurationError

__all__ = ["Finding", "examine"]

_LONGEST_S = 9.0
"""How long all of it may take: a disk, a network's above all, may answer late or never."""


def examine(folder: Path | None = None) -> Iterator[Finding]:
    """Yield one finding after the other, for ten seconds at most; what cannot be found out, or hangs, is a finding.

    Args:
        folder: Folder of a data set, whose disk is measured, too; None: only the temporary folder's.

    Raises:
        ConfigurationError: If `folder` is none.
    """
    if folder is not None and not folder.is_dir():
        raise ConfigurationError(f"what is examined must be a folder of a data set, but {folder} is none: pass another")
    examinations: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("packages", findings.versions),
        ("CUDA", findings.cuda),
        ("kernels", findings.kernels),
        ("cores", findings.cores),
        ("other processes", findings.load),
        ("memory", findings.memory),
        ("shared memory", findings.shared_memory),
        ("temporary folder", findings.temporary_folder),
        *([] if folder is None else [("data set", lambda: findings.data_set(folder))]),
    ]
    ends = time.monotonic() + _LONGEST_S
    for topic, examination in examinations:
        yield from _found_until(ends, topic, examination)


def _found_until(ends: float, topic: str, examination: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what an examination finds until a time; one that fails is a finding, one that hangs is left alone."""
    found: SimpleQueue[Finding | None] = SimpleQueue()

    def find() -> None:
        try:
            for finding in examination():
                found.put(finding)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            found.put(Finding(topic, "unknown", f"could not be examined ({reason})"))
        found.put(None)

    Thread(target=find, name=f"dalirefurb-doctor-{topic}", daemon=True).start()
    try:
        while (finding := found.get(timeout=max(ends - time.monotonic(), 0.01))) is not None:
            yield finding
    except Empty:
        remedy = "it is slow, or hangs; or other processes have the cores: examine the machine again"
        yield Finding(topic, "unknown", f"could not be examined within {_LONGEST_S:.0f} s", remedy)
