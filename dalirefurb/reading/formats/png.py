"""PNG: the chunks, each of a length, a name, as many bytes, and a checksum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dalirefurb.reading.formats import StructureError

SIGNATURE = b"\x89PNG\r\n\x1a\n"

ANIMATION = frozenset((b"acTL", b"fcTL", b"fdAT"))
"""Names of chunks with which a PNG is animated."""

_LAST = b"IEND"


def chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield names of chunks, and where each starts and stops; what is left over at the end has no name."""
    start, name = len(SIGNATURE), b""
    while start + 12 <= len(content) and name != _LAST:
        stop = start + 12 + int.from_bytes(content[start : start + 4], "big")
        if stop > len(content):
            break
        name = content[start + 4 : start + 8]
        yield name, start, stop
        start = stop
    yield b"", start, len(content)


def check(encoded: NDArray[np.uint8]) -> None:
    """Do nothing if a file is no PNG, or one of which every chunk can be left out.

    OpenCV comes to harm where chunks of an animation are broken. Animations are left out, see `rewriting`, so that only
    those matter that cannot be.

    Raises:
        StructureError: If it is another PNG.
    """
    if encoded[: len(SIGNATURE)].tobytes() != SIGNATURE:
        return
    content = encoded.tobytes()
    *places, (_, start, _) = chunks(content)
    ended = bool(places) and places[-1][0] == _LAST
    if not ended and any(name in content[start:] for name in ANIMATION):
        raise StructureError(f"its chunks end early, at byte {start:,} of {len(content):,}, before its animation does")
