"""Who uses a device store on the stand-in for a device: a user with a stream of their own, and DALI."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from dalirefurb.engine.cuda import CudaDevice
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images
from dalirefurb.kernels.cuda.program import WORK
from dalirefurb.store import StoreSpec
from dalirefurb.store.device.store import DeviceLease, DeviceStore
from tests.kernels.cuda_host import compiled, launch_on
from tests.ordered_device import OrderedDevice
from tests.ordered_memory import Allocation, Race

SHAPE = (4, 5, 3)
SLOTS = 6
KEYS = np.arange(SLOTS)
NEWER = np.ones(SLOTS, np.int64)
IMAGES = np.random.default_rng(0).integers(0, 200, (SLOTS, *SHAPE), dtype=np.uint8)
OTHERS = IMAGES[::-1] + np.uint8(1)
EMPTY = 222


class Dali:
    """What DALI does on streams of its own: one makes images, and writes their memory again as soon as nobody has them.

    Attributes:
        refuses: Whether a batch that is submitted is an error.
    """

    def __init__(self, device: OrderedDevice) -> None:
        self.refuses = False
        self._device, self._stream = device, device.stream("DALI's stream")
        self._final = device.stream("DALI's stream of the final part")
        self._fed: deque[Any] = deque()

    def images(self, values: np.ndarray) -> Images:
        """Make images and wait for them."""
        cuda = self._device.cupy.cuda
        memory = cuda.Memory(values.nbytes)
        array = self._device.cupy.ndarray(values.shape, np.uint8, cuda.MemoryPointer(memory, 0))
        with self._stream:
            array[:] = self._device.cupy.asarray(values)
        self._stream.synchronize()
        weakref.finalize(memory, self._write_again, memory.allocation).atexit = False
        return Images(array)

    def _write_again(self, allocation: Allocation) -> None:
        with self._device.guard, suppress(Race):
            allocation.touch(self._stream.queue(), allocation.bytes, writes=True)

    def submit(self, feeds: Any) -> None:
        """Copy a batch on the current stream, as `feed_input` does, and work on it."""
        if self.refuses:
            raise LoaderError("no batch is taken")
        batch = feeds["partial"]
        copied = self._device.cupy.full(batch.shape, 0, np.uint8)
        copied[:] = batch
        self._final.wait_event(self._device.current.record())
        self._fed.append(copied)

    def collect(self) -> np.ndarray:
        copied: np.ndarray = self._fed.popleft().get(stream=self._final)
        return copied

    def restart(self) -> None:
        """Forget what was submitted."""
        self._fed.clear()


class Kernels(CudaDevice):
    """The device's own kernels, on what is the current stream then: this processor does them."""

    def __init__(self, device: OrderedDevice, memory: Any) -> None:
        super().__init__(memory)
        self._device = device

    def launcher(self, text: str) -> Any:
        self._library = compiled(text)
        return self

    def empty(self, output: Any, count: int) -> torch.Tensor:
        sides = (count, output.channels, *output.sides)
        array = self._device.cupy.ndarray(sides, np.float32)
        tensor = torch.from_numpy(array.values)
        weakref.finalize(tensor, lambda kept: None, array).atexit = False
        return tensor

    def launch(self, launch: Any, rows: int, page: int) -> None:
        """Read the page and images, work in memory, write results: what of these an image has is said by the page."""
        record = self._touch(page, 8 * len(WORK.names or ()), writes=False).view(WORK)[0]
        steps, count = int(record["steps"]), int(record["count"])
        images = self._touch(int(record["images"]), 8 * (steps + 1) * count, writes=False).view(np.int64)
        targets = self._touch(int(record["targets"]), 8 * count, writes=False).view(np.int64)
        nbytes = 3 * SHAPE[0] * SHAPE[1]
        if launch.function == "pixels":
            results = self._touch(int(record["results"]), 8 * steps * count, writes=False).view(np.int64)
            for row in range(launch.step * count, (launch.step + 1) * count):
                if results[row]:
                    self._touch(int(images[row]), nbytes, writes=False)
                    self._touch(int(results[row]), nbytes, writes=True)
        if launch.function == "output":
            for place in images[-count:].tolist():
                self._touch(place, nbytes, writes=False)
            for place in targets.tolist():
                self._touch(place, 4 * nbytes, writes=True)
        launch_on(self._library, launch.function, page, launch.step, launch.blocks, rows)

    def _touch(self, place: int, nbytes: int, *, writes: bool) -> np.ndarray:
        """Queue a read or a write of memory, and return its bytes."""
        allocation = self._device.at(place)
        some = allocation.bytes[place - allocation.ptr :][:nbytes]
        with self._device.guard:
            allocation.touch(self._device.current.queue(), some, writes=writes)
        return some


class User:
    """Somebody with a store and a stream of their own."""

    def __init__(self, device: OrderedDevice, pinned_host: bool) -> None:
        self.device, self.cupy = device, device.cupy
        self.stream = device.stream("the caller's stream")
        self.dali = Dali(device)
        self.store = DeviceStore(pinned_host=pinned_host)
        self.kernels = Kernels(device, self.store.memory)
        self.store.open(StoreSpec(SHAPE, SLOTS, {}))

    @contextmanager
    def get(self, keys: np.ndarray = KEYS, versions: np.ndarray | None = None) -> Iterator[DeviceLease]:
        """Lend samples, until the block ends."""
        with self.store.get(keys, np.zeros_like(keys) if versions is None else versions) as lease:
            assert isinstance(lease, DeviceLease)
            yield lease

    def put(self, samples: Any, keys: np.ndarray = KEYS, version: int = 0) -> None:
        assert self.store.put(keys, np.full(len(keys), version), samples).all()

    def shown(self, images: torch.Tensor) -> np.ndarray:
        """Look at a batch that kernels made, on the host."""
        allocation = self.device.at(images.data_ptr())
        with self.device.guard:
            allocation.touch(self.device.thread, allocation.bytes, writes=False)
        levels: np.ndarray = images.numpy().transpose(0, 2, 3, 1).astype(np.uint8)
        return levels[:, :, ::-1]

    def batch(self) -> Any:
        return self.cupy.full((SLOTS, *SHAPE), EMPTY, np.uint8)

    def gathered(self, keys: np.ndarray = KEYS, versions: np.ndarray | None = None) -> Any:
        """Gather on the current stream, and let the lease go at once."""
        out = self.batch()
        with self.get(keys, versions) as lease:
            lease.gather(out, np.arange(len(keys)))
        return out
