"""Outcome of a command: its exit status, and one line about whatever went wrong, in the words of the command line."""

from __future__ import annotations

import argparse
import logging
import os
import re
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dalirefurb.cli.arguments import parser
from dalirefurb.cli.techniques import flag
from dalirefurb.cli.terminal import OutputError, complain, escaped, give_up, one_line, open_streams
from dalirefurb.errors import DalirefurbError, LoaderError, SampleError

_LEVEL = logging.INFO
"""From which on the package's log is shown."""

_CALLED = {"root": "FOLDER", "layers": "--remove-layers"}
"""Arguments of what is called that the command line calls otherwise."""

_PASSED = re.compile(r"""(?<![\w./-])(\w+)=('[^']*'|[\w.+-]*\w)""")
"""An argument as it is passed, with its value."""


def run(arguments: Sequence[str] | None) -> int:
    """Run a command; report what goes wrong, but for an interrupt.

    Raises:
        SystemExit: If the arguments ask for help, or cannot be understood.
    """
    options = argparse.Namespace()
    try:
        open_streams()
        options = parser().parse_args(arguments)
        with _log_in_lines(options), warnings.catch_warnings():
            # A warning is shown as errors are, without the line of code that it comes from.
            warnings.showwarning = lambda message, *_, **__: complain(
                f"dalirefurb: warning: {_in_words(str(message), options)}"
            )
            status: int = options.command(options) or 0
    except BrokenPipeError:
        give_up("stdout")
        return 141
    except OutputError as error:
        give_up("stdout")
        return _failed(str(error), 1)
    except DalirefurbError as error:
        return _failed(_told(error, options), 1 if isinstance(error, (SampleError, LoaderError)) else 2)
    except Exception as error:
        if (interrupt := _interrupt_behind(error)) is not None:
            raise interrupt from None
        return _failed(_of_the_machine(error) or _unexpected(error), 1)
    return status


class _Lines(logging.Handler):
    """Shows the package's log as errors are shown, a line for each record."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self._options = options

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record on standard error."""
        kind = "warning: " if record.levelno >= logging.WARNING else ""
        if isinstance(record.args, tuple):  # Names of files have any characters.
            record.args = tuple(escaped(value) if isinstance(value, str) else value for value in record.args)
        message = _in_words(record.getMessage().removeprefix("dalirefurb "), self._options)
        complain(f"dalirefurb: {kind}{message}")


@contextmanager
def _log_in_lines(options: argparse.Namespace) -> Iterator[None]:
    log, lines = logging.getLogger("dalirefurb"), _Lines(options)
    before = log.level, log.propagate
    log.addHandler(lines)
    log.setLevel(_LEVEL)
    log.propagate = False
    try:
        yield
    finally:
        log.setLevel(before[0])
        log.propagate = before[1]
        log.removeHandler(lines)


def _failed(message: str, status: int) -> int:
    complain(f"dalirefurb: error: {message}")
    return status


def _told(error: DalirefurbError, options: argparse.Namespace) -> str:
    """Return an error's message in the words of the command line, whatever the names of files in it."""
    if isinstance(error, SampleError):
        remedy = ""
        if getattr(options, "on_bad_sample", None) == "raise":
            remedy = "; --on-bad-sample replace goes on with another in its place"
        return f"sample {error.index} ({escaped(error.name)}): {_in_words(error.reason, options)}{remedy}"
    argument = error.argument
    if argument is not None:
        argument = _CALLED.get(argument) or (flag(argument) if hasattr(options, argument) else argument)
    return escaped(one_line(error.told(argument, in_options(error.remedy or "", options))))


def _in_words(message: str, options: argparse.Namespace) -> str:
    """Return a message in the words of the command line, in one line that prints."""
    return escaped(in_options(one_line(message), options))


def in_options(message: str, options: argparse.Namespace) -> str:
    """Write arguments that are passed as options are written, those that there are.

    >>> options = argparse.Namespace(on_bad_sample="raise", lag=None)
    >>> in_options("a/lag=3 is bad: pass on_bad_sample='replace', or bear the lag of lag=4, look_ahead=1", options)
    'a/lag=3 is bad: pass --on-bad-sample replace, or bear the lag of --lag 4, look_ahead=1'
    """

    def written(match: re.Match[str]) -> str:
        name, value = match.groups()
        return f"{flag(name)} {value}".replace("'", "") if hasattr(options, name) else match[0]

    return _PASSED.sub(written, message)


def _of_the_machine(error: Exception) -> str | None:
    """Say what the machine lacks; None if that is not it."""
    # torch raises a RuntimeError.
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        why = escaped(one_line(str(error))) or "no more can be had"
        return f"there must be enough memory, but it is used up ({why}); ask for less"
    if isinstance(error, OSError):
        named = f"{escaped(os.fsdecode(error.filename))}: " if isinstance(error.filename, (str, bytes)) else ""
        return f"{named}{escaped(one_line(error.strerror or str(error)))}; see to it, and start again"
    return None


def _interrupt_behind(error: BaseException | None) -> BaseException | None:
    """Return the interrupt during whose handling an error was raised, as torch's of a worker that was ended."""
    while isinstance(error, Exception):
        error = error.__context__
    return error


def _unexpected(error: Exception) -> str:
    """Say that this should not happen, and where the traceback is."""
    what = f"{type(error).__name__}: {escaped(one_line(str(error)))}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="dalirefurb-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError as failed:
        return f"this is a fault of dalirefurb's: {what}; please report it (its traceback could not be kept: {failed})"
    return f"this is a fault of dalirefurb's: {what}; please report it, with its traceback in {escaped(file.name)}"
