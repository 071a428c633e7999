"""Decoder: whole images on the CPU, one at a time, to look at."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray
from nvidia.dali.pipeline import pipeline_def

from dalirefurb.augment.stage import Node
from dalirefurb.augment.stages.decode import Decode
from dalirefurb.dali.graph import ENCODED
from dalirefurb.dali.runner import GraphError, tensors_of


class Decoder:
    """Decodes an image as the first stage of a recipe does. Thread-safe; one small pipeline behind a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipeline = pipeline_def(_decode)(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
        self._pipeline.build()

    def __call__(self, encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the image, RGB, uint8 of shape (height, width, 3).

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


def _decode() -> Node:
    return Decode().apply(ENCODED.node(), {})
