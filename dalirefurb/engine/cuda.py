"""Parts by kernels on a GPU, in the place of DALI's graphs: CudaPartial and CudaFinal, by a CudaQueue each.

    host, pinned    images from the host │ page ─┐ one copy
    device          images from the host │ page ◀┘     images that are there: slots of a store, or what a GPU computed
                          └──────────── launches ────────────┘
                                            ▼
                        partial images, or a tensor of torch's

All is queued on one stream, that of the device store if there is one: so slots are read where they are, and evicted
after that. The finish thread waits for a group before it hands it over, and for no other.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.augment.stage import Device
from dalirefurb.augment.stages.custom import KernelStage
from dalirefurb.dali import Feed, GraphError, PipelineRunner, located
from dalirefurb.engine.cache_client import CachePlan
from dalirefurb.engine.finals import Final
from dalirefurb.engine.inputs import InputBuilder
from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import Images, Places, decoded_rows, images_at, rounded
from dalirefurb.store.device.memory import Array, DeviceMemory, within
from dalirefurb.store.device.store import DeviceLease

if TYPE_CHECKING:
    from dalirefurb.kernels.cuda.program import CudaLauncher, CudaProgram
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
        from dalirefurb.kernels.cuda.program import CudaLauncher

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


class CudaPartial:
    """Kernels of the partial part on a GPU: a `PipelineRunner`.

    Args:
        queue: Queue of their program, which is split behind its last step.
        decoder: Runner of the graph that decodes; None: samples are images.
        leaving: Device where partial images leave; on a "gpu" they must have one size.
    """

    def __init__(self, queue: CudaQueue, decoder: PipelineRunner | None, leaving: Device) -> None:
        self._queue = queue
        self._decoder = decoder
        self._leaving = leaving
        self._begun: deque[tuple[Mapping[str, Feed], NDArray[np.int64]]] = deque()

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Have the decoder begin."""
        samples = feeds["sample"]
        encoded = np.delete(np.arange(len(samples)), decoded_rows(samples))
        if len(encoded):
            assert self._decoder is not None
            self._decoder.submit({"sample": [samples[row] for row in encoded.tolist()]})
        self._begun.append((feeds, encoded))

    def collect(self) -> Images:
        """Wait for the decoder, then for the kernels; see `PipelineRunner.collect`."""
        feeds, encoded = self._begun.popleft()
        samples, sizes, memory = feeds["sample"], np.array(feeds["sizes"], np.int64), self._queue.memory
        addresses = np.zeros(len(samples), np.int64)
        decoded = self._decoded(encoded, addresses, sizes) if len(encoded) else None
        brought = [(row, samples[row]) for row in np.flatnonzero(addresses == 0).tolist()]
        made: Any = None
        starts, shapes = addresses, sizes

        def reserve(after: NDArray[np.int64]) -> Images:
            nonlocal made, starts, shapes
            shapes = np.insert(after, 2, 3, axis=1)
            ends = np.cumsum(shapes.prod(axis=1))
            alike = (len(after), *shapes[0].tolist()) if (after == after[0]).all() else (int(ends[-1]),)
            starts, made = np.r_[0, ends[:-1]], memory.xp.empty(alike, np.uint8)
            return Images.at(Places(memory.address(made) + starts, after))

        try:
            with memory.on_stream():
                images = Images.at(Places(addresses, sizes))
                work = self._queue.program.work({**feeds, "sample": images}, reserve=reserve)
                self._queue.add(work, addresses, brought)()
        except BaseException:
            memory.synchronize()  # What was decoded goes now, but it may be read still.
            raise
        del decoded  # DALI may write there again.
        left = made if self._leaving == "gpu" else memory.to_host(made)
        return Images(left) if left.ndim == 4 else images_at(left, starts, shapes)

    def restart(self) -> None:
        """Forget all batches in flight."""
        if self._decoder is not None:
            self._decoder.restart()
        self._begun.clear()

    def _decoded(self, rows: NDArray[np.int64], addresses: NDArray[np.int64], sizes: NDArray[np.int64]) -> Any:
        """Collect what the decoder made of some rows, write its addresses down, and return what keeps it there."""
        assert self._decoder is not None
        try:
            decoded = self._decoder.collect()
        except GraphError as error:
            if error.row is not None:
                error.row = int(rows[error.row])
            raise
        places = located(decoded)
        other = (places.sizes != sizes[rows]).any(axis=1)
        if other.any():
            raise GraphError("the decoded image is of another size than its header says", int(rows[other.argmax()]))
        addresses[rows] = places.addresses
        return decoded


_TRIED = (24, 40)
"""Height and width of the image that a user's kernels are tried on."""


def check_own(stage: KernelStage, device: CudaDevice) -> None:
    """Refuse a stage that makes other levels on a GPU than on the CPU, of an image of noise.

    Raises:
        ConfigurationError: If it does, or cannot be compiled.
    """
    from dalirefurb.kernels.cuda.program import CudaProgram
    from dalirefurb.kernels.kernel import compile_own
    from dalirefurb.kernels.lower import steps_of

    steps = steps_of((stage,))
    assert steps is not None
    noise = np.random.default_rng(0)
    image, numbers = noise.integers(0, 256, (*_TRIED, 3), np.uint8), noise.random(stage.uniforms)
    out = np.zeros((*(stage.fixed_size or _TRIED), 3), np.uint8)
    places = [array.ctypes.data for array in (image, numbers, out)]
    call = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 10)(compile_own(stage).address)
    call(places[0], *_TRIED, *out.shape[:2], places[1], 0, 0, places[2])
    runner = CudaPartial(CudaQueue(CudaProgram(steps, None, split=len(steps)), device), None, "cpu")
    runner.submit({"sample": [image], "sizes": np.array([_TRIED]), f"{stage.name}/uniforms": numbers[np.newaxis]})
    (made,) = runner.collect()
    if (other := (made != out).any(axis=2)).any():
        y, x = np.argwhere(other)[0].tolist()
        raise ConfigurationError(
            f"stage {stage.name!r}: cuda must make the levels that its function makes, but of an image of "
            f"{_TRIED[0]} x {_TRIED[1]} with uniforms {numbers.tolist()} the pixel in row {y}, column {x} is "
            f"{made[y, x].tolist()} in place of {out[y, x].tolist()}: see to both"
        )


class CudaFinal(Final):
    """Kernels of the final part on a GPU.

    Args:
        input_builder: Builder of the parameters.
        queue: Queue of their program, which is split before its first step.
    """

    runs_ahead = True

    def __init__(self, input_builder: InputBuilder, queue: CudaQueue) -> None:
        self._input_builder = input_builder
        self._queue, self._memory = queue, queue.memory
        # Final images of each group on its way, what waits for them, and what is read until then.
        self._groups: deque[tuple[torch.Tensor, Callable[[], None], list[object]]] = deque()

    def submit(self, cache_plan: CachePlan, feeds: dict[str, Feed] | None = None) -> None:
        """Queue all that finishes a group."""
        assert feeds is None
        count = len(cache_plan.plan.indices)
        brought, addresses, sizes, read = self._entering(cache_plan, count)
        parameters = self._input_builder.final_parameters(cache_plan.plan, cache_plan.shown, sizes)
        output = self._queue.program.output
        assert isinstance(output, Output)
        try:
            with self._memory.on_stream():
                results = self._queue.device.empty(output, count)
                targets = results.data_ptr() + results[:1].nbytes * np.arange(count)
                images = Images.at(Places(addresses, sizes))
                work = self._queue.program.work({}, pinned=images, final=parameters, targets=targets)
                self._groups.append((results, self._queue.add(work, addresses, brought), read))
        except BaseException:
            # Nobody collects this group, but its images may be read still.
            self._memory.synchronize()
            raise

    def collect(self) -> torch.Tensor:
        """Wait for the oldest group; return its final images."""
        images, wait, _read = self._groups.popleft()
        wait()
        return images

    def restart(self) -> None:
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
        lease = None if cache_plan.asked is None else cache_plan.asked.lease
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
