"""The part of CuPy that the library uses, on a device of `tests.ordered_device`; anything else is an AttributeError."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.ordered_memory import Allocation

if TYPE_CHECKING:
    from tests.ordered_device import OrderedDevice


class Array:
    """An array on the device: what is done with it is queued on the current stream."""

    device: OrderedDevice
    """Of the subclass that is one device's `cupy.ndarray`."""

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None) -> None:
        if memptr is None:
            memptr = self.device.cupy.cuda.malloc(max(1, math.prod(shape) * np.dtype(dtype).itemsize))
        # Which keeps the memory from going.
        self._memory: Memory = memptr.mem
        self.values: np.ndarray = np.ndarray(shape, dtype, self._memory.allocation.bytes.data)

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)
    ndim = property(lambda self: self.values.ndim)
    size = property(lambda self: self.values.size)
    nbytes = property(lambda self: self.values.nbytes)
    data = property(lambda self: SimpleNamespace(ptr=self.values.ctypes.data))

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an array on the device must be copied to the host by asnumpy, not by NumPy itself")

    def touch(self, key: Any = ..., *, writes: bool) -> np.ndarray:
        """Queue a read or a write of `self[key]`, and return the values of all."""
        with self.device.guard:
            self._memory.allocation.touch(self.device.current.queue(), self.values, key, writes=writes)
        return self.values

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, Array):
            return take(self, key, axis=0)
        view = object.__new__(type(self))
        view._memory, view.values = self._memory, self.values[key]
        return view

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            raise TypeError("what is assigned on the device must be there: use asarray")
        key = key.touch(writes=False) if isinstance(key, Array) else key
        value = value.touch(writes=False) if isinstance(value, Array) else value
        self.touch(key, writes=True)[key] = value

    def fill(self, value: Any) -> None:
        self[...] = value

    def get(self, stream: Any = None) -> np.ndarray:
        """Copy to pinned memory, wait for that, and copy from there."""
        stream = stream or self.device.current
        staging = self.device.allocate("pinned", max(1, self.nbytes))
        with self.device.guard:
            self._memory.allocation.touch(stream.queue(), self.values, writes=False)
            staging.touch(stream.queue(), staging.bytes, writes=True)
        stream.synchronize()
        with self.device.guard:
            staging.touch(self.device.thread, staging.bytes, writes=False)
            return self.values.copy()


def take(a: Array, indices: Array, axis: int | None = None, out: Array | None = None) -> Array:
    rows = indices.touch(writes=False)
    assert axis == 0
    values = a.touch(rows, writes=False)[rows]
    out = type(a)(values.shape, values.dtype) if out is None else out
    out.touch(writes=True)[...] = values
    return out


def asnumpy(a: Array, stream: Any = None) -> np.ndarray:
    return a.get(stream)


class Memory:
    """CUDA's own memory, until nobody refers to it."""

    def __init__(self, allocation: Allocation) -> None:
        self.allocation, self.ptr = allocation, allocation.ptr


class MemoryPool:
    """Memory that is given out again, with its past, on the stream for which it was asked before."""

    def __init__(self, device: OrderedDevice) -> None:
        self._device = device
        self._free: defaultdict[Any, list[Allocation]] = defaultdict(list)

    def malloc(self, nbytes: int) -> Any:
        with self._device.guard:
            left = self._device.arrays_left
            if left is not None:
                if left == 0:
                    raise MemoryError("no room for a temporary array")
                self._device.arrays_left = left - 1
            free = self._free[self._device.current, nbytes]
            allocation = free.pop() if free else self._device.allocate("temporary", nbytes)
            allocation.forget_contents()
        memory = Memory(allocation)
        weakref.finalize(memory, free.append, allocation).atexit = False
        return SimpleNamespace(mem=memory)

    def free_all_blocks(self) -> None:
        """Give back what nobody refers to; this thread must know that all work on it is done."""
        for free in self._free.values():
            while free:
                block = free.pop()
                with self._device.guard:
                    block.touch(self._device.thread, block.bytes, writes=True)


class Device:
    """The only device, 0."""

    mem_info = (2**34, 2**34)

    def __init__(self, device_id: int = 0) -> None:
        assert device_id == 0
        self.id = device_id

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None: ...


def module(device: OrderedDevice) -> Any:
    """Make a device's `cupy`."""
    # Which import this module, for what `OrderedDevice` begins with.
    from tests.ordered_device import Event, Stream

    array = type("ndarray", (Array,), {"device": device})
    allocators, pool = local(), MemoryPool(device)

    def malloc(nbytes: int) -> Any:
        return getattr(allocators, "current", pool.malloc)(nbytes)

    @contextmanager
    def using_allocator(allocator: Any) -> Iterator[None]:
        before, allocators.current = getattr(allocators, "current", pool.malloc), allocator
        try:
            yield
        finally:
            allocators.current = before

    def empty(shape: Any, dtype: Any = float) -> Array:
        made: Array = array(shape, dtype)
        return made

    def full(shape: Any, value: Any, dtype: Any = float) -> Array:
        made: Array = array(shape, dtype)
        made.fill(value)
        return made

    def asarray(data: Any) -> Array:
        if isinstance(data, Array):
            return data
        if isinstance(data, np.ndarray) and (owner := device.pinned(data)) is not None:
            # Nothing is copied before the stream comes to it.
            with device.guard:
                owner.touch(device.current.queue(), data.view(np.ndarray), writes=False)
            data = data.view(np.ndarray)
        values = np.stack(data) if isinstance(data, list) else np.array(data)
        made: Array = array(values.shape, values.dtype)
        made.touch(writes=True)[...] = values
        return made

    cuda: Any = ModuleType("cupy.cuda")
    cuda.Device, cuda.Event = Device, Event
    cuda.Stream = lambda non_blocking=False: Stream(device, "a store's stream", non_blocking=non_blocking)
    cuda.get_current_stream = lambda: device.current
    cuda.is_available = lambda: True
    cuda.nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))
    cuda.malloc, cuda.using_allocator, cuda.MemoryPool = malloc, using_allocator, lambda: MemoryPool(device)
    cuda.Memory = lambda nbytes: Memory(device.allocate("device", nbytes))
    cuda.PinnedMemory = lambda nbytes: Memory(device.allocate("pinned", nbytes))
    cuda.UnownedMemory = lambda ptr, nbytes, owner, device_id: owner
    cuda.MemoryPointer = lambda memory, offset: SimpleNamespace(mem=memory)
    cuda.PinnedMemoryPointer = lambda memory, offset: memory.allocation.bytes.data
    cuda.runtime = SimpleNamespace(CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}))
    cupy: Any = ModuleType("cupy")
    cupy.cuda, cupy.ndarray, cupy.asarray, cupy.asnumpy, cupy.take, cupy.full, cupy.empty = (
        cuda,
        array,
        asarray,
        asnumpy,
        take,
        full,
        empty,
    )
    return cupy
