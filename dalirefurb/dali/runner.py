"""Pipelines at work: replicas of a graph, each fed and collected by one owner thread; and a decoder of one image."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline, pipeline_def
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from dalirefurb.augment.stage import Node
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.dali.graph import ENCODED, Feed, Graph, Input
from dalirefurb.dali.insides import abandon_pipelines, decoding_reason, failed_row, reason_of, shut_down, users_lines
from dalirefurb.errors import LoaderError
from dalirefurb.image_batch import Images, Places

# DALI keeps larger blocks for the next batch. Malloc gives them back to the system, which clears them anew; at times
# that holds up a batch for as long as two take. DALI looks once, at its first allocation.
os.environ.setdefault("DALI_MALLOC_POOL_THRESHOLD", "1M")


def versions() -> dict[str, str]:
    """Return the versions of what computes pixels: DALI and its codecs."""
    import nvidia.dali
    from nvidia import nvimgcodec

    return {"dali": nvidia.dali.__version__, "nvimgcodec": nvimgcodec.__version__}


def release_unused_memory() -> None:
    """Have DALI's pools give back what nobody uses, of a GPU's memory and of pinned memory."""
    from nvidia.dali.backend import ReleaseUnusedMemory  # type: ignore[attr-defined]

    ReleaseUnusedMemory()


class PipelineRunner(Protocol):
    """Makes images of batches: one part of a recipe. It has one owner thread."""

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Start one batch, without waiting for it."""

    def collect(self) -> Any:
        """Wait for the oldest batch; return its images as a DALI tensor list, or what can be used like one.

        Raises:
            GraphError: If an operator failed; that batch is lost, the runner goes on.
        """

    def restart(self) -> None:
        """Forget all batches in flight."""


REPLICA_OPTIONS: dict[str, Any] = {
    "prefetch_queue_depth": 1,
    "exec_pipelined": True,
    "exec_async": True,
    "exec_dynamic": True,
}
"""How a replica's pipeline runs."""


class Replica:
    """One running pipeline. It has one owner thread; `submit` does not block, `collect` does.

    Args:
        inputs: Declarations of all inputs to feed for one batch.
        build: Function that makes the pipeline.
    """

    def __init__(self, inputs: tuple[Input, ...], build: Callable[[], Pipeline]) -> None:
        self._inputs = inputs
        self._build = build
        self._pipeline: Pipeline | None = self._build()
        # What a batch was fed lives until it is collected: if DALI held the last reference, its threads would wait for
        # Python's lock to let each array go.
        self._fed: deque[list[Any]] = deque()

    @classmethod
    def of(cls, graph: Graph, serialized: bytes, *, num_threads: int, device_id: int | None) -> Replica:
        """Return a copy of a graph."""

        def build() -> Pipeline:
            return Pipeline.deserialize(serialized, num_threads=num_threads, device_id=device_id, **REPLICA_OPTIONS)

        return cls(graph.inputs, build)

    def submit(self, feeds: Mapping[str, Feed], kept: object = None) -> None:
        """Start one batch.

        An input that is wrong would stay at the head of DALI's queue for ever, so lengths are checked first.

        Args:
            feeds: Inputs of the batch, by name; there may be others that the pipeline does not use.
            kept: Object whose memory addresses the pipeline knows; it lives as long as the pipeline works on this
                batch.
        """
        lengths = {declared.name: len(feeds[declared.name]) for declared in self._inputs}
        if len(set(lengths.values())) > 1:
            raise LoaderError(f"all inputs of a batch must have the same length, got {lengths}")
        if self._pipeline is None:
            self._pipeline = self._build()
        tensors = {declared.name: tensors_of(feeds[declared.name], declared) for declared in self._inputs}
        for name, tensor in tensors.items():
            self._pipeline.feed_input(name, tensor)
        self._pipeline.schedule_run()
        self._fed.append([tensors, kept])

    def collect(self) -> Any:
        """Wait for the oldest batch.

        Returns:
            The images as a DALI tensor list, which owns its memory.

        Raises:
            GraphError: If an operator failed; that batch is lost, the replica goes on.
        """
        if self._pipeline is None:
            raise LoaderError("a batch must be submitted before it is collected")
        fed = self._fed.popleft()
        try:
            (images,) = self._pipeline.share_outputs()
            self._pipeline.release_outputs()
        except RuntimeError as error:
            raise GraphError(str(error)) from RuntimeError(users_lines(str(error)))
        finally:
            fed.clear()
        return images

    def restart(self) -> None:
        """Forget all batches in flight. The pipeline is built anew when it is needed.

        It ends here, though somebody may still refer to it, such as the traceback of what failed: what it was fed must
        not go while it works.
        """
        if self._pipeline is not None:
            shut_down(self._pipeline)
        self._pipeline = None
        self._fed.clear()


class Replicas:
    """Several copies of a graph that take batches in turn. What `Replica` says of one holds for all.

    A pipeline runs one operator at a time, so several threads of one pipeline wait for each other, several pipelines
    do not.
    """

    def __init__(
        self, graph: Graph, count: int, *, max_batch_size: int, num_threads: int, device_id: int | None
    ) -> None:
        serialized = graph.serialize(max_batch_size=max_batch_size, num_threads=num_threads)
        self._replicas = [
            Replica.of(graph, serialized, num_threads=num_threads, device_id=device_id) for _ in range(count)
        ]
        self._turn = 0
        self._running: deque[Replica] = deque()

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Start one batch on the next replica."""
        replica = self._replicas[self._turn]
        replica.submit(feeds)
        self._turn = (self._turn + 1) % len(self._replicas)
        self._running.append(replica)

    def collect(self) -> Any:
        """Wait for the oldest batch; see `Replica.collect`."""
        return self._running.popleft().collect()

    def restart(self) -> None:
        """Forget all batches in flight."""
        self._running.clear()
        for replica in self._replicas:
            replica.restart()


def images_in(images: Any) -> Images:
    """View the images of a list in place; as one array where all have one shape, since that is ten times faster.

    A view keeps the whole list in memory: whoever wants an image for long copies it.
    """
    if isinstance(images, Images):
        return images
    if len(images) and images.is_dense_tensor():
        return Images(np.asarray(images.as_tensor()))

    return Images.on_demand(len(images), lambda: [np.asarray(image) for image in images], lambda: located(images))


def located(images: Any) -> Places:
    """Find out where the images of a tensor list lie, on its device."""
    shapes = np.array(images.shape(), np.int64)
    nbytes = shapes.prod(axis=1)
    try:
        start = images.as_reshaped_tensor([int(nbytes.sum())]).data_ptr()
    except RuntimeError:  # They do not lie one behind the other.
        addresses = np.array([image.data_ptr() for image in images], np.int64)
    else:
        addresses = start + np.cumsum(nbytes) - nbytes
    return Places(addresses, shapes[:, :2])


os.register_at_fork(after_in_child=abandon_pipelines)


def tensors_of(feed: Feed, declared: Input) -> Any:
    """Wrap arrays without copying, for `feed_input`, which would look at each much longer than at DALI's own type.

    An array on a device is left as it is: then `feed_input` finds out on which stream it was written.
    """
    if hasattr(feed, "__cuda_array_interface__"):
        return feed
    if isinstance(feed, np.ndarray):
        return TensorListCPU(feed, declared.layout)
    samples = [TensorCPU(sample, declared.layout) for sample in feed]
    return TensorListCPU(samples, declared.layout, contiguous=False)  # type: ignore[call-overload]


class GraphError(Exception):
    """DALI failed; `reason` is the operator's own message, `row` the row among the misses, where it is known."""

    def __init__(self, message: str, row: int | None = None) -> None:
        named = failed_row(message)
        self.reason = reason_of(message)
        self.row = row if named is None else named
        super().__init__(self.reason)


class Decoder:
    """Decodes an image as the first stage of a recipe does. Thread-safe; one small pipeline behind a lock.

    Args:
        deep: Whether numbers are returned as they are stored, as uint16, not as levels.
    """

    def __init__(self, *, deep: bool = False) -> None:
        self._lock = threading.Lock()
        graph = pipeline_def(_decode_deep if deep else _decode)
        self._pipeline = graph(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
        self._pipeline.build()

    def __call__(self, encoded: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the image, RGB of shape (height, width, 3).

        Raises:
            GraphError: If it cannot be decoded.
        """
        with self._lock:
            self._pipeline.feed_input("sample", tensors_of([encoded], ENCODED))
            self._pipeline.schedule_run()
            try:
                (images,) = self._pipeline.share_outputs()
                return np.array(images[0])
            except RuntimeError as error:
                raise GraphError(str(error)) from error
            finally:
                self._pipeline.release_outputs()


@cache
def decoder(pid: int, *, deep: bool = False) -> Decoder:
    """Return the decoder of a process: pipelines do not survive a fork, and to let them go there could hang."""
    return Decoder(deep=deep)


def undecodable(encoded: Sequence[NDArray[np.uint8]]) -> Iterator[tuple[int, str]]:
    """Decode samples one by one on the CPU; yield the rows that fail, and why."""
    decode = Decoder()
    for row, sample in enumerate(encoded):
        try:
            decode(sample)
        except GraphError as error:  # noqa: PERF203
            yield row, decoding_reason(error.reason)


def _decode() -> Node:
    return Decode().apply(ENCODED.node(), {})


def _decode_deep() -> Node:
    return fn.decoders.image(ENCODED.node(), device="cpu", output_type=types.RGB, dtype=types.UINT16)
