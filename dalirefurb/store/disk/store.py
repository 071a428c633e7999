"""DiskStore: samples in one file, whose slots say what they hold, beyond the process that made them.

How it is intended to behave (if the code differs, that is a bug):

* A sample is lent only if every byte of it is as it was put, which is looked at each time; anything else is "not
  found", and counted.
* Opened again for the same fingerprint, the store holds what it held, however the process before it ended.
* Once open, trouble with the disk costs hits and one warning, never an error: a store that cannot write goes on
  lending, one that cannot read holds nothing.
* What others do to the file costs no more than that either, but for two cases, both of samples that are lent where
  they lie, in the page cache. A byte that somebody changes after a sample was looked at, and before its lease is
  released, is served as it is then; the next time the sample is not found. And whoever cuts the file short meanwhile
  ends the process or, at best, has `Lease.release` raise an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Condition, Lock

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import StoreError
from dalirefurb.image_batch import Image, Images
from dalirefurb.store.base import Keys, Lease, Store, checked_keys
from dalirefurb.store.disk import upkeep
from dalirefurb.store.disk.contents import DiskContents
from dalirefurb.store.spec import StoreSpec


class DiskStore(Store):
    """Keeps samples in a file of its own, set aside at once; one process uses it at a time, so each rank needs one.

    Nothing is flushed: samples outlive the process at once, the machine once the kernel has written them. Where memory
    has room for twice the file, samples that the page cache has are lent where they lie, else they are copied. The file
    is locked, but a lock keeps out only those who ask: nobody else may write to it. What was changed before a sample is
    lent makes it a miss, what is changed while it is lent where it lies is served; a copy does not change any more. To
    compare checksums again after each use would take an eighth of what serving a hit takes. A forked child must not use
    the store that its parent has open. `inspect`, `verify` and `purge` concern a path: see `upkeep`.

    A loader opens it for what its source's files, or array, are then, see `Source.content`: sizes, times of change and
    inodes of all files. Where one was written, replaced, copied (`cp -a` too) or just touched, opening raises: `purge`
    the store or take another path.

    Args:
        path: The file. It is made if there is none; its folder must exist.

    Attributes:
        corrupt: Number of samples that were found damaged, and so reported as not found.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = Lock()
        self._unused = Condition(self._lock)
        self._contents: DiskContents | None = None
        self.corrupt = 0

    inspect = staticmethod(upkeep.inspect)
    verify = staticmethod(upkeep.verify)
    purge = staticmethod(upkeep.purge)

    def open(self, spec: StoreSpec) -> None:
        """Set the file aside, as `Store.open` says; another number of slots keeps of the contents what fits.

        Raises:
            StoreError: The file cannot be used, is in use, holds samples of another fingerprint, or does not fit.
            ConfigurationError: The fingerprint is too long.
        """
        with self._lock:
            if self._contents is not None:
                self._contents.spec.check_same(spec)
                return
            self._contents = DiskContents(self._path, spec)

    def get(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Lease:
        """Lend samples, as `Store.get` says: where they lie if the page cache has them, else in memory of their own."""
        keys = checked_keys(indices, versions)
        with self._using() as contents:
            with self._lock:
                slots = contents.find(keys)
                found = slots >= 0
                pinned = slots[found]
                contents.slot_table.pin(pinned)
                records = contents.records.take(pinned)
            try:
                whole, images, buffer = contents.file.reader.read(records)
            except OSError as error:
                whole, images, buffer = np.zeros(len(pinned), np.bool_), Images(()), np.empty(0, np.uint8)
                with self._lock:
                    contents.lose(f"cannot be read ({error.strerror})")
            with self._lock:
                self.corrupt += contents.forget_damaged(records[~whole])
        found[found] = whole
        in_place = bool(whole.any()) and not len(buffer)
        release = partial(self._release, contents, pinned, buffer, in_place=in_place)
        return Lease(found, images.chosen(np.flatnonzero(whole)), release)

    def prefetch(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Have the kernel begin to read samples, as `Store.prefetch` says."""
        keys = checked_keys(indices, versions)
        with self._using() as contents:
            if contents.file.reader.is_warm:
                return
            with self._lock:
                slots = contents.find(keys)
                records = contents.records.take(slots[slots >= 0])
            contents.file.reader.prefetch(records)

    def put(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Sequence[Image]
    ) -> NDArray[np.bool_]:
        """Write samples, as `Store.put` says."""
        keys = checked_keys(indices, versions)
        with self._using() as contents:
            contents.spec.check_samples(samples, len(keys[0]))
            with self._lock:
                steps = contents.slot_table.steps(keys[0])
            stored = np.zeros(len(keys[0]), np.bool_)
            for rows in steps:
                chosen = [samples[row] for row in rows.tolist()]
                stored[rows] = self._keep(contents, (keys[0][rows], keys[1][rows]), chosen)
        return stored

    def evict(self, indices: NDArray[np.int64]) -> None:
        """Forget these indices, as `Store.evict` says."""
        keys, _ = checked_keys(indices, indices)
        with self._using() as contents, self._lock:
            contents.clear(contents.slot_table.hide(keys))

    def retain(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Forget all but these versions, as `Store.retain` says."""
        wanted = checked_keys(indices, versions)
        with self._using() as contents, self._lock:
            contents.clear(contents.slot_table.retain(*wanted))

    def recovered(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tell what the file held, as `Store.recovered` says."""
        with self._using() as contents, self._lock:
            held = contents.records[contents.records["check"] != 0]
            return held["index"].astype(np.int64), held["version"].astype(np.int64)

    def close(self) -> None:
        """Let the file go, as `Store.close` says; what it holds is there when it is opened again."""
        with self._lock:
            contents, self._contents = self._contents, None
            if contents is not None:
                self._unused.wait_for(lambda: not contents.users)
                contents.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the file that are set aside for samples."""
        with self._lock:
            return 0 if self._contents is None else self._contents.file.layout.samples_bytes

    def __len__(self) -> int:
        """Count the versions held; none when closed."""
        with self._lock:
            return 0 if self._contents is None else len(self._contents.slot_table)

    @contextmanager
    def _using(self) -> Iterator[DiskContents]:
        """Keep the file open meanwhile; reading and writing are done without the lock."""
        with self._lock:
            contents = self._contents
            if contents is None:
                raise StoreError("a store must be open to be used, but this one is not: call open first")
            contents.users += 1
        try:
            with self._lock:
                contents.look()
            yield contents
        finally:
            with self._lock:
                contents.users -= 1
                self._unused.notify_all()

    def _keep(self, contents: DiskContents, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Write n samples of different indices, unless their versions are held; False where there is no room."""
        with self._lock:
            slots, held = contents.take(keys, samples)
            rows = np.flatnonzero(slots >= 0)
            starts = contents.starts(slots[rows])
        written = [samples[row] for row in rows.tolist()]
        pixels: list[int | None] = [None] * len(rows)
        try:
            for place, (start, sample) in enumerate(zip(starts, written, strict=True)):
                pixels[place] = contents.file.write(start, sample)
        except OSError as error:
            with self._lock:
                contents.decline(error)
        finally:
            with self._lock:
                held[rows] = contents.settle(slots[rows], (keys[0][rows], keys[1][rows]), pixels, written)
        return held

    def _release(
        self, contents: DiskContents, slots: NDArray[np.int64], buffer: NDArray[np.uint8], *, in_place: bool
    ) -> None:
        """Unpin a lease's slots; harmless when the store was closed, or opened anew, since."""
        contents.file.reader.buffers.give(buffer)
        with self._lock:
            contents.release(slots, in_place=in_place)
