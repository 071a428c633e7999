"""Compilation ahead of time of all kernels, for images of containers and the like."""

from __future__ import annotations

from pathlib import Path

from dalirefurb.kernels.dali_operator import compile_operator
from dalirefurb.kernels.random import compile_mix, compile_walk
from dalirefurb.kernels.rows import compile_run
from dalirefurb.kernels.thread_pool import compile_pool


def compile_ahead() -> Path | None:
    """Compile what is not kept on disk yet, for this processor; return the folder that has all, None if none can."""
    compile_operator()
    compile_pool()
    compile_mix()
    compile_walk()
    folder = compile_run()._cache.cache_path
    return None if folder is None else Path(folder)
