"""Memory that knows who touched each of its bytes when, and who may touch it next.

Streams and host threads are actors. Each has a clock: the moments of all actors that come before what it does next.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

UNWRITTEN = 0xEE
"""What memory holds before anybody writes it."""

Clock = dict["Actor", int]


class Race(AssertionError):  # noqa: N818 - that is what it is
    """Something that a GPU could do too early."""


class Actor:
    """A stream or a host thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock: Clock = {}

    def learn(self, clock: Clock) -> None:
        """Come after what another clock knows."""
        for actor, moment in clock.items():
            self.clock[actor] = max(self.clock.get(actor, 0), moment)

    def next_moment(self) -> int:
        self.clock[self] = self.clock.get(self, 0) + 1
        return self.clock[self]


class Touch(SimpleNamespace):
    """What `actor` did at `moment` to the bytes of `mask`: it `writes` or reads them."""


class Allocation:
    """Bytes, and who touched them.

    Args:
        kind: "device", "pinned" or "temporary".
        nbytes: Number of bytes.
        races: List that is told of every race, also of one whose error somebody swallows.
    """

    def __init__(self, kind: str, nbytes: int, races: list[str]) -> None:
        self.kind, self._races = kind, races
        self.bytes = np.full(nbytes, UNWRITTEN, np.uint8)
        self.ptr: int = self.bytes.ctypes.data
        self._written = np.zeros(nbytes, np.bool_)
        self._touches: list[Touch] = []

    def has(self, array: np.ndarray) -> bool:
        """Tell whether an array lies here."""
        return self.ptr <= address(array) < self.ptr + len(self.bytes)

    def forget_contents(self) -> None:
        """Be as if unwritten, with the same past: a pool gives memory out again."""
        self._written[:] = False

    def touch(self, actor: Actor, array: np.ndarray, key: Any = ..., *, writes: bool) -> None:
        """Have an actor read or write `array[key]`, which lies here.

        Raises:
            Race: It need not come after the last write, or after the reads that a write must come after.
        """
        mask = self._mask(array, key)
        if not mask.any():
            return
        does = "writes" if writes else "reads"
        if not writes and not self._written[mask].all():
            self._fail(f"{actor.name} {does} {self.kind} memory that nobody wrote")
        for past in self._touches:
            ordered = actor.clock.get(past.actor, 0) >= past.moment
            both = int((past.mask & mask).sum())
            if both and (writes or past.writes) and not ordered:
                self._fail(
                    f"{actor.name} {does} {both} bytes of {self.kind} memory that {past.actor.name} "
                    f"{'writes' if past.writes else 'reads'} first, but nothing makes it wait for that"
                )
        # Who comes after this touch comes after those that it replaces.
        for past in self._touches:
            if writes or (past.actor is actor and not past.writes):
                past.mask &= ~mask
        self._touches = [past for past in self._touches if past.mask.any()]
        self._touches.append(Touch(actor=actor, moment=actor.next_moment(), mask=mask, writes=writes))
        if writes:
            self._written |= mask

    def _mask(self, array: np.ndarray, key: Any) -> np.ndarray:
        """Return which bytes `array[key]` has, shape (nbytes,)."""
        mask = np.zeros(len(self.bytes), np.bool_)
        if array.size:
            # (*shape, itemsize): a flag for each byte of each element.
            shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
            flags: np.ndarray = np.ndarray(
                shape, np.bool_, buffer=mask.data, offset=address(array) - self.ptr, strides=strides
            )
            flags[key] = True
        return mask

    def _fail(self, what: str) -> None:
        self._races.append(what)
        raise Race(what)


class HostView(np.ndarray):
    """The host's view of pinned memory; `on_touch(array, key, writes=...)` is told when the host touches it.

    It sees what NumPy tells subclasses, which are functions, operators and items, not what goes straight to the bytes.
    """

    on_touch: Any

    def __array_finalize__(self, origin: Any) -> None:
        self.on_touch = getattr(origin, "on_touch", None)

    def _touch(self, key: Any = ..., *, writes: bool) -> np.ndarray:
        plain = self.view(np.ndarray)
        self.on_touch(plain, key, writes=writes)
        return plain

    def __getitem__(self, key: Any) -> Any:
        plain = self.view(np.ndarray)
        found = plain[key]
        if np.may_share_memory(found, plain):
            return super().__getitem__(key)
        self._touch(key, writes=False)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        value = _read(value)
        self._touch(key, writes=True)[key] = value

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.copyto and isinstance(args[0], HostView):
            args[0][...] = args[1]
            return None
        return function(*_read(args), **kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*_read(inputs), **kwargs)

    def copy(self, order: Any = "C") -> Any:
        return self._touch(writes=False).copy(order)

    def fill(self, value: Any) -> None:
        self[...] = value


def _read(value: Any) -> Any:
    """Read every host view in a value, and return the value with plain arrays."""
    if isinstance(value, HostView):
        return value._touch(writes=False)
    return type(value)(map(_read, value)) if type(value) in (list, tuple) else value


def address(array: np.ndarray) -> int:
    start: int = array.__array_interface__["data"][0]
    return start
