"""Cursor: the next batch of a loader, and the pass that serves it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from dalirefurb.engine.batch_group import Position
from dalirefurb.errors import LoaderError, shortened

Serve = Callable[[], tuple[Any, Position, int]]
"""Serves the next batch; returns it, the position of the one after it, and what `Cursor.handed` is then."""


class Cursor:
    """Says what a loader serves next, as the training loop sees it.

    Attributes:
        position: Position of the next batch; after a pass that was left early, still that of the pass.
        begun: Whether the present pass has served a batch, and has more of them.
        handed: Number of batches that an Assistant has to know of; it is told of the last one when it is needed next.
        waiting: Thread that waits for a batch, by its identifier; no lock, which an interrupt could leave locked.
    """

    def __init__(self) -> None:
        self.position = Position(0, 0)
        self.begun = False
        self.handed = 0
        self.waiting: int | None = None
        self._present: Callable[[], EpochPass | None] = lambda: None  # The pass begun last, if somebody has it.

    @property
    def upcoming_epoch(self) -> int:
        """The epoch that the next pass would serve."""
        return self.position.epoch + self.begun

    @property
    def left(self) -> bool:
        """Whether the present pass is over before its end: its iterator is gone, or has raised what ended a loop."""
        present = self._present()
        return self.begun and (present is None or present.failed)

    @property
    def epoch(self) -> int:
        """The epoch of the pass that goes on, as far as its next batch has one; else that of the next pass."""
        return self.upcoming_epoch if self.left else self.position.epoch

    def __str__(self) -> str:
        place = f"batch {self.position.batch} of epoch {self.position.epoch}"
        return f"batch 0 of epoch {self.epoch}, or by resume() {place}" if self.left else place

    def begin_pass(self, serve: Serve) -> EpochPass:
        """Begin a pass: of the next epoch, also if the present pass was left early; end the present one."""
        if (left := self._present()) is not None:
            left.leave(
                "a loader serves one pass at a time, but iterating it again has begun another one before this one "
                "ended: finish one first, or make a second loader"
            )
        if self.begun:
            self.position, self.begun = Position(self.position.epoch + 1, 0), False
        begun = EpochPass(self, serve, self.position.epoch)
        self._present = weakref.ref(begun)
        return begun

    def move(self, position: Position) -> None:
        """Make `position` the next to be served: by the present pass if it has served nothing yet, else by another."""
        if (present := self._present()) is not None:
            if present.goes_on and not self.begun:
                present.epoch = position.epoch
            else:
                present.leave(
                    f"a pass that has begun must end before the loader is moved, but set_epoch or load_state_dict has "
                    f"moved it to batch {position.batch} of epoch {position.epoch}: iterate the loader again to go on "
                    f"from there"
                )
        self.position, self.begun = position, False


class EpochPass(Iterator[Any]):
    """One epoch, or what is left of it.

    Attributes:
        epoch: Number of the epoch; None once the pass can serve nothing more.
        failed: Whether it has raised an error, or an interrupt, where its next batch was asked for last.
    """

    def __init__(self, cursor: Cursor, serve: Serve, epoch: int) -> None:
        self._cursor = cursor
        self._serve = serve
        self.epoch: int | None = epoch
        self.failed = False
        self._cut_off: str | None = None

    @property
    def goes_on(self) -> bool:
        """Whether there is a batch that it would serve."""
        return self._cursor.position.epoch == self.epoch

    def leave(self, reason: str) -> None:
        """Serve nothing more; if there is a batch that it would have served, raise this where it is asked for."""
        if self.goes_on:
            self._cut_off = reason
        self.epoch = None

    def __next__(self) -> Any:
        if self._cut_off is not None:
            raise LoaderError(self._cut_off)
        if not self.goes_on:
            raise StopIteration
        cursor, here = self._cursor, threading.get_ident()
        if cursor.waiting not in (None, here):
            raise LoaderError(
                "a loader serves one thread, but another one waits for a batch of it: iterate in one thread, and hand "
                "batches on by a queue"
            )
        cursor.waiting, self.failed = here, False
        try:
            batch, following, handed = self._serve()
        except BaseException as error:
            cursor.waiting, self.failed = None, True
            raise shortened(error)  # noqa: B904 - it is this one
        # Last, and nothing is called after it, so that a batch whose way here was interrupted is served again.
        cursor.begun, cursor.position, cursor.handed, cursor.waiting = following.batch > 0, following, handed, None
        return batch
