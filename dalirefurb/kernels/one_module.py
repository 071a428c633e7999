"""Compilation in one module: what a kernel calls is optimised and turned into machine code with it, not before, too.

Numba finishes each function by itself, though it links its code into what calls it, where it is finished once more: for
a hundred small functions that only call each other, twice the work. Here only the outermost one is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

_TRIED_WITH = ((0, 68),)
"""Versions of Numba whose own parts are as this module takes them; with others every function is finished."""


@contextmanager
def in_one_module(function: Callable[..., Any]) -> Iterator[None]:
    """Finish nothing but this function, in the calling thread; others that compile wait until it is done."""
    if numba.version_info.short not in _TRIED_WITH:
        yield
        return
    name = function.__qualname__
    optimise, finish = CPUCodeLibrary._optimize_final_module, CPUCodeLibrary._finalize_final_module
    pointer, set_env = JITCodeLibrary.get_pointer_to_function, JITCPUCodegen.set_env

    def optimise_outermost(library: Any) -> None:
        if library.name == name:
            optimise(library)

    def finish_outermost(library: Any) -> None:
        if library.name == name:
            finish(library)
        else:
            library._finalize_dynamic_globals()
            library._finalized = True

    def pointer_to_outermost(library: Any, symbol: str) -> Any:
        if library.name == name:
            return pointer(library, symbol)
        library._ensure_finalized()
        return 0  # As Numba says of what it has no machine code of.

    def set_env_of_outermost(codegen: Any, symbol: str, env: Any) -> None:
        if codegen._engine.get_global_value_address(symbol):
            set_env(codegen, symbol, env)

    with global_compiler_lock:
        CPUCodeLibrary._optimize_final_module, CPUCodeLibrary._finalize_final_module = (
            optimise_outermost,
            finish_outermost,
        )
        JITCodeLibrary.get_pointer_to_function, JITCPUCodegen.set_env = pointer_to_outermost, set_env_of_outermost
        try:
            yield
        finally:
            CPUCodeLibrary._optimize_final_module, CPUCodeLibrary._finalize_final_module = optimise, finish
            JITCodeLibrary.get_pointer_to_function, JITCPUCodegen.set_env = pointer, set_env
