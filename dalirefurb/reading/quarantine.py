"""Quarantine: a file of samples found to be bad before, so that no later run decodes them in vain.

One line of JSON for each, which says what source it is about: several processes may append to one file, and a person
may read it, or delete a line to have the sample tried again.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dalirefurb.checks import path_of
from dalirefurb.errors import ConfigurationError


@dataclass(frozen=True)
class BadSample:
    """A sample that cannot be used.

    Attributes:
        index: Index of the sample.
        name: Name of the sample, which tells where the source has it.
        reason: Reason why the sample cannot be used.
    """

    index: int
    name: str
    reason: str


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse what can be no file: perhaps it has no end.

    Raises:
        ConfigurationError: If there is something else, or no folder for it.
    """
    try:
        file = path_of(path)
        there = file.exists()
        reason = "it is no regular file" if there and not file.is_file() else ""
        reason = reason or ("" if there or file.parent.is_dir() else "its folder is not there")
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise _unfit(path, reason)


def _unfit(path: str | os.PathLike[str], reason: object) -> ConfigurationError:
    """Return the error of what is no such file."""
    said = f"must be a text file that can be read and written, but {path} is not: {reason}"
    return ConfigurationError(said, argument="quarantine", remedy="pass the path of a file in a folder that is there")


class Quarantine:
    """Bad samples of one source, which has such a fingerprint, in a file, which is made if it is not there.

    Raises:
        ConfigurationError: If the file cannot be written, is of another kind, or belongs to another source.
    """

    def __init__(self, path: str | os.PathLike[str], *, num_samples: int, source: Mapping[str, Any]) -> None:
        self._path = path_of(path)
        self._num_samples = num_samples
        self._source = hashlib.blake2b(json.dumps(source, sort_keys=True).encode(), digest_size=8).hexdigest()
        self._writable = True
        check_path(self._path)
        try:
            with self._path.open("a+", encoding="utf-8") as file:
                file.seek(0)
                lines = file.readlines()
        except (OSError, UnicodeDecodeError) as error:
            raise _unfit(self._path, error) from error
        self.samples = [self._parsed(number, line) for number, line in enumerate(lines, 1) if not _is_torn(line)]

    def add(self, sample: BadSample) -> None:
        """Append a sample. A file that cannot be written any more costs one warning."""
        line = json.dumps({"source": self._source, **asdict(sample)}) + "\n"
        try:
            with self._path.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    # A line that a person or a full disk left without its end is ended first.
                    line = line if file.read(1) == b"\n" else f"\n{line}"
                file.write(line.encode())
        except OSError as error:
            if self._writable:
                warnings.warn(
                    f"{self._path} cannot be written ({error}): bad samples found from now on will be decoded in vain "
                    f"by the next run, too",
                    stacklevel=2,
                )
            self._writable = False

    def _parsed(self, number: int, line: str) -> BadSample:
        try:
            values = json.loads(line)
            source = values.pop("source")
            sample = BadSample(**values)
            known = 0 <= sample.index < self._num_samples
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ConfigurationError(
                f"every line of a quarantine must be JSON with source, index, name and reason, but line {number} of "
                f"{self._path} is {line.strip()[:80]!r}: delete the line, or pass the path of another file"
            ) from error
        if source != self._source or not known:
            raise ConfigurationError(
                f"a quarantine must belong to the loader's source, {self._source}, but line {number} of {self._path} "
                f"is about sample {sample.index} ({sample.name}) of another one, {source}: pass another path, or "
                f"delete the file if the source has changed"
            )
        return sample


def _is_torn(line: str) -> bool:
    """Tell whether there is no more of a line than a full disk, or who was killed, left: nothing, or its beginning."""
    try:
        json.loads(line)
    except ValueError:
        begins = '{"source": "'
        return line.startswith(begins) or begins.startswith(line.strip())
    return False
