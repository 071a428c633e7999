"""CudaPartial: the partial part by kernels on a GPU, in the place of DALI's graph of it, which decodes alone."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.stage import Device
from dalirefurb.augment.stages.custom import KernelStage
from dalirefurb.dali import Feed, GraphError, PipelineRunner, located
from dalirefurb.engine.cuda_queue import CudaDevice, CudaQueue
from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import Images, Places, decoded_rows, images_at


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
