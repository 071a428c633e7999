"""Kernel: the pixels of one stage or operation, compiled as a C function that the loop over rows calls.

Each is compiled by itself, when a recipe first needs it, and all have the same arguments. So a table of addresses says
what a recipe does, and what nobody uses is never compiled.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import types

from dalirefurb.augment.stages.custom import HostStage, KernelStage
from dalirefurb.errors import ConfigurationError
from dalirefurb.kernels import pixels
from dalirefurb.kernels.host import HostFunction
from dalirefurb.kernels.llvm import (
    c_function,
    c_function_not_kept,
    compiled,
    inlined,
    memory,
    with_functions,
)
from dalirefurb.kernels.record import CRAMPED, DONE, UNFIT, WIDTH

SIGNATURE = types.int64(*[types.int64] * 9)
"""Of what `compile_kernel` returns."""

REFUSED = -(1 << 60)
"""Added to bytes of memory where an image is none that a kernel is for."""


def _no_bytes(height: Any, width: Any, lines: Any, columns: Any, numbers: Any) -> Any:
    return 0 * columns


@dataclass(frozen=True)
class Kernel:
    """What is done to one image.

    Attributes:
        function: Function of the image's levels, pixel after pixel, uint8 (3 * height * width,); its height and width
            in pixels; those of the result, `lines` and `columns`; the step's numbers, float64 (`WIDTH`,); the address
            of memory to work in, where what it leaves is found by the next kernel of the same image, unless another one
            works there; and the levels of the result, uint8 (3 * lines * columns,), all of which it writes.
        room_bytes: Function that returns the bytes of memory that the kernel works in, at most, given heights, widths,
            lines, columns and numbers, (`WIDTH`, ...), each for one image or for several; below 0 where an image is
            none that the kernel is for.
    """

    function: Callable[..., None]
    room_bytes: Callable[..., Any] = _no_bytes


def kernel(room_bytes: Callable[..., Any] = _no_bytes) -> Callable[[Callable[..., None]], Kernel]:
    """Make a kernel of a function, see `Kernel`."""
    return lambda function: Kernel(function, room_bytes)


def kernel_named(name: str) -> Kernel:
    """Return the kernel of a name, such as "warp.nearest": that of its module in `pixels`, and its own there."""
    module, _, own = name.partition(".")
    found: Kernel = getattr(importlib.import_module(f"{pixels.__name__}.{module}"), own)
    return found


def kernel_names() -> list[str]:
    """Return the names of all kernels."""
    modules = [each.name for each in pkgutil.iter_modules(pixels.__path__)]
    members = [(name, vars(importlib.import_module(f"{pixels.__name__}.{name}"))) for name in modules]
    return [f"{module}.{name}" for module, own in members for name, each in own.items() if isinstance(each, Kernel)]


def _function(*_: Any) -> None:
    """Stand for a kernel's own function, or the user's, see `llvm.with_functions`."""


def _room_bytes(*_: Any) -> Any:
    """Stand for a kernel's own, likewise."""


@cache
def compile_kernel(name: str) -> Any:
    """Compile a kernel, or load what was compiled before, once in a process.

    Returns:
        A C function of nine int64: the address of an image, its height and width, those of the result, and the
        addresses of the numbers and of memory to work in, with its bytes, and of the result. It returns what became of
        the image, see `record`.
    """
    kernel = kernel_named(name)

    def run(
        image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, provided: Any, out: Any
    ) -> Any:
        given = memory(numbers, (WIDTH,), np.float64)
        needed = _room_bytes(height, width, lines, columns, given)
        if needed < 0:
            return UNFIT
        if needed > provided:
            return CRAMPED
        levels = memory(image, (3 * height * width,), np.uint8)
        _function(levels, height, width, lines, columns, given, room, memory(out, (3 * lines * columns,), np.uint8))
        return DONE

    own = {"_function": compiled(kernel.function), "_room_bytes": compiled(kernel.room_bytes)}
    return c_function(with_functions(run, f"kernel_{name}", **own), SIGNATURE)


_FORBIDDEN = "NRT_MemInfo_alloc", "NRT_Allocate", ".const.picklebuf"
"""Parts of the names of what compiled code refers to where it allocates memory, or raises what nobody would hear."""

_WHERE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def compile_any(kernel: str | KernelStage | HostStage) -> Any:
    """Return what a kernel's name, or a stage of the user's, stands for: what has the `address` of a C function.

    It must be kept as long as somebody may call this address.
    """
    if isinstance(kernel, HostStage):
        return HostFunction(kernel)
    return compile_own(kernel) if isinstance(kernel, KernelStage) else compile_kernel(kernel)


@cache
def compile_own(stage: KernelStage) -> Any:
    """Compile a stage's function, once in a process; what it returns is as of `compile_kernel`.

    Nothing is kept on disk, since the function may have changed.

    Raises:
        ConfigurationError: If it cannot be compiled, makes arrays or raises.
    """
    function, count = stage.function, stage.uniforms

    def run(
        image: Any, height: Any, width: Any, lines: Any, columns: Any, numbers: Any, room: Any, provided: Any, out: Any
    ) -> Any:
        levels, result = memory(image, (height, width, 3), np.uint8), memory(out, (lines, columns, 3), np.uint8)
        _function(levels, memory(numbers, (count,), np.float64), result)
        return DONE

    named = with_functions(run, f"own_{function.__qualname__}", _function=inlined(function))
    try:
        made = c_function_not_kept(named, SIGNATURE)
    except Exception as error:  # Numba's own errors, and any that Python's inspection of the function raises.
        said = _in_one_line(error, function)
        raise ConfigurationError(
            f"{_place(function)} must be a function that Numba compiles, but it says: {said}; see KernelStage, and "
            f"test it by numba.njit(function)(image, uniforms, out)"
        ) from error.with_traceback(None)
    code = made._library.get_llvm_str()
    if any(name in code for name in _FORBIDDEN):
        raise ConfigurationError(
            f"{_place(function)} must neither make arrays nor raise, but it does: loop over pixels, write to out, and "
            f"leave out raise, assert and what may fail"
        )
    _try(stage)
    return made


class _Counted(np.ndarray[Any, Any]):
    """Numbers of which Python's interpreter takes no more than there are; compiled code does not look."""

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except IndexError as error:
            raise _TooFewError from error


class _TooFewError(Exception):
    """A function took more numbers than there are."""


def _try(stage: KernelStage) -> None:
    """Have the interpreter run a stage's function twice, on a small image, over what differs in `out`.

    Raises:
        ConfigurationError: If it takes more numbers than are drawn for it, leaves levels of `out` as they were, takes
            random numbers from elsewhere, writes to `image`, or returns something.
    """
    numbers = np.full(stage.uniforms, 0.5).view(_Counted)
    image = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    given = [image.copy() for _ in range(2)]
    once, again = np.full_like(image, 0), np.full_like(image, 255)
    function: Callable[..., Any] = stage.function
    try:
        with np.errstate(all="ignore"):  # Levels overflow there, too.
            returned = [function(one, numbers, out) for one, out in zip(given, (once, again), strict=True)]
    except _TooFewError as error:
        remedy = f"pass KernelStage(..., uniforms=n) with n above {stage.uniforms}, or take fewer"
        raise ConfigurationError(
            f"{_place(stage.function)} must take no more numbers than are drawn for it, {stage.uniforms}, but it says: "
            f"{error.__cause__}: {remedy}"
        ) from error.__cause__
    except Exception:  # It may need a larger image, or what only compiled code can do.
        return
    if any(each is not None for each in returned):
        raise ConfigurationError(
            f"{_place(stage.function)} must return nothing, but it returns a {type(returned[0]).__name__}: write to out"
        )
    if not all(np.array_equal(each, image) for each in given):
        raise ConfigurationError(
            f"{_place(stage.function)} must leave image as it is, since others take it too, but it writes to it: write "
            f"to out"
        )
    if not np.array_equal(once, again):
        raise ConfigurationError(
            f"{_place(stage.function)} must make each level of out by image and uniforms alone, but two runs on one "
            f"image differ: write all of out, and take random numbers from uniforms"
        )


def _place(function: Callable[..., None]) -> str:
    code = function.__code__
    return f"{function.__qualname__} ({code.co_filename}, line {code.co_firstlineno})"


def _in_one_line(error: Exception, function: Callable[..., None]) -> str:
    """Return what an error says, without its drawings, and the line of the function that it is about."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    said = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("Failed in", "-"))]
    file = Path(function.__code__.co_filename).name
    lines = [found["line"] for found in _WHERE.finditer(text) if Path(found["file"]).name == file]
    return (said[0] if said else type(error).__name__) + (f" (line {lines[-1]})" if lines else "")
