"""Kept: a source in front of a source, which never makes a sample twice."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from dalirefurb.augment.stage import Stage
from dalirefurb.calls import Words
from dalirefurb.checks import path_of, require
from dalirefurb.dali import Decoder, versions
from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.image_batch import Images
from dalirefurb.keep.folder import FILES, KeepFolder
from dalirefurb.keep.forms import Planes, Prefix, planes_of
from dalirefurb.keep.record import MIXER
from dalirefurb.reading.inspector import Refused, decoded
from dalirefurb.reading.pillow_decoder import pillow_version
from dalirefurb.source.contract import NOT_AT_HAND, DerivedSource, Source, digest_of, spread, without_targets
from dalirefurb.source.levels import Levels
from dalirefurb.source.storage import is_page
from dalirefurb.system.processes import local_processes
from dalirefurb.system.resources import Budget, available_bytes, budget_bytes, usable_cores

Form = Literal["decoded", "planes", "encoded"] | Sequence[Stage]
"""In which form samples are kept: as images, as images in half the bytes, as bytes that were read, or as what the first
stages of a recipe leave."""

Make = Callable[[NDArray[np.int64]], Sequence[NDArray[np.uint8] | Planes] | NDArray[np.uint8]]
"""Makes samples, (n,); of what is not to be kept it makes `NOT_AT_HAND`."""

_LEAST_PATIENCE_S, _PATIENCE_EACH_S = 1.0, 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_SAMPLED = 16
_MEMORY = "/dev/shm"

_FILLED_AT_A_TIME = 64
_WAITING_THREADS = 2


class Kept(DerivedSource):
    """Samples of another source, each read or decoded once, and kept for ever, for all processes of a machine.

    What is served is the same, bit for bit, as without: labels, order and states are the other source's. Any number of
    processes, whatever they train, read and fill one folder at the same time: ranks of a run, runs beside each other,
    runs after each other. What comes first stays; where there is no more room, the rest comes from the other source
    each time. A file that was changed is read anew by whoever begins after that.

    Which form to take is in docs/how-to/keep.md. With stages for a form recipes have to begin with them, and an image
    that would have more pixels than a loader's default allows after one of them is a bad sample, also where a crop
    follows.

    Args:
        source: The other source.
        path: Folder where samples are kept, made if need be: on a fast local disk, or in memory, such as below
            /dev/shm. Or several in a list, on a disk each: a hash of its index says in which of them a sample is.
        form: "decoded": images, upright, as a loader decodes them, 3 bytes a pixel; of a source whose samples are
            images already, these. "planes": the same images, those of JPEGs of 4:2:0 in half the bytes, and those in
            grey in a third, as the planes that their files have. "encoded": bytes as they were read. Or the first
            stages of recipes, of which none is random, such as `recipe.stages[:2]`: what they leave, by the kernels of
            a loader; targets would not move along.
        size: Bytes that each folder may take, such as "200GB", or a share of what is free there and what it holds.

    Raises:
        ConfigurationError: If an argument cannot work.
        StoreError: If the folder cannot be used, or holds another source's samples, or another form.
    """

    NEEDED: ClassVar[Words] = {"path": "pass a folder to be made, on a fast local disk"}

    def __init__(
        self,
        source: Source,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        form: Form = "decoded",
        size: Budget = "80%",
    ) -> None:
        super().__init__(source)
        paths: Sequence[Any] = path if isinstance(path, (list, tuple)) else [path]
        holds = len(paths) > 0 and all(isinstance(each, (str, os.PathLike)) for each in paths)
        require(holds, "path", "the path of a folder", path, "pass such as '/local/keep', or several in a list")
        if source.prefix:
            raise ConfigurationError(
                f"a keep is of a source of images as they are, but this one has gone through stages already, "
                f"{', '.join(stage.name for stage in source.prefix)}: keep what is below it"
            )
        self._prefix = Prefix(form, source) if isinstance(form, (list, tuple)) else None
        wanted = ("decoded", "planes", "encoded")
        holds = self._prefix is not None or form in wanted
        require(holds, "form", f"one of {wanted}, or stages", form, "'decoded' saves decoding, too")
        if self._prefix is None and form != "decoded" and not source.encoded:
            raise ConfigurationError(
                f"form={form!r} is for sources of encoded samples, but this one gives images: pass form='decoded'"
            )
        if form == "planes" and find_spec("numba") is None:
            raise ConfigurationError(
                "form='planes' needs the package numba, which makes RGB of them: pass form='decoded'"
            )
        self._paths = [path_of(each).absolute() for each in paths]
        self._form, self._size = "stages" if self._prefix else str(form), size
        self.planes |= form == "planes"
        if self._prefix is not None:
            self.encoded, self.image_shape, self.prefix = False, self._prefix.image_shape, self._prefix.stages
        self._start()
        self._folders()

    def read(self, indices: NDArray[np.int64]) -> Sequence[NDArray[np.uint8]]:
        """Read samples: what is kept where it lies, the others as the other source does."""
        rows = np.asarray(indices, np.int64)
        if self.encoded and self._form != "encoded":
            return [*self._source.read(rows)]
        return self._kept(rows, self._source.read if self._prefix is None else self._through_prefix, raises=True)

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
        folders = self._folders()
        parts = np.array_split(np.arange(len(self)), -(-len(self) // _FILLED_AT_A_TIME))
        ask = self.images if self.encoded and self._form != "encoded" else self.read
        done = itertools.count()

        def keep(part: NDArray[np.int64]) -> None:
            if all(folder.full for folder in folders):
                return
            try:
                ask(part)
            except Exception:  # The loader's matter; it may be one of them.
                for half in np.array_split(part, 2) if len(part) > 1 else ():
                    keep(half)

        def look(part: NDArray[np.int64]) -> int:
            keep(part)
            told(len(self) * (next(done) + 1) // len(parts))
            return sum(int(folder.kept(part[rows]).sum()) for folder, rows in self._parted(part))

        with ThreadPoolExecutor(usable_cores() + _WAITING_THREADS, thread_name_prefix="dalirefurb-keep") as pool:
            return sum(pool.map(look, parts))

    def content(self) -> dict[str, Any]:
        """Identify what is behind the samples now; what is kept of anything else is not served any more."""
        content = super().content()
        if self._of_all[0]:
            self._of_all[:] = xxh3_64_intdigest(json.dumps(content, sort_keys=True).encode()) | 1
        self.look_anew()
        return content

    def look_anew(self) -> None:
        super().look_anew()
        for folder in self._opened:
            folder.doubt()

    def fingerprint(self) -> dict[str, Any]:
        """Identify the samples and their order, as the other source does: what is served is the same."""
        own, theirs = self.labels, self._source.labels
        if own is theirs or np.array_equal(own, theirs):
            return self._source.fingerprint()
        return {"source": "Kept", "of": self._source.fingerprint(), "labels": digest_of(own)}

    def __repr__(self) -> str:
        form = repr(self._form) if self._prefix is None else f"[{', '.join(map(str, self._prefix.stages))}]"
        paths = [*map(str, self._paths)]
        return f"Kept({self._source!r}, {paths if len(paths) > 1 else paths[0]!r}, form={form})"

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_opened", "_of_all", "_lock", "_decoders", "_levels")
        return {name: value for name, value in vars(self).items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._decoders = threading.local()
        self._levels = Levels(self.value_range)
        self._opened: list[KeepFolder] = []
        self._of_all = np.zeros(1, np.uint64)
        _STARTED.add(self)
        self._longest_s = 0.0

    def _folders(self) -> list[KeepFolder]:
        """Return this process's openings of the folders."""
        with self._lock:
            self._opened = self._opened or self._open()
        return self._opened

    def _parted(self, indices: NDArray[np.int64]) -> Iterator[tuple[KeepFolder, NDArray[np.int64]]]:
        """Yield each folder in which some samples belong, with their rows."""
        folders = self._folders()
        owners = (indices.astype(np.uint64) * MIXER >> np.uint64(32)) % np.uint64(len(folders))
        for number, folder in enumerate(folders):
            if len(rows := np.flatnonzero(owners == number)):
                yield folder, rows

    def _open(self) -> list[KeepFolder]:
        form = self._form if self._prefix is None else self._prefix.fingerprint()
        identity: dict[str, Any] = {"source": without_targets(self._source.fingerprint()), "form": form}
        if self._form != "encoded" and self._source.encoded:
            identity["versions"] = versions() | {"pillow": pillow_version()}
            identity["value_range"] = self.value_range
        sampled: list[int] = []
        self._source.look_anew()
        if self._source.stamps(np.zeros(0, np.int64)) is None:
            self._of_all[:] = 1
            self.content()
        else:
            sampled = self._stamps(np.array(spread(len(self), _SAMPLED))).tolist()
        count = len(self._paths)
        return [
            KeepFolder(path, identity | ({"part": [nth, count]} if count > 1 else {}), len(self), most(), sampled, most)
            for nth, path in enumerate(self._paths)
            for most in [_most_bytes(self._size, path)]
        ]

    def _stamps(self, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Stamp samples as they are now, by one stamp of all together if they have none each, shape (n,)."""
        if self._of_all[0]:
            return np.repeat(self._of_all, len(indices))
        stamps = self._source.stamps(indices)
        assert stamps is not None
        return stamps

    def _kept(self, indices: NDArray[np.int64], make: Make, *, raises: bool) -> Images:
        """Return samples, and keep those that are not kept yet.

        Those for which there is no room are made, too, where that `raises` what is wrong; else they are `NOT_AT_HAND`.
        """
        parts = [
            (rows, self._kept_in(folder, indices[rows], make, raises=raises)) for folder, rows in self._parted(indices)
        ]
        return Images.joined(len(indices), parts)

    def _kept_in(self, folder: KeepFolder, indices: NDArray[np.int64], make: Make, *, raises: bool) -> Images:
        """Do so for samples that belong in one folder."""
        found, kept = folder.find(indices, self._stamps)
        if kept.all():
            return found
        rows = np.flatnonzero(~kept)
        missing = indices[rows[np.sort(np.unique(indices[rows], return_index=True)[1])]]
        samples = {} if folder.full else self._filled(folder, missing, make)
        rest = [index for index in missing.tolist() if index not in samples]
        if rest:
            made: Any = make(np.array(rest)) if raises else [NOT_AT_HAND] * len(rest)
            samples.update(zip(rest, made, strict=True))
        others = Images([samples[index] for index in indices[rows].tolist()])
        here = np.flatnonzero(kept)
        return Images.joined(len(indices), [(here, found.chosen(here)), (rows, others)])

    def _filled(self, folder: KeepFolder, indices: NDArray[np.int64], make: Make) -> dict[int, NDArray[np.uint8]]:
        """Make samples that are not kept, each once, and keep them; what others make now is waited for.

        Returns:
            Samples by their indices: not all, where there is no room, or others take too long.
        """
        samples: dict[int, NDArray[np.uint8]] = {}
        waits_until, pause_s = 0.0, _FIRST_PAUSE_S
        while True:
            claimed = folder.claim(indices.tolist())
            try:
                if claimed:
                    mine = np.array(claimed)
                    there, kept = folder.find(mine, self._stamps)  # Somebody may just have kept it.
                    samples.update((int(mine[row]), there[row]) for row in np.flatnonzero(kept).tolist())
                    if not kept.all():
                        samples.update(self._made(folder, mine[~kept], make))
            finally:
                folder.release(claimed)
            indices = np.array([index for index in indices.tolist() if index not in samples], np.int64)
            there, kept = folder.find(indices, self._stamps)
            samples.update((int(indices[row]), there[row]) for row in np.flatnonzero(kept).tolist())
            indices = indices[~kept]
            if not len(indices) or folder.full:
                break
            now = time.monotonic()
            # A thread of this process ends, or is waited for anyway; another process may have been stopped.
            if claimed or not waits_until or folder.makes(indices.tolist()):
                waits_until = now + max(_LEAST_PATIENCE_S, len(indices) * _PATIENCE_EACH_S, 2 * self._longest_s)
            elif now > waits_until:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return samples

    def _made(self, folder: KeepFolder, indices: NDArray[np.int64], make: Make) -> dict[int, NDArray[np.uint8]]:
        """Make samples that are claimed, and keep them."""
        began, stamps = time.monotonic(), self._stamps(indices)  # Before it is read: it may change meanwhile.
        samples: dict[int, NDArray[np.uint8]] = {}
        for index, stamp, made in zip(indices.tolist(), stamps.tolist(), [*make(indices)], strict=True):
            sample, planes = (made.image, made.content) if isinstance(made, Planes) else (made, None)
            samples[index] = sample
            if self._is_to_be_kept(sample):
                folder.put(index, stamp, sample, planes)
        self._longest_s = max(self._longest_s, time.monotonic() - began)
        return samples

    def _is_to_be_kept(self, sample: Any) -> bool:
        """Tell whether it is a sample as a source should give it; others are the loader's matter."""
        if not isinstance(sample, np.ndarray) or sample.dtype != np.uint8 or not sample.size:
            return False
        if self._form == "encoded":
            return sample.ndim == 1 and not is_page(sample)
        return sample.ndim == 3 and sample.shape[2] == 3

    def _decoded_now(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8] | Planes]:
        """Read and decode samples; what cannot be is left to the loader, which says why, or does without."""
        own = self._decoder()
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

    def _through_prefix(self, indices: NDArray[np.int64]) -> Images:
        """Read and decode samples, and have the first stages make images of them.

        Raises:
            SampleError: If one cannot be used.
        """
        assert self._prefix is not None
        own, encoded = self._decoder(), self._source.encoded
        if not hasattr(own, "kernels"):
            own.kernels = self._prefix.kernels()
        images = list[NDArray[np.uint8]]()
        for index, sample in zip(indices.tolist(), self._source.read(indices), strict=True):
            reason, lasting = "the source must return images, uint8 of shape (height, width, 3)", False
            try:
                image = decoded(sample, self._levels, self.name(index), own.decode) if encoded else sample
            except Refused as refused:
                reason, lasting, image = refused.reason, True, NOT_AT_HAND
            if not self._is_to_be_kept(image):
                raise SampleError(index, self.name(index), reason, lasting=lasting)
            images.append(np.ascontiguousarray(image))
        if refusal := self._prefix.refusal(images):
            index = int(indices[refusal[0]])
            raise SampleError(index, self.name(index), refusal[1])
        return self._prefix.made(images, own.kernels)

    def _decoder(self) -> threading.local:
        """Return what belongs to this thread, with its decoder."""
        if not hasattr(self._decoders, "decode"):
            self._decoders.decode = Decoder()
        return self._decoders

    def _image(self, index: int, encoded: NDArray[np.uint8], decode: Decoder) -> NDArray[np.uint8] | Planes:
        try:
            image = decoded(encoded, self._levels, self.name(index), decode)
        except Refused:
            return NOT_AT_HAND
        return (planes_of(encoded, image) if self._form == "planes" else None) or image


def _most_bytes(size: Budget, folder: Path) -> Callable[[], int]:
    """Return what tells the bytes that a folder may take: a share is of what is free there, and of what it holds."""

    def available() -> int:
        held = 0
        for name in FILES:
            with suppress(OSError):  # Another process may just have put one in the place of another.
                held += (folder / name).stat().st_blocks * 512
        free = shutil.disk_usage(next(filter(os.path.exists, (folder, *folder.parents)))).free
        if folder.is_relative_to(_MEMORY) and (memory := available_bytes()) is not None:
            free = min(free, memory * local_processes())
        return free + held

    return lambda: budget_bytes(size, available=available)


_STARTED = weakref.WeakSet[Kept]()


def _start_in_child() -> None:
    """Have a forked child open folders of its own, as what was unpickled does: locks are the parent's."""
    for kept in [*_STARTED]:
        kept.__setstate__({})


os.register_at_fork(after_in_child=_start_in_child)
