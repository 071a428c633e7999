"""Inspection, verification and deletion of a keep's folder, from outside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import StoreError
from dalirefurb.keep.folder import FILES, IDENTITY
from dalirefurb.keep.record import RECORD, Records, believable
from dalirefurb.store.disk.layout import is_whole


@dataclass(frozen=True)
class KeepContents:
    """What a keep's folder says of itself.

    Attributes:
        path: The folder.
        identity: Of what source, and in which form, as JSON values.
        num_samples: Number of samples of the source.
        kept: Number of samples that are kept.
        nbytes: Bytes of these.
    """

    path: Path
    identity: dict[str, Any]
    num_samples: int
    kept: int
    nbytes: int


def is_keep(path: Path) -> bool:
    """Tell whether a path is that of a keep."""
    return (path / IDENTITY).is_file()


def inspect(path: Path) -> KeepContents:
    """Read what a keep says of itself, also while it is in use.

    Raises:
        StoreError: If there is none.
    """
    identity, records, indices = _contents(path)
    nbytes = int(records["nbytes"][indices].sum())
    return KeepContents(path, identity, len(records), len(indices), nbytes)


def verify(path: Path) -> tuple[int, list[int]]:
    """Read every sample and compare it with its checksum, also while the keep is in use.

    Returns:
        How many are intact, and the indices of those that are not: they are made anew.

    Raises:
        StoreError: If there is no keep, or its data cannot be read.
    """
    _, records, indices = _contents(path)
    try:
        with (path / "data").open("rb") as file:
            damaged = [
                index
                for index, record in zip(indices.tolist(), records[indices], strict=True)
                if not is_whole(file.fileno(), int(record["start"]), int(record["nbytes"]), record["digest"])
            ]
    except OSError as error:
        raise _unreadable(path, error) from error
    return len(indices) - len(damaged), damaged


def purge(path: Path) -> int:
    """Delete a keep; return the bytes that it had. Who has it open goes on with what it held.

    Raises:
        StoreError: If there is no keep.
    """
    nbytes = inspect(path).nbytes
    for name in FILES:
        (path / name).unlink(missing_ok=True)
    if not any(path.iterdir()):
        path.rmdir()
    return nbytes


def _contents(path: Path) -> tuple[dict[str, Any], Records, NDArray[np.int64]]:
    """Return what a keep is of, its records, and which of them name a sample."""
    try:
        identity = json.loads((path / IDENTITY).read_text())
        records = np.fromfile(path / "records", RECORD, identity["num_samples"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    return identity, records, np.flatnonzero(believable(records, np.arange(len(records))))


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"there must be a keep at {path}, but it cannot be read ({error}): see to its files")
