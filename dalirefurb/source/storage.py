"""Storage: failures that pass, what is done about them, and stamps by which a changed file is told."""

from __future__ import annotations

import logging
import os
import stat
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest, xxh3_128, xxh3_128_hexdigest

from dalirefurb.errors import DalirefurbError, LoaderError, ReadError

RETRY_S = 75.0
"""How long to ask again by default: an outage of a minute costs a minute."""

BLOCKED_S = 30.0
"""After so long a read that does not return is named; again after twice as long, and so on."""

_FIRST_S, _LONGEST_S = 0.05, 5.0
_NETWORK = {"aiohttp", "asyncio", "azure", "botocore", "concurrent", "fsspec", "http", "httpcore", "httpx", "urllib3"}
_DECODERS = {"PIL", "gzip", "imageio", "tifffile"}
"""Packages that raise an `OSError` for what they cannot decode; the former's errors are of reading, and none."""

_log = logging.getLogger("dalirefurb.reading")
Result = TypeVar("Result")


def is_outage(error: BaseException | None) -> bool:
    """Tell whether an error, or its cause, is one of files or of a network, which says nothing of the sample.

    It does where storage answers that it does not give this one: 404, or a single file that is missing or protected in
    a folder that is there, and not empty as a mount point is.
    """
    status = getattr(getattr(error, "response", error), "status_code", getattr(error, "status", None))
    if error is None or isinstance(error, (DalirefurbError, IsADirectoryError)) or status in (404, 410):
        return False
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if isinstance(error, (FileNotFoundError, PermissionError)):
        path = error.filename if isinstance(error.filename, (str, bytes)) else str(error)
        is_path = path is error.filename or str(path).startswith(os.sep)
        return (is_path and _is_away(os.fsdecode(path))) or is_outage(error.__cause__)
    if isinstance(error, OSError) and error.errno is None:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
        packages |= {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
        return not packages & _DECODERS
    return isinstance(error, OSError) or bool(packages & _NETWORK) or is_outage(error.__cause__)


def _is_away(path: str) -> bool:
    """Tell whether a file that could not be opened may be there, by its folder as it is at one moment."""
    folder, name = os.path.split(os.path.realpath(path))
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(descriptor) as entries:
                return next(entries, None) is None or os.access(name, os.R_OK, dir_fd=descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return True


def is_page(content: Any) -> bool:
    """Tell whether bytes begin as HTML, XML or JSON do, and no image does."""
    return bytes(content[:1]) in (b"<", b"{", b"\n", b" ") and bytes(content[:64]).strip()[:1] in (b"<", b"{")


def _is_source(value: Any) -> bool:
    """Tell a source by its methods: what sources are is said in a module that imports this one."""
    return all(callable(getattr(type(value), name, None)) for name in ("read", "name", "fingerprint"))


class Patience:
    """Asks again for a sample, with growing pauses, while storage fails, and names one that blocks. Thread-safe.

    Once it has lost patience it asks only once, for as long again: what failed may be made anew in smaller parts.

    Args:
        retry_s: Seconds from the first failure to the last time that it asks; 0: it never asks again.

    Attributes:
        closed: Ends all pauses, by a `LoaderError`, once it is set.
    """

    def __init__(self, retry_s: float = RETRY_S) -> None:
        self._retry_s = retry_s
        self._lost_s = float("-inf")
        self._telling = threading.Lock()
        self.closed = threading.Event()
        # By thread: when its read began, after how long it is named, and of what it is.
        self._reads: dict[int, list[Any]] = {}

    def of(self, read: Callable[[], Result], name: str) -> Result:
        """Return what is read of a sample of this name; what is no outage is raised as it is, else a `ReadError`."""
        began_s, pause_s, tries, tells = float("inf"), _FIRST_S, 1, False
        try:
            while True:
                try:
                    return self.once(read, name)
                except Exception as error:
                    if not is_outage(error):
                        raise
                    failed = error
                began_s = min(began_s, time.monotonic())
                waited_s = time.monotonic() - began_s
                what = f"{name} cannot be read ({type(failed).__name__}: {failed})"
                if waited_s >= self._retry_s or began_s < self._lost_s + self._retry_s:
                    self._lost_s = self._lost_s if waited_s < self._retry_s else time.monotonic()
                    raise ReadError(
                        f"storage must give samples, but {what}, tried {tries} times in {waited_s:.1f} s: nothing is "
                        f"known against it; see to its storage and go on from the last state, or pass a larger retry_s"
                    ) from failed
                if tries == 2 and (tells := self._telling.acquire(blocking=False)):  # For all threads.
                    _log.warning("%s and is asked for again for up to %g s", what, self._retry_s)
                if self.closed.wait(min(pause_s, self._retry_s - waited_s)):
                    raise LoaderError("the loader was closed while samples were read")
                pause_s, tries = min(2 * pause_s, _LONGEST_S), tries + 1
        finally:
            if tells:
                self._telling.release()
                _log.warning("%s is no longer waited for, after %.1f s", name, time.monotonic() - began_s)

    def once(self, read: Callable[[], Result], name: str) -> Result:
        """Return what is read of samples, which `look` calls so unless it sees which one it is."""
        self._reads[threading.get_ident()] = [time.monotonic(), BLOCKED_S, name]
        try:
            return read()
        finally:
            del self._reads[threading.get_ident()]

    def look(self) -> None:
        """Warn of the read that began first, if that is long ago: others may only wait for it."""
        for thread, read in sorted(self._reads.copy().items(), key=lambda each: each[1][0])[:1]:
            if (blocked_s := time.monotonic() - read[0]) >= read[1]:
                read[1] = 2 * blocked_s
                frame = sys._current_frames().get(thread)
                index: Any = None
                source: Any = None
                while frame is not None and not _is_source(source):
                    source, index = frame.f_locals.get("self"), frame.f_locals.get("index", index)
                    frame = frame.f_back
                seen = _is_source(source) and isinstance(index, Integral) and int(index) in range(len(source))
                name = source.name(int(index)) if seen else read[2]
                _log.warning("the source has not returned for %.0f s from reading %s", blocked_s, name)


_STAMP = struct.Struct("<qqqQ")
_STAMPS = np.dtype([("size", "<i8"), ("mtime_ns", "<i8"), ("ctime_ns", "<i8"), ("inode", "<u8")])
_ABSENT = bytes(_STAMP.size)
_THREADS = 16
"""That ask for stamps: as fast as one where the disk is near, and hardly ever waiting where it is far."""
_FOLDERS = 64
"""Looked through once, however often they are named: of a list's items each may name the folder of all."""
_HASHED_BYTES = 1 << 24
"""Of an array at a time, which is what a copy of rows that do not lie in order takes."""


def stamp_files(paths: Iterable[str]) -> dict[str, Any]:
    """Stamp files as they are now, two microseconds each; links stand for what they lead to, folders for all in them.

    Returns:
        As JSON values: a hash of each file's size, times of change (of its contents, of anything) and inode, in order;
        their bytes together; when the last of them changed. What cannot be looked at counts as absent. Where storage is
        away, also when that was, so that it is never the same: behind what is away there may be anything.
    """
    names = list(paths)
    step = max(1, -(-len(names) // _THREADS))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="dalirefurb-stamps") as pool:
        some = (names[start : start + step] for start in range(0, len(names), step))
        of_folder = lru_cache(_FOLDERS)(_stamp_folder)
        parts = pool.map(lambda paths: b"".join(_stamp(path, of_folder) for path in paths), some)
        stamps = np.frombuffer(b"".join(parts), _STAMPS)  # Shape (number of files,).
    last_change = datetime.fromtimestamp(stamps["ctime_ns"].max(initial=0) / 1e9, timezone.utc)
    absent = np.flatnonzero(stamps == np.frombuffer(_ABSENT, _STAMPS)).tolist()
    away = any(_may_be_there(names[row]) for row in absent)
    return {
        "stamps": xxh3_128_hexdigest(stamps.tobytes()),
        "bytes": int(stamps["size"].sum()),
        "last_change": last_change.isoformat(timespec="milliseconds"),
        **({"away_at": datetime.now(timezone.utc).isoformat()} if away else {}),
    }


def _may_be_there(path: str) -> bool:
    """Tell whether a file that could not be asked may be there; what is no path, such as an address, is not."""
    try:
        os.stat(path)  # noqa: PTH116
    except ValueError:
        return False
    except OSError as error:
        return any(map(os.path.lexists, Path(path).parts[:1])) and is_outage(error)
    return True


def _stamp(path: str, of_folder: Callable[[str], bytes] | None = None) -> bytes:
    """Return what tells a file, or a folder with all files in it, from others of its name, as bytes of `_STAMPS`."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return _ABSENT
    if stat.S_ISDIR(status.st_mode):
        return (of_folder or _stamp_folder)(path)
    return _STAMP.pack(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _stamp_folder(path: str) -> bytes:
    """Return the bytes of all files in a folder, when the last one changed, and a hash of their names and stamps.

    Folders behind links count as any other; of one that was walked through before, where it lies.
    """
    digest, size, latest_ns = xxh3_64(), 0, 0
    walked = set[str]()
    for folder, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in walked:  # Links may lead in circles.
            digest.update(os.fsencode(f"{os.path.relpath(folder, path)}\0{real}"))
            folders.clear()
            continue
        walked.add(real)
        folders.sort()
        for name in sorted(names):
            file = str(Path(folder, name))
            stamp = _stamp(file)
            digest.update(os.fsencode(os.path.relpath(file, path)) + stamp)
            nbytes, _, changed_ns, _ = _STAMP.unpack(stamp)
            size, latest_ns = size + nbytes, max(latest_ns, changed_ns)
    return _STAMP.pack(size, latest_ns, latest_ns, digest.intdigest())


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
