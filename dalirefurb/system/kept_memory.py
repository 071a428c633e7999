"""Memory that a process keeps, for fair comparisons of loaders that are made one after the other."""

from __future__ import annotations

import ctypes

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
