"""Kept: a source in front of a source, which never makes a sample twice."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb.checks import require
from dalirefurb.dali import Decoder, versions
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.image_batch import Images
from dalirefurb.keep.folder import KeepFolder
from dalirefurb.reading.inspector import Refused, decoded
from dalirefurb.reading.pillow_decoder import pillow_version
from dalirefurb.source.contract import NOT_AT_HAND, Source
from dalirefurb.source.levels import Levels
from dalirefurb.store.memory_budget import Budget, budget_bytes
from dalirefurb.system.cores import usable_cores

Form = Literal["decoded", "encoded"]
"""In which form samples are kept: as images, or as bytes that were read."""

Make = Callable[[NDArray[np.int64]], Sequence[NDArray[np.uint8]] | NDArray[np.uint8]]
"""Makes samples, (n,); of what is not to be kept it makes `NOT_AT_HAND`."""

_LEAST_PATIENCE_S = 1.0
_POLL_S = 0.002

_FILLED_AT_A_TIME = 64
_WAITING_THREADS = 2


class Kept(Source):
    """Samples of another source, each read or decoded once, and kept for ever, for all processes of a machine.

    What is served is the same, bit for bit, as without: labels, order and states are the other source's. Any number of
    processes, whatever they train, read and fill one folder at the same time: ranks of a run, runs beside each other,
    runs after each other. What comes first stays; where there is no more room, the rest comes from the other source
    each time. A file that was changed is read anew by whoever begins after that.

    With `form="decoded"` a loader whose decoding is the CPU's reads its crops from the images, and decodes nothing.
    They take 3 bytes a pixel, four to ten times what JPEG takes. With `form="encoded"` files that are far away are
    near. Both can be had: `Kept(Kept(far, "/local/files", form="encoded"), "/dev/shm/images")`.

    Args:
        source: The other source.
        path: Folder where samples are kept, made if need be: on a fast local disk, or in memory, such as below
            /dev/shm.
        form: "decoded": images, upright, as a loader decodes them; of a source whose samples are images already, these.
            "encoded": bytes as they were read.
        size: Bytes that the folder may take, such as "200GB", or a share of what is free there and what it holds.

    Raises:
        ConfigurationError: If an argument cannot work.
        StoreError: If the folder cannot be used, or holds another source's samples, or another form.
    """

    def __init__(
        self, source: Source, path: str | os.PathLike[str], *, form: Form = "decoded", size: Budget = "80%"
    ) -> None:
        require(isinstance(source, Source), "source", "a Source", source, "pass such as ImageFolder(folder)")
        require(
            isinstance(path, (str, os.PathLike)), "path", "the path of a folder", path, "pass such as '/local/keep'"
        )
        require(form in get_args(Form), "form", f"one of {get_args(Form)}", form, "'decoded' saves decoding, too")
        if form == "encoded" and not source.encoded:
            raise ConfigurationError(
                "form='encoded' is for sources of encoded samples, but this one gives images: pass form='decoded'"
            )
        self._source = source
        self._path = Path(os.fspath(path)).absolute()
        self._form, self._size = form, size
        self.labels, self.encoded, self.image_shape = source.labels, source.encoded, source.image_shape
        self.classes, self.value_range = source.classes, source.value_range
        self._start()
        self._folder()

    def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]]:
        """Read samples: what is kept where it lies, the others as the other source does."""
        rows = np.asarray(indices, np.int64)
        if self.encoded and self._form == "decoded":
            return [*self._source.read(rows)]
        return self._kept(rows, self._source.read, raises=True)

    def images(self, indices: NDArray[np.int64]) -> Images | None:
        """Return decoded images of encoded samples, which are decoded now where they are not kept."""
        rows = np.asarray(indices, np.int64)
        if not self.encoded:
            return None
        if self._form == "encoded":
            return self._source.images(rows)
        return self._kept(rows, self._decoded_now, raises=False)

    def fill(self, *, told: Callable[[int], object] = lambda done: None) -> int:
        """Keep all samples now that there is room for, with a thread for each core and some more.

        Args:
            told: Function that is called with the number of samples that have been looked at, from any thread.

        Returns:
            How many are kept.
        """
        folder, _ = self._folder()
        parts = np.array_split(np.arange(len(self)), -(-len(self) // _FILLED_AT_A_TIME))
        ask = self.images if self.encoded and self._form == "decoded" else self.read
        done = itertools.count()

        def look(part: NDArray[np.int64]) -> int:
            with suppress(SampleError, OSError):  # The loader's matter.
                ask(part)
            told(len(self) * (next(done) + 1) // len(parts))
            return int(folder.kept(part).sum())

        with ThreadPoolExecutor(usable_cores() + _WAITING_THREADS, thread_name_prefix="dalirefurb-keep") as pool:
            return sum(pool.map(look, parts))

    def name(self, index: int) -> str:
        """Tell where sample `index` is, as the other source does."""
        return self._source.name(index)

    def fingerprint(self) -> dict[str, Any]:
        """Identify the samples and their order, as the other source does: what is served is the same."""
        return self._source.fingerprint()

    def content(self) -> dict[str, Any]:
        """Identify what is behind the other source now."""
        return self._source.content()

    def stamps(self, indices: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Tell samples from what they were, as the other source does."""
        return self._source.stamps(indices)

    def __repr__(self) -> str:
        return f"Kept({self._source!r}, {str(self._path)!r}, form={self._form!r})"

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_opened", "_pid", "_lock", "_decoders")
        return {name: value for name, value in vars(self).items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._decoders = threading.local()
        self._opened: tuple[KeepFolder, NDArray[np.uint64] | None] | None = None
        self._pid = os.getpid()
        self._made_s = 0.1

    def _folder(self) -> tuple[KeepFolder, NDArray[np.uint64] | None]:
        """Return this process's opening of the folder, and a stamp of all samples together if they have none each."""
        if self._pid != os.getpid():  # Locks are the parent's.
            self._start()
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
        return self._opened

    def _open(self) -> tuple[KeepFolder, NDArray[np.uint64] | None]:
        identity: dict[str, Any] = {"source": self._source.fingerprint(), "form": self._form}
        if self._form == "decoded" and self.encoded:
            identity["versions"] = versions() | {"pillow": pillow_version()}
            identity["value_range"] = self.value_range
        free = shutil.disk_usage(_existing(self._path)).free
        data = self._path / "data"
        held = data.stat().st_blocks * 512 if data.exists() else 0
        most_bytes = budget_bytes(self._size, available=lambda: free + held)
        folder = KeepFolder(self._path, identity, len(self), most_bytes)
        if self._source.stamps(np.zeros(0, np.int64)) is not None:
            return folder, None
        content = json.dumps(self._source.content(), sort_keys=True).encode()
        return folder, np.array([xxh3_64_intdigest(content)], np.uint64)

    def _stamps(
        self, folder: KeepFolder, indices: NDArray[np.int64], of_all: NDArray[np.uint64] | None
    ) -> NDArray[np.uint64]:
        """Return the stamps of those samples that are looked at for the first time, (n,)."""
        if of_all is not None:
            return np.repeat(of_all, len(indices))
        stamps = np.zeros(len(indices), np.uint64)
        fresh = folder.fresh(indices)
        if fresh.any():
            each = self._source.stamps(indices[fresh])
            assert each is not None
            stamps[fresh] = each
        return stamps

    def _kept(self, indices: NDArray[np.int64], make: Make, *, raises: bool) -> Images:
        """Return samples, and keep those that are not kept yet.

        Args:
            indices: Indices of the samples, int64 of shape (n,).
            make: Function that makes some of them.
            raises: Whether those for which there is no room are made, too; else they are `NOT_AT_HAND`.
        """
        folder, of_all = self._folder()
        stamps = self._stamps(folder, indices, of_all)
        found, kept = folder.find(indices, stamps)
        if kept.all():
            return found
        rows = np.flatnonzero(~kept)
        _, first = np.unique(indices[rows], return_index=True)
        missing = rows[np.sort(first)]
        samples = self._filled(folder, indices[missing], stamps[missing], make)
        rest = [index for index in indices[missing].tolist() if index not in samples]
        if rest:
            made = make(np.array(rest)) if raises else [NOT_AT_HAND] * len(rest)
            samples.update(zip(rest, made, strict=True))
        others = Images([samples[index] for index in indices[rows].tolist()])
        here = np.flatnonzero(kept)
        return Images.joined(len(indices), [(here, found.chosen(here)), (rows, others)])

    def _filled(
        self, folder: KeepFolder, indices: NDArray[np.int64], stamps: NDArray[np.uint64], make: Make
    ) -> dict[int, NDArray[np.uint8]]:
        """Make samples that are not kept, each once, and keep them; what others make now is waited for.

        Returns:
            Samples by their indices: not all, where there is no room, or others take too long.
        """
        samples: dict[int, NDArray[np.uint8]] = {}
        waits_until = None
        while len(indices) and not folder.full:
            claimed = folder.claim(indices.tolist())
            try:
                rows = np.flatnonzero(np.isin(indices, claimed))
                there, kept = folder.find(indices[rows], stamps[rows])  # Somebody may just have kept it.
                samples.update((int(indices[row]), there[place]) for place, row in enumerate(rows) if kept[place])
                if len(rows := rows[~kept]):
                    samples.update(self._made(folder, indices[rows], stamps[rows], make))
            finally:
                folder.release(claimed)
            now = time.monotonic()
            if claimed or waits_until is None:
                waits_until = now + max(_LEAST_PATIENCE_S, len(indices) * self._made_s)
            elif now > waits_until:
                break
            else:
                time.sleep(_POLL_S)
            left = np.array([index not in samples for index in indices.tolist()])
            indices, stamps = indices[left], stamps[left]
            there, kept = folder.find(indices, stamps)
            samples.update((int(indices[row]), there[row]) for row in np.flatnonzero(kept).tolist())
            indices, stamps = indices[~kept], stamps[~kept]
        return samples

    def _made(
        self, folder: KeepFolder, indices: NDArray[np.int64], stamps: NDArray[np.uint64], make: Make
    ) -> dict[int, NDArray[np.uint8]]:
        """Make samples that are claimed, and keep them."""
        began = time.monotonic()
        samples = dict(zip(indices.tolist(), make(indices), strict=True))
        for (index, sample), stamp in zip(samples.items(), stamps.tolist(), strict=True):
            if sample is not NOT_AT_HAND:
                folder.put(index, stamp, sample)
        self._made_s = (time.monotonic() - began) / len(samples)
        return samples

    def _decoded_now(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        """Read and decode samples; what cannot be is left to the loader, which says why, or does without."""
        own = self._decoders
        if not hasattr(own, "decode"):
            own.decode = Decoder()
        try:
            encoded = [*self._source.read(indices)]
        except SampleError:
            if len(indices) == 1:
                return [NOT_AT_HAND]
            return [image for index in indices for image in self._decoded_now(index[np.newaxis])]
        except Exception:  # A loader asks again, and has patience.
            return [NOT_AT_HAND] * len(indices)
        return [
            self._image(index, content, own.decode) for index, content in zip(indices.tolist(), encoded, strict=True)
        ]

    def _image(self, index: int, encoded: NDArray[np.uint8], decode: Decoder) -> NDArray[np.uint8]:
        try:
            return decoded(encoded, Levels(self.value_range), self.name(index), decode)
        except Refused:
            return NOT_AT_HAND


def _existing(path: Path) -> Path:
    """Return a folder, or the first one above it that is there."""
    return next(each for each in (path, *path.parents) if each.exists())
