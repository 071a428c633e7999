"""Stamps of files, size, times and inode, by which a changed file is told."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_hexdigest

from dalirefurb.source.outage import is_outage

_STAMP = struct.Struct("<qqqQ")
_STAMPS = np.dtype([("size", "<i8"), ("mtime_ns", "<i8"), ("ctime_ns", "<i8"), ("inode", "<u8")])
_ABSENT = bytes(_STAMP.size)
_THREADS = 16
"""That ask for stamps: as fast as one where the disk is near, and hardly ever waiting where it is far."""
_HASHED_BYTES = 1 << 24
"""Of an array at a time, which is what a copy of rows that do not lie in order takes."""


def stamp_files(paths: Iterable[str]) -> dict[str, Any]:
    """Stamp files as they are now, two microseconds each; links stand for what they lead to.

    Returns:
        As JSON values: a hash of each file's size, times of change (of its contents, of anything) and inode, in order;
        their bytes together; when the last of them changed. What cannot be looked at counts as absent. Where storage is
        away, also when that was, so that it is never the same: behind what is away there may be anything.
    """
    names = list(paths)
    step = max(1, -(-len(names) // _THREADS))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="dalirefurb-stamps") as pool:
        some = (names[start : start + step] for start in range(0, len(names), step))
        parts = pool.map(lambda paths: b"".join(map(_stamp, paths)), some)
        stamps = np.frombuffer(b"".join(parts), _STAMPS)  # Shape (number of files,).
    last_change = datetime.fromtimestamp(stamps["ctime_ns"].max(initial=0) / 1e9, timezone.utc)
    absent = np.flatnonzero(stamps == np.frombuffer(_ABSENT, _STAMPS)).tolist()
    away = any(_is_away(names[row]) for row in absent)
    return {
        "stamps": xxh3_128_hexdigest(stamps.tobytes()),
        "bytes": int(stamps["size"].sum()),
        "last_change": last_change.isoformat(timespec="milliseconds"),
        **({"away_at": datetime.now(timezone.utc).isoformat()} if away else {}),
    }


def _is_away(path: str) -> bool:
    """Tell whether a file that could not be asked may be there; what is no path, such as an address, is not."""
    try:
        os.stat(path)  # noqa: PTH116
    except ValueError:
        return False
    except OSError as error:
        return any(map(os.path.lexists, Path(path).parts[:1])) and is_outage(error)
    return True


def _stamp(path: str) -> bytes:
    """Return what tells a file from others of its name, as the bytes of one of `_STAMPS`."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return _ABSENT
    return _STAMP.pack(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def stamps_of(paths: Iterable[str]) -> NDArray[np.uint64]:
    """Return a number that tells each file from others of its name, uint64 of shape (n,); 0: it cannot be asked."""
    stamps = map(_stamp, paths)
    return np.array([0 if stamp is _ABSENT else xxh3_64_intdigest(stamp) | 1 for stamp in stamps], np.uint64)


def hash_pixels(images: NDArray[np.uint8]) -> str:
    """Hash all bytes of images, shape (N, ...), in their order, however they lie in memory."""
    digest = xxh3_128(repr(images.shape).encode())
    rows = max(1, _HASHED_BYTES // max(1, images[0].nbytes))
    for start in range(0, len(images), rows):
        digest.update(np.ascontiguousarray(images[start : start + rows]).data)
    return digest.hexdigest()
