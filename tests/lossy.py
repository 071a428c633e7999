"""Ways in which a store loses samples: to be mixed into any store, in front of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dalirefurb.store import Image, Lease, Store, StoreSpec

Meddle = Callable[[Store, int], None]
"""Is called with the store after each batch, and its number within the epoch."""


class TooSmall:
    """A store with a third of the slots, or of the arena, that the plan needs."""

    def open(self, spec: StoreSpec) -> None:
        super().open(replace(spec, slots=max(1, spec.slots // 3), arena_bytes=spec.arena_bytes // 3))


class Leaky:
    """A store that loses every other sample that is put into it."""

    def put(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Sequence[Image]
    ) -> NDArray[np.bool_]:
        stored = super().put(indices, versions, samples)
        self.evict(indices[indices % 2 == 0])
        return stored


class Forgetful:
    """A store that loses a sample soon after it was lent."""

    def get(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> Lease:
        lease = super().get(indices, versions)
        self.evict(indices[::3])
        return lease


def leave_alone(store: Store, batch: int) -> None:
    pass


def wipe_mid_epoch(store: Store, batch: int) -> None:
    if batch == 2:
        store.clear()


def losing(how: str, kind: type[Store]) -> tuple[type[Store], Meddle]:
    """Make a kind of store that loses samples, and what wipes it if it loses none by itself."""
    if how == WIPED:
        return kind, wipe_mid_epoch
    return type(f"Lossy{kind.__name__}", (LOSSES[how], kind), {}), leave_alone


LOSSES = {"too small": TooSmall, "half lost on the way in": Leaky, "lost after use": Forgetful}
WIPED = "wiped in the middle of an epoch"
