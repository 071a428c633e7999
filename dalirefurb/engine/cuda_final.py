"""CudaFinal: the final part by kernels on a GPU, in the place of DALI's graph of it.

    host, pinned    images from the host │ page ─┐ one copy
    device          images from the host │ page ◀┘     slots of a device store, or what a GPU computed
                          └──────────── launches ────────────┘
                                            ▼
                                   a tensor of torch's

All is queued on one stream, that of the device store if there is one: so slots are read where they are, and evicted
after that. The finish thread waits for a group before it hands it over, and for no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.engine.cache_plan import CachePlan
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.image_batch import Images, Places, rounded
from dalirefurb.store.device.memory import Array, DeviceMemory, within
from dalirefurb.store.device.store import DeviceLease

if TYPE_CHECKING:
    from dalirefurb.kernels.cuda.launcher import Launcher
    from dalirefurb.kernels.cuda.program import CudaProgram


class CudaDevice:
    """A GPU as CuPy and torch see it.

    Args:
        memory: CuPy's memory on the current device, and the stream on which all is queued.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory

    def launcher(self, text: str) -> Launcher:
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


class _Group(NamedTuple):
    """A group on its way.

    Attributes:
        images: Final images, which are there once `wait` returns.
        wait: Function that waits for them.
        read: What is read until then.
    """

    images: torch.Tensor
    wait: Callable[[], None]
    read: object


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


class CudaFinal:
    """Kernels of the final part on a GPU. It has one owner thread, as `FinalGraph` has.

    Args:
        input_builder: Builder of the parameters.
        program: Program of the final part, split before its first step.
        device: The GPU.
    """

    goes_on = True

    def __init__(self, input_builder: InputBuilder, program: CudaProgram, device: CudaDevice) -> None:
        self._input_builder = input_builder
        self._program = program
        self._device, self._memory = device, device.memory
        self._launcher = device.launcher(program.text)
        # One is written while the other is copied.
        self._pages = deque([_Page(self._memory), _Page(self._memory)])
        # Written and read in the order of the stream: one for all groups.
        self._brought, self._work = self._memory.empty((0,)), self._memory.empty((0,))
        self._groups: deque[_Group] = deque()

    def submit(self, cache_plan: CachePlan, feeds: object = None) -> None:
        """Queue all that finishes a group whose partial images are known."""
        assert feeds is None
        count = len(cache_plan.plan.indices)
        brought, addresses, sizes, read = self._entering(cache_plan, count)
        parameters = self._input_builder.final_parameters(cache_plan.plan, cache_plan.shown, sizes)
        try:
            with self._memory.on_stream():
                self._queue(count, parameters, brought, addresses, sizes, read)
        except BaseException:
            # Nobody collects this group, but its images may be read still.
            self._memory.synchronize()
            raise

    def _queue(
        self,
        count: int,
        parameters: Mapping[str, Any],
        brought: list[tuple[int, NDArray[np.uint8]]],
        addresses: NDArray[np.int64],
        sizes: NDArray[np.int64],
        read: object,
    ) -> None:
        """Lay a group out, copy what comes from the host, and launch; for the arguments see `_entering`."""
        output = self._program.output
        assert isinstance(output, Output)
        results = self._device.empty(output, count)
        targets = results.data_ptr() + results[:1].nbytes * np.arange(count)
        # What is brought may need more room than there is: where it will lie is known last.
        entering = Images.on_demand(count, _unseen, lambda: Places(addresses, sizes))
        launched = self._program.launched(self._program.work({}, pinned=entering, final=parameters, targets=targets))
        ends = np.cumsum([rounded(image.size) for _, image in brought], dtype=np.int64).tolist()
        images_bytes = ends[-1] if ends else 0
        nbytes = images_bytes + launched.page_bytes
        self._brought = self._grown(self._brought, nbytes)
        self._work = self._grown(self._work, launched.memory_bytes)
        start = self._memory.address(self._brought)
        page = self._pages[0]
        self._pages.rotate(-1)
        host = page.take(nbytes)
        for (row, image), end in zip(brought, ends, strict=True):
            begin = end - rounded(image.size)
            host[begin : begin + image.size] = image.reshape(-1)
            addresses[row] = start + begin
        launched.write(host[images_bytes:], start + images_bytes, self._memory.address(self._work), addresses)
        self._brought[:nbytes] = page.device[:nbytes]
        page.wait = self._memory.recorded()
        for launch in launched.launches:
            self._launcher.launch(launch, launched.rows, start + images_bytes)
        self._groups.append(_Group(results, self._memory.recorded(), read))

    def collect(self) -> torch.Tensor:
        """Wait for the oldest group; return its final images."""
        group = self._groups.popleft()
        group.wait()
        return group.images

    def restart(self) -> None:
        """Forget all groups in flight, once nothing reads what they were given."""
        self._memory.synchronize()
        self._groups.clear()

    def _entering(
        self, cache_plan: CachePlan, count: int
    ) -> tuple[list[tuple[int, NDArray[np.uint8]]], NDArray[np.int64], NDArray[np.int64], list[object]]:
        """Find a group's partial images.

        Returns:
            Rows whose image is on the host, with it; the addresses of the others, (B,); heights and widths, (B, 2); and
            what has to stay until they are read.
        """
        xp = self._memory.xp
        addresses, sizes = np.zeros(count, np.int64), np.zeros((count, 2), np.int64)
        brought: list[tuple[int, NDArray[np.uint8]]] = []
        read: list[object] = []
        others = cache_plan.unpinned_images()
        lease = None if cache_plan.pinned is None else cache_plan.pinned.lease
        slots = lease.places(self._memory) if isinstance(lease, DeviceLease) else None
        if slots is not None:
            rows = cache_plan.found()
            addresses[rows], sizes[rows] = slots.addresses, slots.sizes
        else:
            others.append(cache_plan.pinned_images())
        for rows, images in others:
            whole = within(xp, images) if self._memory.device_id is not None else None
            if whole is not None:
                array, places = whole
                addresses[rows] = self._memory.address(array) + array[:1].nbytes * places
                sizes[rows] = array.shape[1:3]
                read.append(images)
            else:
                sizes[rows] = images.places.sizes if len(images) else 0
                brought += zip(rows.tolist(), images, strict=True)
        return brought, addresses, sizes, read

    def _grown(self, buffer: Array, nbytes: int) -> Array:
        """Return memory on the device for so many bytes: this, or another one, since CUDA waits before this goes."""
        return buffer if len(buffer) >= nbytes else self._memory.empty((nbytes + nbytes // 4,))


def _unseen() -> Any:
    raise NotImplementedError("images on a GPU are not looked at by the host")
