"""Decoder: whole images on the CPU, one at a time: to look at, or to find out whether they can be decoded."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn, types
from nvidia.dali.pipeline import pipeline_def

from dalirefurb.augment.stage import Node
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.dali.graph import ENCODED
from dalirefurb.dali.insides import decoding_reason
from dalirefurb.dali.runner import GraphError, tensors_of


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
