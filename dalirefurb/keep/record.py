"""Records of a keep: where each sample lies, of what it was made, and a checksum of all that."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Images, images_at

RECORD = np.dtype(
    [
        ("start", "<u8"),
        ("nbytes", "<u8"),
        ("height", "<u4"),
        ("width", "<u4"),
        ("stamp", "<u8"),
        ("digest", "<u8"),
        ("check", "<u8"),
    ]
)
"""Where a sample lies in the data, its bytes, and its size in pixels, 0 of one that is encoded; what it was made of,
see `Source.stamps`; a checksum of its bytes, and one of all that. Of a sample that is not kept there are zeros."""

Records = NDArray[np.void]

_MIXER = np.uint64(0x9E3779B97F4A7C15)
_FIELDS = RECORD.itemsize // 8


def written(index: int, start: int, nbytes: int, height: int, width: int, stamp: int, digest: int) -> Records:
    """Write the record of a sample, shape (1,)."""
    record = np.array([(start, nbytes, height, width, stamp, digest, 0)], RECORD)
    record["check"] = _checks(record, np.array([index]))
    return record


def believable(records: Records, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which of n records were written whole for these samples, shape (n,)."""
    believed: NDArray[np.bool_] = records["check"] == _checks(records, indices)
    return believed


def samples_of(data: NDArray[np.uint8], records: Records) -> Images:
    """View samples where they lie: images, or where no record has the size of one, encoded samples, (length,)."""
    starts, nbytes = records["start"].astype(np.int64), records["nbytes"].astype(np.int64)
    if records["height"].any():
        sides = [records["height"], records["width"], np.full(len(records), 3)]
        return images_at(data, starts, np.stack(sides, axis=1))
    parts = zip(starts.tolist(), nbytes.tolist(), strict=True)
    return Images([data[start : start + length] for start, length in parts])


def _checks(records: Records, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the checksum that each of n records of these samples has, never 0."""
    words = np.ascontiguousarray(records).view("<u8").reshape(len(records), _FIELDS)
    mixed = indices.astype(np.uint64) + np.uint64(1)
    for field in range(_FIELDS - 1):
        mixed = (mixed ^ words[:, field]) * _MIXER
        mixed ^= mixed >> np.uint64(29)
    return mixed | np.uint64(1)
