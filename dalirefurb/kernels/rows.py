"""What happens to each image? All steps of a part, one after the other, while the image is in the processor's cache."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import types

from dalirefurb.kernels.compiled import compiled, fence, fetch_add, kept, memory
from dalirefurb.kernels.geometry import crop, flip, pick
from dalirefurb.kernels.operate import operate
from dalirefurb.kernels.output import half_pixels, half_planes, normalise
from dalirefurb.kernels.resize import resize
from dalirefurb.kernels.steps import MIRROR, Code

NOTHING, FLOATS, HALVES = 0, 1, 2
"""What the model receives: nothing, float32 or float16."""

NOT_SPLIT = -1
"""Where no image on the way is kept."""

_RESIZE, _CROP, _FLIP, _OPERATE = (int(code) for code in Code)


@compiled
def _source(origins: Any, sizes: Any, row: Any) -> Any:
    """View what enters the first step; past the last row there is nothing."""
    if row >= origins.size:
        return memory(origins[0], (0,), np.uint8)
    return memory(origins[row], (3 * sizes[0, row, 0] * sizes[0, row, 1],), np.uint8)


@compiled
def _take(code: Any, switch: Any, numbers: Any, fill: Any, image: Any, before: Any, after: Any, out: Any) -> Any:
    """Take one step; return False if it changes nothing and `out` was left alone."""
    height, width = before
    target_height, target_width = after
    if code == _RESIZE:
        window = int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3])
        if switch:
            resize(image, width, window, numbers[MIRROR] > 0, target_height, target_width, out)
        else:
            pick(image, width, window, numbers[MIRROR] > 0, target_height, target_width, out)
        return True
    if code == _CROP:
        crop(image, height, width, (int(numbers[0]), int(numbers[1]), target_height, target_width), out)
        return True
    if code == _FLIP:
        if numbers[0] > 0:
            flip(image, height, width, out)
        return numbers[0] > 0
    return operate(image, height, width, int(numbers[0]), numbers[1:10].astype(np.float32), switch, fill, out)


@compiled
def _view(codes: Any, numbers: Any, sizes: Any, first: Any) -> Any:
    """Tell what crops and flips from one step on leave of an image, as `normalise` sees it; False if more than that."""
    height, width = sizes[first]
    start, stride, mirrored = 0, 3 * width, False
    for step in range(first, codes.size):
        if codes[step] == _FLIP:
            mirrored ^= numbers[step, 0] > 0
        else:
            top, left = int(numbers[step, 0]), int(numbers[step, 1])
            lines, columns = sizes[step + 1, 0], sizes[step + 1, 1]
            if top < 0 or left < 0 or top + lines > height or left + columns > width:
                return False, (start, stride, height, width, mirrored)
            start += top * stride + 3 * (width - left - columns if mirrored else left)
            height, width = lines, columns
    return True, (start, stride, height, width, mirrored)


@compiled
def _copy(image: Any, out: Any) -> None:
    for i in range(image.size):
        out[i] = image[i]


@cache
def compile_run() -> Any:
    """Compile, or load what was compiled before, once in a process; where no folder can be written, nothing is kept.

    Returns:
        A function that carries out a part for n images, without Python's lock. Its arguments: the codes of s steps,
        int64 (s,); whether each interpolates, (s,); levels of what has no source, uint8 (s, 3); numbers, float64
        (s, n, `WIDTH`); heights and widths before, between and after the steps, int64 (s + 1, n, 2); addresses of the
        images, int64 (n,); after how many steps an image is partial, or `NOT_SPLIT`; addresses of where partial images
        and results go, int64 (n,), empty where there are none; how many rows were begun, int64 (1,); what comes out,
        one of `NOTHING`, `FLOATS`, `HALVES`; whether in channels-last order; whether float32 is streamed, see
        `normalise`; means and scales, float32 (3,); and float16 results for each level, as uint16 (3, 256).

        Several threads may call it with the same arguments: each takes the next row until none is left, and one more
        before it works on the last that it took.
    """
    # Numba looks at this file alone to tell whether what it cached is of today; what a closure refers to, it looks
    # at, too.
    sources = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    signature = types.void(
        types.int64[::1],  # codes
        types.boolean[::1],  # switches
        types.uint8[:, ::1],  # fills
        types.float64[:, :, ::1],  # numbers
        types.int64[:, :, ::1],  # sizes
        types.int64[::1],  # origins
        types.int64,  # split
        types.int64[::1],  # partials
        types.int64[::1],  # targets
        types.int64[::1],  # begun
        types.int64,  # kind
        types.boolean,  # channels_last
        types.boolean,  # streamed
        types.float32[::1],  # means
        types.float32[::1],  # scales
        types.uint16[:, ::1],  # halves
    )

    def run(
        codes: Any,
        switches: Any,
        fills: Any,
        numbers: Any,
        sizes: Any,
        origins: Any,
        split: Any,
        partials: Any,
        targets: Any,
        begun: Any,
        kind: Any,
        channels_last: Any,
        streamed: Any,
        means: Any,
        scales: Any,
        halves: Any,
    ) -> None:
        _ = sources
        # Crops and flips at the end of the final part are not done, but seen to when numbers are made.
        tail = codes.size
        while kind == FLOATS and tail > max(split, 0) and (codes[tail - 1] == _CROP or codes[tail - 1] == _FLIP):
            tail -= 1
        largest = 0
        for step in range(sizes.shape[0]):
            for row in range(origins.size):
                largest = max(largest, sizes[step, row, 0] * sizes[step, row, 1])
        one, other = np.empty(3 * largest, np.uint8), np.empty(3 * largest, np.uint8)
        row = fetch_add(begun, 1)
        while row < origins.size:
            image = _source(origins, sizes, row)
            coming = fetch_add(begun, 1)
            if split == 0:
                _copy(image, memory(partials[row], (image.size,), np.uint8))
            seen, view = _view(codes, numbers[:, row], sizes[:, row], tail)
            for step in range(tail if seen else codes.size):
                before = sizes[step, row, 0], sizes[step, row, 1]
                after = sizes[step + 1, row, 0], sizes[step + 1, row, 1]
                out = one[: 3 * after[0] * after[1]]
                if step == split - 1:
                    out = memory(partials[row], (3 * after[0] * after[1],), np.uint8)
                if _take(codes[step], switches[step], numbers[step, row], fills[step], image, before, after, out):
                    image = out
                    one, other = other, one
                elif step == split - 1:
                    _copy(image, out)
            if kind == FLOATS:
                if not seen:
                    _, view = _view(codes, numbers[:, row], sizes[:, row], codes.size)
                floats = memory(targets[row], (3 * view[2] * view[3],), np.float32)
                normalise(image, view, means, scales, channels_last, streamed, floats, _source(origins, sizes, coming))
            elif kind == HALVES:
                bits = memory(targets[row], (image.size,), np.uint16)
                if channels_last:
                    half_pixels(image, halves, bits)
                else:
                    half_planes(image, halves, bits)
            row = coming
        if streamed:
            fence()

    return kept(run, signature)
