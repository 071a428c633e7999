"""A wait until this process's other threads rest, for fair comparisons of loaders, which make batches ahead."""

from __future__ import annotations

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
