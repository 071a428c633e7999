"""Broadcast: makes each batch of a loader once, for all trainings that are attached.

    loader ──▶ the making thread ──▶ window ──▶ each training
                                       ▲             │
                                       └── the listening thread

Both threads wait in the kernel, which tells at once of a training that has ended.
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
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from dalirefurb.broadcast.window import Made, Training, Window, words
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
from dalirefurb.engine.cursor import restored
from dalirefurb.engine.loader_view import Batch
from dalirefurb.errors import ConfigurationError, LoaderError, OutOfMemoryError, shortened
from dalirefurb.loader import Loader
from dalirefurb.system.resources import amount, available_bytes, promise_to

_END_S = 60.0


class Broadcast(metaclass=Explained):
    """Serves a loader's batches to any number of trainings on this machine, each of which gets each batch once.

    Two threads do it, from when it is made; the loader is theirs then. In the process that makes batches:

        with loader, Broadcast(loader, "photos", trainings=4) as broadcast:
            broadcast.wait()

    and in each training `for images, labels in Attached("photos")`, see `Attached`. All are served the very batches of
    a loader of their own; who waits for whom is in docs/how-to/sweeps.md. Where processes train together, each rank has
    a broadcast of its own, of its rank's loader, with the rank in the name.

    Args:
        loader: Loader of this process, whose batches are on the CPU. It goes on where it is.
        name: Name by which trainings of the same user find it on this machine.
        trainings: Number of trainings that must be there before the first batch is made, so that all get it. Who comes
            later begins with the next epoch.
        ahead: Number of batches that are made before the slowest training takes them. `ahead` + 3 batches are held in
            shared memory.
        patience: Seconds for which one training may let others wait for a batch. After that it is let go, and is told
            so when it asks for its next batch; `math.inf` for ever.

    Raises:
        ConfigurationError: If the loader cannot be shared, or the name is in use.
        OutOfMemoryError: If the batches exceed the memory at hand.
    """

    def __init__(
        self, loader: Loader, name: str, *, trainings: int = 1, ahead: int = 4, patience: float = 600.0
    ) -> None:
        remedy = "pass the loader itself; Attached(name).map(function) changes batches in each training"
        require(isinstance(loader, Loader), "loader", "a Loader, and no view of one", loader, remedy)
        if loader.source.annotations is not None:
            raise ConfigurationError(
                "batches with targets cannot be shared yet, got a loader of a source that has some: have each training "
                "make a Loader of its own, with Kept(source, ...) below, which decodes for all of them"
            )
        if loader.planner.feedback_lag is not None:
            raise ConfigurationError(
                "AutoAssist chooses batches by the losses of one training, so several cannot share them: give each "
                "training a loader of its own"
            )
        if loader.views:
            raise ConfigurationError(
                "a broadcast serves one image of each sample, but the loader has views: leave them out, or give each "
                "training a loader of its own"
            )
        self.name = name
        self._trainings = integer("trainings", trainings, 1, None, "pass how many begin together")
        self._patience = number("patience", patience, "above 0", lambda each: each > 0, "pass seconds, or math.inf")
        self._loader = loader
        # The loader's state, behind the batch that was made last.
        self._state = loader.state_dict()
        ahead = integer("ahead", ahead, 1, None, "pass a few batches")
        self._window = Window(Position(self._state["epoch"], self._state["batch"]), ahead)
        self._batch_bytes = _batch_bytes(loader)
        self._check_memory()
        # Who uses the window, or what follows, holds it; who waits for a change is told of each.
        self._changed = threading.Condition()
        self._closed = False
        self._failure: Exception | None = None
        self._owner_pid = os.getpid()
        self._listener = listening(name)
        self._threads = [
            threading.Thread(target=work, name=f"dalirefurb-broadcast-{word}", daemon=True)
            for word, work in (("listen", self._listen), ("make", partial(self._guarded, self._make)))
        ]
        for thread in self._threads:
            thread.start()
        promise_to(self)
        atexit.register(self.close)

    @property
    def attached(self) -> int:
        """Number of trainings that are attached now."""
        return len(self._window.wants())

    def wait(self) -> None:
        """Wait until as many trainings have come as there should be, and all have gone again.

        Raises:
            DalirefurbError: What the loader has raised, once all trainings were told of it.
        """
        if os.getpid() != self._owner_pid:
            raise LoaderError("a broadcast must be waited for in the process that made it, but not in a forked one")
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._window.begun and not self.attached))
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

    @property
    def untouched_bytes(self) -> int:
        """Bytes of shared memory that it may take yet."""
        return 0 if self._closed else self._window.slots_to_come * self._batch_bytes

    def _check_memory(self) -> None:
        slots, there = self._window.most_slots, available_bytes()
        if there is not None and slots * self._batch_bytes > there:
            raise OutOfMemoryError(
                f"a broadcast must hold {slots} batches in shared memory, {amount(slots * self._batch_bytes)}, but "
                f"{amount(there)} are free: pass a smaller ahead, or a smaller batch_size to the planner"
            )

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do the work of a thread; what ends it before its time belongs to the trainings."""
        try:
            work()
        except BaseException as error:
            with self._changed:
                self._failure = error if isinstance(error, Exception) else LoaderError(f"it was ended by {error!r}")
                self._window.begun = True
                for training in self._window.trainings:
                    self._answer(training)
                self._changed.notify_all()

    # ---- the listening thread

    def _listen(self) -> None:
        """Serve all that come, then hang up: who waits is told of what has ended it, so that comes first."""
        try:
            self._guarded(self._hear)
        finally:
            self._hang_up()

    def _hear(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._closed:
                for key, _ in selector.select():
                    if key.data is not None:
                        if not self._heeded(key.data):
                            selector.unregister(key.fileobj)
                            key.data.connection.close()
                    elif (training := self._accepted()) is not None:
                        selector.register(training.connection, selectors.EVENT_READ, training)

    def _hang_up(self) -> None:
        """Close all sockets, which tells the trainings; nobody is waited for any more."""
        self._listener.close()
        with self._changed:
            for training in self._window.trainings:
                training.connection.close()
            self._window.trainings.clear()
            self._changed.notify_all()

    def _accepted(self) -> Training | None:
        """Return who has come, if it is a process of this user; None: nobody, as the broadcast is closed."""
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
        connection.setblocking(False)  # Nobody is waited for: what is sent is small, and asked for.
        training, loader, slots = Training(connection), self._loader, self._window.most_slots
        welcome = Welcome(len(loader), loader.batch_size, loader.num_samples, loader.with_indices, slots)
        with self._changed:
            self._window.trainings.append(training)
            self._tell(training, 0, welcome)
        return training

    def _heeded(self, training: Training) -> bool:
        """Do what a training asks for; return whether it is there still."""
        message = b""
        with suppress(OSError):
            message = training.connection.recv(MOST_BYTES)
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
                self._window.trim()
            else:
                self._window.trainings.remove(training)
                self._window.let_go(training)
            self._changed.notify_all()
        return bool(message)

    def _place_it(self, training: Training, asked: Asked) -> None:
        """Have a training begin where it can, or refuse it."""
        told: object
        try:
            if self._failure is not None:
                raise self._failure
            position: Position | None = None
            state = self._state
            if asked.state is not None:
                division = tuple(state.get("division", ()))
                position = restored(
                    asked.state, state["fingerprint"], num_batches=len(self._loader), assisted=False, division=division
                )
            epoch, batch = self._window.place(training, position)
            told = {**state, "epoch": epoch, "batch": batch}
        except Exception as error:
            told = error
        self._tell(training, asked.number, told)
        training.asked = None

    # ---- both threads, which hold the condition then

    def _answer(self, training: Training) -> None:
        """Give a training the batch that it waits for, if it is there, or say why it never will be."""
        if training.asked is None:
            return
        if (made := self._window.get(training.wants)) is not None:
            training.held[made.slot.number] += 1
            self._send(training, training.asked, made.slot, made.start, made.nbytes)
        elif (refusal := training.refusal or self._failure) is not None:
            training.refusal, training.wants = refusal, None
            self._tell(training, training.asked, refusal)
        else:
            return
        training.asked = None

    def _tell(self, training: Training, question: int, told: object) -> None:
        try:
            memory = SharedMemory.of(Failure.of(told) if isinstance(told, Exception) else told)
        except (OSError, OutOfMemoryError):  # There is none, not even for this.
            self._end(training)
        else:
            self._send(training, question, memory, 0, len(memory.content))

    def _send(self, training: Training, question: int, memory: SharedMemory, start: int, nbytes: int) -> None:
        message = MESSAGE.pack(question, memory.number, start, nbytes)
        try:
            socket.send_fds(training.connection, [message], [memory.descriptor])
        except OSError:  # It is gone, or does not listen.
            self._end(training)

    def _end(self, training: Training) -> None:
        """End the connection with a training, which is told of it, as is the listening thread."""
        with suppress(OSError):
            training.connection.shutdown(socket.SHUT_RDWR)

    # ---- the making thread

    def _make(self) -> None:
        loader = self._loader
        batches: Iterator[Batch] = iter(())
        here: Position | None = None  # Where the loader is is said to it once, whoever had a part of an epoch before.
        while (due := self._due()) is not None:
            if due != here:
                loader.load_state_dict({**self._state, "epoch": due.epoch, "batch": due.batch})
                batches = iter(())
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            state = loader.state_dict()
            here = Position(state["epoch"], state["batch"])
            self._publish(due, batch, state)
            del batch

    def _due(self) -> Position | None:
        """Wait until a batch is wanted, and there is room for it; return which. None: it is over."""
        window = self._window
        held_since: float | None = None
        with self._changed:
            while not self._closed:
                left: float | None = None
                wants = self.attached
                if wants and (window.begun or wants >= self._trainings):
                    if not window.full:
                        return window.begin_next()
                    waiting = any(training.asked is not None for training in window.trainings)
                    held_since = (held_since or time.monotonic()) if waiting else None
                    if held_since is not None:
                        left = held_since + self._patience - time.monotonic()
                        if left <= 0:
                            self._lose_patience()
                            continue
                self._changed.wait(None if left is None or math.isinf(left) else left)
        return None

    def _lose_patience(self) -> None:
        """Let those go that let others wait."""
        for training in self._window.slowest():
            assert training.wants is not None
            training.refusal = LoaderError(
                f"a training must not let others wait for more than {self._patience:g} s, but this one did, at "
                f"{words(training.wants)}, so the broadcast {self.name!r} has let it go: go on with a loader of your "
                f"own, by the state, or attach anew to begin with the next epoch; more patience of the broadcast waits "
                f"longer"
            )
            self._window.let_go(training)

    def _publish(self, position: Position, batch: Batch, state: dict[str, Any]) -> None:
        """Write a batch into a slot, and give it to those that wait for it."""
        parts, end = laid_out(batch)
        told = pickle.dumps(Told(state, parts))
        with self._changed:
            slot = self._window.free_slot(end + len(told))
        for part, tensor in zip(parts, batch, strict=True):
            write(slot.content, part, tensor)
        slot.content[end : end + len(told)] = memoryview(told)
        with self._changed:
            self._state = state
            # A training that is alone may have gone elsewhere meanwhile.
            if self._window.put(position, Made(slot, end, len(told)), len(self._loader)):
                for training in self._window.trainings:
                    self._answer(training)

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
        window = self._window
        return f"Broadcast({self._loader!r}, {self.name!r}, next: {words(window.upcoming)}; {self.attached} attached)"


def _batch_bytes(loader: Loader) -> int:
    """Return the bytes of a full batch, whose numbers beside images take 8 bytes each at most."""
    output, labels = loader.recipe.output, loader.source.labels
    image = output.channels * math.prod(output.sides) * (4 if output.dtype == "float32" else 2)
    masks = math.prod(output.sides) * loader.recipe.volumes  # labels of voxels
    return loader.batch_size * (image + 8 * (masks + labels.size // max(1, len(labels)) + 1))
