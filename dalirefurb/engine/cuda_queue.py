"""CudaQueue: batches of a kernel program on a GPU, in the place of a DALI graph.

    host, pinned    images from the host │ page ─┐ one copy
    device          images from the host │ page ◀┘     images that are there: slots of a store, or what a GPU computed
                          └──────────── launches ────────────┘
                                            ▼
                        partial images, or a tensor of torch's

All is queued on one stream, that of the device store if there is one: so slots are read where they are, and evicted
after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.augment.stage import Device
from dalirefurb.image_batch import rounded
from dalirefurb.store.device.memory import Array, DeviceMemory

if TYPE_CHECKING:
    from dalirefurb.kernels.cuda.launcher import CudaLauncher
    from dalirefurb.kernels.cuda.program import CudaProgram
    from dalirefurb.kernels.program import Work


class CudaDevice:
    """A GPU as CuPy and torch see it.

    Args:
        memory: CuPy's memory on the current device, and the stream on which all is queued.
    """

    decodes_on: Device = "gpu"
    """Device where DALI decodes what is to be there."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory

    def launcher(self, text: str) -> CudaLauncher:
        """Compile a source."""
        from dalirefurb.kernels.cuda.launcher import CudaLauncher

        return CudaLauncher(text)

    def empty(self, output: Output, count: int) -> torch.Tensor:
        """Allocate what the model receives of so many images, on the stream that will write it."""
        device = "cpu" if self.memory.device_id is None else f"cuda:{self.memory.device_id}"
        sides = (*output.sides, output.channels) if output.channels_last else (output.channels, *output.sides)
        with self._stream():
            return torch.empty((count, *sides), dtype=getattr(torch, output.dtype), device=device)

    def _stream(self) -> AbstractContextManager[Any]:
        stream = self.memory.stream
        if stream is None:
            return nullcontext()
        own = torch.cuda.ExternalStream(stream, self.memory.device_id)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(own)


class _Page:
    """Pinned memory for what a group brings from the host, and when it was read."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self.device, self.host = memory.empty_pinned((0,))
        self.wait: Callable[[], None] = lambda: None

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return room for so many bytes, once the group that had it before has been copied."""
        self.wait()
        if len(self.host) < nbytes:
            self.device, self.host = self._memory.empty_pinned((nbytes + nbytes // 4,))
            self.host[:] = 0  # What lies between images is copied, too.
        return self.host[:nbytes]


class CudaQueue:
    """Queues the work of a program on a GPU. It has one owner thread.

    Args:
        program: The program.
        device: The GPU.
    """

    def __init__(self, program: CudaProgram, device: CudaDevice) -> None:
        self.program, self.device, self.memory = program, device, device.memory
        self._launcher = device.launcher(program.text)
        # One is written while the other is copied.
        self._pages = deque([_Page(self.memory), _Page(self.memory)])
        # Written and read in the order of the stream: one for all batches.
        self._brought, self._work = self.memory.empty((0,)), self.memory.empty((0,))

    def add(
        self, work: Work, addresses: NDArray[np.int64], brought: Sequence[tuple[int, NDArray[np.uint8]]]
    ) -> Callable[[], None]:
        """Queue a batch, inside of `DeviceMemory.on_stream`.

        Args:
            work: What there is to do.
            addresses: Addresses of images on the device, int64 of shape (n,), of which the work knows the places; those
                of others are written there.
            brought: Rows whose image is on the host, with it.

        Returns:
            A function that waits, on the host, until all of it is done.
        """
        launched = self.program.launched(work)
        ends = np.cumsum([rounded(image.size) for _, image in brought], dtype=np.int64).tolist()
        images_bytes = ends[-1] if ends else 0
        nbytes = images_bytes + launched.page_bytes
        self._brought = self._grown(self._brought, nbytes)
        self._work = self._grown(self._work, launched.memory_bytes)
        start = self.memory.address(self._brought)
        page = self._pages[0]
        self._pages.rotate(-1)
        host = page.take(nbytes)
        for (row, image), end in zip(brought, ends, strict=True):
            begin = end - rounded(image.size)
            host[begin : begin + image.size] = image.reshape(-1)
            addresses[row] = start + begin
        launched.write(host[images_bytes:], start + images_bytes, self.memory.address(self._work), addresses)
        self._brought[:nbytes] = page.device[:nbytes]
        page.wait = self.memory.recorded()
        for launch in launched.launches:
            self._launcher.launch(launch, launched.rows, start + images_bytes)
        return self.memory.recorded()

    def _grown(self, buffer: Array, nbytes: int) -> Array:
        """Return memory on the device for so many bytes: this, or another one, since CUDA waits before this goes."""
        return buffer if len(buffer) >= nbytes else self.memory.empty((nbytes + nbytes // 4,))
