"""Slots on a device, filled and read many at a time, in the order in which it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import Image
from dalirefurb.store.device.gather import gather, scatter, within
from dalirefurb.store.device.memory import Array, DeviceMemory


class DeviceSlots:
    """The bytes of a device store, without knowing what is in them.

    Args:
        memory: Device memory by which the slots are allocated.
        count: Number of slots.
        shape: Shape of each slot, (H, W, C).
        pinned_host: Whether the slots are in host memory that the device reaches.
    """

    def __init__(self, memory: DeviceMemory, count: int, shape: tuple[int, int, int], *, pinned_host: bool) -> None:
        self._memory = memory
        self._shape = shape
        self._host: NDArray[np.uint8] | None = None
        if pinned_host:
            self._slab, self._host = memory.empty_pinned((count, *shape))
        else:
            self._slab = memory.empty((count, *shape))

    def write(self, row_of_slot: Mapping[int, int], samples: Sequence[Image] | Array) -> None:
        """Put samples[row] into each slot."""
        xp = self._memory.xp
        whole = within(xp, samples)
        if whole is not None:
            array, rows = whole
            try:
                with self._memory.on_stream():
                    scatter(xp, self._slab, list(row_of_slot), array, rows[list(row_of_slot.values())].tolist())
            finally:
                # Its memory may be DALI's, who takes it back as soon as nobody refers to it: also where only the first
                # kernels found room.
                self._memory.synchronize()
            return
        on_device = isinstance(samples, xp.ndarray)
        if self._host is not None and not on_device:
            # A gather that was asked for before may still read these slots.
            self._memory.synchronize()
            for slot, row in row_of_slot.items():
                np.copyto(self._host[slot], samples[row])
            return
        # The host has what it gave once this returns, so that no stream of the caller's has to wait or be waited for.
        with self._memory.in_turn() if on_device else self._memory.on_stream():
            scatter(xp, self._slab, list(row_of_slot), samples, list(row_of_slot.values()))

    def gather(self, slots: NDArray[np.int64], out: Array, rows: NDArray[np.int64]) -> None:
        """Set `out[rows]` to slots, shape (n,); see `gather.gather`."""
        xp = self._memory.xp
        if not isinstance(out, xp.ndarray) or out.dtype != np.uint8 or out.shape[1:] != self._shape:
            expected = ", ".join(map(str, ("B", *self._shape)))
            raise ConfigurationError(
                f"a batch must be {xp.__name__}.ndarray of uint8 and shape ({expected}), but is {type(out).__name__} "
                f"of {out.dtype} and {out.shape}: make it with {xp.__name__}.empty"
            )
        with self._memory.in_turn():
            gather(xp, self._slab, slots, out, rows)

    def host_images(self, slots: NDArray[np.int64]) -> list[Image]:
        """Return read-only images of slots: views if these are in host memory, otherwise copies."""
        if not len(slots):
            return []
        if self._host is not None:
            # A scatter that was asked for before may still write them.
            self._memory.synchronize()
            images = self._host.view()
            images.flags.writeable = False
            return [images[slot] for slot in slots.tolist()]
        xp = self._memory.xp
        with self._memory.on_stream():
            images = self._memory.to_host(xp.take(self._slab, xp.asarray(slots), axis=0))
        images.flags.writeable = False
        return list(images)
