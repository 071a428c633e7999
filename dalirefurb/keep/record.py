"""Records of a keep: where each sample lies, of what it was made, and a checksum of all that."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import GREY, HALVED, RGB, Images, Places, images_at, layout_bytes
from dalirefurb.source.contract import Numbers

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
see `Source.stamps`; a checksum of its bytes, and one of all that. Of a sample that is not kept there are zeros.

How many bytes an image has for its size tells how it lies, see `layout_bytes`: no two layouts have as many, since
planes are kept of what is at least 2 x 2, or in grey."""

Records = NDArray[np.void]

MIXER = np.uint64(0x9E3779B97F4A7C15)
_FIELDS = RECORD.itemsize // 8


def written(index: int, start: int, nbytes: int, height: int, width: int, stamp: int, digest: int) -> Records:
    """Write the record of a sample, shape (1,)."""
    record = np.array([(start, nbytes, height, width, stamp, digest, 0)], RECORD)
    record["check"] = _checks(record, np.array([index]))
    return record


def believable(records: Records, indices: Numbers) -> NDArray[np.bool_]:
    """Tell which of n records were written whole for these samples, shape (n,)."""
    believed: NDArray[np.bool_] = records["check"] == _checks(records, indices)
    return believed


def samples_of(data: NDArray[np.uint8], records: Records) -> Images:
    """View samples where they lie: images, or where no record has the size of one, encoded samples, (length,)."""
    starts, nbytes = records["start"].astype(np.int64), records["nbytes"].astype(np.int64)
    if records["height"].any():
        heights, widths = records["height"].astype(np.int64), records["width"].astype(np.int64)
        layouts = np.zeros(len(records), np.int64)
        for layout in (HALVED, GREY, RGB):
            layouts[nbytes == layout_bytes(layout, heights, widths)] = layout
        if layouts.any():
            return _laid_out(data, starts, np.stack([heights, widths], axis=1), layouts)
        return images_at(data, starts, np.stack([heights, widths, np.full(len(records), 3)], axis=1))
    parts = zip(starts.tolist(), nbytes.tolist(), strict=True)
    return Images([data[start : start + length] for start, length in parts])


def _laid_out(data: NDArray[np.uint8], starts: Numbers, sizes: Numbers, layouts: Numbers) -> Images:
    """View images that begin at n places, of these sizes, (n, 2), and layouts, (n,); RGB is made of them if need be."""
    shapes = np.column_stack([sizes, np.full(len(sizes), 3)])

    def look() -> list[NDArray[np.uint8]]:
        from dalirefurb.kernels.pixels.planes import rgb

        images = [*images_at(data, starts, np.where(layouts[:, None] == RGB, shapes, 0))]
        for row in np.flatnonzero(layouts).tolist():
            images[row] = rgb(data[starts[row] :], (int(sizes[row, 0]), int(sizes[row, 1])), int(layouts[row]))
            images[row].flags.writeable = False
        return images

    address: int = data.__array_interface__["data"][0]
    return Images.on_demand(len(starts), look, lambda: Places(address + starts, sizes, layouts))


def _checks(records: Records, indices: Numbers) -> NDArray[np.uint64]:
    """Return the checksum that each of n records of these samples has, never 0."""
    words = np.ascontiguousarray(records).view("<u8").reshape(len(records), _FIELDS)
    mixed = indices.astype(np.uint64) + np.uint64(1)
    for field in range(_FIELDS - 1):
        mixed = (mixed ^ words[:, field]) * MIXER
        mixed ^= mixed >> np.uint64(29)
    return mixed | np.uint64(1)
