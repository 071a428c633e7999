"""Progress of a command: lines in the package's log while something takes long, or a bar where that is a terminal."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_FIRST_S = 1.5
_LONGEST_S = 30.0
"""From one line to the next; the first ones come sooner."""

_log = logging.getLogger("dalirefurb")

Item = TypeVar("Item")


@contextmanager
def waiting(what: str, done: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Say what is waited for if that takes long, less and less often.

    Args:
        what: What is being done, such as "reading photos".
        done: Function that says how much of it is done.
    """
    began, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        pause = _FIRST_S
        while not ended.wait(pause):
            _log.info("%s%s (%.0f s)", what, done(), time.monotonic() - began)
            pause = min(2 * pause, _LONGEST_S)

    thread = threading.Thread(target=tell, daemon=True, name="dalirefurb-progress")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def counted(items: Iterable[Item], what: str, unit: str, total: int) -> Iterator[Item]:
    """Yield items; show a bar on standard error if that is a terminal, else say now and then how many are done.

    Args:
        items: The items.
        what: What is done with them.
        unit: Word for one of them.
        total: Number of them.
    """
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=what, unit=unit, total=total, leave=False)
        return
    count = 0
    with waiting(what, lambda: f": {unit} {count:,} of {total:,}"):
        for item in items:
            yield item
            count += 1
