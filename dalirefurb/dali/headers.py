"""DALI's own answers on how large an encoded image is, and whether it can be decoded at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from nvidia import nvimgcodec
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline, pipeline_def

from dalirefurb.augment.stage import Node
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.dali.graph import ENCODED, Feed, Input
from dalirefurb.dali.insides import decoding_reason, header_reason, reason_of
from dalirefurb.dali.runner import GraphError, tensors_of

_WINDOW = Input("window", "int32", 1)
"""Height and width of a window in pixels."""

_PLAIN = (np.dtype(np.uint8), np.dtype(np.uint16))
"""Types of pixels that every decoder knows."""


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
            failure.reason = header_reason(failure.reason)
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


def plain(encoded: NDArray[np.uint8]) -> bool:
    """Tell whether an image's pixels are of a type that all decoders know; its header is one that DALI can read.

    On others DALI's decoder may throw, at times while its threads work on the rest of a batch, which ends the process.
    """
    stream = nvimgcodec.CodeStream(encoded)
    try:
        return stream.dtype in _PLAIN and stream.num_channels > 0
    except (TypeError, RuntimeError):  # It has none.
        return False


def undecodable(encoded: Sequence[NDArray[np.uint8]]) -> Iterator[tuple[int, str]]:
    """Decode samples one by one on the CPU; yield the rows that fail, and why."""
    return _failures(_decode_whole, [{"sample": [sample]} for sample in encoded])


def undecodable_windows(
    encoded: Sequence[NDArray[np.uint8]], sizes: NDArray[np.int64], *, gray: bool = False
) -> Iterator[tuple[int, str]]:
    """Do the same by decoding windows as large as the images, without harm where an image is not of its header's size.

    Args:
        encoded: Encoded samples, n of them, each uint8 of shape (length,).
        sizes: Heights and widths of the images in pixels, as their headers tell them, int64 of shape (n, 2).
        gray: Whether to decode to gray, which needs no particular number of components.
    """
    feeds = [
        {"sample": [sample], _WINDOW.name: size[None].astype(np.int32)}
        for sample, size in zip(encoded, sizes, strict=True)
    ]
    return _failures(_decode_gray_window if gray else _decode_window, feeds)


def _failures(graph: Callable[[], Node], feeds: Sequence[Mapping[str, Feed]]) -> Iterator[tuple[int, str]]:
    """Run batches of one; yield the numbers of those that fail, and why."""
    if not feeds:
        return
    pipeline = pipeline_def(graph)(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    pipeline.build()
    for row, feed in enumerate(feeds):
        for name, values in feed.items():
            pipeline.feed_input(name, values)
        pipeline.schedule_run()
        try:
            pipeline.share_outputs()
        except RuntimeError as error:
            yield row, decoding_reason(reason_of(str(error)))
        finally:
            pipeline.release_outputs()


def _decode_whole() -> Node:
    return Decode().decode(ENCODED.node(), "cpu")


def _decode_window() -> Node:
    return Decode().decode_region(ENCODED.node(), "cpu", types.Constant([0, 0], dtype=types.INT32), _WINDOW.node())


def _decode_gray_window() -> Node:
    sample, shape = ENCODED.node(), _WINDOW.node()
    return fn.decoders.image_slice(sample, start=(0, 0), shape=shape, axes=[0, 1], output_type=types.GRAY)
