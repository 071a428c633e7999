"""A command's exit status, and one line about whatever went wrong. Imports come late."""

from __future__ import annotations

import argparse
import os
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dalirefurb.cli.arguments import parser
from dalirefurb.cli.terminal import OutputError, complain, escaped, give_up, one_line, open_streams
from dalirefurb.cli.wording import in_options
from dalirefurb.errors import DalirefurbError, LoaderError, SampleError


def run(arguments: Sequence[str] | None) -> int:
    """Run a command; report what goes wrong, but for an interrupt.

    Raises:
        SystemExit: If the arguments ask for help, or cannot be understood.
    """
    options = argparse.Namespace()
    try:
        open_streams()
        options = parser().parse_args(arguments)
        with _warnings_in_one_line(options):
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
        return _failed(_of_the_machine(error) or _unexpected(error), 1)
    return status


def _failed(message: str, status: int) -> int:
    complain(f"dalirefurb: error: {message}")
    return status


def _told(error: DalirefurbError, options: argparse.Namespace) -> str:
    """Return an error's message in the words of the command line, whatever the names of files in it."""
    if isinstance(error, SampleError):
        reason = escaped(in_options(one_line(error.reason), options))
        return f"sample {error.index} ({escaped(error.name)}): {reason}"
    return escaped(in_options(one_line(str(error)), options))


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


def _unexpected(error: Exception) -> str:
    """Say that this should not happen, and where the traceback is."""
    what = f"{type(error).__name__}: {escaped(one_line(str(error)))}"
    try:
        descriptor, path = tempfile.mkstemp(prefix="dalirefurb-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123
            traceback.print_exception(error, file=file)
    except OSError as failed:
        return f"this is a fault of dalirefurb's: {what}; please report it (its traceback could not be kept: {failed})"
    return f"this is a fault of dalirefurb's: {what}; please report it, with its traceback in {escaped(path)}"


@contextmanager
def _warnings_in_one_line(options: argparse.Namespace) -> Iterator[None]:
    """Show warnings as errors are shown, without the line of code they come from."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        complain(f"dalirefurb: warning: {escaped(in_options(one_line(str(message)), options))}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
