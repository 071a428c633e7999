"""The terminal of a command: what it says, also while something takes long, and signals that come from there."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TextIO, TypeVar

_LONGEST = 2000
"""Characters of a line on standard error."""

_FIRST_S = 1.5
_LONGEST_S = 30.0
"""From one line to the next; the first ones come sooner."""

_log = logging.getLogger("dalirefurb")

Item = TypeVar("Item")


class OutputError(OSError):
    """Standard output cannot be written."""


def say(text: str) -> None:
    """Print lines at once, also into a pipe.

    Raises:
        OutputError: If they cannot be written.
        BrokenPipeError: If whoever read them has gone.
    """
    try:
        _write(sys.stdout, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output must be writable, but is not: {error.strerror}") from error


def complain(line: str) -> None:
    """Print a line on standard error, if there is any."""
    try:
        _write(sys.stderr, line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}")
    except (OSError, ValueError):
        give_up("stderr")


def escaped(text: object) -> str:
    r"""Write what does not print, such as control characters in a file's name, as Python would in a string.

    >>> escaped("caf\xe9 \x1b[31m\n\udcff")
    'café \\x1b[31m\\n\\udcff'
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text))


def one_line(text: str) -> str:
    """Join lines, and what else is divided by spaces, by one space each."""
    return " ".join(text.split())


def open_streams() -> None:
    """See to it that no file that is opened later becomes standard output or standard error.

    Raises:
        OutputError: If standard output is closed.
    """
    # A file that is opened gets the lowest number that is free.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if sys.stdout is None:
        raise OutputError("standard output must be open, but is closed; send it to /dev/null if it is not wanted")


def give_up(name: Literal["stdout", "stderr"]) -> None:
    """Send what is left in a stream's buffer nowhere, else the interpreter would complain when it flushes it."""
    stream: TextIO | None = getattr(sys, name)
    with suppress(AttributeError, OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # type: ignore[union-attr]
        os.close(null)


def _write(stream: TextIO, text: str) -> None:
    """Write lines, with escapes for what the stream's encoding lacks."""
    try:
        stream.write(f"{text}\n")
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(f"{text.encode(encoding, 'backslashreplace').decode(encoding)}\n")
    stream.flush()


@contextmanager
def waiting(what: str, done: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Say what is waited for, such as "reading photos", and how much is done, if it takes long, ever less often."""
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
    """Yield items; show a bar on standard error if all output is a terminal's, else say now and then how many are done.

    A pipe's reader may write to the same terminal at any time: a bar would be torn, or tear what that writes.
    """
    if sys.stderr.isatty() and sys.stdout.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=what, unit=unit, total=total, leave=False)
        return
    count = 0
    with waiting(what, lambda: f": {unit} {count:,} of {total:,}"):
        for item in items:
            yield item
            count += 1


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
