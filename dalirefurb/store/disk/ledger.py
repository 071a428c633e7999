"""Ledger of an open file: names of slots, blocks of pages, records in step, and where there is room."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import StoreError
from dalirefurb.image_batch import Image
from dalirefurb.store.allocator import Allocator
from dalirefurb.store.base import NO_KEYS, Keys
from dalirefurb.store.disk.records import Records, sizes
from dalirefurb.store.disk.slot_file import SlotFile
from dalirefurb.store.slot_table import Hidden, SlotTable
from dalirefurb.store.spec import StoreSpec


class Ledger:
    """One opening of a file. Not thread-safe: who owns it holds a lock, but while `file` reads and writes.

    Attributes:
        file: The file where the samples are.
        slot_table: Table of which slot holds which version.
        closed: Whether the file was let go.
    """

    def __init__(self, path: Path, spec: StoreSpec) -> None:
        self.file = SlotFile(path, spec)
        self.slot_table = SlotTable(spec.slots)
        self.closed = False
        self._path = path
        self._accepts = True
        self._lost = False
        # Where the block of each slot begins.
        self._starts = self.records["start"].copy()
        slots = np.flatnonzero(self.records["check"])
        held = self.records[slots]
        self.slot_table.restore(slots, held["index"].astype(np.int64), held["version"].astype(np.int64))
        blocks = sorted(zip(held["start"].tolist(), sizes(held).tolist(), strict=True))
        layout = self.file.layout
        self._arena = Allocator(layout.samples_bytes, alignment=layout.alignment, used=blocks)

    @property
    def records(self) -> Records:
        """What each slot holds, shape (slots,)."""
        return self.file.table.records

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Return the slots of n versions, shape (n,), -1 where one is not held, or not written yet."""
        slots = self.slot_table.find(*keys)
        named = np.flatnonzero(slots >= 0)
        slots[named[self.records["check"][slots[named]] == 0]] = -1
        return slots

    def take(self, keys: Keys, samples: Sequence[Image]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Set room aside for n samples of different indices, pinned until they are settled.

        Returns:
            The slot of each sample, shape (n,), -1 where it needs none or there is no room for it; and which are held
            already.
        """
        slots = np.full(len(samples), -1)
        new, held, hidden = self.slot_table.make_way(*keys)
        self.clear(hidden)
        if not self._accepts:
            new = new[:0]
        starts = [self._arena.allocate(samples[row].nbytes) for row in new.tolist()]
        new = new[np.array([start is not None for start in starts], np.bool_)]
        slots[new] = self.slot_table.take(keys[0][new], keys[1][new])
        self.slot_table.pin(slots[new])
        self._starts[slots[new]] = [start for start in starts if start is not None]
        return slots, held

    def starts(self, slots: NDArray[np.int64]) -> list[int]:
        """Return where the blocks of n slots begin."""
        starts: list[int] = self._starts[slots].tolist()
        return starts

    def settle(
        self, slots: NDArray[np.int64], keys: Keys, pixels: Sequence[int], samples: Sequence[Image]
    ) -> NDArray[np.bool_]:
        """Write down what n slots that were taken hold: samples, the first of which have these checksums.

        What has none was not written, and is held no more.

        Returns:
            Which are held, shape (n,); they may have been evicted meanwhile.
        """
        self.free(self.slot_table.unpin(slots))
        held: NDArray[np.bool_] = self.slot_table.find(*keys) == slots
        written = np.zeros(len(slots), np.bool_)
        written[: len(pixels)] = True
        self.clear(self.slot_table.forget(*(part[held & ~written] for part in keys)))
        held &= written
        rows = np.flatnonzero(held)
        if len(rows):
            try:
                self.file.table.set(
                    slots[rows],
                    (keys[0][rows], keys[1][rows]),
                    self._starts[slots[rows]],
                    np.array(pixels, np.uint64)[rows],
                    np.array([samples[row].shape for row in rows.tolist()]),
                )
            except OSError as error:
                self.decline(error)
        return held

    def forget_damaged(self, records: Records) -> int:
        """Forget samples that were not read whole, and count them; those of a file that is lost are not damaged."""
        if self._lost or not len(records):
            return 0
        self.clear(self.slot_table.forget(records["index"].astype(np.int64), records["version"].astype(np.int64)))
        return len(records)

    def release(self, slots: NDArray[np.int64], *, in_place: bool) -> None:
        """Take back n slots that were lent, maybe where they lie.

        Raises:
            StoreError: Somebody has cut the file short, and so has changed what was lent.
        """
        self.free(self.slot_table.unpin(slots))
        if self.closed:
            return
        if in_place and self.file.is_short:
            raise StoreError(
                f"nobody may write into a store's file while it is in use, but {self._path} was cut short while "
                "samples were lent, which may have been served wrong: go back to the last checkpoint"
            )
        if self._lost:
            self._give_up()

    def close(self) -> None:
        """Let the file go; what is lent stays as it is."""
        pinned = self.slot_table.pinned
        if len(pinned):
            self.look()
        # Nobody else writes into a file that was removed; what is behind the end of one cut short must not be touched.
        starts = [] if self._lost else self.starts(pinned)
        self.closed = True
        self.file.close((start, self._arena.size(start)) for start in starts)

    def clear(self, hidden: Hidden) -> None:
        """Write down that slots hold nothing any more, and give back the blocks of those that are free."""
        if len(hidden.slots) and not self._lost:
            try:
                self.file.table.clear(hidden.slots)
            except OSError as error:
                self.decline(error)
        self.free(hidden.freed)

    def free(self, slots: NDArray[np.int64]) -> None:
        """Give back the blocks of slots that the table has freed, shape (n,)."""
        for start in self.starts(slots):
            self._arena.free(start)

    def decline(self, error: OSError) -> None:
        """Store nothing more, because the file cannot be written."""
        if self._accepts:
            self._accepts = False
            warnings.warn(
                f"the store {self._path} cannot be written ({error.strerror}): what it holds is served, nothing is "
                "added to it, and everything else is computed; make room and open it again",
                stacklevel=2,
            )

    def lose(self, reason: str) -> None:
        """Hold nothing more, because the file cannot be read."""
        if not self._lost:
            self._lost, self._accepts = True, False
            self.free(self.slot_table.retain(*NO_KEYS).freed)
            self._give_up()
            warnings.warn(
                f"the store {self._path} {reason} while in use: everything is computed from here on; "
                "leave its file alone, and open it again",
                stacklevel=2,
            )

    def look(self) -> None:
        """Find out whether the file is still there, and whole."""
        if self._lost:
            return
        try:
            reason = self.file.loss()
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
        if reason is not None:
            self.lose(reason)

    def _give_up(self) -> None:
        """Give back the room of a file that was removed, once nothing of it is lent any more."""
        if not len(self.slot_table.pinned):
            with suppress(OSError):
                self.file.give_up()
