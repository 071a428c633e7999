"""What does an open file hold, and where is there room? Names of slots, blocks of pages, and records in step."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dalirefurb.images import Image
from dalirefurb.store.arena import Arena
from dalirefurb.store.contract import Keys
from dalirefurb.store.file_header import PAGE
from dalirefurb.store.ledger import Hidden, Ledger
from dalirefurb.store.opening import Opening
from dalirefurb.store.records import Records, sizes
from dalirefurb.store.slot_file import SlotFile


class DiskContents:
    """One opening of a file. Not thread-safe: the store that owns it holds a lock, but while `file` reads and writes.

    Attributes:
        opening: What it is open for.
        file: Where the samples are.
        ledger: Which slot holds which version.
        users: How many calls are at work on it.
    """

    def __init__(self, path: Path, opening: Opening) -> None:
        self.opening = opening
        self.file = SlotFile(path, opening)
        self.ledger = Ledger(opening.slots)
        self.users = 0
        self._path = path
        self._accepts = True
        self._lost = False
        slots = np.flatnonzero(self.records["check"]).tolist()
        held = self.records[slots]
        self.ledger.restore(slots, held["index"].tolist(), held["version"].tolist())
        starts = held["start"].tolist()
        self._starts: dict[int, int] = dict(zip(slots, starts, strict=True))
        blocks = sorted(zip(starts, sizes(held).tolist(), strict=True))
        self._arena = Arena(self.file.layout.samples_bytes, alignment=PAGE, used=blocks)

    @property
    def records(self) -> Records:
        """What each slot holds, shape (slots,)."""
        return self.file.table.records

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Return the slots of n versions, shape (n,), -1 where one is not held, or not written yet."""
        slots = self.ledger.find(*keys)
        named = np.flatnonzero(slots >= 0)
        slots[named[self.records["check"][slots[named]] == 0]] = -1
        return slots

    def take(self, index: int, version: int, sample: Image) -> tuple[int, int] | None:
        """Name a slot, pinned until it is settled, and the start of its block; None when there is no room."""
        self.clear(self.ledger.hide(index, older_than=version))
        if not self._accepts or self.ledger.full:
            return None
        start = self._arena.allocate(sample.nbytes)
        if start is None:
            return None
        slot = self.ledger.take(index, version)
        self._starts[slot] = start
        self.ledger.pin(np.array([slot]))
        return slot, start

    def settle(self, slot: int, key: tuple[int, int], pixels: int | None, shape: Sequence[int]) -> bool:
        """Write down what a slot that was taken holds: pixels of this checksum, or nothing.

        Returns:
            Whether it is held; it may have been evicted meanwhile.
        """
        start = self._starts[slot]
        self.free(self.ledger.unpin(np.array([slot])))
        if self.ledger.slot(*key) != slot:
            return False
        if pixels is None:
            self.clear(self.ledger.forget(*key))
            return False
        try:
            self.file.table.set(slot, key, start, pixels, shape)
        except OSError as error:
            self.decline(error)
        return True

    def forget_damaged(self, records: Records) -> int:
        """Forget samples that were not read whole, and count them; those of a file that is lost are not damaged."""
        if self._lost:
            return 0
        for index, version in records[["index", "version"]].tolist():
            self.clear(self.ledger.forget(index, version))
        return len(records)

    def clear(self, hidden: Hidden) -> None:
        """Write down that slots hold nothing any more, and give back the blocks of those that are free."""
        if hidden.slots and not self._lost:
            try:
                self.file.table.clear(hidden.slots)
            except OSError as error:
                self.decline(error)
        self.free(hidden.freed)

    def free(self, slots: list[int]) -> None:
        """Give back the blocks of slots that the ledger has freed."""
        for slot in slots:
            self._arena.free(self._starts.pop(slot))

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
            self.free(self.ledger.retain(set()).freed)
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
