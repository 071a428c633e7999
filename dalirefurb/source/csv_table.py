"""CSV files of paths and labels, in the columns that the first row names so."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import TextIO

from dalirefurb.errors import ConfigurationError


def read_columns(path: str | os.PathLike[str], *names: str) -> tuple[list[list[str]], list[int]]:
    """Read some columns of a CSV file in UTF-8.

    Returns:
        One list of stripped texts per name, and the line in the file where each row ends.

    Raises:
        ConfigurationError: The file cannot be read, a column is missing, or a row is longer or shorter than the first.
    """
    path = os.fspath(path)
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return _read(file, path, names)
    except OSError as error:
        raise ConfigurationError(f"path must be a readable CSV file, but {path} is none: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(
            f"path must be a CSV file in UTF-8, but {path} is none ({error}): save it as such"
        ) from error


def _read(file: TextIO, path: str, names: tuple[str, ...]) -> tuple[list[list[str]], list[int]]:
    rows = csv.reader(file, strict=True)
    header = [name.strip() for name in next(rows, [])]
    for name in names:
        if header.count(name) != 1:
            count = "twice or more" if name in header else "not there"
            raise ConfigurationError(
                f"{path} must have one column {name!r}, but it is {count} in its first row, {header}: "
                "pass its name as image= or label="
            )
    places = [header.index(name) for name in names]
    columns: list[list[str]] = [[] for _ in names]
    lines = []
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            raise ConfigurationError(
                f"{path}, line {rows.line_num}: a row must have {len(header)} fields as the first one has, but has "
                f"{len(row)}: put fields with commas in double quotes"
            )
        for column, place in zip(columns, places, strict=True):
            column.append(row[place].strip())
        lines.append(rows.line_num)
    return columns, lines
