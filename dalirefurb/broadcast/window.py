"""Window: the batches of a broadcast that are there, the slots that they lie in, and who wants and has which.

    ... 41 ▏ 42   43   44   45 ▏ 46 ...
      gone   ▲              ▲     upcoming
             └ the last one └ the first one

It reaches from the batch that the last training works with to the one that was made last. A slot is written again once
its batch has left the window and no training has a tensor of it. One thread at a time may use it.
"""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from dalirefurb.broadcast.wire import SharedMemory
from dalirefurb.engine.batch_group import Position
from dalirefurb.errors import LoaderError

_SPARE_SLOTS = 3
"""Beside those ahead: what the last training works with, what it has not let go of yet, and what is being written."""

_STEP = 1 << 16
"""Bytes by which slots grow; what is told beside the tensors varies a little."""


@dataclass(eq=False)
class Training:
    """One that has come.

    Attributes:
        connection: Socket that leads to it.
        wants: Position of the batch that it works with, or waits for; None: it is not attached, or was let go.
        asked: Number of its question that is not answered yet.
        held: How often it was told of a slot, and has not let go of it again, by the slot's number.
        refusal: What it is told in place of a batch, once it was let go.
    """

    connection: socket.socket
    wants: Position | None = None
    asked: int | None = None
    held: Counter[int] = field(default_factory=Counter)
    refusal: Exception | None = None


class Made(NamedTuple):
    """A batch that was made: its slot, and where in it lies what is told of it."""

    slot: SharedMemory
    start: int
    nbytes: int


class Window:
    """What there is, and for whom.

    Args:
        upcoming: Position of the batch that is made first, unless a training wants another.
        ahead: Number of batches that are made before the slowest training takes them.

    Attributes:
        upcoming: Position of the batch that is made next.
        begun: Whether a batch was to be made.
        trainings: All that have come, and have not gone.
    """

    def __init__(self, upcoming: Position, ahead: int) -> None:
        self.upcoming = upcoming
        self.begun = False
        self.trainings: list[Training] = []
        self._ahead = ahead
        self._made: dict[Position, Made] = {}
        self._slots: list[SharedMemory] = []
        self._last_number = 0

    @property
    def most_slots(self) -> int:
        """Number of slots in use at a time."""
        return self._ahead + _SPARE_SLOTS

    @property
    def slots_to_come(self) -> int:
        """Number of slots that there are not yet."""
        return self.most_slots - len(self._slots)

    @property
    def full(self) -> bool:
        """Whether the slowest training has to go on before another batch is made."""
        return len(self._made) > self._ahead

    def wants(self) -> list[Position]:
        """List what attached trainings work with, or wait for."""
        return [training.wants for training in self.trainings if training.wants is not None]

    def place(self, training: Training, position: Position | None) -> Position:
        """Return where a training begins that wants to begin at a position, or anywhere, and attach it there.

        Raises:
            LoaderError: If others have gone on from there.
        """
        earliest = next(iter(self._made), self.upcoming)
        if position is None:
            position = earliest if earliest.batch == 0 or not self.begun else Position(earliest.epoch + 1, 0)
        elif self.begun and position < earliest:
            if any(each.wants is not None for each in self.trainings if each is not training):
                raise LoaderError(
                    f"a state must be of a batch that is still to come, since the broadcast serves others, but it is "
                    f"of {words(position)}, and the first that is there is {words(earliest)}: attach without a state, "
                    f"to begin with the next epoch, or go on with a loader of your own"
                )
            self._made.clear()
            self.upcoming = position
        training.wants, training.refusal = position, None
        return position

    def begin_next(self) -> Position:
        """Return which batch is to be made next; nobody wants those that are left out."""
        least = min(self.wants())
        self.upcoming = max(self.upcoming, least) if self.begun else least
        self.begun = True
        return self.upcoming

    def get(self, position: Position | None) -> Made | None:
        """Return a batch if it is there."""
        return None if position is None else self._made.get(position)

    def put(self, position: Position, made: Made, num_batches: int) -> bool:
        """Add the batch that was to be made next, if it still is; return whether."""
        if position != self.upcoming:
            return False
        self._made[position] = made
        self.upcoming = position.after(num_batches)
        return True

    def trim(self) -> None:
        """Let go of batches that nobody wants any more."""
        first = min(self.wants(), default=None)
        for position in [each for each in self._made if first is None or each < first]:
            del self._made[position]

    def slowest(self) -> list[Training]:
        """List the trainings that all others wait for, if these wait."""
        least = min(self.wants(), default=None)
        return [training for training in self.trainings if training.wants == least and training.asked is None]

    def let_go(self, training: Training) -> None:
        """Wait for a training no longer. What it has it keeps: its slots are not written again."""
        training.wants = None
        self._slots = [slot for slot in self._slots if training.held[slot.number] <= 0]
        training.held.clear()
        self.trim()

    def free_slot(self, nbytes: int) -> SharedMemory:
        """Return a slot that nobody has, for so many bytes; who keeps many batches has their slots for itself then.

        Raises:
            OutOfMemoryError: If there is no room for a new one.
        """
        taken = {made.slot.number for made in self._made.values()}
        for training in self.trainings:
            taken |= {slot for slot, times in training.held.items() if times > 0}
        fitting = [slot for slot in self._slots if len(slot.content) >= nbytes]
        for slot in fitting:
            if slot.number not in taken:
                return slot
        self._last_number += 1
        new = SharedMemory((-(-nbytes // _STEP) + 1) * _STEP, self._last_number)
        self._slots = [*fitting[1 - self.most_slots :], new]
        return new

    def clear(self) -> None:
        """Let go of all memory."""
        self._made.clear()
        self._slots.clear()


def words(position: Position) -> str:
    """Write a position, for messages."""
    return f"batch {position.batch} of epoch {position.epoch}"
