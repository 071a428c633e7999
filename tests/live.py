"""What is alive of a loader's: objects by their kind, and the memory of stores and buffers by who asked for it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dalirefurb.store.device import memory as device_memory

_OWNERS = ("dalirefurb.engine", "dalirefurb.dali", "dalirefurb.store", "dalirefurb.image_batch", "dalirefurb.loader")

Live = Callable[[], "Counter[str]"]


def watch(monkeypatch: pytest.MonkeyPatch) -> Live:
    """Return what counts the objects that are there now and were not before, and the arrays allocated since then.

    An array counts as long as somebody has it, or a view of it: it is one buffer, however large.
    """
    arrays: list[tuple[str, weakref.ref[Any]]] = []
    for kind in (device_memory.DeviceMemory, device_memory._CuPyMemory):
        for name in ("empty", "empty_pinned"):
            monkeypatch.setattr(kind, name, _noting(getattr(kind, name), arrays))
    before = _objects()

    def live() -> Counter[str]:
        gc.collect()
        return (_objects() - before) + Counter(f"memory of {owner}" for owner, array in arrays if array() is not None)

    return live


def _noting(allocate: Any, arrays: list[tuple[str, weakref.ref[Any]]]) -> Any:
    def allocated(memory: Any, shape: Any) -> Any:
        made = allocate(memory, shape)
        arrays.append((sys._getframe(1).f_globals["__name__"], weakref.ref(made[0] if type(made) is tuple else made)))
        return made

    return allocated


def _objects() -> Counter[str]:
    kinds = (type(each) for each in gc.get_objects())
    return Counter(
        f"{kind.__module__}.{kind.__qualname__}" for kind in kinds if str(kind.__module__).startswith(_OWNERS)
    )
