"""The loop over rows: all steps of one image, one after the other, while it is in the processor's cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from dalirefurb.augment.kernel_call import UNTOUCHED, Code
from dalirefurb.kernels.instructions import copy
from dalirefurb.kernels.llvm import c_function, call, compiled, fence, fetch_add, memory
from dalirefurb.kernels.record import CRAMPED, DONE, UNKNOWN, WIDTH, WORK

_FLIP, _UNTOUCHED = int(Code.FLIP), UNTOUCHED


@compiled
def _source(work: Any, first: Any, row: Any) -> Any:
    """Return the address and the number of bytes of what enters the first step of a row."""
    height, width = memory(work.sizes + 16 * (first * work.count + row), (2,), np.int64)
    return memory(work.origins, (work.count,), np.int64)[row], 3 * height * width


@compiled
def _shown(work: Any, chosen: Any, sizes: Any, row: Any, first: Any) -> Any:
    """Tell what crops and flips from one step on leave of an image, see `normalize.floats`; False if more than that."""
    height, width = sizes[first, row, 0], sizes[first, row, 1]
    codes = memory(work.codes, (work.steps,), np.int64)
    numbers = memory(work.numbers, (work.steps, work.count, WIDTH), np.float64)
    start, stride, mirrored = 0, 3 * width, False
    for step in range(first, work.steps):
        if codes[step] == _FLIP:
            mirrored ^= chosen[step, row] != _UNTOUCHED
        else:
            top, left = int(numbers[step, row, 0]), int(numbers[step, row, 1])
            lines, columns = sizes[step + 1, row, 0], sizes[step + 1, row, 1]
            if top < 0 or left < 0 or top + lines > height or left + columns > width:
                return False, (start, stride, height, width, mirrored)
            start += top * stride + 3 * (width - left - columns if mirrored else left)
            height, width = lines, columns
    return True, (start, stride, height, width, mirrored)


@compiled
def _copy(image: Any, nbytes: Any, out: Any) -> None:
    copy(memory(image, (nbytes,), np.uint8), 0, nbytes, memory(out, (nbytes,), np.uint8), 0)


@cache
def compile_run() -> Any:
    """Compile, or load what was compiled before, once in a process; where no folder can be written, nothing is kept.

    Returns:
        A C function of the address of a `WORK`, whose rows it carries out, without Python's lock, and of the number
        of the thread, from 0. It returns 0.

        Several threads may call it with the same work, each with a number of its own: each takes the next row until
        none is left, and one more before it works on the last that it took.
    """

    def run(address: Any, thread: Any) -> Any:
        work = memory(address, (1,), WORK)[0]
        count, steps, split, choices = work.count, work.steps, work.split, work.choices
        kernels = memory(work.kernels, (steps, choices), np.int64)
        chosen = memory(work.chosen, (steps, count), np.int64)
        sizes = memory(work.sizes, (steps + 1, count, 2), np.int64)
        partials = memory(work.partials, (work.computed,), np.int64)
        targets = memory(work.targets, (count,), np.int64)
        rows = memory(work.taken, (work.rows,), np.int64)
        begun, done = memory(work.begun, (1,), np.int64), memory(work.done, (count,), np.uint8)
        one = work.scratch + thread * (2 * work.image_bytes + work.room_bytes)
        other = one + work.image_bytes
        room = other + work.image_bytes
        taken = fetch_add(begun, 1)
        while taken < rows.size:
            row = rows[taken]
            first = 0 if row < work.computed else split
            image, nbytes = _source(work, first, row)
            taken = fetch_add(begun, 1)
            coming = rows[min(taken, rows.size - 1)]
            if split == 0 and row < work.computed:
                _copy(image, nbytes, partials[row])
            in_passing, view = _shown(work, chosen, sizes, row, work.tail)
            outcome, step, end = DONE, first, work.tail if in_passing else steps
            while step < end and outcome == DONE:
                height, width = sizes[step, row, 0], sizes[step, row, 1]
                lines, columns = sizes[step + 1, row, 0], sizes[step + 1, row, 1]
                choice, nbytes = chosen[step, row], 3 * lines * columns
                out = partials[row] if step == split - 1 else one
                if choice == _UNTOUCHED:
                    if step == split - 1:
                        _copy(image, nbytes, out)
                elif choice < 0 or choice >= choices or kernels[step, choice] == 0:
                    outcome = UNKNOWN
                elif nbytes > work.image_bytes:
                    outcome = CRAMPED
                else:
                    numbers = work.numbers + 8 * WIDTH * (step * count + row)
                    given = (image, height, width, lines, columns, numbers, room, work.room_bytes, out)
                    outcome = call(kernels[step, choice], given)
                    image = out
                    one, other = other, one
                step += 1
            if outcome == DONE and work.output != 0:
                if not in_passing:
                    _, view = _shown(work, chosen, sizes, row, steps)
                start, stride, lines, columns, mirrored = view
                following, ahead = _source(work, 0 if coming < work.computed else split, coming)
                shown = (start, stride, lines, columns, np.int64(mirrored))
                call(work.output, (address, image, nbytes, *shown, targets[row], following, ahead))
            done[row] = outcome
        if work.streamed != 0:
            fence()
        return 0

    return c_function(run, types.int64(types.int64, types.int64))
