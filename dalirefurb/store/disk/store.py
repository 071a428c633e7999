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
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import Image, Images
from dalirefurb.store.base import Contents, Keys, Lease, Store, not_open
from dalirefurb.store.disk import upkeep
from dalirefurb.store.disk.ledger import Ledger
from dalirefurb.store.key_index import Numbers
from dalirefurb.store.slot_table import Hidden, SlotContents
from dalirefurb.store.spec import StoreSpec


class DiskStore(Store):
    """Keeps samples in a file of its own, set aside at once; one process uses it at a time, so each rank needs one.

    A run that goes on by its state begins with hits. One that begins anew finds all that `Frozen` keeps; of `Refurbish`
    the file has later versions, few hits or none: a `NothingKeptWarning`.

    Opened with another number of slots it keeps of its samples what fits. `open` raises `StoreError` where the file
    cannot be used, is in use, holds samples of another fingerprint, or does not fit on its disk.

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
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigurationError(
                f"path must be the path of a file, got {path!r}: pass one to be made, on a fast local disk"
            )
        self._path = Path(path)
        self._counts = Counter[str]()

    inspect = staticmethod(upkeep.inspect)
    verify = staticmethod(upkeep.verify)
    purge = staticmethod(upkeep.purge)

    def _open(self, spec: StoreSpec) -> Contents:
        return _Contents(spec, Ledger(self._path, spec), self._counts)

    @property
    def corrupt(self) -> int:
        """Number of samples that were found damaged, and so reported as not found."""
        return self._counts["corrupt"]


class _Contents(SlotContents):
    """An open file, read and written without the lock, which guards the rest; `counts` is of "corrupt" samples."""

    def __init__(self, spec: StoreSpec, ledger: Ledger, counts: Counter[str]) -> None:
        super().__init__(spec, ledger.slot_table)
        self._ledger = ledger
        self._file = ledger.file
        self._counts = counts
        # Calls that are at work on the file.
        self._users = 0
        self._unused = Condition(self._lock)

    def get(self, keys: Keys) -> Lease:
        """Lend samples where they lie if the page cache has them, else in memory of their own."""
        with self._using():
            with self._lock:
                slots = self._ledger.find(keys)
                found = slots >= 0
                pinned = slots[found]
                self.slot_table.pin(pinned)
                records = self._ledger.records.take(pinned)
            try:
                whole, images, buffer = self._file.reader.read(records)
            except OSError as error:
                whole, images, buffer = np.zeros(len(pinned), np.bool_), Images(()), np.empty(0, np.uint8)
                with self._lock:
                    self._ledger.lose(f"cannot be read ({error.strerror})")
            with self._lock:
                self._counts["corrupt"] += self._ledger.forget_damaged(records[~whole])
        found[found] = whole
        in_place = bool(whole.any()) and not len(buffer)
        release = partial(self._release_read, pinned, buffer, in_place=in_place)
        return Lease(found, images.chosen(np.flatnonzero(whole)), release)

    def prefetch(self, keys: Keys) -> None:
        """Have the kernel begin to read samples."""
        with self._using():
            if self._file.reader.is_warm:
                return
            with self._lock:
                slots = self._ledger.find(keys)
                records = self._ledger.records.take(slots[slots >= 0])
            self._file.reader.prefetch(records)

    def put(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        stored = np.zeros(len(keys[0]), np.bool_)
        with self._using():
            with self._lock:
                steps = self.slot_table.steps(keys[0])
            for rows in steps:
                chosen = [samples[row] for row in rows.tolist()]
                stored[rows] = self._keep((keys[0][rows], keys[1][rows]), chosen)
        return stored

    def close(self) -> None:
        """Let the file go, once nobody is at work on it; what it holds is there when it is opened again."""
        with self._lock:
            self._unused.wait_for(lambda: not self._users)
            self._ledger.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the file that are set aside for samples."""
        return self._file.layout.samples_bytes

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Keep the file open meanwhile."""
        with self._lock:
            self._look()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._unused.notify_all()

    def _keep(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Write n samples of different indices, unless their versions are held; False where there is no room."""
        with self._lock:
            slots, held = self._ledger.take(keys, samples)
            rows = np.flatnonzero(slots >= 0)
            starts = self._ledger.starts(slots[rows])
        chosen = [samples[row] for row in rows.tolist()]
        pixels: list[int] = []
        try:
            for start, sample in zip(starts, chosen, strict=True):
                pixels.append(self._file.write(start, sample))
        except OSError as error:
            with self._lock:
                self._ledger.decline(error)
        finally:
            with self._lock:
                held[rows] = self._ledger.settle(slots[rows], (keys[0][rows], keys[1][rows]), pixels, chosen)
        return held

    def _release_read(self, slots: Numbers, buffer: NDArray[np.uint8], *, in_place: bool) -> None:
        """Unpin a lease's slots; harmless when the store was closed, or opened anew, since."""
        self._file.reader.buffers.give(buffer)
        with self._lock:
            self._ledger.release(slots, in_place=in_place)

    def _look(self) -> None:
        if self._ledger.closed:
            raise not_open()
        self._ledger.look()

    def _clear(self, hidden: Hidden) -> None:
        self._ledger.clear(hidden)
