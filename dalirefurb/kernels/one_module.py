"""Compilation in one module: machine code is made of what Python calls, not of each function that it calls as well.

Numba makes it of each, though it links their code into their callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
    # Before anything is looked at: another thread may be here.
    with global_compiler_lock, ExitStack() as stack:
        for owner, name, changed in _changes(function.__qualname__):
            original = getattr(owner, name)
            setattr(owner, name, changed(original))
            stack.callback(setattr, owner, name, original)
        yield


def _changes(outermost: str) -> Iterator[tuple[type, str, Callable[[Any], Callable[..., Any]]]]:
    """Yield methods of Numba that are changed meanwhile, each with a function from it to what takes its place."""

    def of_outermost(library: Any) -> bool:
        return bool(library.name == outermost)

    def finished(original: Any) -> Callable[..., Any]:
        def finish(library: Any) -> None:
            if of_outermost(library):
                original(library)
            else:
                library._finalize_dynamic_globals()
                library._finalized = True

        return finish

    def found(original: Any) -> Callable[..., Any]:
        def find(library: Any, symbol: str) -> Any:
            if of_outermost(library):
                return original(library, symbol)
            library._ensure_finalized()
            return 0  # As Numba says of what it has no machine code of.

        return find

    def told(original: Any) -> Callable[..., Any]:
        def tell(codegen: Any, symbol: str, environment: Any) -> None:
            if codegen._engine.get_global_value_address(symbol):
                original(codegen, symbol, environment)

        return tell

    yield CPUCodeLibrary, "_finalize_final_module", finished
    yield JITCodeLibrary, "get_pointer_to_function", found
    yield JITCPUCodegen, "set_env", told
