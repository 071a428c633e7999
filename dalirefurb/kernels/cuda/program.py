"""CudaProgram: a kernel program for a GPU, what is launched for a batch, and what launches it.

    page     the record of the work, and its arrays: copied to the GPU at once
    memory   an image on the way │ another one │ room for what kernels need beside images, each for all rows

A step is at most three launches, for any number of rows: what its images prepare (means, histograms, weights of
resizes), the first of two passes, and pixels. The last step before crops and flips, these, and what comes out are one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.augment.stages.custom import KernelStage
from dalirefurb.dali import GraphError
from dalirefurb.errors import ConfigurationError
from dalirefurb.image_batch import rounded
from dalirefurb.kernels.buffers import PlainLevels
from dalirefurb.kernels.cuda.source import THREADS, name_of, needs, own_text, source, translated
from dalirefurb.kernels.kernel import kernel_named
from dalirefurb.kernels.lower import KernelOp
from dalirefurb.kernels.program import KernelProgram, Work
from dalirefurb.kernels.record import NOT_SPLIT, PROBLEMS, UNFIT, WIDTH

WORK = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("count", "steps", "tail", "fused", "kernels", "numbers", "sizes", "images", "results"),
            *("rooms", "room_bytes", "targets", "output", "means", "scales", "halves"),
        )
    ]
)
"""The record of a batch's work: `Work` in `launches.cuh`."""

_OUTPUTS = {
    ("float32", False): 0,
    ("float32", True): 1,
    ("grey", False): 2,
    ("halves", False): 3,
    ("halves", True): 4,
    ("grey halves", False): 5,
    ("uint8", True): 6,
}
"""Kinds of output, as `launches.cuh` numbers them: of what numbers, and whether they are pixel after pixel."""

_PIXELS = 4 * THREADS
"""Those that a block makes."""


class Launch(NamedTuple):
    """One launch, over a grid of `blocks` for each row.

    Attributes:
        function: Its name in `launches.cuh`.
        step: Which step it is of.
        blocks: Number of blocks, of `THREADS` threads each, for each row.
        nbytes: Bytes that it moves, where each image is read once: what it takes where memory is the limit.
        stages: Names of the stages that it is of.
    """

    function: str
    step: int
    blocks: int
    nbytes: int
    stages: tuple[str, ...] = ()


class CudaProgram(KernelProgram):
    """The steps of a part, or of both parts of a recipe, for a GPU. For the arguments see `KernelProgram`.

    Raises:
        ConfigurationError: If one of the steps has no kernel for a GPU.

    Attributes:
        kernels: Names of kernels, as they are numbered in `text`, from 1 on; by default those that the steps choose
            among.
    """

    def __init__(
        self,
        steps: tuple[KernelOp, ...],
        output: Output | PlainLevels | None,
        *,
        kernels: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        taken = dict[str, Any]()
        for step in steps:
            for kernel in step.kernels:
                if kernel is not None and (name := name_of(kernel)) is None:
                    raise ConfigurationError(
                        f"stages must have kernels for a GPU, but {step.stage.name!r} has one for a CPU alone: let the "
                        f"CPU compute the part that it is in, or pass KernelStage(..., cuda=)"
                    )
                if kernel is not None:
                    taken[str(name)] = kernel
        own = {name: own_text(kernel) for name, kernel in taken.items() if isinstance(kernel, KernelStage)}
        self.kernels = tuple(sorted(taken) if kernels is None else (*kernels, *own))
        self._own = tuple(own.values())
        super().__init__(steps, output, **settings)

    @property
    def text(self) -> str:
        """What is to be compiled."""
        return source(self.kernels, self._own)

    def launched(self, work: Work) -> BatchLaunches:
        """Return what there is to launch for a batch's work.

        Raises:
            GraphError: If an image is none that its kernel is for.
        """
        return BatchLaunches(self, work)

    def moves(self, step: int) -> bool:
        """Tell whether all kernels of a step but move pixels."""
        return all(needs(str(name_of(kernel))).moves for kernel in self.steps[step].kernels if kernel is not None)

    @property
    def split(self) -> int | None:
        """Number of steps after which an image is partial, and written down; None: it is not."""
        return None if self._split == NOT_SPLIT else self._split

    def _number(self, kernel: Any) -> int:
        """Return the place of a kernel among those of `text`, from 1 on."""
        return self.kernels.index(str(name_of(kernel))) + 1

    def _output_function(self) -> int:
        """Return which kind of `_OUTPUTS` it is, since there are no addresses."""
        output = self.output
        if output is None:
            return 0
        halves = "halves" if output.dtype in ("float16", "bfloat16") else output.dtype
        if output.channels == 1:
            return _OUTPUTS["grey" if halves == "float32" else "grey halves", False]
        return _OUTPUTS[halves, output.channels_last]


class BatchLaunches:
    """What is launched for a batch, and the arrays that it is given.

    Args:
        program: Program of the steps.
        work: What there is to do for the batch, of the same program.

    Attributes:
        launches: What is launched, in this order.
        rows: Number of rows, for each of which there are the launches' blocks.
        nbytes: Bytes that all launches move.
        page_bytes: Bytes of the page.
        memory_bytes: Bytes of memory to work in.
    """

    def __init__(self, program: CudaProgram, work: Work) -> None:
        arrays = work.arrays
        self.rows, self._split, self._computed = work.count, program.split, work.computed
        self._partials = arrays["partials"]
        chosen, constants = arrays["chosen"], program.constants
        table = constants["kernels"]
        self._kernels = np.where(
            chosen < 0, 0, np.take_along_axis(table, np.maximum(chosen, 0), axis=1) if len(table) else 0
        )
        self._numbers, self._sizes, self._origins = arrays["numbers"], arrays["sizes"], arrays["origins"]
        self._names = tuple(step.stage.name for step in program.steps)
        if self._split:
            self._kernels[: self._split, work.computed :] = 0
            # Of a partial image that is at hand nobody knows what it was before.
            self._sizes = self._sizes.copy()
            self._sizes[: self._split, work.computed :] = self._sizes[self._split, work.computed :]
        self._tail = self._begun(program)
        self._fused = program.output is not None and self._tail > (self._split or 0)
        if self._split == 0 and self._computed:
            self._copied_first()
        self._results = self._made()
        self._output = int(work.record["output"][0]) if program.output is not None else 0
        self.launches, room_bytes = self._planned(program)
        self._image_bytes = rounded(3 * int(self._areas(slice(1, None))[self._results > 0].max(initial=0)))
        self._room_bytes = rounded(room_bytes)
        self.nbytes = sum(launch.nbytes for launch in self.launches)
        self.memory_bytes = self.rows * (2 * self._image_bytes + self._room_bytes)
        self._given = {
            "kernels": self._kernels.astype(np.int32),
            "numbers": self._numbers,
            "sizes": self._sizes.astype(np.int32),
            "targets": arrays["targets"],
            **{name: constants[name] for name in ("means", "scales", "halves")},
        }
        places = {"images": np.empty((len(self._kernels) + 1, self.rows), np.int64), "results": self._results}
        sizes = [array.nbytes for array in (*self._given.values(), *places.values())]
        self.page_bytes = rounded(WORK.itemsize) + sum(rounded(nbytes) for nbytes in sizes)

    def write(
        self, page: NDArray[np.uint8], address: int, memory: int, entering: NDArray[np.int64] | None = None
    ) -> None:
        """Write a page, which begins with the record of the work.

        Args:
            page: Room for `page_bytes`, (page_bytes,).
            address: Address that the page has when its work is launched, a multiple of 64.
            memory: Address of `memory_bytes` to work in, a multiple of 64.
            entering: Addresses of the images that enter, (n,), if they are others than those of the work.
        """
        if entering is not None:
            self._origins = entering
        record, place = np.zeros(1, WORK), rounded(WORK.itemsize)
        images, results = self._addresses(memory)
        for name, array in {**self._given, "images": images, "results": results}.items():
            page[place : place + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            record[name] = address + place
            place += rounded(array.nbytes)
        record["count"], record["steps"] = self.rows, len(self._kernels)
        record["tail"], record["fused"] = self._tail, self._fused
        record["rooms"] = memory + 2 * self.rows * self._image_bytes
        record["room_bytes"], record["output"] = self._room_bytes, self._output
        page[: WORK.itemsize] = record.view(np.uint8)

    def _begun(self, program: CudaProgram) -> int:
        """Return the number of steps before those at the end that what comes out does in passing."""
        tail = len(self._kernels)
        while program.output is not None and tail > (self._split or 0) and program.moves(tail - 1):
            tail -= 1
        return tail

    def _copied_first(self) -> None:
        """Begin with a step that copies: partial images are those that enter."""
        self._kernels = np.concatenate([np.zeros_like(self._sizes[:1, :, 0]), self._kernels])
        self._numbers = np.concatenate([np.zeros((1, self.rows, WIDTH)), self._numbers])
        self._sizes = np.concatenate([self._sizes[:1], self._sizes])
        self._names = ("copy", *self._names)
        self._split, self._tail = 1, self._tail + 1

    def _made(self) -> NDArray[np.int64]:
        """Return which image of each step is made, (s, n): 0 none, 1 one on the way, 2 the other, -1 a partial one."""
        made = np.zeros(self._kernels.shape, np.int64)
        turns = np.zeros(self.rows, np.int64)
        for step in range(self._tail - self._fused):
            on_the_way = self._kernels[step] > 0
            if step + 1 == self._split:
                on_the_way[: self._computed] = False
                made[step, : self._computed] = -1
            made[step, on_the_way] = 1 + turns[on_the_way]
            turns[on_the_way] ^= 1
        return made

    def _addresses(self, memory: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return addresses of what enters each step, and of what leaves the last one; and of where results go."""
        rows = np.arange(self.rows)
        results = np.where(self._results > 0, memory + ((self._results - 1) * self.rows + rows) * self._image_bytes, 0)
        if self._split and self._computed:
            results[self._split - 1, : self._computed] = self._partials
        images = np.empty((len(results) + 1, self.rows), np.int64)
        images[0] = self._origins
        for step, made in enumerate(results):
            images[step + 1] = np.where(made, made, images[step])
        return images, results

    def _areas(self, steps: Any) -> NDArray[np.int64]:
        areas: NDArray[np.int64] = self._sizes[steps].prod(axis=-1)
        return areas

    def _planned(self, program: CudaProgram) -> tuple[tuple[Launch, ...], int]:
        """Return the launches, and the bytes that an image needs beside images."""
        launches, room_bytes = list[Launch](), 0
        for step in range(self._tail):
            prepared, passed, moved = False, 0, Counter[str]()
            for kernel, rows in self._chosen(program.kernels, step):
                before, after = self._sizes[step, rows].T, self._sizes[step + 1, rows].T
                numbers, needed = self._numbers[step, rows].T, needs(kernel)
                refuses = translated(kernel) and kernel_named(kernel).room_bytes(*before, *after, numbers) < 0
                if np.any(refuses):
                    raise GraphError(f"{kernel} must be given images that it is for: {PROBLEMS[UNFIT]}")
                rooms = np.broadcast_to(needed.room_bytes(tuple(before), tuple(after), numbers), len(rows))
                room_bytes = max(room_bytes, int(rooms.max()))
                entering, of_rooms = 3 * int(before.prod(axis=0).sum()), int(rooms.sum())
                moved["prepare"] += (entering if kernel.startswith("levels.") else of_rooms) * needed.prepares
                moved["pass"] += (entering + of_rooms) * (needed.passed is not None)
                prepared |= needed.prepares
                if needed.passed is not None:
                    passed = max(passed, int(np.max(needed.passed(tuple(before), tuple(after), numbers))))
            if prepared:
                launches.append(Launch("prepare", step, 1, moved["prepare"], self._names[step : step + 1]))
            if passed:
                blocks = -(-passed // THREADS)
                launches.append(Launch("pass", step, blocks, moved["pass"], self._names[step : step + 1]))
            made = self._results[step] != 0
            if made.any():
                before, after = self._areas(step)[made], self._areas(step + 1)[made]
                nbytes = 3 * int(before.sum() + after.sum())
                blocks = -(-int(after.max()) // _PIXELS)
                launches.append(Launch("pixels", step, blocks, nbytes, self._names[step : step + 1]))
        output = program.output
        if output is not None and self.rows:
            itemsize = 2 if output.dtype == "bfloat16" else np.dtype(output.dtype).itemsize
            shown, areas = self._areas(self._tail - self._fused), self._areas(-1)
            nbytes = 3 * int(shown.sum()) + itemsize * output.channels * int(areas.sum())
            in_passing = self._names[self._tail - self._fused :]
            launches.append(Launch("output", 0, -(-int(areas.max()) // _PIXELS), nbytes, in_passing))
        return tuple(launches), room_bytes

    def _chosen(self, kernels: Sequence[str], step: int) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yield the kernels that rows take in a step, each with these rows."""
        for number in np.unique(self._kernels[step]):
            if number:
                yield kernels[number - 1], np.flatnonzero(self._kernels[step] == number)


OPTIONS = ("-std=c++17", "-fmad=false")
"""Those of NVRTC: sums and products are not fused, and divisions and roots are IEEE's, as they come."""


class CudaLauncher:
    """Runs a source on the CUDA device that is current, on CuPy's current stream.

    NVRTC compiles it when it is made: that takes seconds, once for each kind of GPU, since CuPy keeps what it made on
    disk.

    Args:
        text: Source, see `source`.

    Raises:
        ConfigurationError: If it cannot be compiled.
    """

    def __init__(self, text: str) -> None:
        import cupy

        module = cupy.RawModule(code=text, options=OPTIONS)
        try:
            self._functions = {name: module.get_function(name) for name in ("prepare", "pass", "pixels", "output")}
        except cupy.cuda.compiler.CompileException as error:
            raise ConfigurationError(f"NVRTC must compile the kernels for this GPU, but says: {error}") from error

    def launch(self, launch: Launch, rows: int, page: int) -> None:
        """Queue one launch, for so many rows, given the address of the page of `BatchLaunches`."""
        function: Any = self._functions[launch.function]
        function((launch.blocks, rows), (THREADS,), (np.int64(page), np.int64(launch.step)))
