"""How does a graph run? In replicas: copies of the pipeline, each fed and collected by one owner thread."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from dalirefurb.errors import LoaderError
from dalirefurb.graph.description import Feed, Graph, Input


def versions() -> dict[str, str]:
    """Return the versions of what computes pixels: DALI and its codecs."""
    import nvidia.dali
    from nvidia import nvimgcodec

    return {"dali": nvidia.dali.__version__, "nvimgcodec": nvimgcodec.__version__}


class Replica:
    """One running copy of a graph. It has one owner thread; `submit` does not block, `collect` does."""

    def __init__(self, graph: Graph, serialized: bytes, *, num_threads: int, device_id: int | None) -> None:
        self._inputs = graph.inputs
        self._caching = graph.caching
        self._rebuild: Callable[[], Pipeline] = lambda: Pipeline.deserialize(
            serialized,
            num_threads=num_threads,
            device_id=device_id,
            prefetch_queue_depth=1,
            exec_pipelined=True,
            exec_async=True,
            exec_dynamic=True,
        )
        self._pipeline: Pipeline | None = self._rebuild()
        # What a batch was fed lives until it is collected: if DALI held the last reference, its threads would wait for
        # Python's lock to let each array go.
        self._fed: deque[dict[str, Any]] = deque()

    def submit(self, feeds: Mapping[str, Feed]) -> None:
        """Start one batch.

        An input that is wrong would stay at the head of DALI's queue for ever, so lengths are checked first.
        """
        lengths = {declared.name: len(feeds[declared.name]) for declared in self._inputs}
        if len(set(lengths.values())) > 1:
            raise LoaderError(f"all inputs of a batch must have the same length, got {lengths}")
        if self._pipeline is None:
            self._pipeline = self._rebuild()
        tensors = {declared.name: _tensors(feeds[declared.name], declared) for declared in self._inputs}
        for name, tensor in tensors.items():
            self._pipeline.feed_input(name, tensor)
        self._pipeline.schedule_run()
        self._fed.append(tensors)

    def collect(self) -> tuple[Any, list[NDArray[np.uint8]]]:
        """Wait for the oldest batch.

        Returns:
            The final images as a DALI tensor (owning its memory), and the computed partial images, HWC uint8, misses
            only, in order; they are views of one buffer, to be copied by whoever keeps them.

        Raises:
            GraphError: If an operator failed; that batch is lost, the replica goes on.
        """
        if self._pipeline is None:
            raise LoaderError("a batch must be submitted before it is collected")
        fed = self._fed.popleft()
        try:
            outputs = self._pipeline.share_outputs()
            self._pipeline.release_outputs()
            images = outputs[0].as_tensor()
        except RuntimeError as error:
            raise GraphError(str(error)) from error
        finally:
            fed.clear()
        return images, _views(outputs[1]) if self._caching else []

    def restart(self) -> None:
        """Forget all batches in flight. The pipeline is built anew when it is needed."""
        self._pipeline = None
        self._fed.clear()


def _views(images: Any) -> list[NDArray[np.uint8]]:
    """View each image of a list in place; one array's rows where all have one shape, since that is ten times faster."""
    if len(images) and images.is_dense_tensor():
        return list(np.asarray(images.as_tensor()))
    return [np.asarray(image) for image in images]


def _tensors(feed: Feed, declared: Input) -> TensorListCPU | list[TensorCPU]:
    """Wrap arrays without copying; `feed_input` would look at each much longer than at DALI's own type."""
    if isinstance(feed, np.ndarray):
        return TensorListCPU(feed, declared.layout)
    empty: TensorCPU | None = None
    tensors = []
    for sample in feed:
        if sample.size:
            tensors.append(TensorCPU(sample, declared.layout))
            continue
        empty = empty or TensorCPU(sample, declared.layout)
        tensors.append(empty)
    return tensors


class GraphError(Exception):
    """DALI failed; `reason` is the operator's own message, `row` the row among the misses, where it is known."""

    def __init__(self, message: str) -> None:
        inner = re.search(r"encountered:\s*(.*?)\s*(?:Current pipeline object|$)", message, re.DOTALL)
        row = re.search(r"[Ff]ailed to decode sample #(\d+)", message)
        self.reason = (inner.group(1) if inner else message).strip()
        self.row = int(row.group(1)) if row else None
        super().__init__(self.reason)
