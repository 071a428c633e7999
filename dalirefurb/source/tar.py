"""Samples in tar files, read at random, each at its place, which an index tells."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import flag, path_of, require
from dalirefurb.errors import ConfigurationError, SampleError, warn
from dalirefurb.source.contract import Source, digest_of, fingerprint_of_names
from dalirefurb.source.files import EXTENSIONS, PathLike
from dalirefurb.source.levels import ValueRange, checked_range
from dalirefurb.source.shards import MappedShards, Shards, open_shards, unreadable
from dalirefurb.source.storage import is_page
from dalirefurb.source.tar_scan import Scan, header_hash, scan, split_name

_SCANS = 8


class TarShards(Source):
    """Images in uncompressed tar files in WebDataset's layout: members of one key are a sample.

    Shards are indexed once, until size, times or inode of one change, or what a filesystem tells of a remote one, such
    as an ETag; where that is the size alone, nothing is remembered. They must stay as they are: local ones are mapped
    into memory, and keep their bytes while another file takes their name. An image whose header is not the one that was
    indexed cannot be read, and its shard is indexed anew by the next source.

    A warning tells what is left out, if anything is.

    Args:
        urls: Paths, or addresses that fsspec knows, of one or several shards; "train-{000..099}.tar" is a hundred,
            `train-*.tar` all that there are, sorted.
        image: The extension of images; any of an image file if not given.
        label: The extension of labels: texts, numbers or names, which are numbered in sorted order and become
            `classes`. "json.name" is what `name` says in a JSON file, "json" what that says as a whole. Or a function
            from a key to a label.
        index: A folder for the index files, which otherwise are beside the shards, or in the user's cache folder
            where shards are remote or their folder cannot be written.
        progress: Show a bar while shards are indexed, on a terminal.
        storage_options: Options for the fsspec filesystem.
        value_range: Numbers of black and white in images deeper than 8 bits, see `Source`.

    Attributes:
        skipped: Number of samples that are left out: those without an image, images that have a dot before that of
            their extension, and hidden images.

    Raises:
        ConfigurationError: A shard is no whole uncompressed tar file, holds a key twice or an image without a label,
            or there is no image.
    """

    encoded = True

    def __init__(
        self,
        urls: PathLike | Iterable[PathLike],
        *,
        image: str | None = None,
        label: str | Callable[[str], Any] = "cls",
        index: PathLike | None = None,
        progress: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        value_range: ValueRange | None = None,
    ) -> None:
        self.value_range = checked_range(value_range)
        require(image is None or isinstance(image, str), "image", "an extension", image, "pass such as 'jpg'")
        wanted = "an extension, or a function from a key to a label"
        require(isinstance(label, str) or callable(label), "label", wanted, label, "pass such as 'cls'")
        progress = flag("progress", progress)
        self._shards = open_shards(urls, storage_options or {})
        written = label if isinstance(label, str) else None
        self._index = IndexFiles(None if index is None else path_of(index))
        scans = _scans(self._shards, self._index, image=image, label=written, progress=progress)
        self._members = [member for each in scans for member in each.members]
        self._offsets = np.array([offset for each in scans for offset in each.offsets], np.int64)
        self._sizes = np.array([size for each in scans for size in each.sizes], np.int64)
        self._header_bytes = np.array([nbytes for each in scans for nbytes in each.header_bytes], np.int64)
        self._headers = np.array([header for each in scans for header in each.headers], np.uint32)
        self._shard_of = np.repeat(np.arange(len(scans)), [len(each.members) for each in scans])
        endings = ", ".join(sorted(EXTENSIONS)) if image is None else f".{image}"
        self.skipped, reasons = _left_out(self._shards.urls, scans, endings)
        shards = f"the {len(scans)} from {self._shards.urls[0]} on"
        if not self._members:
            raise ConfigurationError(
                f"shards must hold at least one image, but {shards} hold none, but {reasons}: check urls"
            )
        if reasons:
            warn(f"of the shards, {shards}, is left out: {reasons}")
        values = [value for each in scans for value in each.labels]
        if not isinstance(label, str):
            values = [label(split_name(member)[0]) for member in self._members]
        self._take_labels(values, len(values), "images")

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Return read-only views of local shards, or fetch."""
        rows = self._checked(indices)
        starts, sizes, headers = (each[rows] for each in (self._offsets, self._sizes, self._header_bytes))
        ranges = self._shards.read(
            self._shard_of[rows].tolist(), (starts - headers).tolist(), (starts + sizes).tolist()
        )
        return [self._whole(*row) for row in zip(rows, sizes.tolist(), headers.tolist(), ranges, strict=True)]

    def _whole(
        self, index: int, size: int, header_bytes: int, content: NDArray[np.uint8] | Exception
    ) -> NDArray[np.uint8]:
        """Return an image, of what was read from where its header begins."""
        if isinstance(content, Exception):
            raise OSError(f"{self.name(index)}: {type(content).__name__}: {content}") from content
        image = content[header_bytes:]
        if len(image) == size and header_hash(content[:header_bytes].data) == self._headers[index]:
            if size == 0:
                raise SampleError(index, self.name(index), "is empty")
            return image
        if is_page(content):
            why = f"a page came: {content[:64].tobytes()!r}"
        elif len(image) > size:
            why = "the server ignored the range, but shards need one that gives ranges"
        elif len(image) < size:
            mapped = isinstance(self._shards, MappedShards)
            why = "its shard has been cut; start again" if mapped else "the rest is lost"
        else:
            self._index.forget(self._shards.urls[self._shard_of[index]])
            why = "this is not where it was indexed: its shard has been written again; start again"
        raise OSError(f"{self.name(index)} must have {size} bytes, but {len(image)} are there: {why}")

    def name(self, index: int) -> str:
        return f"{self._shards.urls[self._shard_of[index]]}:{self._members[index]}"

    def fingerprint(self) -> dict[str, Any]:
        """Hash the members' names and sizes, and the labels. Names of shards and contents of images do not count."""
        return {
            **fingerprint_of_names("TarShards", self._members, self.labels),
            "sizes": digest_of(self._sizes),
        }

    def content(self) -> dict[str, Any]:
        """Hash what tells each shard from another of its name: sizes, times and inodes, or what a filesystem tells."""
        identities = json.dumps(self._shards.identities, sort_keys=True)
        return {
            "shards": digest_of(identities),
            "bytes": sum(int(identity["size"]) for identity in self._shards.identities),
        }


def _left_out(urls: list[str], scans: list[Scan], endings: str) -> tuple[int, str]:
    """Count what is in shards and not served, and say what it is and why."""
    whats = {
        "no image": f"sample without an image, which ends in {endings}",
        "dots": "image with a dot before that of the extension, where a sample's key ends: name it a-1.jpg, not "
        "a.1.jpg, or choose by image='1.jpg', or by image='jpg' where a.jpg is the image",
        "hidden": "image hidden by a dot",
        "no extension": "member without an extension",
        "empty": "shard without members",
    }
    total = 0
    said = []
    for reason, what in whats.items():
        found = [
            (url, *scan.left_out[reason]) for url, scan in zip(urls, scans, strict=True) if reason in scan.left_out
        ]
        if found:
            count = sum(each for _, each, _ in found)
            total += count * (reason in ("no image", "dots", "hidden"))
            url, _, name = found[0]
            what = what if count == 1 else what.replace(" ", "s ", 1)
            said.append(f"{count} {what} (the first: {url}{name and ':'}{name})")
    return total, "; ".join(said)


def _scans(shards: Shards, files: IndexFiles, *, image: str | None, label: str | None, progress: bool) -> list[Scan]:
    """Return what each shard holds, as remembered or as its headers tell."""
    from tqdm import tqdm

    keys = [{"shard": identity, "image": image, "label": label} for identity in shards.identities]
    # Only a size would not tell a shard from what it was.
    known = [len(identity) > 1 for identity in shards.identities]
    scans = [files.load(url, key) if told else None for url, key, told in zip(shards.urls, keys, known, strict=True)]
    new = [shard for shard, known in enumerate(scans) if known is None]
    sizes = [int(identity["size"]) for identity in shards.identities]
    failures = []
    # Threads, because headers far apart are waited for, one by one.
    pool = ThreadPoolExecutor(_SCANS, thread_name_prefix="dalirefurb-index")
    bar = tqdm(
        total=sum(sizes[shard] for shard in new),
        desc="indexing shards",
        unit="B",
        unit_scale=True,
        leave=False,
        delay=1,
        disable=None if progress else True,
    )

    def index(shard: int) -> Scan:
        url = shards.urls[shard]
        try:
            with shards.open(shard) as file:
                found = scan(file, url, sizes[shard], image=image, label=label, advance=bar.update)
        except ConfigurationError:
            raise
        except Exception as error:  # Every filesystem has its own.
            raise unreadable(url, f"{type(error).__name__}: {error}") from error
        failure = files.save(url, keys[shard], found) if known[shard] else None
        if failure is not None:
            failures.append(failure)
        return found

    with bar:
        try:
            for shard, found in zip(new, pool.map(index, new), strict=True):
                scans[shard] = found
        finally:
            pool.shutdown(cancel_futures=True)
    if failures:
        warn(
            f"the index of {len(failures)} shards cannot be remembered ({failures[0]}) and will be made again at the "
            "next start: pass a folder that can be written as index=",
        )
    return [each for each in scans if each is not None]


_FORMAT = 3


class IndexFiles:
    """Index files of shards. One is believed if shard and question are the same as when it was written.

    Without a folder of their own they are beside their shards, or where that cannot be, in the user's cache folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, url: str, key: dict[str, Any]) -> Scan | None:
        """Return what was saved for a shard under an equal key, if anything."""
        for path in self._paths(url):
            # There is none, or it is damaged.
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                content = json.loads(path.read_text("ascii"))
                if content.pop("key") == {"format": _FORMAT, **key}:
                    return Scan(**content)
        return None

    def save(self, url: str, key: dict[str, Any], scan: Scan) -> OSError | None:
        """Save where it is possible; return why it was nowhere possible."""
        content = json.dumps({"key": {"format": _FORMAT, **key}, **vars(scan)})
        failure = None
        for path in self._paths(url):
            failure = _write(path, content)
            if failure is None:
                break
        return failure

    def forget(self, url: str) -> None:
        """Remove what was saved for a shard, where that is possible."""
        for path in self._paths(url):
            with suppress(OSError):
                path.unlink()

    def _paths(self, url: str) -> list[Path]:
        """Return where a shard's index may be, best first."""
        whole = url if "://" in url else os.path.abspath(url)  # noqa: PTH100
        digest = hashlib.blake2b(os.fsencode(whole), digest_size=8).hexdigest()
        name = url.rpartition("/")[2]
        if self._folder is not None:
            return [self._folder / f"{name}.{digest}.index.json"]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cached = cache / "dalirefurb" / "shards" / f"{name}.{digest}.index.json"
        return [cached] if "://" in url else [Path(f"{url}.index.json"), cached]


def _write(path: Path, content: str) -> OSError | None:
    """Write so that others see the whole file or none; return why it is not possible."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(content, "ascii")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        return error
    return None
