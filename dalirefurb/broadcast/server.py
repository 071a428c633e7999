"""Broadcast: makes each batch of a loader once, for all trainings that are attached.

    loader ──▶ the making thread ──▶ slots of shared memory ──▶ each training
                     ▲                                             │
                     └─ who wants what, and has what ◀── the listening thread

Batches that somebody wants still are in a window: from the batch that the last training works with, to the one that was
made last. A slot is written again once its batch has left the window and no training has a tensor of it. Both threads
wait in the kernel, which tells at once of a training that has ended.
"""

from __future__ import annotations

import atexit
import math
import os
import pickle
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from dalirefurb.broadcast.wire import (
    MESSAGE,
    MOST_BYTES,
    Asked,
    Failure,
    SharedMemory,
    Told,
    Welcome,
    is_own_user,
    keep_from_children,
    laid_out,
    listening,
    write,
)
from dalirefurb.calls import Explained
from dalirefurb.checks import integer, number, require
from dalirefurb.engine.batch_group import Position
from dalirefurb.engine.checkpoint import restored
from dalirefurb.engine.loader_view import Batch
from dalirefurb.errors import ConfigurationError, LoaderError, OutOfMemoryError, shortened
from dalirefurb.loader import Loader
from dalirefurb.store.available import available_bytes, promise_to
from dalirefurb.store.memory_budget import amount

_SPARE_SLOTS = 3
"""Beside those ahead: what the last training works with, what it has not let go of yet, and what is being written."""

_STEP = 1 << 16
"""Bytes by which slots grow; what is told beside the tensors varies a little."""

_END_S = 60.0


class Broadcast(metaclass=Explained):
    """Serves a loader's batches to any number of trainings on this machine, each of which gets each batch once.

    Two threads do it, from when it is made; the loader is theirs then. In the process that makes batches:

        with loader, Broadcast(loader, "photos", trainings=4) as broadcast:
            broadcast.wait()

    and in each training `for images, labels in Attached("photos")`, see `Attached`. All are served the very batches of
    a loader of their own. Who is faster waits for who is slower, once it is `ahead` batches before it. Who is killed is
    let go at once, and disturbs nobody. An error of the loader reaches all trainings, behind the batches before it.

    Where processes train together, each rank has a broadcast of its own, of its rank's loader, with the rank in its name.

    Args:
        loader: Loader of this process, whose batches are on the CPU. It goes on where it is.
        name: Name by which trainings of the same user find it on this machine.
        trainings: Number of trainings that must be there before the first batch is made, so that all get it. Who comes
            later begins with the next epoch.
        ahead: Number of batches that are made before the slowest training takes them. `ahead` + 3 batches are held in
            shared memory.
        patience: Seconds for which one training may let others wait for a batch. After that it is let go, and is told
            so when it asks for its next batch; `math.inf` for ever.

    Attributes:
        name: Name by which trainings find it.

    Raises:
        ConfigurationError: If the loader cannot be shared, or the name is in use.
        OutOfMemoryError: If the batches exceed the memory at hand.
    """

    def __init__(
        self, loader: Loader, name: str, *, trainings: int = 1, ahead: int = 4, patience: float = 600.0
    ) -> None:
        remedy = "pass the loader itself; Attached(name).map(function) changes batches in each training"
        require(isinstance(loader, Loader), "loader", "a Loader, and no view of one", loader, remedy)
        if loader.planner.feedback_lag is not None:
            raise ConfigurationError(
                "AutoAssist chooses batches by the losses of one training, so several cannot share them: give each "
                "training a loader of its own"
            )
        self.name = name
        self._trainings = integer("trainings", trainings, 1, None, "pass how many begin together")
        self._ahead = integer("ahead", ahead, 1, None, "pass a few batches")
        self._patience = number("patience", patience, "above 0", lambda each: each > 0, "pass seconds, or math.inf")
        self._loader = loader
        self._batch_bytes = _batch_bytes(loader)
        self._check_memory()
        # Behind the batch that was made last, the loader's state, and its place.
        self._state = loader.state_dict()
        self._upcoming = _place(self._state)
        # All that follows is changed by who holds it; who waits for a change is told of each.
        self._changed = threading.Condition()
        self._attached: list[_Training] = []
        self._window: dict[Position, _Made] = {}
        self._slots: list[SharedMemory] = []
        self._last_slot = 0
        self._begun = self._closed = False
        self._failure: Exception | None = None
        self._owner_pid = os.getpid()
        self._listener = listening(name)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"dalirefurb-broadcast-{word}", daemon=True)
            for word, work in (("listen", self._listen), ("make", self._make))
        ]
        for thread in self._threads:
            thread.start()
        promise_to(self)
        atexit.register(self.close)

    @property
    def attached(self) -> int:
        """Number of trainings that are attached now."""
        with self._changed:
            return len(self._wants())

    def wait(self) -> None:
        """Wait until as many trainings have come as there should be, and all have gone again.

        Raises:
            DalirefurbError: What the loader has raised, once all trainings were told of it.
        """
        if os.getpid() != self._owner_pid:
            raise LoaderError("a broadcast must be waited for in the process that made it, but this one was forked from it")
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._begun and not self._wants()))
            if self._failure is not None:
                raise shortened(self._failure)

    def close(self) -> None:
        """End it; trainings that are attached still are told at their next batch. Closing twice does nothing.

        The loader stays open. Batches that trainings have stay good.
        """
        if os.getpid() != self._owner_pid:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        atexit.unregister(self.close)
        with suppress(OSError):  # Its thread may have ended already.
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_END_S)
        self._window.clear()
        self._slots.clear()

    @property
    def untouched_bytes(self) -> int:
        """Bytes of shared memory that it may take yet."""
        return 0 if self._closed else max(0, self._most_slots - len(self._slots)) * self._batch_bytes

    @property
    def _most_slots(self) -> int:
        return self._ahead + _SPARE_SLOTS

    def _check_memory(self) -> None:
        needed, there = self._most_slots * self._batch_bytes, available_bytes()
        if there is not None and needed > there:
            raise OutOfMemoryError(
                f"a broadcast must hold {self._most_slots} batches in shared memory, {amount(needed)}, but "
                f"{amount(there)} are free: pass a smaller ahead, or a smaller batch_size to the planner"
            )

    # ---- the listening thread

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do the work of a thread; whatever ends it early belongs to the trainings."""
        try:
            work()
        except BaseException as error:
            with self._changed:
                self._failure = error if isinstance(error, Exception) else LoaderError(f"it was ended by {error!r}")
                self._begun = True
                for training in self._attached:
                    self._answer(training)
                self._changed.notify_all()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while not self._closed:
                    for key, _ in selector.select():
                        training = key.data or self._accepted()
                        if training is None:
                            continue
                        if key.data is None:
                            selector.register(training.connection, selectors.EVENT_READ, training)
                        elif not self._heeded(training):
                            selector.unregister(training.connection)
                            training.connection.close()
            finally:
                self._hang_up()

    def _hang_up(self) -> None:
        """Close all sockets, which tells the trainings; nobody is waited for any more."""
        self._listener.close()
        with self._changed:
            for training in self._attached:
                training.connection.close()
            self._attached.clear()
            self._changed.notify_all()

    def _accepted(self) -> _Training | None:
        """Return who has come, if it is a process of this user; None: nobody, or the broadcast is closed."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            if self._closed:
                return None
            raise
        keep_from_children(connection)
        if not is_own_user(connection):
            connection.close()
            return None
        connection.setblocking(False)  # Nobody is waited for. What is sent is small, and asked for.
        training = _Training(connection)
        loader = self._loader
        hello = Welcome(len(loader), loader.batch_size, loader.num_samples, loader.with_indices, self._most_slots)
        with self._changed:
            self._attached.append(training)
            self._tell(training, 0, hello)
        return training

    def _heeded(self, training: _Training) -> bool:
        """Do what a training asks for; return whether it is there still."""
        try:
            message = training.connection.recv(MOST_BYTES)
        except OSError:
            message = b""
        with self._changed:
            if message:
                asked: Asked = pickle.loads(message)
                training.held.subtract(asked.freed)
                training.asked = asked.number
                if asked.position is None:
                    self._place_it(training, asked)
                else:
                    training.wants = asked.position if training.refusal is None else None
                    self._answer(training)
            else:
                self._attached.remove(training)
                self._let_go(training)
            self._trim()
            self._changed.notify_all()
        return bool(message)

    def _place_it(self, training: _Training, asked: Asked) -> None:
        """Have a training begin where it can, or refuse it."""
        try:
            if self._failure is not None:
                raise self._failure
            training.wants = self._beginning(training, asked.state)
        except Exception as error:
            self._tell(training, asked.number, error)
        else:
            training.refusal = None
            epoch, batch = training.wants
            self._tell(training, asked.number, {**self._state, "epoch": epoch, "batch": batch})
        training.asked = None

    def _beginning(self, training: _Training, state: dict[str, Any] | None) -> Position:
        """Return where a training begins that comes with a state, or without one.

        Raises:
            StateMismatchError: If the state is another loader's.
            LoaderError: If others have gone on from there.
        """
        own, position = self._state, None
        if state is not None:
            division = tuple(own.get("division", ()))
            batches = len(self._loader)
            position = restored(state, own["fingerprint"], num_batches=batches, assisted=False, division=division)
        if not self._begun:
            return position or self._upcoming
        earliest = next(iter(self._window), self._upcoming)
        following = earliest if earliest.batch == 0 else Position(earliest.epoch + 1, 0)
        if position is None or position >= earliest:
            return position or following
        if any(each.wants is not None for each in self._attached if each is not training):
            raise LoaderError(
                f"a state must be of a batch that is still to come, since the broadcast {self.name!r} serves others, "
                f"but it is of {_words(position)}, and the first that is there is {_words(earliest)}: attach "
                f"without a state, to begin with epoch {following.epoch}, or go on with a loader of your own"
            )
        self._window.clear()
        self._upcoming = position
        return position

    # ---- both threads; each of these is called by who holds the condition

    def _wants(self) -> list[Position]:
        """List the batches that trainings work with, or wait for; those that have been let go want none."""
        return [training.wants for training in self._attached if training.wants is not None]

    def _answer(self, training: _Training) -> None:
        """Give a training the batch that it waits for, if it is there, or say why it never will be."""
        if training.asked is None:
            return
        made = None if training.wants is None else self._window.get(training.wants)
        failed = self._failure if made is None else None
        if made is not None:
            training.held[made.slot.number] += 1
            self._send(training, training.asked, made.slot, made.start, made.nbytes)
        elif training.refusal is not None or failed is not None:
            training.refusal = training.refusal or failed
            self._tell(training, training.asked, training.refusal)
            training.wants = None
        else:
            return
        training.asked = None

    def _tell(self, training: _Training, question: int, told: object) -> None:
        memory = SharedMemory.of(Failure.of(told) if isinstance(told, Exception) else told)
        self._send(training, question, memory, 0, len(memory.content))

    def _send(self, training: _Training, question: int, memory: SharedMemory, start: int, nbytes: int) -> None:
        message = MESSAGE.pack(question, memory.number, start, nbytes)
        try:
            socket.send_fds(training.connection, [message], [memory.descriptor])
        except OSError:
            return  # It is gone, which the listening thread is told, too.

    def _let_go(self, training: _Training) -> None:
        """Wait for a training no longer. What it has it keeps: its slots are not written again."""
        training.wants = training.asked = None
        self._slots = [slot for slot in self._slots if training.held[slot.number] <= 0]
        training.held.clear()

    def _trim(self) -> None:
        """Let go of batches that nobody wants any more."""
        first = min(self._wants(), default=None)
        for position in [each for each in self._window if first is None or each < first]:
            del self._window[position]

    # ---- the making thread

    def _make(self) -> None:
        loader = self._loader
        batches: Iterator[Batch] = iter(())
        while (due := self._due()) is not None:
            if due != _place(self._state):
                loader.load_state_dict({**self._state, "epoch": due.epoch, "batch": due.batch})
                batches = iter(())
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            self._publish(due, batch, loader.state_dict())

    def _due(self) -> Position | None:
        """Wait until a batch is wanted, and there is room for it; return which. None: it is over."""
        held_since: float | None = None
        with self._changed:
            while not self._closed:
                left: float | None = None
                wants = self._wants()
                if wants and (self._begun or len(wants) >= self._trainings):
                    if not self._begun:
                        self._begun, self._upcoming = True, min(wants)
                    if len(self._window) <= self._ahead:
                        self._upcoming = max(self._upcoming, min(wants))
                        return self._upcoming
                    if any(each.asked is not None for each in self._attached):
                        held_since = held_since or time.monotonic()
                        left = self._patience - (time.monotonic() - held_since)
                    else:
                        held_since = None
                    if left is not None and left <= 0:
                        self._lose_patience(min(wants))
                        continue
                self._changed.wait(None if left is None or math.isinf(left) else left)
        return None

    def _lose_patience(self, position: Position) -> None:
        """Let those go that let others wait at a batch."""
        for training in self._attached:
            if training.wants == position and training.asked is None:
                self._let_go(training)
                training.refusal = LoaderError(
                    f"a training must not let others wait for more than {self._patience:g} s, but this one did, at "
                    f"{_words(position)}, so the broadcast {self.name!r} has let it go: go on with a loader of your "
                    f"own, from the state, or attach anew to begin with the next epoch; a larger patience of the "
                    f"broadcast waits longer"
                )
        self._trim()

    def _publish(self, position: Position, batch: Batch, state: dict[str, Any]) -> None:
        """Write a batch into a slot, and give it to those that wait for it."""
        parts, end = laid_out(batch)
        told = pickle.dumps(Told(state, parts))
        slot = self._free_slot(end + len(told))
        for part, tensor in zip(parts, batch, strict=True):
            write(slot.content, part, tensor)
        slot.content[end : end + len(told)] = memoryview(told)
        with self._changed:
            self._state = state
            if self._upcoming != position:  # Who is alone has gone elsewhere meanwhile.
                return
            self._window[position] = _Made(slot, end, len(told))
            self._upcoming = position.after(len(self._loader))
            for training in self._attached:
                self._answer(training)
            self._trim()

    def _free_slot(self, nbytes: int) -> SharedMemory:
        """Return a slot that nobody has, for so many bytes; who keeps many batches has their slots for itself then.

        Raises:
            OutOfMemoryError: If there is no room for a new one.
        """
        with self._changed:
            taken = {made.slot.number for made in self._window.values()}
            for training in self._attached:
                taken |= {slot for slot, times in training.held.items() if times > 0}
            fitting = [slot for slot in self._slots if len(slot.content) >= nbytes]
            for slot in fitting:
                if slot.number not in taken:
                    return slot
            self._slots = fitting[1 - self._most_slots :]
            self._last_slot += 1
            made = SharedMemory(-(-nbytes // _STEP + 1) * _STEP, self._last_slot)
            self._slots.append(made)
        return made

    def __enter__(self) -> Broadcast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise LoaderError(
            f"a broadcast cannot be pickled or copied, since its loader belongs to one process: pass its name on, and "
            f"iterate Attached({self.name!r}) there"
        )

    def __repr__(self) -> str:
        return f"Broadcast({self._loader!r}, {self.name!r}, next: {_words(self._upcoming)}; {self.attached} attached)"


class _Training:
    """One that has come.

    Attributes:
        connection: Socket that leads to it.
        wants: Position of the batch that it works with, or waits for; None: it has not begun, or was let go.
        asked: Number of its question that is not answered yet.
        held: How often it was told of a slot, and has not let go of it again, by the slot's number.
        refusal: What it is told in place of a batch, once it was let go.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.wants: Position | None = None
        self.asked: int | None = None
        self.held: Counter[int] = Counter()
        self.refusal: Exception | None = None


class _Made(NamedTuple):
    """A batch that was made: its slot, and where in it lies what is told of it."""

    slot: SharedMemory
    start: int
    nbytes: int


def _place(state: dict[str, Any]) -> Position:
    return Position(state["epoch"], state["batch"])


def _words(position: Position) -> str:
    return f"batch {position.batch} of epoch {position.epoch}"


def _batch_bytes(loader: Loader) -> int:
    """Return the bytes of a full batch, whose numbers beside images take 8 bytes each at most."""
    output, labels = loader.recipe.output, loader.source.labels
    image = output.channels * math.prod(output.sides) * (4 if output.dtype == "float32" else 2)
    return loader.batch_size * (image + 8 * (labels.size // max(1, len(labels)) + 1))
