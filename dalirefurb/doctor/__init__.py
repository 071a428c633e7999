"""Examination of a machine: does all that is installed fit together, and what would slow a loader down?

findings ◀─ packages   versions, CUDA, the driver, compiled kernels
         ◀─ machine    cores, other processes, memory
         ◀─ storage    the disk and shared memory, what of a data set the page cache holds
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dalirefurb.doctor import machine, packages, storage
from dalirefurb.doctor.finding import Finding
from dalirefurb.errors import ConfigurationError

__all__ = ["Finding", "examine"]


def examine(folder: Path | None = None, *, root: Path = Path("/")) -> Iterator[Finding]:
    """Yield one finding after the other; it takes less than ten seconds, and what cannot be found out is a finding.

    Args:
        folder: Folder of a data set, whose disk is measured, too; None: only the temporary folder's.
        root: The folder that holds `proc` and `sys`.

    Raises:
        ConfigurationError: If `folder` is none.
    """
    if folder is not None and not folder.is_dir():
        raise ConfigurationError(f"what is examined must be a folder of a data set, but {folder} is none: pass another")
    examinations: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("packages", packages.versions),
        ("CUDA", lambda: packages.cuda(root)),
        ("kernels", packages.kernels),
        ("cores", lambda: machine.cores(root)),
        ("other processes", lambda: machine.load(root)),
        ("memory", lambda: machine.memory(root)),
        ("shared memory", storage.shared_memory),
        ("temporary folder", storage.temporary_folder),
        *([] if folder is None else [("data set", lambda: storage.data_set(folder))]),
    ]
    for topic, examination in examinations:
        yield from _found(topic, examination)


def _found(topic: str, examination: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from examination()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        yield Finding(topic, "unknown", f"could not be examined ({reason})")
