"""DiskStore: samples in one file, whose slots say what they hold, beyond the process that made them.

A sample is lent only if every byte of it is as it was put. Once open, trouble with the disk costs hits and one warning,
never an error: a store that cannot write goes on lending, one that cannot read holds nothing. What others may do to the
file is in docs/stores.md: who cuts it short while samples are lent where they lie ends the process or, at best, has
`Lease.release` raise an error.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Condition

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import path_of, require
from dalirefurb.errors import StoreError, warn
from dalirefurb.image_batch import Image, Images
from dalirefurb.store.base import NO_KEYS, Contents, Keys, Lease, Store, not_open
from dalirefurb.store.disk import upkeep
from dalirefurb.store.disk.layout import sizes
from dalirefurb.store.disk.slot_file import SlotFile
from dalirefurb.store.memory import Allocator
from dalirefurb.store.slot_table import Hidden, Numbers, SlotContents, SlotTable
from dalirefurb.store.spec import StoreSpec


class DiskStore(Store):
    """Keeps samples in a file of its own, set aside at once; one process uses it at a time, so each rank needs one.

    A run that goes on by its state begins with hits. One that begins anew finds all that `Frozen` keeps; of `Refurbish`
    the file has later versions, few hits or none: a `NothingKeptWarning`.

    Opened with another number of slots it keeps of its samples what fits. `open` raises `StoreError` where the file
    cannot be used, is in use, holds samples of another fingerprint, as of files that have changed, or does not fit on
    its disk.

    Samples outlive the process at once, the machine once the kernel has written them. Nobody else may write to the
    file, and a forked child must not use the store that its parent has open: docs/stores.md says what makes it safe.
    `inspect`, `verify` and `purge` concern a path: see `upkeep`.

    Args:
        path: The file. It is made if there is none; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        remedy = "pass one to be made, on a fast local disk"
        require(isinstance(path, (str, os.PathLike)), "path", "the path of a file", path, remedy)
        self._path = path_of(path)
        self._counts = Counter[str]()

    inspect = staticmethod(upkeep.inspect)
    verify = staticmethod(upkeep.verify)
    purge = staticmethod(upkeep.purge)

    def _open(self, spec: StoreSpec) -> Contents:
        return _Contents(self._path, spec, self._counts)

    @property
    def corrupt(self) -> int:
        """Number of samples that were found damaged, and so reported as not found."""
        return self._counts["corrupt"]


class _Contents(SlotContents):
    """An open file: names of slots, blocks of pages, records in step, and where there is room.

    The file is read and written without the lock, which guards the rest; `counts` is of "corrupt" samples.
    """

    def __init__(self, path: Path, spec: StoreSpec, counts: Counter[str]) -> None:
        super().__init__(spec, SlotTable(spec.slots))
        self._path = path
        self._file = SlotFile(path, spec)
        self._counts = counts
        self._closed = False
        self._accepts = True
        self._lost = False
        # Calls that are at work on the file.
        self._users = 0
        self._unused = Condition(self._lock)
        # What each slot holds, shape (slots,), and where its block begins.
        self._records = self._file.table.records
        self._starts = self._records["start"].copy()
        slots = np.flatnonzero(self._records["check"])
        held = self._records[slots]
        self.slot_table.restore(slots, held["index"].astype(np.int64), held["version"].astype(np.int64))
        blocks = sorted(zip(held["start"].tolist(), sizes(held).tolist(), strict=True))
        layout = self._file.layout
        self._arena = Allocator(layout.samples_bytes, alignment=layout.alignment, used=blocks)

    def get(self, keys: Keys) -> Lease:
        """Lend samples where they lie if the page cache has them, else in memory of their own."""
        with self._using():
            with self._lock:
                slots = self._find(keys)
                found = slots >= 0
                pinned = slots[found]
                self.slot_table.pin(pinned)
                records = self._records.take(pinned)
            try:
                whole, images, buffer = self._file.reader.read(records)
            except OSError as error:
                whole, images, buffer = np.zeros(len(pinned), np.bool_), Images(()), np.empty(0, np.uint8)
                with self._lock:
                    self._lose(f"cannot be read ({error.strerror})")
            except BaseException:
                self._release_read(pinned, np.empty(0, np.uint8), in_place=False)
                raise
            with self._lock:
                damaged = records[~whole]
                if len(damaged) and not self._lost:
                    self._counts["corrupt"] += len(damaged)
                    self._clear(self.slot_table.forget(damaged["index"], damaged["version"]))
        found[found] = whole
        in_place = bool(whole.any()) and not len(buffer)
        release = partial(self._release_read, pinned, buffer, in_place=in_place)
        return Lease(found, images.chosen(np.flatnonzero(whole)), release)

    def prefetch(self, keys: Keys) -> None:
        """Have the kernel begin to read samples."""
        with self._using():
            with self._lock:
                slots = self._find(keys)
                records = self._records.take(slots[slots >= 0])
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
        """Let the file go, once nobody is at work on it; what it holds is there when it is opened again.

        What is lent stays as it is.
        """
        with self._lock:
            self._unused.wait_for(lambda: not self._users)
            pinned = self.slot_table.pinned
            if len(pinned):
                self._look()
            # Nobody else writes into a file that was removed; what is behind the end of one cut short must not be
            # touched.
            starts: list[int] = [] if self._lost else self._starts[pinned].tolist()
            self._closed = True
            self._file.close((start, self._arena.size(start)) for start in starts)

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

    def _find(self, keys: Keys) -> Numbers:
        """Return the slots of n versions, shape (n,), -1 where one is not held, or not written yet."""
        slots = self.slot_table.find(*keys)
        named = np.flatnonzero(slots >= 0)
        slots[named[self._records["check"][slots[named]] == 0]] = -1
        return slots

    def _keep(self, keys: Keys, samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Write n samples of different indices, unless their versions are held; False where there is no room."""
        with self._lock:
            slots, held = self._take(keys, samples)
            rows = np.flatnonzero(slots >= 0)
            starts = self._starts[slots[rows]].tolist()
        chosen = [samples[row] for row in rows.tolist()]
        pixels: list[int] = []
        try:
            for start, sample in zip(starts, chosen, strict=True):
                pixels.append(self._file.write(start, sample))
        except OSError as error:
            with self._lock:
                self._decline(error)
        finally:
            with self._lock:
                held[rows] = self._settle(slots[rows], (keys[0][rows], keys[1][rows]), pixels, chosen)
        return held

    def _take(self, keys: Keys, samples: Sequence[Image]) -> tuple[Numbers, NDArray[np.bool_]]:
        """Set room aside for n samples of different indices, pinned until they are settled.

        Returns:
            The slot of each sample, shape (n,), -1 where it needs none or there is no room for it; and which are held
            already.
        """
        slots = np.full(len(samples), -1)
        new, held, hidden = self.slot_table.make_way(*keys)
        self._clear(hidden)
        if not self._accepts:
            new = new[:0]
        starts = [self._arena.allocate(samples[row].nbytes) for row in new.tolist()]
        new = new[np.array([start is not None for start in starts], np.bool_)]
        slots[new] = self.slot_table.take(keys[0][new], keys[1][new])
        self.slot_table.pin(slots[new])
        self._starts[slots[new]] = [start for start in starts if start is not None]
        return slots, held

    def _settle(self, slots: Numbers, keys: Keys, pixels: Sequence[int], samples: Sequence[Image]) -> NDArray[np.bool_]:
        """Write down what n slots that were taken hold: samples, the first of which have these checksums.

        What has none was not written, and is held no more.

        Returns:
            Which are held, shape (n,); they may have been evicted meanwhile.
        """
        self._free(self.slot_table.unpin(slots))
        held: NDArray[np.bool_] = self.slot_table.find(*keys) == slots
        written = np.zeros(len(slots), np.bool_)
        written[: len(pixels)] = True
        self._clear(self.slot_table.forget(*(part[held & ~written] for part in keys)))
        held &= written
        rows = np.flatnonzero(held)
        if len(rows):
            try:
                self._file.table.set(
                    slots[rows],
                    (keys[0][rows], keys[1][rows]),
                    self._starts[slots[rows]],
                    np.array(pixels, np.uint64)[rows],
                    np.array([samples[row].shape for row in rows.tolist()]),
                )
            except OSError as error:
                self._decline(error)
        return held

    def _release_read(self, slots: Numbers, buffer: NDArray[np.uint8], *, in_place: bool) -> None:
        """Take back a lease's slots, lent maybe where they lie; harmless when the store was closed since.

        Raises:
            StoreError: Somebody has cut the file short, and so has changed what was lent.
        """
        self._file.reader.buffers.give(buffer)
        with self._lock:
            self._free(self.slot_table.unpin(slots))
            if self._closed:
                return
            if in_place and self._file.is_short:
                raise StoreError(
                    f"nobody may write into a store's file while it is in use, but {self._path} was cut short while "
                    "samples were lent, which may have been served wrong: go back to the last checkpoint"
                )
            if self._lost:
                self._give_up()

    def _clear(self, hidden: Hidden) -> None:
        """Write down that slots hold nothing any more, and give back the blocks of those that are free."""
        if len(hidden.slots) and not self._lost:
            try:
                self._file.table.clear(hidden.slots)
            except OSError as error:
                self._decline(error)
        self._free(hidden.freed)

    def _free(self, slots: Numbers) -> None:
        for start in self._starts[slots].tolist():
            self._arena.free(start)

    def _decline(self, error: OSError) -> None:
        """Store nothing more, because the file cannot be written."""
        if self._accepts:
            self._accepts = False
            warn(
                f"the store {self._path} cannot be written ({error.strerror}): what it holds is served, nothing is "
                "added to it, and everything else is computed; make room and open it again",
            )

    def _look(self) -> None:
        """Find out whether the file is still there, and whole."""
        if self._closed:
            raise not_open()
        if self._lost:
            return
        try:
            reason = self._file.loss()
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
        if reason is not None:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        """Hold nothing more, because the file cannot be read."""
        if not self._lost:
            self._lost, self._accepts = True, False
            self._free(self.slot_table.retain(*NO_KEYS).freed)
            self._give_up()
            warn(
                f"the store {self._path} {reason} while in use: everything is computed from here on; "
                "leave its file alone, and open it again",
            )

    def _give_up(self) -> None:
        """Give back the room of a file that was removed, once nothing of it is lent any more."""
        if not len(self.slot_table.pinned):
            with suppress(OSError):
                self._file.give_up()
