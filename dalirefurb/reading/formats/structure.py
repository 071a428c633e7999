"""Checks that a file can be read in one way only, and does no harm, before DALI sees any of it.

PNG: OpenCV comes to harm where chunks of an animation are broken. Animations are left out, see `rewriting`, so that
only those matter that cannot be.

TIFF: of a size that is told twice nvImageCodec takes one and libtiff the other, and writes pixels beyond the image.

JPEG 2000: see `jpeg2000`.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from dalirefurb.reading.formats.png import ANIMATION, SIGNATURE, chunks
from dalirefurb.reading.formats.tiff import MAGIC, Directory


class StructureError(ValueError):
    """A file is not built as it must be; says what of it."""


_SIZES = {256: "width", 257: "height"}
"""Tags of TIFF."""

_NUMBERS = (3, 4, 16)
"""Types of entries that are numbers without sign, of 16, 32 and 64 bits."""


def check_png(encoded: NDArray[np.uint8]) -> None:
    """Do nothing if a file is no PNG, or one of which every chunk can be left out.

    Raises:
        StructureError: If it is another PNG.
    """
    if encoded[: len(SIGNATURE)].tobytes() != SIGNATURE:
        return
    content = encoded.tobytes()
    *places, (_, start, _) = chunks(content)
    ended = bool(places) and places[-1][0] == b"IEND"
    if not ended and any(name in content[start:] for name in ANIMATION):
        raise StructureError(f"its chunks end early, at byte {start:,} of {len(content):,}, before its animation does")


def check_tiff(encoded: NDArray[np.uint8]) -> None:
    """Do nothing if a file is no TIFF, or one that tells its size once.

    Raises:
        StructureError: If it is another TIFF.
    """
    if encoded[:4].tobytes() not in MAGIC:
        return
    try:
        entries = Directory(encoded.data).entries
    except (struct.error, ValueError):
        raise StructureError("its first directory ends early") from None
    for tag, name in _SIZES.items():
        told = [entry[1:3] for entry in entries if entry[0] == tag]
        if len(told) != 1 or told[0][0] not in _NUMBERS or told[0][1] != 1:
            raise StructureError(f"its {name} must be told once, as one number, but is {len(told)} times: {told}")
