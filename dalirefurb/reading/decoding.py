"""Decoding of one sample to look at, as a loader would: inspected first, then by DALI."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dalirefurb.dali import Decoder, GraphError
from dalirefurb.reading.bad_sample_policy import BadSamplePolicy
from dalirefurb.reading.inspector import Inspector, Refused

__all__ = ["Refused", "decoded"]


def decoded(encoded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the image, uint8 of shape (height, width, 3), its EXIF orientation applied.

    Raises:
        Refused: If it cannot be decoded without a fallback decoder, or has too many pixels.
    """
    inspector, decoder = _of_process(os.getpid())
    given = [encoded]
    inspector.look(np.zeros(1, np.int64), given)
    try:
        return decoder(given[0])
    except GraphError as error:
        raise Refused(0, f"decoding failed ({error.reason})") from error


@cache
def _of_process(pid: int) -> tuple[Inspector, Decoder]:
    """Return what decodes in a process: pipelines do not survive a fork, and to let them go there could hang."""
    max_pixels = BadSamplePolicy().max_pixels
    return Inspector(1, max_batch_size=1, max_pixels=max_pixels, fallback=None), Decoder()
