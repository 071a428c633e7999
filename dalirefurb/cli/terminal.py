"""Output of a command, and what happens where it cannot be written."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Literal, TextIO

_LONGEST = 2000


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
