"""A buffer on the GPU in which a batch group is laid out for the final graph, so that hits stay there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Image, Images
from dalirefurb.store.device.memory import Array, scatter, within
from dalirefurb.store.device.store import DeviceLease, DeviceStore


class BatchBuffer:
    """The partial images of one batch group after another, in plan order, where the store is.

    A graph on a GPU copies a group when it is fed, on the stream that writes the buffer: so the next group can have the
    same memory. On the host nothing is copied, and each group on its way has memory of its own.

    Args:
        store: The store, which is open.
        max_rows: Rows of the longest group.
        max_groups: Groups that are fed before the first of them is collected, at most.
    """

    def __init__(self, store: DeviceStore, *, max_rows: int, max_groups: int) -> None:
        self._memory = store.memory
        apart = 1 if store.memory.copied_when_fed else max_groups
        self._groups = store.memory.empty((apart, max_rows, *store.slot_shape))
        # Of the groups that are not collected yet: what is on the device is read later than `fill` returns.
        self._read: deque[list[Images]] = deque(maxlen=max_groups)
        self._turn = 0

    def fill(
        self,
        num_rows: int,
        lease: DeviceLease,
        leased: NDArray[np.int64],
        others: Sequence[tuple[NDArray[np.int64], Images]],
    ) -> Array:
        """Lay a group out, inside `on_stream`.

        Args:
            num_rows: Rows of the group.
            lease: The samples that the store lends; the lease can be released once this returns.
            leased: Which row each sample of the lease is, shape (n,).
            others: Rows that the lease does not have, with their images, on the device or on the host.

        Returns:
            (num_rows, H, W, C) uint8, to be fed there before the next group is laid out.

        If this fails, or what it returns is not fed or not collected, `forget` must follow.
        """
        out = self._groups[self._turn, :num_rows]
        self._turn = (self._turn + 1) % len(self._groups)
        read: list[Images] = []
        self._read.append(read)
        # First what leaves all other rows undefined.
        lease.gather(out, leased)
        self._scatter(out, others, read)
        return out

    def forget(self) -> None:
        """Let go of what groups are made of that nobody will collect, once it is not read any more."""
        self._memory.synchronize()
        self._read.clear()

    def _scatter(self, out: Array, others: Sequence[tuple[NDArray[np.int64], Images]], read: list[Images]) -> None:
        """Copy images to their rows; note what is read on the device."""
        xp = self._memory.xp
        rows: list[int] = []
        images: list[Image] = []
        for some, part in others:
            whole = within(xp, part)
            if whole is None:
                rows += some.tolist()
                images += part
            else:
                scatter(xp, out, some.tolist(), whole[0], whole[1].tolist())
                read.append(part)
        scatter(xp, out, rows, images, list(range(len(rows))))

    def on_stream(self) -> AbstractContextManager[None]:
        """Make the stream on which the buffer is written CuPy's current one; DALI's `feed_input` reads on that."""
        return self._memory.on_stream()
