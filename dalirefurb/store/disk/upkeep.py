"""Inspection, verification and deletion of a store's file, from outside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dalirefurb.checks import path_of
from dalirefurb.errors import StoreError
from dalirefurb.store.disk.file_lock import holder, lock, reading
from dalirefurb.store.disk.layout import (
    SAMPLES_START,
    Layout,
    Records,
    believable,
    identity,
    is_whole,
    read_header,
    read_table,
    sizes,
    torn,
)
from dalirefurb.store.spec import StoreSpec


@dataclass(frozen=True)
class Inspection:
    """What a store's file says of itself.

    Attributes:
        path: The file.
        spec: What the file was opened for: slots, their shape, fingerprint.
        held: Number of versions that the file holds.
        held_bytes: Bytes of the pixels of the versions that the file holds.
        nbytes: Size of the file in bytes.
        holder: The process that uses the file, in words; None if there is none.
    """

    path: Path
    spec: StoreSpec
    held: int
    held_bytes: int
    nbytes: int
    holder: str | None


@dataclass(frozen=True)
class Verification:
    """What reading a whole store has shown.

    Attributes:
        intact: Number of versions that are as they were put.
        damaged: Versions that are not as they were put, as (index, version). They will not be served.
        torn: Number of slots whose record is damaged, so that nobody knows what they held.
    """

    intact: int
    damaged: tuple[tuple[int, int], ...]
    torn: int

    @property
    def ok(self) -> bool:
        """Whether everything is intact."""
        return not self.damaged and not self.torn


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Read what a store's file says of itself, also while it is in use.

    Raises:
        StoreError: There is no store at the path, or its header is damaged.
    """
    path = path_of(path)
    with reading(path) as fd:
        spec, records = _contents(fd, path)
        held = records[believable(records, identity(spec))]
        return Inspection(path, spec, len(held), int(sizes(held).sum()), os.fstat(fd).st_size, holder(fd))


def verify(path: str | os.PathLike[str]) -> Verification:
    """Read every sample of a store and compare it with its checksum.

    Raises:
        StoreError: There is no store at the path, its header is damaged, or it is in use.
    """
    path = path_of(path)
    with reading(path) as fd:
        lock(fd, path, shared=True)
        spec, records = _contents(fd, path)
        seed = identity(spec)
        held = records[believable(records, seed)]
        damaged = tuple(
            (int(record["index"]), int(record["version"]))
            for record, size in zip(held, sizes(held).tolist(), strict=True)
            if not is_whole(fd, SAMPLES_START + int(record["start"]), size, record["pixels"])
        )
        return Verification(len(held) - len(damaged), damaged, int(torn(records, seed).sum()))


def purge(path: str | os.PathLike[str]) -> int:
    """Delete a store's file, whatever state it is in, and return its size in bytes.

    Raises:
        StoreError: There is no store at the path, or it is in use.
    """
    path = path_of(path)
    with reading(path) as fd:
        lock(fd, path, shared=False)
        read_header(fd, path)
        nbytes = os.fstat(fd).st_size
        path.unlink()
        return nbytes


def _contents(fd: int, path: Path) -> tuple[StoreSpec, Records]:
    spec = read_header(fd, path)
    if spec is None:
        raise StoreError(
            f"a store's header must be intact, but that of {path} is damaged: "
            f"open it to write it anew, or delete it by `dalirefurb cache purge {path}`"
        )
    return spec, read_table(fd, Layout(spec).table_start, spec.slots)
