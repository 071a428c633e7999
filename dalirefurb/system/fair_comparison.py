"""Fair comparison of loaders: a wait until those that make batches ahead rest, and memory that the process keeps."""

from __future__ import annotations

import ctypes
import time

_CHECK_S = 0.05
_SHARE = 0.1


def wait_until_idle(limit_s: float) -> bool:
    """Wait until no thread of this process works; return whether that was within `limit_s` seconds."""
    began = time.perf_counter()
    while time.perf_counter() - began < limit_s:
        before = time.process_time()
        time.sleep(_CHECK_S)
        if time.process_time() - before < _SHARE * _CHECK_S:
            return True
    return False


_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_memory() -> None:
    """Have the process keep what is let go of, for the next loader, where malloc is glibc's.

    Else, on a virtual machine, its host is told of it two seconds later (Linux's free page reporting), and what the
    host then does takes time from some batches of whoever has the next turn.
    """
    if hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, -1)
