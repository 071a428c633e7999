"""`dalirefurb compile`: compiles the kernels before they are needed."""

from __future__ import annotations

import argparse
import importlib.util
import time

from dalirefurb.cli.terminal import escaped, say
from dalirefurb.errors import ConfigurationError


def compile_kernels(options: argparse.Namespace) -> None:
    """Compile all kernels, and say where they are kept."""
    if importlib.util.find_spec("numba") is None:
        raise ConfigurationError(
            "kernels are compiled by Numba, which cannot be found: pip install numba; without it DALI's operators do "
            "everything, and there is nothing to compile"
        )
    say("compiling the kernels for this processor")
    began = time.perf_counter()
    from dalirefurb.kernels.ahead import compile_ahead

    folder = compile_ahead()
    if folder is None:
        raise ConfigurationError(
            "compiled kernels must be kept in a folder that can be written, but there is none: set NUMBA_CACHE_DIR to "
            "one, here and where training runs"
        )
    say(f"they are there after {time.perf_counter() - began:.1f} s, kept in {escaped(folder)}")
