"""A device's memory, copies of samples there, and their order: CuPy on a GPU; NumPy does the same without one.

What both libraries do alike goes through `xp`, so one code gathers and scatters with either. What differs is here.

A GPU runs what is queued on one stream in order; another stream waits for it only if it is told to, by an event:

    caller's stream   samples are written ──┐           ┌─▶ and may go     out is free ──┐          ┌─▶ out is there
    store's stream                          └─▶ scatter ┴────────────────────────────────┴─▶ gather ┘

One stream does all that concerns the slots, in the order in which it was asked for. So a slot that was lent can be
taken again at once: the scatter into it runs after the last gather from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dalirefurb.errors import ConfigurationError, how_to_install
from dalirefurb.image_batch import Image, Images
from dalirefurb.system.resources import available_bytes

Array = Any
"""CuPy's array, or NumPy's."""

Shape = tuple[int, ...]


class DeviceMemory:
    """An array library, memory for its arrays, and the order in which they are used.

    This one is NumPy's: host memory, in which everything is done by the time it returns.

    Attributes:
        xp: The library.
        device_id: Number of the CUDA device; None on the host.
    """

    xp: Any = np
    device_id: int | None = None

    def empty(self, shape: Shape) -> Array:
        """Allocate uint8 on the device, until the last array of it goes; MemoryError where there is no room."""
        return np.empty(shape, np.uint8)

    def empty_pinned(self, shape: Shape) -> tuple[Array, NDArray[np.uint8]]:
        """Allocate uint8 on the host where the device reaches it; return the device's view of it, and the host's."""
        slab = np.empty(shape, np.uint8)
        return slab, slab

    def available_bytes(self, *, pinned: bool) -> int | None:
        """Estimate what can be allocated; None where that is unknown."""
        return available_bytes()

    @property
    def stream(self) -> int | None:
        """Address of the store's stream; None on the host."""
        return None

    def address(self, array: Array) -> int:
        """Return where an array begins."""
        address: int = array.__array_interface__["data"][0]
        return address

    def recorded(self) -> Callable[[], None]:
        """Return what waits, on the host, for all that is queued on the store's stream by now."""
        return lambda: None

    def on_stream(self) -> AbstractContextManager[None]:
        """Queue what is done inside on the store's stream, with temporary arrays of its own."""
        return nullcontext()

    def in_turn(self) -> AbstractContextManager[None]:
        """Do likewise, after what the caller's current stream was given before and before what it is given then."""
        return nullcontext()

    def to_host(self, array: Array) -> NDArray[np.uint8]:
        """Wait for an array on the store's stream, and copy it to the host."""
        return np.asarray(array)

    def synchronize(self) -> None:
        """Wait for all that was queued on the store's stream."""

    def release(self) -> None:
        """Wait likewise, and give the memory of temporary arrays back."""


class _CuPyMemory(DeviceMemory):
    """Memory of the CUDA device that is current now, whichever is current when it is used."""

    def __init__(self, cupy: Any) -> None:
        self.xp = cupy
        self._cuda = cupy.cuda
        self.device_id = cupy.cuda.Device().id
        # For temporary arrays, so that they can be given back without emptying CuPy's pool for everybody.
        self._pool = cupy.cuda.MemoryPool()
        # A blocking stream would wait for the default one, and so for the training step that is queued there.
        self._stream = cupy.cuda.Stream(non_blocking=True)

    def empty(self, shape: Shape) -> Array:
        memory = self._allocated(self._cuda.Memory, _nbytes(shape))
        return self.xp.ndarray(shape, np.uint8, memptr=self._cuda.MemoryPointer(memory, 0))

    def empty_pinned(self, shape: Shape) -> tuple[Array, NDArray[np.uint8]]:
        nbytes = _nbytes(shape)
        pinned = self._allocated(self._cuda.PinnedMemory, nbytes)
        # Host and device have one address space: pinned memory has the same address in both.
        memory = self._cuda.UnownedMemory(pinned.ptr, nbytes, pinned, self.device_id)
        slab = self.xp.ndarray(shape, np.uint8, memptr=self._cuda.MemoryPointer(memory, 0))
        return slab, np.ndarray(shape, np.uint8, buffer=self._cuda.PinnedMemoryPointer(pinned, 0))

    def _allocated(self, kind: Any, nbytes: int) -> Any:
        """Allocate straight from CUDA: a pool would keep the memory."""
        try:
            with self._device():
                return kind(nbytes)
        except self._cuda.runtime.CUDARuntimeError as error:
            raise MemoryError(str(error)) from error

    def available_bytes(self, *, pinned: bool) -> int | None:
        if pinned:
            return available_bytes()
        free, _ = self._device().mem_info
        return int(free)

    @property
    def stream(self) -> int:
        address: int = self._stream.ptr
        return address

    def address(self, array: Array) -> int:
        address: int = array.data.ptr
        return address

    def recorded(self) -> Callable[[], None]:
        with self._device():
            # A thread that waits for it sleeps.
            event = self._cuda.Event(block=True, disable_timing=True)
            wait: Callable[[], None] = self._stream.record(event).synchronize
        return wait

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        with self._device(), self._cuda.using_allocator(self._pool.malloc), self._stream:
            yield

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        with self._device():
            callers = self._cuda.get_current_stream()
            self._stream.wait_event(callers.record(self._event()))
            try:
                with self.on_stream():
                    yield
            finally:
                callers.wait_event(self._stream.record(self._event()))

    def _device(self) -> Any:
        """Name the device anew: a CuPy device remembers in itself what to go back to, for whichever thread."""
        return self._cuda.Device(self.device_id)

    def _event(self) -> Any:
        return self._cuda.Event(disable_timing=True)

    def to_host(self, array: Array) -> NDArray[np.uint8]:
        copied: NDArray[np.uint8] = self.xp.asnumpy(array, stream=self._stream)
        return copied

    def synchronize(self) -> None:
        self._stream.synchronize()

    def release(self) -> None:
        self.synchronize()
        self._pool.free_all_blocks()


def _nbytes(shape: Shape) -> int:
    """Bytes of an array, but at least one: CUDA gives no address for none."""
    return max(1, math.prod(shape))


def device_memory(device: Literal["cpu", "gpu"]) -> DeviceMemory:
    """Choose the array library: CuPy on the current CUDA device for "gpu", NumPy for "cpu".

    Raises:
        ConfigurationError: There is no CuPy, no compiler for its kernels, or no CUDA device.
    """
    if device not in ("cpu", "gpu"):
        raise ConfigurationError(f"device must be 'gpu', or 'cpu' to try the same without one, but is {device!r}")
    if device == "cpu":
        return DeviceMemory()
    try:
        import cupy
    except ImportError as error:
        raise ConfigurationError(
            f"a DeviceStore needs CuPy, which is not installed: {how_to_install('gpu')}; or use a MemoryStore"
        ) from error
    if not cupy.cuda.is_available():
        raise ConfigurationError("a DeviceStore needs a CUDA device, but CuPy finds none: use a MemoryStore")
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        cuda = cupy.cuda.runtime.runtimeGetVersion() // 1000
        raise ConfigurationError(
            f"a DeviceStore needs CUDA's run-time compiler, NVRTC, which CuPy does not find ({error}): "
            f"pip install 'cupy-cuda{cuda}x[ctk]>=14', or use a MemoryStore"
        ) from error
    return _CuPyMemory(cupy)


KERNEL_BYTES = 2**28
"""What one kernel scatters at most: CuPy counts in 32 bits there, and what comes from the host needs as much room."""


def gather(xp: Any, slab: Array, slots: NDArray[np.int64], out: Array, rows: NDArray[np.int64]) -> None:
    """Set `out[rows] = slab[slots]`; what the other rows of `out` are after that is undefined.

    One kernel writes all rows: to write some only, two would be needed, and room for what they write.

    Args:
        xp: The library of the arrays.
        slab: The slots, shape (S, H, W, C).
        slots: Numbers of the slots to copy from, shape (n,).
        out: The batch to copy to, shape (B, H, W, C).
        rows: Rows of the batch to copy to, shape (n,), each at most once.
    """
    if not len(slots):
        return
    slot_of_row = np.full(len(out), slots[0])
    slot_of_row[rows] = slots
    xp.take(slab, xp.asarray(slot_of_row), axis=0, out=out)


def device_images(memory: DeviceMemory, computed: Any) -> Images:
    """View images of one shape on the device, such as a DALI tensor list, in place."""
    return computed if isinstance(computed, Images) else Images(memory.xp.asarray(computed.as_tensor()))


def within(xp: Any, samples: Array | Sequence[Image]) -> tuple[Array, NDArray[np.int64]] | None:
    """Return the array of `xp` that samples are rows of, and which rows, if they are `Images` of one."""
    whole = samples.whole if isinstance(samples, Images) else None
    return whole if whole is not None and isinstance(whole[0], xp.ndarray) else None


def scatter(xp: Any, target: Array, places: Sequence[int], samples: Array | Sequence[Image], rows: list[int]) -> None:
    """Set `target[places] = samples[rows]`.

    Args:
        xp: The library of `target`.
        target: The slots or the batch to copy to, shape (S, H, W, C).
        places: Places in `target` to copy to, n of them, each at most once.
        samples: Images of one shape (H, W, C) each: an array of `xp`, or host images.
        rows: Rows of `samples` to copy, n of them.
    """
    step = max(1, KERNEL_BYTES // max(1, target[:1].nbytes))
    for start in range(0, len(places), step):
        part = slice(start, start + step)
        target[xp.asarray(places[part])] = _stacked(xp, samples, rows[part])


def _stacked(xp: Any, samples: Array | Sequence[Image], rows: list[int]) -> Array:
    """Return samples[rows] as an array of `xp`, of which the host is not needed any more."""
    if isinstance(samples, xp.ndarray):
        return samples if rows == list(range(len(samples))) else samples[xp.asarray(rows)]
    # As a list they are copied by now; an array in pinned memory would be read later, when it may be something else.
    return xp.asarray([samples[row] for row in rows])
