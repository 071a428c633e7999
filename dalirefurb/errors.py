"""Errors: what can go wrong, and how to tell it apart.

    DalirefurbError
    ├── ConfigurationError (ValueError)    an argument, or two that do not fit together
    ├── SampleError                        one sample cannot be read or decoded; `.index`, `.name`
    ├── StoreError                         a store cannot do what it was opened for
    │   └── OutOfMemoryError (MemoryError) what is asked for exceeds the memory at hand
    ├── StateMismatchError                 a saved state belongs to another configuration, or is damaged; `.keys`
    └── LoaderError (RuntimeError)         the loader's machinery failed, or was used after `close`
        └── ReadError                      storage failed for too long; nothing is known of the sample

    UserWarning
    └── NothingKeptWarning                 a store that was not empty holds nothing that is served next

Every message says what must hold, what was given, and what to do. Of an argument these can be had as attributes.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType, TracebackType
from typing import Any, TypeVar

_Raised = TypeVar("_Raised", bound=BaseException)


class DalirefurbError(Exception):
    """Any error this package raises on purpose. It can be pickled, whatever it was made of.

    Its message is made of its parts: `argument` must be `requirement`, got `given`: `remedy`. They are attributes, None
    where they are not known.

    Args:
        said: What is wrong, if not by `requirement` and `given`; if there is an argument, what follows its name.
        argument: Name of the argument that is at fault.
        requirement: What it must be.
        given: What was given, as text.
        remedy: What to do about it.
        in_code: What else to do, which only code can, and no option of the command line.
    """

    def __init__(
        self,
        said: str = "",
        *,
        argument: str | None = None,
        requirement: str | None = None,
        given: str | None = None,
        remedy: str | None = None,
        in_code: str | None = None,
    ) -> None:
        self.argument, self.requirement, self.given = argument, requirement, given
        self.remedy, self.in_code = remedy, in_code
        self._said = said if requirement is None else f"must be {requirement}, got {given}"
        super().__init__(self.told(argument, ", or ".join(filter(None, (remedy, in_code)))))

    def told(self, argument: str | None, remedy: str | None) -> str:
        """Return the message with other words for the argument and for what to do; None: without these."""
        said = f"{argument} {self._said}" if argument else self._said
        return f"{said}: {remedy}" if remedy else said

    def __reduce__(self) -> tuple[Any, ...]:
        return BaseException.__new__, (type(self), *self.args), vars(self)


class ConfigurationError(DalirefurbError, ValueError):
    """An argument cannot work, alone or beside another."""


_REMEDY = 'see to it, or have the loader serve another in its place: bad_samples=BadSamplePolicy("replace")'


class SampleError(DalirefurbError):
    """One sample is of no use: it is gone, or cannot be decoded, or not be taken by a stage.

    Its message ends with what a loader can do about it.

    Args:
        index: Index of the sample.
        name: Name of the sample, such as its path.
        reason: Reason why the sample cannot be used.
        lasting: Whether the sample was read but is of no use, and will be of no use in another run either.
    """

    def __init__(self, index: int, name: str, reason: str, *, lasting: bool = False) -> None:
        super().__init__(f"sample {index} ({name}): {reason}; {_REMEDY}")
        self.index = index
        self.name = name
        self.reason = reason
        self.lasting = lasting


class StoreError(DalirefurbError):
    """A store cannot do what it was opened for."""


class OutOfMemoryError(StoreError, MemoryError):
    """What is asked for exceeds the memory at hand."""


class StateMismatchError(DalirefurbError):
    """A saved state belongs to another configuration, or is damaged.

    Args:
        keys: Names of what differs, the topmost alone, such as "versions.pillow".
        message: Text that names each with both values.
    """

    def __init__(self, keys: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.keys = keys


class LoaderError(DalirefurbError, RuntimeError):
    """The loader's machinery failed, or it was used after `close`."""


class ReadError(LoaderError):
    """Storage failed for longer than `BadSamplePolicy.retry_s`. Nothing is known of the sample; see `__cause__`."""


class NothingKeptWarning(UserWarning):
    """A store that was not empty holds nothing that its loader serves next, so that a run begins without hits."""


def how_to_install(extra: str) -> str:
    """Return the command that installs what one of the package's extras holds, for a message.

    >>> how_to_install("demo")
    'python -m pip install "dalirefurb[demo]", or ".[demo]" in a clone of it'
    """
    return f'python -m pip install "dalirefurb[{extra}]", or ".[{extra}]" in a clone of it'


def shortened(error: _Raised) -> _Raised:
    """Return an error, and its causes, without the way through threads and layers to where each was raised.

    What others' code did stays. Of an error that nobody meant to raise, and told nothing about, all stays.
    """
    each: BaseException | None = error
    chain: list[BaseException] = []
    while each is not None and each not in chain:
        chain.append(each)
        each.with_traceback(_last_part(each))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return error


def _last_part(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the last frame before others' code on, or its own end."""
    part = error.__traceback__
    while part is not None and part.tb_next is not None and _is_own(part.tb_next.tb_frame):
        part = part.tb_next
    meant = isinstance(error, DalirefurbError) or not isinstance(error, Exception) or hasattr(error, "__notes__")
    return part if meant or part is None or part.tb_next or not _is_own(part.tb_frame) else error.__traceback__


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of others' code that called the package, however deep; in its threads, at its own."""
    called = sys._getframe(1)
    frame: FrameType | None = called
    while frame is not None and _is_own(frame):
        frame = frame.f_back
    at = frame or called
    registry = at.f_globals.setdefault("__warningregistry__", {})
    name = at.f_globals.get("__name__") or "<string>"  # None would be silent
    warnings.warn_explicit(message, category, at.f_code.co_filename, at.f_lineno, name, registry)


_BETWEEN = ("concurrent", "contextlib", "dataclasses", "functools", "importlib", "threading")
"""Python's own, by which the package's functions call each other."""


def _is_own(frame: FrameType) -> bool:
    """Tell whether a frame says how the package works, not who uses it or what is wrong."""
    module = str(frame.f_globals.get("__name__"))
    return module.partition(".")[0] in ("dalirefurb", *_BETWEEN)
