"""PNM: a header in words, then the pixels. What Pillow decodes is given to DALI as such a file."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from dalirefurb.reading.formats.header import Header

_HEADER = re.compile(rb"P6\s([1-9]\d{0,6})\s([1-9]\d{0,6})\s255\s")


def proven(content: memoryview) -> Header | None:
    """Read the header of a P6 with 255 levels and without comments, of exactly as many bytes as it needs."""
    found = _HEADER.match(bytes(content[:64]))
    if found is None:
        return None
    width, height = map(int, found.groups())
    return Header(height, width) if len(content) == found.end() + 3 * height * width else None


def written(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Write an image, (height, width, 3), as such a file, shape (length,)."""
    height, width, _ = image.shape
    return np.frombuffer(b"P6\n%d %d\n255\n" % (width, height) + image.tobytes(), np.uint8)
