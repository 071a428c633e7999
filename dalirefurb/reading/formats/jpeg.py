"""JPEG: the segments before the first scan, each of a marker, a length, and as many bytes."""

from __future__ import annotations

from collections.abc import Iterator

MAGIC = b"\xff\xd8"
"""What files begin with."""

END = b"\xff\xd9"
"""The marker with which an image ends; entropy-coded data cannot contain it."""

SCAN = 0xDA
"""The marker with which entropy-coded data begin."""


def segments(content: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield markers of segments, and where each starts and stops; the first scan's own is the last."""
    start = 2
    while start + 4 <= len(content) and content[start] == 0xFF:
        marker = content[start + 1]
        if marker == 0xFF:  # A byte between segments.
            start += 1
            continue
        stop = start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")
        yield marker, start, stop
        if marker == SCAN:
            return
        start = stop
