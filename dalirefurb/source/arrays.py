"""Raw images in memory, served row by row, as three channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dalirefurb.errors import ConfigurationError, SampleError
from dalirefurb.image_batch import Images
from dalirefurb.source.contract import Source, digest_of, spread
from dalirefurb.source.labels import as_array
from dalirefurb.source.levels import Levels, LevelsError, ValueRange, checked_range
from dalirefurb.source.storage import hash_pixels


class Arrays(Source):
    """Raw images in one array, which can be a memory map.

    Args:
        images: Images, uint8 of shape (N, height, width, 3); or grey ones, (N, height, width) or (N, height, width, 1),
            read as three equal channels. A NumPy array, or a tensor on the CPU. Deeper ones become 8 bits when they are
            read: uint16, or with `value_range` of any kind of number.
        labels: Labels of the samples, numeric, shape (N, *label_shape), or names, which are numbered in sorted order
            and become `classes`.
        value_range: Numbers of black and white in images deeper than 8 bits, see `Source`.

    Raises:
        ConfigurationError: Images are not uint8, not channels-last or not there, or labels do not fit them.
    """

    encoded = False

    def __init__(self, images: Any, labels: ArrayLike, *, value_range: ValueRange | None = None) -> None:
        self.value_range = checked_range(value_range)
        self._levels = Levels(value_range)
        self._images = _checked_images(images, ranged=value_range is not None)
        height, width = self._images.shape[1:3]
        self.image_shape = (height, width, 3)
        self._take_labels(labels, len(self._images), "images")

    def read(self, indices: NDArray[np.int64]) -> Images:
        """Return images of shape (height, width, 3), without a copy where rows are such images already."""
        rows = np.array(self._checked(indices), np.int64)
        if self._images.dtype != np.uint8:
            levels = [self._of(row) for row in rows.tolist()]
            shape = (-1, *self._images.shape[1:])
            return Images(np.repeat(np.reshape(levels, shape), 3 // self._images.shape[3], axis=3).astype(np.uint8))
        if self._images.shape[3] == 1:
            return Images(np.repeat(self._images[rows], 3, axis=3))
        if self._images[0].flags.c_contiguous:
            return Images.rows_of(self._images, rows)
        return Images(np.ascontiguousarray(self._images[rows]))

    def _of(self, row: int) -> NDArray[np.uint8]:
        """Return the levels of an image deeper than 8 bits."""
        try:
            return self._levels.of(self._images[row], self.name(row))
        except LevelsError as error:
            raise SampleError(row, self.name(row), str(error)) from None

    def name(self, index: int) -> str:
        return f"images[{index}]"

    def fingerprint(self) -> dict[str, Any]:
        """Hash the labels, and 64 rows of the images: evenly spaced, the first and the last among them."""
        return {
            "source": "Arrays",
            "num_samples": len(self),
            "shape": list(self._images.shape),
            "rows": digest_of(self._images[spread(len(self), 64)]),
            "labels": digest_of(self.labels),
        }

    def content(self) -> dict[str, Any]:
        """Hash all pixels, at the speed of memory, or of the disk that a memory map is on."""
        return {"pixels": hash_pixels(self._images)}


def _checked_images(images: Any, *, ranged: bool) -> NDArray[Any]:
    """Return images as an array of shape (N, height, width, 1 or 3)."""
    array = as_array(images, "images")
    if not (array.dtype.newbyteorder("=") in (np.uint8, np.uint16) or (ranged and array.dtype.kind in "iuf")):
        raise ConfigurationError(
            f"images must be uint8 from 0 to 255, or uint16, but are {array.dtype}: leave normalising to the recipe's "
            f"output; for other numbers pass those of black and white, such as value_range=(0, 1)"
        )
    if array.ndim == 3:
        array = array[..., np.newaxis]
    if array.ndim != 4 or array.shape[3] not in (1, 3):
        channels_first = array.ndim == 4 and array.shape[1] in (1, 3)
        remedy = "pass images.transpose(0, 2, 3, 1)" if channels_first else "reshape them or select channels"
        raise ConfigurationError(
            f"images must have shape (N, height, width, 3), (N, height, width, 1) or (N, height, width), "
            f"but have {array.shape}: {remedy}"
        )
    if array.size == 0:
        raise ConfigurationError(f"images must not be empty, but have shape {array.shape}: pass at least one image")
    return array
