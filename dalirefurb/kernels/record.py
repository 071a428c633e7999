"""Records that compiled functions share: what there is to do for a batch, its numbers, and what becomes of its rows."""

from __future__ import annotations

import numpy as np

from dalirefurb.augment.stage import MOST_PIXELS

WORK = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("count", "computed", "steps", "choices", "split", "tail", "channels_last", "streamed"),
            *("output", "kernels", "codes", "chosen", "numbers", "sizes", "origins", "partials", "targets"),
            *("means", "scales", "halves", "taken", "rows", "begun", "done"),
            *("scratch", "image_bytes", "room_bytes"),
        )
    ]
)
"""What there is to do for a batch of n rows, or for some of them.

count           n
computed        rows of which what enters the first step is there: these come first; of the others it is a partial image
steps           s
choices         k, the most kernels that a step chooses among
split           after how many steps an image is partial, or `NOT_SPLIT`
tail            number of steps before the crops and flips at the end that the output does in passing; s if it does none
channels_last   whether it is pixel after pixel, not channel after channel
streamed        whether float32 is streamed, see `normalize.floats`

and addresses of
output          the function that makes what comes out, see `normalize`; 0 if nothing does
kernels         functions of each step, see `kernel.Kernel`, int64 (s, k); 0 where there is none
codes           what the output does of a step in passing, a `kernel_call.Code`, int64 (s,)
chosen          which of a step's kernels a row takes, int64 (s, n); `UNTOUCHED`: none, its image stays
numbers         float64 (s, n, `WIDTH`)
sizes           heights and widths before, between and after the steps, int64 (s + 1, n, 2)
origins         addresses of what enters, int64 (n,)
partials        addresses of where partial images of the rows that are computed go, int64 (computed,)
targets         addresses of where results go, int64 (n,)
means, scales   float32 (3,)
halves          float16 or bfloat16 results for each level, as uint16 (3, 256)
taken           which rows are to be done, int64 (rows,)
begun           how many of these were begun, int64 (1,)
done            what became of each row, uint8 (n,): 0 at first, then `DONE`, or why not, see `PROBLEMS`
scratch         memory of each thread, for two images on the way, each of `image_bytes`, and the `room_bytes` that
                kernels need beside images

`image_bytes` and `room_bytes` are multiples of a cache line. So all memory is there before a row is begun.
"""

WIDTH = 16
"""Numbers of a step, at most."""

MIRROR, START, FULL = 4, 5, 7
"""Which numbers of a RESIZE say whether to mirror; where a crop begins; and what the size would be without it."""

WARP_START = 12
"""Which numbers of a WARP say where a crop begins, row and column."""

NOT_SPLIT = -1
"""Where no image on the way is kept."""

DONE = 1
"""What became of a row that was carried out."""

CRAMPED, UNFIT, UNKNOWN, RAISED = 2, 3, 4, 5
PROBLEMS = {
    0: "it was never begun",
    CRAMPED: "more memory is needed than was provided",
    UNFIT: f"a window must lie within its image, and an operation is for images of at most {MOST_PIXELS:,} pixels",
    UNKNOWN: "a step must have a kernel",
    RAISED: "a function raised an error",
}
"""Why a row was not carried out, by what `done` says."""
