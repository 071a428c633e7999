"""When does a saved place mean the same batches? When everything that decides them is the same.

A place is an epoch and a batch; what decides the batches is the configuration's fingerprint. Both are JSON values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dalirefurb.errors import StateMismatchError
from dalirefurb.runs import Position

_FORMAT = 1


def saved(
    position: Position, fingerprint: Mapping[str, Any], assistant: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the state of a loader whose next batch is at `position`, and of its Assistant, if it has one."""
    state = {"format": _FORMAT, "epoch": position.epoch, "batch": position.batch, "fingerprint": fingerprint}
    return state if assistant is None else {**state, "assistant": assistant}


def restored(state: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Position:
    """Return the place that a state was saved at.

    Raises:
        StateMismatchError: If it belongs to another configuration; `.keys` says what differs.
    """
    keys = _differing(state["fingerprint"], json.loads(json.dumps(fingerprint)))
    if keys or state["format"] != _FORMAT:
        raise StateMismatchError(
            keys,
            f"the state belongs to another configuration; these differ: {', '.join(keys) or 'format'}; "
            f"build the loader as it was when the state was saved",
        )
    return Position(int(state["epoch"]), int(state["batch"]))


def _differing(saved: Any, present: Any, path: str = "") -> tuple[str, ...]:
    """Name the leaves at which two JSON values differ."""
    if isinstance(saved, dict) and isinstance(present, dict):
        keys = sorted(saved.keys() | present.keys())
        return tuple(
            leaf
            for key in keys
            for leaf in _differing(saved.get(key), present.get(key), f"{path}.{key}" if path else key)
        )
    if isinstance(saved, list) and isinstance(present, list) and len(saved) == len(present):
        pairs = zip(saved, present, strict=True)
        return tuple(leaf for i, pair in enumerate(pairs) for leaf in _differing(*pair, f"{path}[{i}]"))
    return () if saved == present else (path,)
