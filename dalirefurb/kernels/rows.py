"""The loop over rows: all operations on one image, one after the other, while it is in the processor's cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from dalirefurb.augment.operations import MOST_PIXELS, Group
from dalirefurb.kernels.crop_flip import crop, flip, pick, pick_bytes
from dalirefurb.kernels.llvm import c_function, compiled, fence, fetch_add, memory, source_digest
from dalirefurb.kernels.lower import FULL, MIRROR, START, WIDTH, Code
from dalirefurb.kernels.normalize import half_grey, half_pixels, half_planes, normalise, normalise_grey
from dalirefurb.kernels.one_module import choosing
from dalirefurb.kernels.operate import operate, operate_bytes
from dalirefurb.kernels.resize import resize, resize_bytes, taps

MATRIX_BYTES = 64
"""Of an operation's numbers, which are laid out in front of what its kernel needs."""

WORK = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("count", "computed", "steps", "split", "kind", "grey", "channels_last", "streamed"),
            *("codes", "switches", "fills", "numbers", "sizes", "origins", "partials", "targets"),
            *("means", "scales", "halves", "taken", "rows", "begun", "done"),
            *("scratch", "image_bytes", "room_bytes"),
        )
    ]
)
"""What there is to do for a batch of n rows, or for some of them.

count           n
computed        rows of which what enters the first step is there: these come first; of the others it is a partial image
steps           s
split           after how many steps an image is partial, or `NOT_SPLIT`
kind            what comes out: one of `NOTHING`, `FLOATS`, `HALVES`
grey            whether it is one number a pixel, of its grey level
channels_last   whether it does in this order
streamed        whether float32 is streamed, see `normalise`

and addresses of
codes           of steps, int64 (s,)
switches        whether each interpolates, (s,)
fills           levels of what has no source, uint8 (s, 3)
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

NOTHING, FLOATS, HALVES = 0, 1, 2
"""What the model receives: nothing, float32, or half as many bits."""

NOT_SPLIT = -1
"""Where no image on the way is kept."""

DONE = 1
"""What became of a row that was carried out."""

_CRAMPED, _OUTSIDE, _UNKNOWN, _VAST = 2, 3, 4, 5
PROBLEMS = {
    0: "it was never begun",
    _CRAMPED: "more memory is needed than was provided",
    _OUTSIDE: "a window must lie within its image",
    _UNKNOWN: "a step must have a kernel",
    _VAST: f"an operation is for images of at most {MOST_PIXELS:,} pixels",
}
"""Why a row was not carried out, by what `done` says."""

_RESIZE, _CROP, _FLIP, _OPERATE = (int(code) for code in Code)
_GROUPS = len(Group)
_taps, _resize_bytes = compiled(taps), compiled(resize_bytes)
_pick_bytes, _operate_bytes = compiled(pick_bytes), compiled(operate_bytes)


@compiled
def _source(work: Any, first: Any, row: Any) -> Any:
    """View what enters the first step of a row."""
    height, width = memory(work.sizes + 16 * (first * work.count + row), (2,), np.int64)
    return memory(memory(work.origins, (work.count,), np.int64)[row], (3 * height * width,), np.uint8)


@compiled
def _within(start: Any, length: Any, whole: Any) -> Any:
    return start >= 0 and length > 0 and start + length <= whole


@compiled
@choosing
def _outcome(work: Any, codes: Any, switches: Any, numbers: Any, sizes: Any, first: Any) -> Any:
    """Tell what will become of a row whose steps from `first` on are taken: `DONE`, unless there is a problem."""
    for step in range(first, codes.size):
        height, width = sizes[step, 0], sizes[step, 1]
        lines, columns = sizes[step + 1, 0], sizes[step + 1, 1]
        code, needed = codes[step], 0
        if code == _RESIZE:
            top, left = int(numbers[step, 0]), int(numbers[step, 1])
            cut = int(numbers[step, 2]), int(numbers[step, 3])
            full = int(numbers[step, FULL]), int(numbers[step, FULL + 1])
            inside = _within(top, cut[0], height) and _within(left, cut[1], width)
            inside = inside and _within(int(numbers[step, START]), lines, full[0])
            if not (inside and _within(int(numbers[step, START + 1]), columns, full[1])):
                return _OUTSIDE
            if switches[step]:
                across, down = _taps(cut[1], full[1]), _taps(cut[0], full[0])
                needed = _resize_bytes(cut[1], full[1], lines, columns, across, down)
            else:
                needed = _pick_bytes(columns)
        elif code == _OPERATE:
            if not 0 <= int(numbers[step, 0]) < _GROUPS:
                return _UNKNOWN
            if height * width > MOST_PIXELS:
                return _VAST
            needed = MATRIX_BYTES + _operate_bytes(width)
        elif code != _CROP and code != _FLIP:
            return _UNKNOWN
        if needed > work.room_bytes or 3 * lines * columns > work.image_bytes:
            return _CRAMPED
    return DONE


@compiled
@choosing
def _take(
    code: Any, switch: Any, numbers: Any, fill: Any, image: Any, before: Any, after: Any, room: Any, out: Any
) -> Any:
    """Take one step; return False if it changes nothing and `out` was left alone."""
    height, width = before
    target_height, target_width = after
    if code == _RESIZE:
        window = int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3])
        full, start = (int(numbers[FULL]), int(numbers[FULL + 1])), (int(numbers[START]), int(numbers[START + 1]))
        if switch:
            resize(image, width, window, numbers[MIRROR] > 0, full, start, target_height, target_width, room, out)
        else:
            pick(image, width, window, numbers[MIRROR] > 0, full, start, target_height, target_width, room, out)
        return True
    if code == _CROP:
        crop(image, height, width, (int(numbers[0]), int(numbers[1]), target_height, target_width), out)
        return True
    if code == _FLIP:
        if numbers[0] > 0:
            flip(image, height, width, out)
        return numbers[0] > 0
    matrix = memory(room, (9,), np.float32)
    for place in range(9):
        matrix[place] = np.float32(numbers[1 + place])
    return operate(image, height, width, int(numbers[0]), matrix, switch, fill, room + MATRIX_BYTES, out)


@compiled
def _view(codes: Any, numbers: Any, sizes: Any, first: Any) -> Any:
    """Tell what crops and flips from one step on leave of an image, as `normalise` sees it; False if more than that."""
    height, width = sizes[first, 0], sizes[first, 1]
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
        A C function of the address of a `WORK`, whose rows it carries out, without Python's lock, and of the number
        of the thread, from 0.

        Several threads may call it with the same work, each with a number of its own: each takes the next row until
        none is left, and one more before it works on the last that it took.
    """
    sources = source_digest()

    def run(address: Any, thread: Any) -> None:
        _ = sources
        work = memory(address, (1,), WORK)[0]
        count, steps, split, kind = work.count, work.steps, work.split, work.kind
        codes = memory(work.codes, (steps,), np.int64)
        switches = memory(work.switches, (steps,), np.bool_)
        fills = memory(work.fills, (steps, 3), np.uint8)
        numbers = memory(work.numbers, (steps, count, WIDTH), np.float64)
        sizes = memory(work.sizes, (steps + 1, count, 2), np.int64)
        partials = memory(work.partials, (work.computed,), np.int64)
        targets = memory(work.targets, (count,), np.int64)
        means, scales = memory(work.means, (3,), np.float32), memory(work.scales, (3,), np.float32)
        halves = memory(work.halves, (3, 256), np.uint16)
        grey = work.grey != 0
        channels_last, streamed = work.channels_last != 0, work.streamed != 0
        rows = memory(work.taken, (work.rows,), np.int64)
        begun, done = memory(work.begun, (1,), np.int64), memory(work.done, (count,), np.uint8)
        # Crops and flips at the end of the final part are not done, but seen to when numbers are made.
        tail = steps
        while kind == FLOATS and tail > max(split, 0) and (codes[tail - 1] == _CROP or codes[tail - 1] == _FLIP):
            tail -= 1
        scratch = work.scratch + thread * (2 * work.image_bytes + work.room_bytes)
        one = memory(scratch, (work.image_bytes,), np.uint8)
        other = memory(scratch + work.image_bytes, (work.image_bytes,), np.uint8)
        room = scratch + 2 * work.image_bytes
        taken = fetch_add(begun, 1)
        while taken < rows.size:
            row = rows[taken]
            first = 0 if row < work.computed else split
            image = _source(work, first, row)
            taken = fetch_add(begun, 1)
            coming = rows[min(taken, rows.size - 1)]
            outcome = _outcome(work, codes, switches, numbers[:, row], sizes[:, row], first)
            if outcome != DONE:
                done[row] = outcome
                continue
            if split == 0 and row < work.computed:
                _copy(image, memory(partials[row], (image.size,), np.uint8))
            seen, view = _view(codes, numbers[:, row], sizes[:, row], tail)
            for step in range(first, tail if seen else steps):
                before = sizes[step, row, 0], sizes[step, row, 1]
                after = sizes[step + 1, row, 0], sizes[step + 1, row, 1]
                out = one[: 3 * after[0] * after[1]]
                if step == split - 1:
                    out = memory(partials[row], (3 * after[0] * after[1],), np.uint8)
                if _take(codes[step], switches[step], numbers[step, row], fills[step], image, before, after, room, out):
                    image = out
                    one, other = other, one
                elif step == split - 1:
                    _copy(image, out)
            if kind == FLOATS:
                if not seen:
                    _, view = _view(codes, numbers[:, row], sizes[:, row], steps)
                channels = 1 if grey else 3
                floats = memory(targets[row], (channels * view[2] * view[3],), np.float32)
                if grey:
                    normalise_grey(image, view, means, scales, floats)
                else:
                    following = _source(work, 0 if coming < work.computed else split, coming)
                    normalise(image, view, means, scales, channels_last, streamed, floats, following)
            elif kind == HALVES:
                bits = memory(targets[row], (image.size // 3 if grey else image.size,), np.uint16)
                if grey:
                    half_grey(image, halves, bits)
                elif channels_last:
                    half_pixels(image, halves, bits)
                else:
                    half_planes(image, halves, bits)
            done[row] = DONE
        if streamed:
            fence()

    return c_function(run, types.void(types.int64, types.int64))
