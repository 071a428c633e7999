"""State of a loader: its place, and the fingerprint of all that decides what is served from there.

A place is an epoch and a batch; what decides the batches is the configuration's fingerprint. Both are JSON values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dalirefurb.checks import epoch_of, integer, plain
from dalirefurb.engine.batch_group import Position
from dalirefurb.errors import ConfigurationError, StateMismatchError
from dalirefurb.store.spec import differing

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
