"""Compilation of kernels, and a few things that Python has no word for.

Kernels never touch Python's lock, so threads run them side by side. Nor do they raise, which none would hear, and no
array is made in them: what they need is there before they begin. Images are flat uint8 arrays, row by row, three
bytes a pixel; heights and widths travel beside them. Where unsigned indices are used, it is because Numba spends
nothing on whether they are negative.
"""

from __future__ import annotations

import gc
import logging
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from threading import Timer
from types import CellType, FunctionType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic as _numba_intrinsic
from numba.extending import register_jitable
from numba.np.arrayobj import np_cfarray

from dalirefurb import augment, image_batch, rng

_SLOW_S = 2.0

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile one kernel to be called by others; only what calls them all is kept on disk."""
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    # What Numba rewrites are expressions of whole arrays, of which there are none.
    return cast(Function, njit(nogil=True, error_model="numpy", no_rewrites=True, **wrappers)(function))


def inlined(function: Function) -> Function:
    """Compile one kernel as a part of what calls it, so that what is known there of shapes makes its loops faster."""
    return cast(Function, njit(nogil=True, error_model="numpy", no_rewrites=True, inline="always")(function))


def jitable(function: Function) -> Function:
    """Have kernels call a function that Python calls, too, with arrays in place of numbers."""
    return cast(Function, register_jitable(no_rewrites=True)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have kernels call what the function generates: instructions that Python has no word for."""
    return cast(Callable[..., Any], _numba_intrinsic(function))


def kept(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Compile what is called from Python, or load what was compiled before.

    Where it cannot be kept on disk, or what was kept is damaged, it is compiled every time: that takes some seconds.
    """
    return cast(Callable[..., Any], _kept(njit, function, signature, nogil=True))


@cache
def source_digest() -> int:
    """Return a number of all files that compiled functions and their numbers are in."""
    folders = Path(__file__).parent, Path(augment.__file__).parent
    files = [
        Path(image_batch.__file__),
        Path(rng.__file__),
        *(path for folder in folders for path in sorted(folder.rglob("*.py"))),
    ]
    return zlib.crc32(b"".join(path.read_bytes() for path in files))


def c_function(function: Callable[..., Any], signature: Any) -> Any:
    """Compile what is called as a C function, or load what was compiled before, see `kept`.

    Returns:
        What has an `address`, and as `ctypes` what Python can call.
    """
    return _kept(cfunc, function, signature)


def c_function_not_kept(function: Callable[..., Any], signature: Any) -> Any:
    """Compile what is called as a C function, and keep nothing on disk.

    What it calls may be the user's own, which Python calls as well: so machine code is made of that, too.
    """
    with _uncollected():
        return cfunc(signature, error_model="numpy")(function)


def with_functions(template: Callable[..., Any], name: str, **functions: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of another name, whose global names mean these functions, which are `compiled` or `inlined`.

    Numba keeps what it compiles by a function's name and by what is in its closure, where functions would be others in
    every process.
    """
    template = cast(FunctionType, template)
    named = FunctionType(template.__code__, {**template.__globals__, **functions}, name, None, template.__closure__)
    named.__qualname__ = name
    return named


def _kept(compiler: Any, function: Callable[..., Any], signature: Any, **options: bool) -> Any:
    """Compile a function with one of Numba's compilers, and say so if that takes long."""
    timer = Timer(_SLOW_S, _say_once)
    timer.daemon = True
    timer.start()
    try:
        with in_one_module(function), _uncollected():
            return compiler(signature, cache=True, error_model="numpy", **options)(_of_sources(function))
    except Exception:  # Numba found no folder for its cache, a full disk, or half a file; any other error comes again.
        return compiler(signature, error_model="numpy", **options)(function)
    finally:
        timer.cancel()


def _of_sources(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function in whose closure is `source_digest` as well.

    Numba looks at a function's own file, and at what is in its closure, to tell whether what it kept is of today.
    """
    function = cast(FunctionType, function)
    code = function.__code__.replace(co_freevars=(*function.__code__.co_freevars, "_sources"))
    closure = *(function.__closure__ or ()), CellType(source_digest())
    tied = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    tied.__qualname__ = function.__qualname__
    return tied


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let no garbage be collected meanwhile: beside all that PyTorch has loaded, it takes a tenth of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def _say_once() -> None:
    """Tell why nothing seems to happen: those who look at the log, and those who sit at a terminal."""
    message = "dalirefurb compiles its kernels for this processor, once: this can take a minute"
    log = logging.getLogger("dalirefurb")
    log.info(message)
    # The command line's own handler has written it there already.
    if not log.handlers and sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"{message}\n")


def element(context: Any, builder: Any, signature: Any, arguments: Any, array: int, number: int | None = None) -> Any:
    """Return the address of an element of an array, for what generates instructions.

    Which argument is the array, and which is the element's number, say `array` and `number`; None: it is the first one.
    """
    data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
    return data if number is None else builder.gep(data, [arguments[number]])


@intrinsic
def fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c of float32 numbers, rounded once, as OpenCV does where the processor can."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@compiled
def level(value: Any) -> Any:
    """Round a float32 to the nearest level 0 .. 255; a half goes to the even one."""
    return np.uint8(np.int32(np.rint(min(max(value, np.float32(0)), np.float32(255)))))


@intrinsic
def memory(typing_context: Any, address: Any, shape: Any, dtype: Any) -> Any:
    """View memory as an array: `numba.carray`, without a function of its own for each shape and type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))
        return np_cfarray(context, builder, signature, (pointer, arguments[1]))

    kind = types.Array(parse_dtype(dtype), len(shape), "C")
    return kind(types.int64, shape, dtype), generate


def _atomic(operation: str) -> Callable[..., Any]:
    """Change the first of some int64 numbers by another one, and return what it was before; nobody comes between."""

    @intrinsic
    def change(typing_context: Any, numbers: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            first = element(context, builder, signature, arguments, 0)
            return builder.atomic_rmw(operation, first, arguments[1], "seq_cst")

        return types.int64(numbers, types.int64), generate

    return change


fetch_add = _atomic("add")
"""Add to the first number; no two threads that count with it get the same."""

exchange = _atomic("xchg")
"""Set the first number."""


@intrinsic
def call(typing_context: Any, function: Any, numbers: Any) -> Any:
    """Call a C function of some int64, a tuple, that returns one, given its address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, given = ir.IntType(64), cgutils.unpack_tuple(builder, arguments[1])
        kind = ir.FunctionType(number, [number] * len(given)).as_pointer()
        return builder.call(builder.inttoptr(arguments[0], kind), given)

    return types.int64(types.int64, types.UniTuple(types.int64, len(numbers))), generate


@intrinsic
def fence(typing_context: Any) -> Any:
    """Let other threads see what was streamed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


_TRIED_WITH = ((0, 68),)
"""Versions of Numba whose own parts are as `_changes` takes them; with others every function is finished."""


@contextmanager
def in_one_module(function: Callable[..., Any]) -> Iterator[None]:
    """Make machine code of what Python calls alone, in the calling thread; others that compile wait until it is done.

    Numba makes it of each function that is called as well, though it links their code into their callers.
    """
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
