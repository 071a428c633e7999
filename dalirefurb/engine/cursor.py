"""Cursor: the next batch of a loader, the pass that serves it, and the state that says what is served from there.

A place is an epoch and a batch; what decides the batches is the configuration's fingerprint. Both are JSON values.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dalirefurb.checks import epoch_of, integer, plain
from dalirefurb.engine.batch_group import Position
from dalirefurb.errors import ConfigurationError, LoaderError, StateMismatchError, shortened
from dalirefurb.store.spec import differing

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


_FORMAT = 1

_KINDS = ("source", "planner", "stage")
"""Names under which a part of a fingerprint says what it is of; all else differs where that does."""


def saved(
    position: Position,
    fingerprint: Mapping[str, Any],
    assistant: Mapping[str, Any] | None = None,
    *,
    division: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Return the state of a loader whose next batch is at `position`, and of its Assistant, if it has one.

    Where the number of ranks says what an epoch is divided into, see `Planner.division`, a place in the middle of one
    is one of that division only.
    """
    state = {"format": _FORMAT, "epoch": position.epoch, "batch": position.batch, "fingerprint": fingerprint}
    if division:
        state["division"] = [*division]
    return state if assistant is None else {**state, "assistant": assistant}


def restored(
    state: Mapping[str, Any],
    fingerprint: Mapping[str, Any],
    *,
    num_batches: int,
    assisted: bool,
    division: tuple[int, ...] = (),
) -> Position:
    """Return the place that a state was saved at.

    Args:
        state: State that `saved` returned, before or after JSON.
        fingerprint: Fingerprint of the present configuration.
        num_batches: Number of batches in an epoch.
        assisted: Whether there is an Assistant.
        division: What an epoch is divided into, see `saved`.

    Raises:
        StateMismatchError: If it belongs to another configuration, or is damaged; `.keys` says what is wrong.
    """
    if not isinstance(state, Mapping):
        raise _damaged((), f"it must be a mapping, got {type(state).__name__}")
    form = plain(state.get("format", _FORMAT))
    if form != _FORMAT or isinstance(form, bool):
        raise StateMismatchError(
            ("format",),
            f"a state must have format {_FORMAT}, got {form!r}; "
            f"it was saved by another version of dalirefurb: load it with that one",
        )
    needed = {"format", "epoch", "batch", "fingerprint"} | ({"assistant"} if assisted else set())
    if missing := tuple(sorted(needed - state.keys())):
        raise _damaged(missing, f"it must hold {', '.join(sorted(needed))}, but lacks {', '.join(missing)}")
    found = differing(_as_json(state["fingerprint"]), dict(fingerprint), kinds=_KINDS)
    if keys := tuple(path or "fingerprint" for path, _, _ in found):
        remedy = "build the loader as it was when the state was saved"
        if any(key.partition(".")[0] == "source" for key in keys):
            remedy += ", with the same samples and labels in the same order"
        if any(key.endswith("version") or key.startswith("versions.") for key in keys):
            remedy += (
                "; where a version differs, another version of dalirefurb, of DALI or of Pillow has saved it: load it "
                "with that one, or go on from the beginning of an epoch by set_epoch"
            )
        raise StateMismatchError(
            keys, f"the state belongs to another configuration; these differ: {', '.join(keys)}; {remedy}"
        )
    try:
        epoch, most = epoch_of(state["epoch"]), num_batches - 1
        batch = integer("batch", state["batch"], 0, most, f"an epoch has {num_batches} batches")
    except ConfigurationError as error:
        raise _damaged((str(error.argument),), str(error)) from error
    if batch and plain(state.get("division", ())) != division:
        raise StateMismatchError(
            ("division",),
            "a state of the middle of an epoch must be loaded by ranks that divide an epoch into the same batches, but "
            "another number of them saved it: load it with as many, or save states between epochs",
        )
    return Position(epoch, batch)


def _damaged(keys: tuple[str, ...], reason: str) -> StateMismatchError:
    return StateMismatchError(
        keys, f"the state is not what state_dict returned: {reason}; load an earlier state, or start anew"
    )


def _as_json(saved: Any) -> Any:
    """Return JSON values of what a trainer may have made of them: tuples, and numbers in arrays."""
    if isinstance(saved, dict):
        return {key: _as_json(each) for key, each in saved.items()}
    given = plain(saved)
    return [*map(_as_json, given)] if isinstance(given, (tuple, list)) else given
