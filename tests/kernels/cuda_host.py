"""The kernels' CUDA source, compiled for this machine's processor, and what it makes of a batch beside our kernels."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dalirefurb.augment.output import Output
from dalirefurb.augment.stage import Stage, as_inputs, draw
from dalirefurb.image_batch import Images, row_addresses
from dalirefurb.kernels.buffers import PlainLevels, aligned
from dalirefurb.kernels.cuda.program import CudaProgram, Launch
from dalirefurb.kernels.cuda.source import name_of, translated
from dalirefurb.kernels.kernel import kernel_names
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.program import KernelProgram, Work
from dalirefurb.kernels.rows import KernelThreadPool

Picture = NDArray[np.uint8]

COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC", "-x", "c++")
FOLDER = tempfile.TemporaryDirectory(prefix="cuda_host_")


@cache
def compiled(text: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Compile a source, once in a process."""
    assert COMPILER is not None
    library = Path(FOLDER.name) / f"{abs(hash((text, flags))):x}.so"
    has_fma = "fma" in Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else False
    command = [COMPILER, *FLAGS, *(["-mfma"] if has_fma else []), *flags, "-", "-o", str(library)]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(library))


def launch_on(library: ctypes.CDLL, function: str, page: int, step: int, blocks: int, rows: int) -> None:
    """Do on this processor what a launch does on a GPU."""
    getattr(library, function)(*map(ctypes.c_int64, (page, step, blocks, rows)))


class Made:
    """What a program makes of a batch."""

    def __init__(self, results: NDArray[Any], partials: list[Picture], launches: Sequence[Launch] = ()) -> None:
        self.results, self.partials, self.launches = results, partials, launches


def feeds_of(stages: Sequence[Stage], pictures: Sequence[Picture], seed: int = 0, epoch: int = 0) -> dict[str, Any]:
    """Draw for pictures, as "<stage>/<parameter>"."""
    heights, widths = np.array([picture.shape[:2] for picture in pictures]).T
    indices = np.arange(len(pictures))
    drawn, _, _ = draw(
        tuple(stages), seed=seed, indices=indices, numbers=indices * 0 + epoch, heights=heights, widths=widths
    )
    return as_inputs(drawn)


def on_a_gpu(stages: Sequence[Stage]) -> bool:
    """Tell whether all kernels of some stages are there for a GPU, too."""
    steps = steps_of(tuple(stages))
    kernels = [kernel for step in steps or () for kernel in step.kernels if kernel is not None]
    return steps is not None and None not in map(name_of, kernels)


class Beside:
    """Our kernels, and the CUDA source compiled for this processor, of the same steps.

    Args:
        partial: Stages of the partial part, or all.
        final: Stages of the final part; None: nothing is split.
        output: What comes out.
        flags: Further flags of the compiler.
        of_all_kernels: Whether one source of all kernels is taken, which is compiled once for all tests.
    """

    def __init__(
        self,
        partial: Sequence[Stage],
        output: Output | PlainLevels | None,
        final: Sequence[Stage] | None = None,
        *,
        flags: tuple[str, ...] = (),
        of_all_kernels: bool = True,
    ) -> None:
        first, then = steps_of(tuple(partial)), steps_of(tuple(final or ()))
        assert first is not None
        assert then is not None
        split = None if final is None else len(first)
        self.program = KernelProgram((*first, *then), output, split=split)
        kernels = list(filter(translated, kernel_names())) if of_all_kernels else None
        self.cuda = CudaProgram((*first, *then), output, kernels=kernels, split=split)
        self._flags, self._output, self._pool = flags, output, KernelThreadPool(0)

    def by_kernels(self, **given: Any) -> Made:
        """Have our kernels make a batch; for the arguments see `work`."""
        work, results, partials = self.work(self.program, **given)
        self._pool.share(work.part(np.arange(work.count)))
        return Made(results, partials)

    def by_cuda(self, **given: Any) -> Made:
        """Have the CUDA source make it."""
        work, results, partials = self.work(self.cuda, **given)
        launched = self.cuda.launched(work)
        page, memory = aligned(launched.page_bytes), aligned(launched.memory_bytes)
        memory[:] = 0xA5
        launched.write(page, page.ctypes.data, memory.ctypes.data)
        library = compiled(self.cuda.text, self._flags)
        for launch in launched.launches:
            launch_on(library, launch.function, page.ctypes.data, launch.step, launch.blocks, launched.rows)
        return Made(results, partials, launched.launches)

    def work(
        self,
        program: KernelProgram,
        *,
        pictures: Sequence[Picture] = (),
        feeds: Mapping[str, Any] | None = None,
        pinned: Sequence[Picture] = (),
        final: Mapping[str, Any] | None = None,
    ) -> tuple[Work, NDArray[Any], list[Picture]]:
        """Lay a batch out: pictures to compute, what was drawn for them, partial images, what was drawn for all."""
        count, output, partials = len(pictures) + len(pinned), self._output, list[Picture]()

        def reserve(sizes: NDArray[np.int64]) -> Images:
            partials.extend(np.full((height, width, 3), 0x5A, np.uint8) for height, width in sizes.tolist())
            return Images(partials)

        results = np.empty(0)
        if output is not None:
            shape = (*output.sides, output.channels) if output.channels_last else (output.channels, *output.sides)
            dtype = "uint16" if output.dtype == "bfloat16" else output.dtype
            results = aligned(int(np.prod((count, *shape))) * np.dtype(dtype).itemsize).view(dtype)
            results = results.reshape(count, *shape)
            results.view(np.uint8)[:] = 0x5A
        work = program.work(
            {"sample": list(pictures), **(feeds or {})} if len(pictures) else {},
            pinned=Images(list(pinned)) if len(pinned) else None,
            final=final,
            reserve=reserve,
            results=None if output is None else results,
            targets=row_addresses(results) if output is not None else np.empty(0, np.int64),
        )
        return work, results, partials


class HostMachine:
    """This processor as a GPU: memory by name, and launches; see `first_light.kernels`."""

    def __init__(self, text: str) -> None:
        self._library = compiled(text)
        self._memory: dict[str, NDArray[np.uint8]] = {}

    def allocate(self, name: str, nbytes: int) -> int:
        self._memory[name] = aligned(nbytes)
        self._memory[name][:] = 0xA5
        return self._memory[name].ctypes.data

    def write(self, name: str, content: NDArray[np.uint8]) -> None:
        self._memory[name][: len(content)] = content

    def read(self, name: str) -> NDArray[np.uint8]:
        return self._memory[name]

    def launch(self, number: int, step: int, blocks: int, rows: int, page: int) -> None:
        launch_on(self._library, ("prepare", "pass", "pixels", "output")[number], page, step, blocks, rows)


def differing(one: Made, other: Made) -> list[int]:
    """Return the rows of which a bit differs."""
    rows = set[int]()
    if one.results.size:
        unequal = one.results.view(np.uint8) != other.results.view(np.uint8)
        rows |= set(np.flatnonzero(unequal.reshape(len(one.results), -1).any(axis=1)).tolist())
    pairs = enumerate(zip(one.partials, other.partials, strict=True))
    return sorted(rows | {row for row, (a, b) in pairs if not np.array_equal(a, b)})
