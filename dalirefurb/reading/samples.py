"""Samples: what a source gave for some rows, with the sizes of the images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Samples:
    """What a source gave for some rows.

    Attributes:
        data: Encoded images, each uint8 of shape (length,), or decoded images, each HWC uint8; one per row.
        heights: Heights of the images in pixels, EXIF orientation applied, int64 of shape (n,).
        widths: Widths of the images in pixels, EXIF orientation applied, int64 of shape (n,).
        indices: Indices of the samples that were asked for, or of what replaces them, int64 of shape (n,).
        as_read: Encoded images as they were before a fallback decoder encoded any of them anew; empty where the source
            gives decoded images.
    """

    data: Sequence[NDArray[np.uint8]]
    heights: NDArray[np.int64]
    widths: NDArray[np.int64]
    indices: NDArray[np.int64]
    as_read: Sequence[NDArray[np.uint8]] = ()


def joined(parts: list[Samples]) -> Samples:
    """Put the rows of several reads into one."""
    return Samples(
        [sample for part in parts for sample in part.data],
        np.concatenate([part.heights for part in parts]),
        np.concatenate([part.widths for part in parts]),
        np.concatenate([part.indices for part in parts]),
        [sample for part in parts for sample in part.as_read],
    )
