"""DeviceStore: samples where the final part runs, in GPU memory, or in pinned host memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dalirefurb.checks import flag
from dalirefurb.errors import ConfigurationError, OutOfMemoryError, StoreError
from dalirefurb.image_batch import Image, Images, Places
from dalirefurb.store.base import Contents, Keys, Lease, Store, Taken
from dalirefurb.store.device.memory import Array, DeviceMemory, device_memory, gather, scatter, within
from dalirefurb.store.slot_table import SlotContents, SlotTable
from dalirefurb.store.spec import StoreSpec
from dalirefurb.system.resources import Budget, amount, budget_bytes, checked_budget


class DeviceSlots:
    """The bytes of a device store's slots, each (H, W, C), on the device, or in host memory that it reaches."""

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
        """Set `out[rows]` to slots, shape (n,); see `memory.gather`."""
        xp = self._memory.xp
        if not isinstance(out, xp.ndarray) or out.dtype != np.uint8 or out.shape[1:] != self._shape:
            expected = ", ".join(map(str, ("B", *self._shape)))
            raise ConfigurationError(
                f"a batch must be {xp.__name__}.ndarray of uint8 and shape ({expected}), but is {type(out).__name__} "
                f"of {out.dtype} and {out.shape}: make it with {xp.__name__}.empty"
            )
        with self._memory.in_turn():
            gather(xp, self._slab, slots, out, rows)

    def places(self, slots: NDArray[np.int64], memory: DeviceMemory) -> Places | None:
        """Return where slots, (n,), lie in a device's memory; None if they are in another one."""
        if memory is not self._memory:
            return None
        addresses = memory.address(self._slab) + math.prod(self._shape) * slots
        return Places(addresses, np.tile(self._shape[:2], (len(slots), 1)))

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


class DeviceStore(Store):
    """Keeps samples of one size in the memory of the CUDA device that is current when it is made.

    One lock guards the bookkeeping; what the device does is ordered by one stream. Samples stay where they are until
    their lease, a `DeviceLease`, is gathered or looked at. What is put are host images, or `Images` on the device that
    are there already, or one array (n, H, W, C) on the device: it is read after what CuPy's current stream was given
    before, and before what it is given then.

    Args:
        max_bytes: The most memory to set aside, "16GB", "60%" of what is free, or bytes; by default what is free.
        pinned_host: Whether the slots are in host memory that the GPU reads and writes over the bus: more room, and
            `Lease.samples` copies nothing.
        device: Device that holds the slots: "gpu", or "cpu", which does the same in host memory, by NumPy, to try it
            where there is no GPU.

    Raises:
        ConfigurationError: There is no CuPy, or no CUDA device.
    """

    def __init__(
        self, *, max_bytes: Budget | None = None, pinned_host: bool = False, device: Literal["cpu", "gpu"] = "gpu"
    ) -> None:
        super().__init__()
        self._max_bytes = checked_budget(max_bytes)
        self._pinned_host = flag("pinned_host", pinned_host)
        self.device = device
        self.memory = device_memory(device)

    def _open(self, spec: StoreSpec) -> Contents:
        if spec.slot_shape is None:
            raise ConfigurationError(
                "the samples of a DeviceStore must have one size, but these vary: end the partial part with a crop or "
                "a resize, or use a MemoryStore"
            )
        self._check_memory(spec)
        try:
            room = DeviceSlots(self.memory, spec.slots, spec.slot_shape, pinned_host=self._pinned_host)
        except MemoryError as error:
            raise self._out_of_memory(spec, "they cannot be allocated") from error
        return _Contents(spec, self.memory, room)

    def _takes(self, spec: StoreSpec) -> Taken:
        return Taken(spec.nbytes) if self._pinned_host or self.device == "cpu" else Taken(device=spec.nbytes)

    @property
    def slot_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of every sample."""
        shape = self._opened().spec.slot_shape
        assert shape is not None
        return shape

    def _check_memory(self, spec: StoreSpec) -> None:
        """Refuse slots that exceed the memory at hand."""
        free, given = partial(self.memory.available_bytes, pinned=self._pinned_host), self._max_bytes
        limit = free() if given is None else budget_bytes(given, available=free)
        if limit is not None and spec.nbytes > limit:
            why = "available" if given is None else "allowed by max_bytes"
            raise self._out_of_memory(spec, f"{amount(limit)} are {why}")

    def _out_of_memory(self, spec: StoreSpec, why: str) -> OutOfMemoryError:
        where, instead = ("host's", "") if self._pinned_host else ("device's", "pinned_host=True, ")
        return OutOfMemoryError(
            f"the slots must fit in the {where} memory, but {spec.slots} slots need {amount(spec.nbytes)} and "
            f"{why}: use {instead}a smaller reuse factor, a coverage below 1 or a smaller image"
        )


class DeviceLease(Lease):
    """Samples lent on the device: to be gathered there, or to be looked at on the host, where they are copied then."""

    __slots__ = ("_room", "_slots")

    def __init__(
        self, found: NDArray[np.bool_], slots: NDArray[np.int64], room: DeviceSlots, on_release: Callable[[], None]
    ) -> None:
        super().__init__(found, Images.on_demand(len(slots), lambda: room.host_images(slots)), on_release)
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
        self._room.gather(self._slots, out, rows[self.found])

    def places(self, memory: DeviceMemory) -> Places | None:
        """Return where what was found lies in a device's memory; None if it is in another one.

        It may be read there by what is queued on that memory's stream before the lease is released.
        """
        return None if self._room is None else self._room.places(self._slots, memory)

    def release(self) -> None:
        super().release()
        self._room = None


class _Contents(SlotContents):
    """Slots on the device: their names and their bytes."""

    def __init__(self, spec: StoreSpec, memory: DeviceMemory, room: DeviceSlots) -> None:
        super().__init__(spec, SlotTable(spec.slots))
        self._memory = memory
        self._room = room

    def get(self, keys: Keys) -> DeviceLease:
        with self._lock:
            found, slots = self._pin(keys)
        return DeviceLease(found, slots, self._room, partial(self._release, slots))

    def put(self, keys: Keys, samples: Sequence[Image] | Array) -> NDArray[np.bool_]:
        slot_table = self.slot_table
        held = np.zeros(len(keys[0]), np.bool_)
        # A newer version can take the slot that an older one took a moment ago: the last row counts.
        row_of_slot: dict[int, int] = {}
        with self._lock:
            for step in slot_table.steps(keys[0]):
                rows, held[step], _ = slot_table.make_way(keys[0][step], keys[1][step])
                new = step[rows]
                held[new] = True
                slots = slot_table.take(keys[0][new], keys[1][new])
                row_of_slot.update(zip(slots.tolist(), new.tolist(), strict=True))
            try:
                self._room.write(row_of_slot, samples)
            except BaseException as error:
                written = list(row_of_slot.values())
                slot_table.forget(keys[0][written], keys[1][written])
                # Where there is no room for what writing needs beside the slots, the store declines.
                if not isinstance(error, MemoryError):
                    raise
                held[written] = False
        return held

    def close(self) -> None:
        """Wait for the device, and give the memory of temporary arrays back; that of slots goes with the last lease."""
        with self._lock:
            self._memory.release()
