"""How large is an encoded image, and can it be decoded at all? DALI's own answers, sample by sample."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline, pipeline_def

from dalirefurb.augment.geometry import Decode
from dalirefurb.augment.stage import Node
from dalirefurb.graph.description import ENCODED
from dalirefurb.graph.replica import GraphError, tensors_of

_MEANINGS = {"'#3'": "its header is broken", "'#4'": "its format is none that it knows"}
"""What nvImageCodec's codes mean, those that files lead to."""


class HeaderReader:
    """Tells the size of encoded images from their headers, as DALI's decoder will see it: orientation applied.

    Thread-safe; one small pipeline behind a lock.
    """

    def __init__(self, max_batch_size: int) -> None:
        self._lock = threading.Lock()
        self._max_batch_size = max_batch_size
        self._pipeline: Pipeline | None = None

    def sizes(self, encoded: Sequence[NDArray[np.uint8]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return heights and widths in pixels, each of shape (n,).

        Raises:
            GraphError: If a header cannot be read; `row` names the first such sample.
        """
        if not encoded:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        with self._lock:
            try:
                shapes = self._peek(encoded)
            except RuntimeError:
                shapes = np.stack([self._peek_one(row, sample) for row, sample in enumerate(encoded)])
        return shapes[:, 0], shapes[:, 1]

    def _peek_one(self, row: int, sample: NDArray[np.uint8]) -> NDArray[np.int64]:
        try:
            (shape,) = self._peek([sample])
        except RuntimeError as error:
            failure = GraphError(str(error))
            failure.reason = next(
                (f"{failure.reason}: {meaning}" for code, meaning in _MEANINGS.items() if code in failure.reason),
                failure.reason,
            )
            failure.row = row
            raise failure from error
        return np.asarray(shape)

    def _peek(self, encoded: Sequence[NDArray[np.uint8]]) -> NDArray[np.int64]:
        if self._pipeline is None:
            self._pipeline = pipeline_def(_peek_shapes)(
                batch_size=self._max_batch_size, num_threads=1, device_id=None, prefetch_queue_depth=1
            )
            self._pipeline.build()
        self._pipeline.feed_input("sample", tensors_of(encoded, ENCODED))
        self._pipeline.schedule_run()
        try:
            (shapes,) = self._pipeline.share_outputs()
            peeked: NDArray[np.int64] = np.array(np.asarray(shapes.as_tensor()), dtype=np.int64)
            return peeked
        finally:
            self._pipeline.release_outputs()


def _peek_shapes() -> Node:
    return fn.peek_image_shape(ENCODED.node())


def undecodable(encoded: Sequence[NDArray[np.uint8]]) -> Iterator[tuple[int, str]]:
    """Decode samples one by one on the CPU; yield the rows that fail, and why."""
    if not encoded:
        return
    pipeline = pipeline_def(_decode_whole)(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    pipeline.build()
    for row, sample in enumerate(encoded):
        pipeline.feed_input("sample", [sample])
        pipeline.schedule_run()
        try:
            pipeline.share_outputs()
        except RuntimeError as error:
            said = GraphError(str(error)).reason.removeprefix("Failed to decode sample #0 :").strip()
            yield row, said or "its data are damaged, or end early"
        finally:
            pipeline.release_outputs()


def _decode_whole() -> Node:
    return Decode().decode(ENCODED.node(), "cpu")
