"""Attached: a training's end of a broadcast, which it iterates as a loader of its own."""

from __future__ import annotations

import mmap
import os
import pickle
import resource
import socket
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from dalirefurb.broadcast.wire import MESSAGE, Asked, Failure, Told, Welcome, connected, forget_writes, mapped, read
from dalirefurb.calls import Explained
from dalirefurb.checks import number, require
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.cursor import Cursor
from dalirefurb.engine.loader_view import Batch, Mappable
from dalirefurb.errors import LoaderError
from dalirefurb.system.resources import Remains


class Attached(Mappable, metaclass=Explained):
    """Serves the batches of a `Broadcast` in another process of this machine, as a loader of its own would.

        with Attached("photos") as loader:
            for epoch in range(loader.epoch, 90):
                for images, labels in loader:
                    ...

    Batches lie in memory that all trainings share, and are not copied. They are good as long as they are kept, and what
    is written into them is seen by nobody else; who keeps many takes memory for them.

    It is attached when it is first iterated, or asked for its epoch or state: from then on the others wait for it. So
    ask when training can begin, and close it when training is over, as the end of the process does. Without a state it
    begins with the first epoch that is still to come.

    Args:
        name: Name that the broadcast has.
        wait_s: Seconds for which the broadcast is waited for where nobody serves by that name yet.

    Attributes:
        batch_size: Rows of a full batch.
        num_samples: Samples of the source.

    Raises:
        ConfigurationError: If the name is none.
        LoaderError: If nobody serves by it.
    """

    def __init__(self, name: str, *, wait_s: float = 60.0) -> None:
        wait_s = number("wait_s", wait_s, "from 0 on", lambda given: given >= 0, "pass seconds")
        self._connection = connected(name, wait_s)
        self._end = weakref.finalize(self, self._connection.close)
        self._name = name
        self._owner_pid = os.getpid()
        self._cursor = Cursor()
        self._questions = 0
        # The broadcast's slots that no tensor is left of, by number, and those of them that it has not been told of.
        self._slots: dict[int, mmap.mmap] = {}
        self._freed: Remains[tuple[int, mmap.mmap]] = Remains()
        self._state: dict[str, Any] | None = None
        welcome, _, _ = self._answer(0)
        assert isinstance(welcome, Welcome)
        self._welcome = welcome
        self.batch_size, self.num_samples = welcome.batch_size, welcome.num_samples

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return self._welcome.num_batches

    def __iter__(self) -> Iterator[Batch]:
        """Begin an epoch: the next one, also if the present one was left early; see `resume`."""
        self._attach()
        return self._cursor.begin_pass(self._serve)

    @property
    def with_indices(self) -> bool:
        return self._welcome.with_indices

    @property
    def epoch(self) -> int:
        """The epoch that the next `for` serves, also where a loop was left early; in a loop that of its next batch."""
        self._attach()
        return self._cursor.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return where this training is, as `Loader.state_dict` does; a loader of the same arguments takes it, too."""
        state = self._attach()
        epoch, batch = self._cursor.position
        return {**state, "epoch": epoch, "batch": batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken, by a loader or here: the rest of that epoch is served next.

        It must still be to come. Where nobody else is attached, or the broadcast has not begun, it can be any.

        Raises:
            StateMismatchError: If it is of another configuration, or damaged; `.keys` says what.
            LoaderError: If others have gone on from there; it says which epoch is the next that can be begun.
        """
        require(isinstance(state, Mapping), "state", "a mapping that state_dict returned", state, "load another")
        # Which samples are bad is found where batches are made.
        self._begin_at({name: value for name, value in state.items() if name != "bad_samples"})

    def close(self) -> None:
        """Let the others go on without this training. Batches that are kept stay good."""
        self._end()
        self._slots, self._freed = {}, Remains()

    def _attach(self) -> dict[str, Any]:
        """Attach, if it is not; return the state that was told last."""
        if self._state is None:
            self._begin_at(None)
        assert self._state is not None
        return self._state

    def _begin_at(self, state: dict[str, Any] | None) -> None:
        told, _, _ = self._ask(None, state)
        self._state = told
        self._cursor.move(Position(told["epoch"], told["batch"]))

    def _serve(self) -> tuple[Batch, Position, int]:
        position = self._cursor.position
        told, memory, slot = self._ask(position)
        assert isinstance(told, Told)
        content = np.frombuffer(memory, np.uint8)
        # Each tensor refers to this, and nobody else does.
        self._freed.expect(content, (slot, memory))
        batch = tuple(read(content, part) for part in told.parts)
        self._state = told.state
        return batch, position.after(len(self)), 0

    def _ask(self, position: Position | None, state: dict[str, Any] | None = None) -> tuple[Any, mmap.mmap, int]:
        """Ask, and wait for the answer; return it, the memory that it is in, and that one's number."""
        if os.getpid() != self._owner_pid:
            raise LoaderError(
                f"a training must attach in the process that iterates, but this one was forked from one that did: make "
                f"Attached({self._name!r}) here"
            )
        if not self._end.alive:
            raise LoaderError(f"this end of the broadcast {self._name!r} is closed: make Attached({self._name!r}) anew")
        freed = [self._freed.take() for _ in range(len(self._freed))]
        self._slots.update(freed)
        while len(self._slots) > self._welcome.slots:
            del self._slots[next(iter(self._slots))]
        self._questions += 1
        asked = Asked(self._questions, position, state, tuple(slot for slot, _ in freed))
        with suppress(ConnectionError):  # Which is said below, behind what has been told before.
            self._connection.send(pickle.dumps(asked))
        return self._answer(self._questions)

    def _answer(self, question: int) -> tuple[Any, mmap.mmap, int]:
        """Wait for the answer to a question; those to others, whose wait was interrupted, are left out."""
        while True:
            message, descriptors = b"", list[int]()
            with suppress(ConnectionError):
                message, descriptors, _, _ = socket.recv_fds(self._connection, MESSAGE.size, 1)
            if not message:
                raise LoaderError(
                    f"the process that serves the broadcast {self._name!r} must live as long as trainings do, but has "
                    f"ended, or closed it: begin it again, and go on by Attached({self._name!r}) with this one's "
                    f"state_dict(), or a loader of your own with it"
                )
            answered, slot, start, nbytes = MESSAGE.unpack(message)
            try:
                memory = self._memory(slot, *descriptors)
            except (OSError, TypeError) as error:  # Where nothing more can be opened, none is received.
                limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                raise LoaderError(
                    f"a training must have an open file for each batch that it keeps, and two more, but none of the "
                    f"{limit:,} that this process may have is left: keep fewer batches, or allow more by `ulimit -n`"
                ) from error
            if answered == question:
                break
            if slot:
                self._freed.expect(np.frombuffer(memory, np.uint8), (slot, memory))  # Nobody refers to it.
        told = pickle.loads(memory[start : start + nbytes])
        if isinstance(told, Failure):
            raise told.error()
        return told, memory, slot

    def _memory(self, slot: int, descriptor: int) -> mmap.mmap:
        """Return memory as it is now: that of a slot that was mapped before, or a new one."""
        try:
            memory = self._slots.pop(slot, None)
            if memory is None:
                return mapped(descriptor)
            forget_writes(memory)
            return memory
        finally:
            os.close(descriptor)

    def __repr__(self) -> str:
        place = "not attached yet" if self._state is None else f"next: {self._cursor}"
        return f"Attached({self._name!r}, {place})"
