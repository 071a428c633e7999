"""PNG: the chunks, each of a length, a name, as many bytes, and a checksum."""

from __future__ import annotations

from collections.abc import Iterator

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
