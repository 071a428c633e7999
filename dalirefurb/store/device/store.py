"""DeviceStore: samples where the final part runs, in GPU memory, or in pinned host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError, OutOfMemoryError, StoreError
from dalirefurb.image_batch import Image, Images
from dalirefurb.store.base import Keys, Lease, Store, checked_keys
from dalirefurb.store.device.memory import Array, device_memory
from dalirefurb.store.device.slots import DeviceSlots
from dalirefurb.store.slot_table import SlotTable
from dalirefurb.store.spec import StoreSpec


class DeviceStore(Store):
    """Keeps samples of one size in the memory of the CUDA device that is current when it is made.

    One lock guards the bookkeeping; what the device does is ordered by one stream. Leases outlive `close`.

    Args:
        max_bytes: The most memory to set aside, in bytes; by default what is free.
        pinned_host: Whether the slots are in host memory that the GPU reads and writes over the bus: more room, and
            `Lease.samples` copies nothing.
        device: Device that holds the slots: "gpu", or "cpu", which does the same in host memory, by NumPy, to try it
            where there is no GPU.

    Raises:
        ConfigurationError: There is no CuPy, or no CUDA device.
    """

    def __init__(
        self, *, max_bytes: int | None = None, pinned_host: bool = False, device: Literal["cpu", "gpu"] = "gpu"
    ) -> None:
        self._max_bytes = max_bytes
        self._pinned_host = pinned_host
        self.device = device
        self.memory = device_memory(device)
        self._lock = Lock()
        self._contents: _Contents | None = None

    def open(self, spec: StoreSpec) -> None:
        """Set memory aside, as `Store.open` says.

        Raises:
            ConfigurationError: Samples vary in size.
        """
        slot_shape = spec.slot_shape
        if slot_shape is None:
            raise ConfigurationError(
                "the samples of a DeviceStore must have one size, but these vary: end the partial part with a crop or "
                "a resize, or use a MemoryStore"
            )
        with self._lock:
            if self._contents is not None:
                self._contents.spec.check_same(spec)
                return
            self._check_memory(spec)
            try:
                room = DeviceSlots(self.memory, spec.slots, slot_shape, pinned_host=self._pinned_host)
            except MemoryError as error:
                raise _out_of_memory(spec, "they cannot be allocated") from error
            self._contents = _Contents(spec, slot_shape, room)

    def get(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> DeviceLease:
        """Lend samples, as `Store.get` says; they stay where they are until they are gathered or looked at."""
        keys = checked_keys(indices, versions)
        with self._lock:
            contents = self._opened()
            slots = contents.slot_table.find(*keys)
            lent = slots[slots >= 0]
            contents.slot_table.pin(lent)
        return DeviceLease(slots, contents.room, partial(self._release, contents, lent))

    def put(
        self, indices: NDArray[np.int64], versions: NDArray[np.int64], samples: Sequence[Image] | Array
    ) -> NDArray[np.bool_]:
        """Copy samples in, as `Store.put` says.

        Args:
            indices: Indices of the samples, shape (n,).
            versions: Versions of the samples, shape (n,).
            samples: Host images, or `Images` on the device that are there already, or one array (n, H, W, C) on the
                device: it is read after what CuPy's current stream was given before, and before what it is given then.
        """
        keys = checked_keys(indices, versions)
        with self._lock:
            contents = self._opened()
            contents.spec.check_samples(samples, len(keys[0]))
            return contents.keep(keys, samples)

    def evict(self, indices: NDArray[np.int64]) -> None:
        """Forget these indices, as `Store.evict` says."""
        keys, _ = checked_keys(indices, indices)
        with self._lock:
            self._opened().slot_table.hide(keys)

    def retain(self, indices: NDArray[np.int64], versions: NDArray[np.int64]) -> None:
        """Forget all but these versions, as `Store.retain` says."""
        wanted = checked_keys(indices, versions)
        with self._lock:
            self._opened().slot_table.retain(*wanted)

    def close(self) -> None:
        """Give the memory back, as `Store.close` says."""
        with self._lock:
            self.memory.release()
            self._contents = None

    @property
    def nbytes(self) -> int:
        """Bytes set aside for samples."""
        with self._lock:
            return 0 if self._contents is None else self._contents.spec.nbytes

    def __len__(self) -> int:
        """Count the versions held; none when closed."""
        with self._lock:
            return 0 if self._contents is None else len(self._contents.slot_table)

    @property
    def slot_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of every sample."""
        with self._lock:
            return self._opened().slot_shape

    def _release(self, contents: _Contents, slots: NDArray[np.int64]) -> None:
        """Unpin a lease's slots; harmless when the store was closed, or opened anew, since."""
        with self._lock:
            contents.slot_table.unpin(slots)

    def _opened(self) -> _Contents:
        """Return the contents of an open store."""
        if self._contents is None:
            raise StoreError("a store must be open to be used, but this one is not: call open first")
        return self._contents

    def _check_memory(self, spec: StoreSpec) -> None:
        """Refuse slots that exceed the memory at hand."""
        given = self._max_bytes is not None
        limit = self._max_bytes if given else self.memory.available_bytes(pinned=self._pinned_host)
        if limit is not None and spec.nbytes > limit:
            raise _out_of_memory(spec, f"{limit / 1e9:.2f} GB are {'allowed by max_bytes' if given else 'available'}")


class DeviceLease(Lease):
    """Samples lent on the device: to be gathered there, or to be looked at on the host, where they are copied then."""

    __slots__ = ("_room", "_slots")

    def __init__(self, slots: NDArray[np.int64], room: DeviceSlots, on_release: Callable[[], None]) -> None:
        found = slots >= 0
        lent = slots[found]
        super().__init__(found, Images.on_demand(len(lent), lambda: room.host_images(lent)), on_release)
        self._slots = slots
        self._room: DeviceSlots | None = room

    def gather(self, out: Array, rows: NDArray[np.int64]) -> None:
        """Write what was found into a batch, by one kernel; the batch's other rows are undefined after that.

        It is done after what CuPy's current stream was given before, and before what that is given then. The lease can
        be released once this returns.

        Args:
            out: The batch to write to, (B, H, W, C) uint8, on the device.
            rows: The batch's row for each sample asked for, shape (n,), none twice.

        Raises:
            ConfigurationError: The batch does not fit the samples.
            StoreError: The lease was released.
        """
        if self._room is None:
            raise StoreError("a lease must be held to be gathered from, but this one was released: gather before that")
        count = len(self.found)
        if rows.shape != (count,) or (count and not 0 <= rows.min() <= rows.max() < len(out)):
            raise ConfigurationError(
                f"rows must name a row of the batch, 0..{len(out) - 1}, for each of the {count} samples asked for, "
                f"but are {rows.tolist()}"
            )
        self._room.gather(self._slots[self.found], out, rows[self.found])

    def release(self) -> None:
        """Give the slots back, as `Lease.release` says."""
        super().release()
        self._room = None


class _Contents:
    """One opening's slots: their names and their bytes."""

    def __init__(self, spec: StoreSpec, slot_shape: tuple[int, int, int], room: DeviceSlots) -> None:
        self.spec = spec
        self.slot_shape = slot_shape
        self.slot_table = SlotTable(spec.slots)
        self.room = room

    def keep(self, keys: Keys, samples: Sequence[Image] | Array) -> NDArray[np.bool_]:
        """Copy n samples in, unless their versions are held; say which are held now, shape (n,)."""
        slot_table = self.slot_table
        held = np.zeros(len(keys[0]), np.bool_)
        # A newer version can take the slot that an older one took a moment ago: the last row counts.
        row_of_slot: dict[int, int] = {}
        for step in slot_table.steps(keys[0]):
            rows, held[step], _ = slot_table.make_way(keys[0][step], keys[1][step])
            new = step[rows]
            held[new] = True
            slots = slot_table.take(keys[0][new], keys[1][new])
            row_of_slot.update(zip(slots.tolist(), new.tolist(), strict=True))
        try:
            self.room.write(row_of_slot, samples)
        except BaseException as error:
            written = list(row_of_slot.values())
            slot_table.forget(keys[0][written], keys[1][written])
            # Where there is no room for what writing needs beside the slots, the store declines.
            if not isinstance(error, MemoryError):
                raise
            held[written] = False
        return held


def _out_of_memory(spec: StoreSpec, why: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"the slots must fit in the device's memory, but {spec.slots} slots need {spec.nbytes / 1e9:.2f} GB and "
        f"{why}: use pinned_host=True, a smaller reuse factor, a coverage below 1 or a smaller image"
    )
