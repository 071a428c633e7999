"""Kernels that copy samples from slots into a batch, and from a batch into slots.

The same lines run on NumPy's arrays and on CuPy's. Who calls them says on which stream: see `memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.image_batch import Image, Images
from dalirefurb.store.device.memory import Array

KERNEL_BYTES = 2**28
"""What one kernel scatters at most: CuPy counts in 32 bits there, and what comes from the host needs as much room."""


def gather(xp: Any, slab: Array, slots: NDArray[np.int64], out: Array, rows: NDArray[np.int64]) -> None:
    """Set `out[rows] = slab[slots]`; what the other rows of `out` are after that is undefined.

    One kernel writes all rows: to write some only, two would be needed, and room for what they write.

    Args:
        xp: The library of the arrays.
        slab: The slots, shape (S, H, W, C).
        slots: Numbers of the slots to copy from, shape (n,).
        out: The batch to copy to, shape (B, H, W, C).
        rows: Rows of the batch to copy to, shape (n,), each at most once.
    """
    if not len(slots):
        return
    slot_of_row = np.full(len(out), slots[0])
    slot_of_row[rows] = slots
    xp.take(slab, xp.asarray(slot_of_row), axis=0, out=out)


def within(xp: Any, samples: Array | Sequence[Image]) -> tuple[Array, NDArray[np.int64]] | None:
    """Return the array of `xp` that samples are rows of, and which rows, if they are `Images` of one."""
    whole = samples.whole if isinstance(samples, Images) else None
    return whole if whole is not None and isinstance(whole[0], xp.ndarray) else None


def scatter(xp: Any, target: Array, places: Sequence[int], samples: Array | Sequence[Image], rows: list[int]) -> None:
    """Set `target[places] = samples[rows]`.

    Args:
        xp: The library of `target`.
        target: The slots or the batch to copy to, shape (S, H, W, C).
        places: Places in `target` to copy to, n of them, each at most once.
        samples: Images of one shape (H, W, C) each: an array of `xp`, or host images.
        rows: Rows of `samples` to copy, n of them.
    """
    step = max(1, KERNEL_BYTES // max(1, target[:1].nbytes))
    for start in range(0, len(places), step):
        part = slice(start, start + step)
        target[xp.asarray(places[part])] = _stacked(xp, samples, rows[part])


def _stacked(xp: Any, samples: Array | Sequence[Image], rows: list[int]) -> Array:
    """Return samples[rows] as an array of `xp`, of which the host is not needed any more."""
    if isinstance(samples, xp.ndarray):
        return samples if rows == list(range(len(samples))) else samples[xp.asarray(rows)]
    # As a list they are copied by now; an array in pinned memory would be read later, when it may be something else.
    return xp.asarray([samples[row] for row in rows])
