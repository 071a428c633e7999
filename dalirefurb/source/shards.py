"""Bytes of shards: in memory maps, or behind requests for ranges."""

from __future__ import annotations

import errno
import glob
import itertools
import mmap
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import at_home
from dalirefurb.errors import ConfigurationError

Identity = dict[str, int | str]

Ranges = list["NDArray[np.uint8] | Exception"]
"""Bytes of each range, or why they cannot be read."""

_BRACES = re.compile(r"\{([^{}]*,[^{}]*|\d+\.\.\d+)\}")
_REQUESTS = 16
# What filesystems tell of a file that changes with its contents.
_CHANGING = (
    *("ETag", "etag", "VersionId", "version_id", "generation", "blob_id", "sha"),
    *("Content-MD5", "content_md5", "md5Hash", "crc32c", "Digest", "content_hash", "checksum"),
    *("mtime", "modified", "modify", "LastModified", "last_modified", "Last-Modified", "modificationTime", "updated"),
    *("created", "ino"),
)
# A file that is written twice within a tick of the kernel's clock has the same times.
_TICK_NS = 20_000_000


class Shards(ABC):
    """Files of which parts are read, from any thread.

    Attributes:
        urls: Paths or addresses of the files.
        identities: Properties that tell each file from another file of the same name, as JSON values; "size" is in
            bytes. Where a filesystem tells nothing but the size of a file, the file may have changed unnoticed.
    """

    urls: list[str]
    identities: list[Identity]

    @abstractmethod
    def open(self, shard: int) -> AbstractContextManager[IO[bytes]]:
        """Open one to be read from its beginning."""

    @abstractmethod
    def read(self, shards: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Ranges:
        """Read ranges of bytes; they are shorter where a file has shrunk, and of a server whatever it gives."""


class MappedShards(Shards):
    """Files on this machine. Ranges are read-only views, which stay as they are when another file takes the name."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.urls = list(paths)
        self.identities = []
        self._maps: list[mmap.mmap] = []
        for path in paths:
            self._map(path)
        self._views = [np.frombuffer(each, np.uint8) for each in self._maps]

    def __reduce__(self) -> tuple[Any, ...]:
        """Send names, not bytes: the files are mapped anew where the copy arrives."""
        return _mapped_again, (self.urls, self.identities)

    def _map(self, path: str) -> None:
        try:
            with Path(path).open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size == 0:
                    raise ConfigurationError(f"a shard must be a tar file, but {path} is empty: write or copy it again")
                self._maps.append(mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ))
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise ConfigurationError(
                    f"every shard needs an open file, but only {len(self._maps)} could be opened before {path}: "
                    "allow as many as there are shards and 1024 more by `ulimit -n` in the shell before"
                ) from error
            raise unreadable(path, error.strerror or str(error)) from error
        self.identities.append(
            {
                "size": status.st_size,
                "mtime_ns": status.st_mtime_ns,
                "ctime_ns": status.st_ctime_ns,
                "inode": status.st_ino,
            }
        )

    def open(self, shard: int) -> AbstractContextManager[IO[bytes]]:
        """Return the map itself, which is read like a file, once whoever writes it again would change its times."""
        age_ns = time.time_ns() - int(self.identities[shard]["ctime_ns"])
        if 0 <= age_ns < _TICK_NS:
            time.sleep((_TICK_NS - age_ns) / 1e9)
        self._maps[shard].seek(0)
        return nullcontext(cast(IO[bytes], self._maps[shard]))

    def read(self, shards: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Ranges:
        """Return views. Pages beyond the end of a file that has shrunk must not be touched."""
        return [
            self._views[shard][start : max(start, min(end, self._maps[shard].size()))]
            for shard, start, end in zip(shards, starts, ends, strict=True)
        ]


def _mapped_again(paths: list[str], identities: list[Identity]) -> MappedShards:
    """Map the files of a pickled source, which have to be the same."""
    shards = MappedShards(paths)
    for path, then, now in zip(paths, identities, shards.identities, strict=True):
        if then != now:
            raise ConfigurationError(
                f"a pickled source needs the files that it was made of, but {path} has been written again or is "
                f"another one here: make the source anew, in the process that reads it"
            )
    return shards


class RemoteShards(Shards):
    """Files on any filesystem that fsspec knows."""

    def __init__(self, urls: Sequence[str], options: Mapping[str, Any]) -> None:
        self.urls = list(urls)
        self._places = [_asked(url, partial(place, url, options)) for url in urls]
        with ThreadPoolExecutor(_REQUESTS) as pool:
            self.identities = list(pool.map(self._identify, range(len(urls))))

    def _identify(self, shard: int) -> Identity:
        filesystem, path = self._places[shard]
        info = _asked(self.urls[shard], partial(filesystem.info, path))
        if not info.get("size"):
            raise ConfigurationError(
                f"a shard must be a tar file of known size, but that of {self.urls[shard]} is {info.get('size')}: "
                "put a whole one on a server that tells sizes"
            )
        return {"size": int(info["size"]), **{key: str(info[key]) for key in _CHANGING if info.get(key)}}

    def open(self, shard: int) -> AbstractContextManager[IO[bytes]]:
        """Open a file that fetches ahead."""
        filesystem, path = self._places[shard]
        return cast(AbstractContextManager[IO[bytes]], filesystem.open(path, "rb"))

    def read(self, shards: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Ranges:
        """Fetch all ranges of a filesystem at once, where it can."""
        rows_of: dict[int, list[int]] = {}
        for row, shard in enumerate(shards):
            rows_of.setdefault(id(self._places[shard][0]), []).append(row)
        ranges: Ranges = [np.empty(0, np.uint8)] * len(shards)
        for rows in rows_of.values():
            filesystem = self._places[shards[rows[0]]][0]
            paths = [self._places[shards[row]][1] for row in rows]
            fetched = filesystem.cat_ranges(
                paths, [starts[row] for row in rows], [ends[row] for row in rows], on_error="return"
            )
            for row, content in zip(rows, fetched, strict=True):
                ranges[row] = content if isinstance(content, Exception) else np.frombuffer(content, np.uint8)
        return ranges


def place(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem of an address, and the path in it."""
    try:
        from fsspec.core import url_to_fs

        filesystem, path = url_to_fs(url, **options)
    except ImportError as error:
        raise ConfigurationError(
            f"{url} is read by a package that is not there ({error}): pip install fsspec, with s3fs for s3://, gcsfs "
            "for gs://, aiohttp for http://"
        ) from error
    except ValueError as error:
        raise unreadable(url, str(error)) from error
    return filesystem, path


def _asked(url: str, ask: Callable[[], Any]) -> Any:
    """Return what a filesystem answers, or refuse the address."""
    try:
        return ask()
    except ConfigurationError:
        raise
    except Exception as error:  # Every filesystem has its own.
        raise unreadable(url, f"{type(error).__name__}: {error}") from error


def _matching(pattern: str, options: Mapping[str, Any]) -> list[str]:
    """Return the names that a pattern with "*" stands for, sorted; any other name stands for itself."""
    remote = "://" in pattern
    # In addresses "?" and "[" have another meaning.
    if not ("*" in pattern if remote else glob.has_magic(pattern) and not Path(pattern).exists()):
        return [pattern]
    if remote:
        filesystem, path = _asked(pattern, partial(place, pattern, options))
        parts = pattern.split("::")  # As in "simplecache::zip://*.tar::all.zip".
        starred = next(number for number, part in enumerate(parts) if "*" in part)
        found = map(filesystem.unstrip_protocol, _asked(pattern, partial(filesystem.glob, path)))
        names = ["::".join([*parts[:starred], name, *parts[starred + 1 :]]) for name in found]
    else:
        names = glob.glob(pattern, recursive=True)  # noqa: PTH207 - it may be absolute
    if not names:
        raise ConfigurationError(f"a pattern must stand for shards, but {pattern} does for none: check its folder")
    return sorted(names)


def open_shards(urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: Mapping[str, Any]) -> Shards:
    """Open shards by paths, all of them, or by addresses with a protocol, all of them; braces and "*" are expanded.

    Raises:
        ConfigurationError: There are none, one is named twice, one cannot be opened, or paths and addresses are mixed.
    """
    try:
        given = [urls] if isinstance(urls, (str, os.PathLike)) else list(urls)
        names = [name for url in given for name in expand_braces(at_home(url))]
    except TypeError as error:
        raise ConfigurationError(
            f"urls must be paths or addresses, but are not ({error}): pass such as 'train-{{000..099}}.tar'"
        ) from error
    names = [found for name in names for found in _matching(name.removeprefix("file://"), options)]
    if not names:
        raise ConfigurationError(f"urls must name at least one shard, but are {urls!r}: check where they come from")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"every shard must be named once, but {twice} is named again: remove it from urls")
    remote = [name for name in names if "://" in name]
    if remote and len(remote) < len(names):
        local = next(name for name in names if "://" not in name)
        raise ConfigurationError(
            f"shards must all be local or all remote, but {local} and {remote[0]} are not: copy the ones to the others"
        )
    return RemoteShards(names, options) if remote else MappedShards(names)


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern with braces stands for, as shells do.

    >>> list(expand_braces("{train,val}-{098..100}.tar"))[:4]
    ['train-098.tar', 'train-099.tar', 'train-100.tar', 'val-098.tar']
    """
    # Literal texts at even places, what was in braces at odd ones.
    parts = _BRACES.split(pattern)
    choices = [_choices(part) if place % 2 else [part] for place, part in enumerate(parts)]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _choices(braces: str) -> list[str]:
    if "," in braces:
        return braces.split(",")
    first, last = braces.split("..")
    step = 1 if int(first) <= int(last) else -1
    padded = any(len(end) > 1 and end.startswith("0") for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in range(int(first), int(last) + step, step)]


def unreadable(url: str, reason: str) -> ConfigurationError:
    """Make the error that a shard cannot be read."""
    return ConfigurationError(
        f"every shard must be readable, but {url} is not ({reason}): check its address; train-{{000..099}}.tar stands "
        "for a hundred, train-*.tar for all that there are"
    )
