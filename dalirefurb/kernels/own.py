"""Kernels of the user's own functions, see `KernelStage`; nothing is kept on disk, since they may have changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dalirefurb.augment.stages.kernel_stage import KernelStage
from dalirefurb.errors import ConfigurationError
from dalirefurb.kernels.kernel import SIGNATURE
from dalirefurb.kernels.llvm import c_function_not_kept, inlined, memory, with_functions
from dalirefurb.kernels.record import DONE

_FORBIDDEN = "NRT_MemInfo_alloc", "NRT_Allocate", ".const.picklebuf"
"""Parts of the names of what compiled code refers to where it allocates memory, or raises what nobody would hear."""

_WHERE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def _function(*_: Any) -> None:
    """Stand for the user's function, see `llvm.with_functions`."""


@cache
def compile_own(stage: KernelStage) -> Any:
    """Compile a stage's function, once in a process; what it returns is as of `compile_kernel`.

    Raises:
        ConfigurationError: If it cannot be compiled, makes arrays or raises.
    """
    function, count = stage.function, stage.uniforms

    def run(
        image: Any,
        height: Any,
        width: Any,
        lines: Any,
        columns: Any,
        numbers: Any,
        room: Any,
        provided: Any,
        out: Any,
    ) -> Any:
        levels, result = memory(image, (height, width, 3), np.uint8), memory(out, (lines, columns, 3), np.uint8)
        _function(levels, memory(numbers, (count,), np.float64), result)
        return DONE

    named = with_functions(run, f"own_{function.__qualname__}", _function=inlined(function))
    try:
        compiled = c_function_not_kept(named, SIGNATURE)
    except Exception as error:  # Numba's own errors, and any that Python's inspection of the function raises.
        said = _in_one_line(error, function)
        raise ConfigurationError(
            f"{_place(function)} must be a function that Numba compiles, but it says: {said}; see KernelStage, and "
            f"test it by numba.njit(function)(image, uniforms, out)"
        ) from error
    code = compiled._library.get_llvm_str()
    if any(name in code for name in _FORBIDDEN):
        raise ConfigurationError(
            f"{_place(function)} must neither make arrays nor raise, but it does: loop over pixels, write to out, and "
            f"leave out raise, assert and what may fail"
        )
    return compiled


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
