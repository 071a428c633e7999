"""A buffer on the GPU in which a batch group is laid out for the final graph, so that hits stay there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Image, Images
from dalirefurb.store.device.gather import scatter, within
from dalirefurb.store.device.memory import Array
from dalirefurb.store.device.store import DeviceLease, DeviceStore


class BatchBuffer:
    """The partial images of one batch group after another, in plan order, where the store is.

    Args:
        store: The store, which is open.
        max_rows: Rows of the longest group.
        max_groups: Groups that are laid out before the first of them is collected, at most.
    """

    def __init__(self, store: DeviceStore, *, max_rows: int, max_groups: int) -> None:
        self._memory = store.memory
        self._groups = store.memory.empty((max_groups, max_rows, *store.slot_shape))
        self._read: list[list[Images]] = [[]] * max_groups
        self._turn = 0

    def fill(
        self,
        num_rows: int,
        lease: DeviceLease,
        leased: NDArray[np.int64],
        others: Sequence[tuple[NDArray[np.int64], Images]],
    ) -> Array:
        """Lay a group out.

        Args:
            num_rows: Rows of the group.
            lease: The samples that the store lends; the lease can be released once this returns.
            leased: Which row each sample of the lease is, shape (n,).
            others: Rows that the lease does not have, with their images, on the device or on the host.

        Returns:
            (num_rows, H, W, C) uint8, until `max_groups` more groups are laid out: to be fed inside `on_stream`.
        """
        out = self._groups[self._turn, :num_rows]
        read: list[Images] = []
        # What is on the device is read later than this returns, but before its turn comes again.
        self._read[self._turn] = read
        self._turn = (self._turn + 1) % len(self._groups)
        try:
            with self.on_stream():
                # First what leaves all other rows undefined.
                lease.gather(out, leased)
                self._scatter(out, others, read)
        except BaseException:
            # Nobody keeps what a lost group was to be made of.
            self._memory.synchronize()
            raise
        return out

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

    def images(self, computed: Any) -> Images:
        """View a DALI tensor list of one shape, on the device, in place."""
        return Images(self._memory.xp.asarray(computed.as_tensor()))

    def on_stream(self) -> AbstractContextManager[None]:
        """Make the stream on which the buffer is written CuPy's current one; DALI's `feed_input` reads on that."""
        return self._memory.on_stream()
