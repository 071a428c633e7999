"""The loop over rows: all steps of one image, while it is in the processor's cache; and threads that share it.

    owner     begins ── row ── row ── row ── ends, waits for who is inside ──▶
    threads   wait ─────────── row ── row ── leave, wait ──▶

So a batch is finished without anybody waiting for Python.
The owner takes rows, too: nothing waits for a thread that no core is free for. Who comes late finds nothing, and waits
again.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from dalirefurb.augment.kernel_call import UNTOUCHED, Code
from dalirefurb.kernels.buffers import aligned
from dalirefurb.kernels.instructions import copy
from dalirefurb.kernels.llvm import c_function, call, compiled, exchange, fence, fetch_add, memory
from dalirefurb.kernels.program import Work
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


POOL = np.dtype(
    [
        ("inside", np.int64),
        ("begin", np.int64, (4,)),
        ("end", np.int64, (4,)),
        ("closed", np.int64),
        ("threads", np.int64),
        ("run", np.int64),
        ("work", np.int64),
    ]
)
"""What a pool knows: how many came in since the owner began, below 0 once it ended; semaphores, `sem_t` of the C
library, that are posted to have threads begin and when one is through; whether they are to go; how many there are; the
addresses of what `compile_run` returns and of the `WORK`."""

_INSIDE, _BEGIN, _END = 0, 8, 40
_ENDED = -(1 << 32)

KEPT_BYTES = 256 << 20
"""Memory of the threads that is kept from one work to the next, at most."""

_sem_post = types.ExternalFunction("sem_post", types.int32(types.intp))
_sem_wait = types.ExternalFunction("sem_wait", types.int32(types.intp))


class KernelThreadPool:
    """Threads that take rows.

    They end when it is closed or collected.

    Args:
        num_threads: Number of threads beside the owner.

    Attributes:
        address: Address of the pool's `POOL`. The pool must be kept as long as somebody may use this address.
    """

    def __init__(self, num_threads: int) -> None:
        self._memory = np.zeros(1, POOL)
        self._memory["inside"] = _ENDED
        self._memory["threads"] = num_threads
        self._memory["run"] = compile_run().address
        self.address: int = self._memory.ctypes.data
        for semaphore in (_BEGIN, _END):
            _c_library().sem_init(ctypes.c_void_p(self.address + semaphore), 0, 0)
        self._threads = [
            threading.Thread(
                target=_serve, args=(self._memory, number + 1), name=f"dalirefurb-kernels_{number}", daemon=True
            )
            for number in range(num_threads)
        ]
        self._scratch = np.empty(0, np.uint8)
        self._started = False
        self._close = weakref.finalize(self, _dismiss, self._memory)
        self._close.atexit = False

    def start(self) -> None:
        """Have the threads come, if they are not there yet."""
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()

    def provided(self, work: Work) -> Work:
        """Return a work with the memory that its threads need; they use it for one work at a time.

        Raises:
            LoaderError: If there is no memory for it.
        """
        nbytes = (1 + len(self._threads)) * work.scratch.nbytes
        if nbytes > KEPT_BYTES:
            return work.with_memory(aligned(nbytes))
        if nbytes > len(self._scratch):
            self._scratch = aligned(nbytes)
        return work.with_memory(self._scratch)

    def share(self, work: Work) -> None:
        """Carry it out with them; one thread at a time may call this.

        Raises:
            GraphError: If some of it was not carried out.
            LoaderError: If there is no memory for it.
        """
        self.start()
        work = self.provided(work)
        _compile_share().ctypes(self.address, work.record.ctypes.data)
        work.check()

    def close(self) -> None:
        """Have the threads end once they are through; the owner goes on alone. Never waits."""
        self._close()

    def join(self) -> None:
        """Wait until they have ended, however late: there is nothing that they wait for but a core."""
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _dismiss(of_pool: NDArray[Any]) -> None:
    of_pool["closed"] = 1
    for _ in range(of_pool["threads"][0]):
        _c_library().sem_post(ctypes.c_void_p(of_pool.ctypes.data + _BEGIN))


def _serve(of_pool: NDArray[Any], number: int) -> None:
    """Take part until the pool is closed, as thread `number`; the owner is number 0."""
    _compile_serve().ctypes(of_pool.ctypes.data, number)


@compiled
def share(address: Any, work: Any) -> None:
    """Carry out the `WORK` at an address with the pool at another one."""
    pool = memory(address, (1,), POOL)[0]
    inside = memory(address + _INSIDE, (1,), np.int64)
    pool.work = work
    exchange(inside, 0)
    for _ in range(pool.threads):
        _sem_post(address + _BEGIN)
    call(pool.run, (work, 0))
    for _ in range(fetch_add(inside, _ENDED)):
        _wait(address + _END)


@compiled
def _wait(semaphore: Any) -> None:
    while _sem_wait(semaphore):  # A signal came.
        pass


def compile_pool() -> tuple[Any, Any]:
    """Compile what the pool's owner calls, and what its threads do."""
    return _compile_share(), _compile_serve()


@cache
def _compile_share() -> Any:
    def share_with(address: Any, work: Any) -> None:
        share(address, work)

    return c_function(share_with, types.void(types.int64, types.int64))


@cache
def _compile_serve() -> Any:
    def serve(address: Any, number: Any) -> None:
        pool = memory(address, (1,), POOL)[0]
        inside = memory(address + _INSIDE, (1,), np.int64)
        _wait(address + _BEGIN)
        while not pool.closed:
            if fetch_add(inside, 1) >= 0:
                call(pool.run, (pool.work, number))
                _sem_post(address + _END)
            _wait(address + _BEGIN)

    return c_function(serve, types.void(types.int64, types.int64))
