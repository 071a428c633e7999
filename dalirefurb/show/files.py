"""Picture files: PNGs, written whole or not at all; and whether a file can be written, before it is made."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dalirefurb.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(path: Path, figure: Figure, *, option: str = "--out") -> None:
    """Write a figure as a PNG, which is replaced if it is there, to a path that an option has named; see `writing`."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    with writing(path, option=option), path.open("wb") as file:
        try:
            file.write(content.getbuffer())
            file.flush()
        except BaseException:
            if path.is_file():  # and no device
                path.unlink()
            raise


def check_writable(path: Path, *, option: str = "--out") -> None:
    """Refuse a path where no picture can be written, before it is made, or is named as no PNG; see `check_file`."""
    if path.suffix.lower() not in ("", ".png"):
        raise ConfigurationError(
            f"the picture is a PNG, but {path} is named as another kind of file: name it {path.stem}.png with {option}"
        )
    check_file(path, option=option)


def check_file(path: Path, *, what: str = "picture", option: str) -> None:
    """Refuse a path where no file can be written, before what is to be in it is made. Nothing is left there."""
    with writing(path, what=what, option=option):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_file():
            path.open("r+b").close()
        elif not os.path.lexists(path):
            path.open("xb").close()
            path.unlink()


def check_folder(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder into which pictures cannot be written; it need not be there. Nothing is left there."""
    try:
        with folder_made(folder):
            for name in names:
                check_writable(folder / name)
    except OSError as error:
        raise ConfigurationError(
            f"the pictures' folder must be writable, but {folder} cannot be made: {error.strerror}; "
            f"name another with --out"
        ) from error


@contextmanager
def folder_made(folder: Path) -> Iterator[None]:
    """Have a folder meanwhile; of it and those above it, what was not there goes again if nothing is in it."""
    new = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for each in new:
            with suppress(OSError):
                each.rmdir()


@contextmanager
def writing(path: Path, *, what: str = "picture", option: str = "--out") -> Iterator[None]:
    """Raise a `ConfigurationError` of a path that cannot be written, or of a full disk."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the {what}'s path must be writable and have room, but writing {path} fails: "
            f"{error.strerror or error}; name another with {option}"
        ) from error
