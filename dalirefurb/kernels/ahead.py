"""Compilation of what a recipe needs before it is needed, in two processes: one begins at either end of the list.

Each looks on disk first, so that where they meet, each finds what the other one has compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache

from dalirefurb.augment.output import Output
from dalirefurb.augment.stage import Stage
from dalirefurb.kernels.buffers import PlainLevels
from dalirefurb.kernels.kernel import compile_kernel, kernel_names
from dalirefurb.kernels.lower import steps_of
from dalirefurb.kernels.normalize import OUTPUTS, compile_output, output_of
from dalirefurb.kernels.random import compile_mix, compile_walk
from dalirefurb.kernels.rows import compile_run
from dalirefurb.system.resources import usable_cores

_FUNCTIONS: dict[str, Callable[[], Any]] = {"rows": compile_run, "mix": compile_mix, "walk": compile_walk}

_CHILD = f"import sys; from {__name__} import compile_named; [compile_named(name) for name in sys.argv[1:]]"
_FEWEST = 3
"""Functions left to compile for which another process is worth its start."""


def compile_named(name: str) -> Any:
    """Compile a function, or load what was compiled before: such as "rows", "kernel warp.nearest", "output floats"."""
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]()
    kind, _, own = name.partition(" ")
    return compile_kernel(own) if kind == "kernel" else compile_output(own)


def compile_for(partial: tuple[Stage, ...], final: tuple[Stage, ...], output: Output | PlainLevels | None) -> None:
    """Compile what the parts of a recipe need, or load what was compiled before; stages without kernels need nothing.

    Args:
        partial: Partial stages, decoding excepted.
        final: Final stages, likewise.
        output: Output that the model receives, or what DALI goes on with; None: there are partial images alone.
    """
    steps = (*(steps_of(partial) or ()), *(steps_of(final) or ()))
    kernels = dict.fromkeys(f"kernel {name}" for step in steps for name in step.kernels if isinstance(name, str))
    _compile_all([*_FUNCTIONS, *([] if output is None else [f"output {output_of(output)}"]), *kernels])


def compile_ahead() -> Path | None:
    """Compile all kernels for this processor, for images of containers and the like.

    Returns:
        The folder that has all, None if none can be written.
    """
    from dalirefurb.kernels.pipelines import compile_operator
    from dalirefurb.kernels.rows import compile_pool

    kernels = [f"kernel {name}" for name in kernel_names()]
    _compile_all([*_FUNCTIONS, *kernels, *(f"output {name}" for name in OUTPUTS)])
    compile_operator()
    compile_pool()
    folder = compile_run()._cache.cache_path
    return None if folder is None else Path(folder)


def kept_kernels() -> tuple[Path | None, int]:
    """Return the folder where compiled functions are kept, None if none can be written, and how many are there."""
    try:
        folder = Path(FunctionCache(compile_named).cache_path)
    except RuntimeError:  # Numba found no folder.
        return None, 0
    return folder, len([*folder.glob("*.nbi")])


def _compile_all(names: Sequence[str]) -> None:
    """Compile functions; at the first that is not on disk yet have another process begin at the other end."""
    for place, name in enumerate(names):
        if not _was_kept(compile_named(name)):
            with _helper(names[:place:-1]):
                for other in names[place + 1 :]:
                    compile_named(other)
            return


def _was_kept(function: Any) -> bool:
    """Tell whether a C function was on disk; of others nothing is known."""
    return getattr(function, "cache_hits", 1) > 0


def _interpreter() -> bool:
    """Tell whether this process runs in Python's interpreter, not in a program that has it inside."""
    return not getattr(sys, "frozen", False) and Path(sys.executable or "").name.startswith("python")


@contextmanager
def _helper(names: Sequence[str]) -> Iterator[None]:
    """Have another process compile functions meanwhile, if there is a core for it; without it all goes on, slower."""
    if len(names) < _FEWEST or usable_cores() < 2 or not _interpreter():
        yield
        return
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    nowhere = subprocess.DEVNULL
    command = [sys.executable, "-c", _CHILD, *names]
    try:
        child = subprocess.Popen(command, env=environment, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        child.terminate()
        child.wait()
