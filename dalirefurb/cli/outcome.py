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
from dalirefurb.cli.terminal import OutputError, complain, escaped, give_up, one_line, open_streams
from dalirefurb.errors import DalirefurbError, LoaderError, SampleError

_LEVEL = logging.INFO
"""From which on the package's log is shown."""

_PHRASES = (
    (r"^root must", "FOLDER must"),
    (
        r"^layers must be a positive integer, at most the recipe's operations",
        "--remove-layers must be at most the number of operations",
    ),
    (r"begin with a recipe that has more", "begin with more --layers"),
    (r"cannot exceed num_samples", "cannot exceed the number of images"),
    (r", or use FileList|; FileList takes files of any name", ""),
    (r"; or pass max_bytes, and what has no room is recomputed", ""),
    (
        r"use a smaller coverage .*, a smaller reuse factor or a smaller image",
        "pass a smaller --reuse-factor or --size",
    ),
    (r"pass AutoAssist\(\.\.\., (lag=\d+)\), or a smaller look_ahead.*", r"pass \1"),
    (r"ask again (after \d+ more|in the next epoch)", "train for more --epochs"),
    (r"with those of (reuse_factor=1|Standard)\b", "with those of --technique standard"),
    (r"with those of Refurbish, reuse_factor=3", "with those of --technique refurbish"),
    (r"what else takes the cores, and ask again", "what else takes the cores, and train again"),
    (r"pass a larger max_pixels to the loader", "pass a larger --max-pixels"),
    (r"Loader.bad_samples\(\) lists them, Stats.replaced counts rows", "all are listed in the end"),
)
"""What only a program can heed, and what the command line says in its place."""

_NO_OPTIONS = ("command", "folder", "path")
"""Of the attributes of what was given. A folder or path is an option of some commands only."""

_QUOTES = "'\""
_VALUE = r"""'[^']*'|"[^"]*"|[\w.+-]*\w"""


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
    """Return an error's message, whatever the names of files in it."""
    if isinstance(error, SampleError):
        remedy = ""
        if getattr(options, "on_bad_sample", None) == "raise":
            remedy = "; --on-bad-sample replace goes on with another in its place"
        return f"sample {error.index} ({escaped(error.name)}): {_in_words(error.reason, options)}{remedy}"
    return _in_words(str(error), options)


def _in_words(message: str, options: argparse.Namespace) -> str:
    """Return a message in the words of the command line, in one line that prints."""
    return escaped(in_options(one_line(message), options))


def in_options(message: str, options: argparse.Namespace) -> str:
    """Write arguments as options are written. The options' own values, such as paths, stay as they are.

    >>> options = argparse.Namespace(reuse_factor=0, on_bad_sample="raise", lag=None, folder="a/on_bad_sample is")
    >>> in_options("reuse_factor must be an int of at least 1, got 0", options)
    '--reuse-factor must be an int of at least 1, got 0'
    >>> in_options("a/on_bad_sample is bad, pass on_bad_sample='replace', or bear the lag", options)
    'a/on_bad_sample is bad, pass --on-bad-sample replace, or bear the lag'
    >>> in_options("lag must be an int", options)
    '--lag must be an int'
    """
    names = "|".join(name for name in vars(options) if name not in _NO_OPTIONS)
    if not names:
        return message
    for phrase, other in _PHRASES:
        message = re.sub(phrase, other, message)
    given = [os.fspath(value) for value in vars(options).values() if isinstance(value, (str, os.PathLike))]
    kept = [re.escape(text) for text in sorted(given, key=len, reverse=True) if "_" in text]
    argument = rf"(?<![\w./'-])(?P<name>{names})(?:=(?P<value>{_VALUE}))?(?![\w/'.(-])"

    def written(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        if name is None:
            return match[0]
        # A name that is also an English word is an argument only where something is said of it, or given to it.
        said = match.start() == 0 and message.startswith(" must", match.end())
        if "_" not in name and value is None and not said:
            return match[0]
        return f"--{name.replace('_', '-')}" + ("" if value is None else f" {value.strip(_QUOTES)}")

    return re.sub("|".join([*kept, argument]), written, message)


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
