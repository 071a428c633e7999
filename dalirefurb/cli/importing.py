"""Imports of libraries that are written in C++, beside signals that ask the process to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def importing() -> Iterator[None]:
    """Answer signals once an import is done: where torch and DALI call Python, an exception is lost, or they abort."""
    answers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # No other one can choose how signals are answered.
        answers = {number: answer for number in _SIGNALS if callable(answer := signal.getsignal(number))}
    held: list[int] = []
    for number in answers:
        signal.signal(number, lambda number, _: held.append(number))
    try:
        yield
    finally:
        for number, answer in answers.items():
            signal.signal(number, answer)
        if held:
            answers[held[0]](held[0], None)
