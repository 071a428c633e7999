"""Planes of JPEGs: what is kept in place of RGB where RGB can be made of it anew, bit for bit."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL.JpegImagePlugin import JpegImageFile, get_sampling

from dalirefurb.image_batch import GREY, HALVED

_4_2_0 = 2
"""Of Pillow's `get_sampling`."""


@dataclass(frozen=True)
class Planes:
    """An image that is made, and what is kept of it.

    Attributes:
        image: The image, upright, uint8 of shape (height, width, 3).
        content: Its planes, uint8 of shape (nbytes,), see `image_batch.HALVED`.
    """

    image: NDArray[np.uint8]
    content: NDArray[np.uint8]


def planes_of(encoded: NDArray[np.uint8], image: NDArray[np.uint8]) -> Planes | None:
    """Return the planes of a JPEG of 4:2:0, or in grey; None if these do not make the same image.

    Pillow gives them: Y as the grey image, and Cb and Cr of the image at half its size, where they are as they are
    stored. Of an image that EXIF turns, they would make the one that is not turned.

    Args:
        encoded: Bytes of the file, shape (length,).
        image: The image as a loader decodes it, upright, uint8 of shape (height, width, 3).
    """
    try:
        found = _found(encoded.tobytes(), *image.shape[:2])
    except Exception:  # Pillow's: it is no JPEG, or one of which the decoder knew better.
        return None
    if found is None:
        return None
    from dalirefurb.kernels.planes import rgb  # Who keeps no planes needs no compiler.

    layout, content = found
    return Planes(image, content) if np.array_equal(rgb(content, image.shape[:2], layout), image) else None


def _found(encoded: bytes, height: int, width: int) -> tuple[int, NDArray[np.uint8]] | None:
    """Return a layout, and what may be the planes of an image of this size; None: there are none of such a layout."""
    luma = JpegImageFile(io.BytesIO(encoded))
    if luma.size != (width, height) or luma.mode not in ("L", "RGB"):
        return None
    grey = luma.mode == "L"
    if not grey and (min(height, width) < 2 or get_sampling(luma) != _4_2_0):
        return None
    luma.draft("L", None)
    levels = np.asarray(luma)
    if grey:
        return GREY, levels.reshape(-1).copy()
    colours = JpegImageFile(io.BytesIO(encoded))
    colours.draft("YCbCr", (width // 2, height // 2))
    halves = np.asarray(colours)
    if halves.shape != ((height + 1) // 2, (width + 1) // 2, 3):
        return None
    return HALVED, np.concatenate([levels.reshape(-1), *(halves[:, :, each].reshape(-1) for each in (1, 2))])
