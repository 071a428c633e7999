"""What is made of images that lie as planes: RGB of the windows that the first step reads, or of whole images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import UNTOUCHED, Code
from dalirefurb.image_batch import rounded
from dalirefurb.kernels.kernel import compile_kernel, kernel_named
from dalirefurb.kernels.record import DONE, NOT_SPLIT, WIDTH

FROM_PLANES = "planes.window"
"""The kernel that makes RGB of planes."""


def planes_first(
    layouts: NDArray[np.int64],
    code: Code,
    sizes: NDArray[np.int64],
    chosen: NDArray[np.int64],
    numbers: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], tuple[int, int]]:
    """Put a step before all others that makes RGB of planes: of what the first of these reads, if that is known.

    Args:
        layouts: How each of the first c of n images lies, see `Places.layouts`, shape (c,).
        code: What is known of the first step. Of images that another one enters all is made.
        sizes: Heights and widths before, between and after the steps, (s + 1, n, 2).
        chosen: Kernel of each step and image, (s, n).
        numbers: Numbers of each step and image, (s, n, WIDTH); what has a window now begins at 0 in these.

    Returns:
        The same with one step more, (s + 2, n, 2), (s + 1, n) and (s + 1, n, WIDTH); and the bytes of the largest image
        on the way that it makes, and of memory that it works in.
    """
    rows = np.flatnonzero(layouts)
    heights, widths = sizes[0, rows].T
    windows = np.zeros((len(rows), 4))
    windows[:, 2:] = sizes[0, rows]
    if code in (Code.RESIZE, Code.CROP):
        wanted = numbers[0, rows, :4]
        if code == Code.CROP:
            wanted[:, 2:] = sizes[1, rows]
        inside = (wanted[:, :2] >= 0) & (wanted[:, 2:] > 0) & (wanted[:, :2] + wanted[:, 2:] <= sizes[0, rows])
        cut = inside.all(axis=1) & (chosen[0, rows] != UNTOUCHED)
        windows[cut] = wanted[cut]
        numbers[0, rows[cut], :2] = 0
    sizes = np.concatenate([sizes[:1], sizes])
    sizes[1, rows] = windows[:, 2:]
    taken = np.full((1, sizes.shape[1]), UNTOUCHED, np.int64)
    taken[0, rows] = 0
    given = np.zeros((1, sizes.shape[1], WIDTH))
    given[0, rows, :2], given[0, rows, 2] = windows[:, :2], layouts[rows]
    lines, columns = sizes[1, rows].T
    room = kernel_named(FROM_PLANES).room_bytes(heights, widths, lines, columns, given[0, rows].T)
    most = (int(nbytes.max(initial=0)) for nbytes in (3 * lines * columns, room))
    image_bytes, room_bytes = map(rounded, most)
    return sizes, np.concatenate([taken, chosen]), np.concatenate([given, numbers]), (image_bytes, room_bytes)


def record_behind_planes(record: NDArray[Any], constants: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the `WORK` of steps, shape (1,), behind the one that makes RGB; its tables join those of the constants."""
    record, table = record.copy(), constants["kernels"]
    first = np.zeros((1, table.shape[1]), np.int64)
    first[0, 0] = compile_kernel(FROM_PLANES).address
    for name, one, others in (("kernels", first, table), ("codes", [Code.OTHER], constants["codes"])):
        joined = constants[f"{name} from planes"] = np.concatenate([one, others])
        record[name] = joined.__array_interface__["data"][0]
    record["steps"] += 1
    record["tail"] += 1
    record["split"] += record["split"] != NOT_SPLIT
    return record


def rgb(planes: NDArray[np.uint8], sides: tuple[int, int], layout: int) -> NDArray[np.uint8]:
    """Make RGB of a whole image, uint8 of shape (height, width, 3), of its planes, uint8 of shape (nbytes,)."""
    image = np.empty((*sides, 3), np.uint8)
    numbers = np.zeros(WIDTH)
    numbers[2] = layout
    size = (*sides, *sides)
    room = np.empty(max(int(kernel_named(FROM_PLANES).room_bytes(*size, numbers)), 0), np.uint8)
    given: tuple[Any, ...] = planes.ctypes.data, *size, numbers.ctypes.data, room.ctypes.data, len(room)
    outcome = compile_kernel(FROM_PLANES).ctypes(*given, image.ctypes.data)
    assert outcome == DONE, f"{sides}, layout {layout}"
    return image
